"""The decode side of SGLang's hand-off: one session per prefill engine, and the rooms KV is awaited in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson

from orchestrator.sim.fetching import get
from orchestrator.sim.frames import EVERYWHERE, FrameConnection, Message, connect
from orchestrator.sim.generation import Generation
from orchestrator.sim.host import Host
from orchestrator.sim.jobs import Mode
from orchestrator.sim.sglang_prefill import FAKE_BOOTSTRAP_HOST
from orchestrator.sim.text import corrupt
from orchestrator.wire.client import Pool, WireError

WAITING_TIMEOUT_S = 300.0
"""Default of SGLANG_DISAGGREGATION_WAITING_TIMEOUT."""

HANDSHAKE_TRIES = 15
"""A bootstrap server that does not answer is asked this often, one second apart."""


Address = tuple[str, int]


class DecodeSide:
    """Generations that wait for KV, by room; sessions by bootstrap address, as the real engine keeps them."""

    def __init__(self, host: Host, fail: Callable[[Generation, str], None]) -> None:
        env_s = host.options.env_s
        self._host = host
        self._fail = fail
        self._timeout_s = env_s("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", WAITING_TIMEOUT_S)
        # Two missed heartbeats, as the real engine needs to notice a dead peer.
        self._notice_s = max(2.0, env_s("SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL", 5.0)) * max(
            1.0, env_s("SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE", 2.0)
        )
        self._pool = Pool(connect_timeout_s=1.0)
        self._addresses: dict[str, Address] = {}
        self._rooms: dict[int, Generation] = {}
        self._sessions: dict[Address, asyncio.Future[FrameConnection]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def close(self) -> None:
        """Let the sessions go."""
        for session in self._sessions.values():
            if session.done() and not session.cancelled() and session.exception() is None:
                session.result().close()

    def begin(self, gen: Generation, room: int, host: str | None, port: int) -> None:
        """Take a generation in. A room without a host crashes the process, as it does the real scheduler."""
        if host is None:
            self._host.die("AttributeError: 'NoneType' object has no attribute 'strip' (bootstrap_host)")
            return
        gen.room = room
        self._addresses[gen.id] = (host, port)
        # The newest in a room gets its KV; an older one is never heard of again, nor timed out.
        older = self._rooms.get(room)
        if older is not None:
            self._stop_timer(older)
        self._rooms[room] = gen
        self._host.engine.admit(gen, Mode.DECODE)

    def reserved(self, gen: Generation) -> None:
        """Memory is there: ask for the KV."""
        address = self._addresses[gen.id]
        if address[0] == FAKE_BOOTSTRAP_HOST:
            self._receive(gen, corrupt(gen.final, 0), 0)
        else:
            self._host.spawn(self._ask(gen, address))

    def arrived(self, gen: Generation) -> None:
        """KV is pushed here, never fetched."""

    def prefilled(self, gen: Generation) -> None:
        """Nothing is prefilled here for others."""

    def sent(self, gen: Generation) -> None:
        """Nothing is sent from here."""

    def cancelled(self, gen: Generation) -> None:
        """The generation is gone."""
        self._stop_timer(gen)
        self._addresses.pop(gen.id, None)
        if gen.room is not None and self._rooms.get(gen.room) is gen:
            del self._rooms[gen.room]

    def aborted(self, gen: Generation) -> str:
        """What a request that is aborted while it waits is told."""
        return self._failure("transfer", gen, "Aborted by AbortReq.")

    async def _ask(self, gen: Generation, address: Address) -> None:
        peer = f"{address[0]}:{address[1]}"
        if self._host.faults.strike("no-kv", peer=peer) is None:
            try:
                session = await self._session(address)
            except (OSError, TimeoutError, WireError, ValueError) as error:
                why = str(error) if isinstance(error, ValueError) else "Aborted by AbortReq."
                self._fail(gen, self._failure("handshake", gen, why))
                return
            own = f"{self._host.options.host}:{self._host.port}"
            session.send({"room": gen.room, "from": own})
        if gen.id in self._addresses and gen.done is None and self._current(gen):
            self._timers[gen.id] = self._host.later(self._timeout_s, lambda: self._timed_out(gen))

    def _current(self, gen: Generation) -> bool:
        return gen.room is not None and self._rooms.get(gen.room) is gen

    async def _session(self, address: Address) -> FrameConnection:
        """The connection to a prefill engine; made once, and anew when it was lost."""
        session = self._sessions.get(address)
        if session is None:
            session = asyncio.ensure_future(self._connect(address))
            self._sessions[address] = session
        try:
            connection = await asyncio.shield(session)
        except BaseException:
            if self._sessions.get(address) is session:
                del self._sessions[address]
            raise
        return connection

    async def _connect(self, address: Address) -> FrameConnection:
        host, port = address
        for attempt in range(HANDSHAKE_TRIES):
            if attempt:
                await self._host.sleep(1.0)
            try:
                topology = await self._get_route(host, port, -1)
                rank = await self._get_route(host, port, 0)
                page = topology["page_size"]
                if page != self._host.options.page_size:
                    raise ValueError(
                        f"page size mismatch: prefill {page}, decode {self._host.options.page_size}"
                    )
                ip = str(rank["rank_ip"])
                return await connect(
                    # A peer that listens everywhere is where its bootstrap server is.
                    host if ip in EVERYWHERE else ip,
                    int(str(rank["rank_port"])), self._heard,
                    lambda connection: self._lost(address, connection), 1.0,
                )  # fmt: skip
            except (OSError, TimeoutError, WireError, LookupError):
                continue
        raise TimeoutError(f"no bootstrap server at {host}:{port}")

    async def _get_route(self, host: str, port: int, rank: int) -> dict[str, object]:
        names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
        query = "&".join(f"{name}={rank}" for name in names)
        status, body = await get(self._pool, host.strip("[]"), port, f"/route?{query}", 5.0)
        found = orjson.loads(body) if status == 200 else {}
        if not isinstance(found, dict) or not found:
            raise LookupError(f"{host}:{port} is not registered: {body!r}")
        return found

    def _heard(self, connection: FrameConnection, message: Message) -> None:
        """KV has come for a room."""
        room, state = message.get("room"), message.get("state")
        gen = self._rooms.get(room) if isinstance(room, int) else None
        if gen is None or gen.id not in self._addresses or not isinstance(state, int):
            return
        host, port = self._addresses[gen.id]
        if self._host.faults.strike("garbage", peer=f"{host}:{port}") is not None:
            state = corrupt(state, 1)
        self._receive(gen, state, int(message.get("cached") or 0))

    def _receive(self, gen: Generation, state: int, cached: int) -> None:
        self._stop_timer(gen)
        self._addresses.pop(gen.id, None)
        if self._current(gen) and gen.room is not None:
            del self._rooms[gen.room]
        gen.cached = cached
        self._host.engine.take_over(gen, state, first_token=True)

    def _lost(self, address: Address, connection: FrameConnection) -> None:
        """A prefill engine is gone: whoever waits for it is told once the heartbeats have been missed."""
        self._sessions.pop(address, None)
        self._host.stats.failed_transfers += 1
        waiting = [gen for gen in self._rooms.values() if self._addresses.get(gen.id) == address]
        why = f"Lost connection with prefill instance (bootstrap_addr: {address[0]}:{address[1]})"
        self._host.later(self._notice_s, lambda: self._give_up(waiting, why))

    def _give_up(self, waiting: list[Generation], why: str) -> None:
        for gen in waiting:
            if gen.id in self._addresses:
                self._fail(gen, self._failure("transfer", gen, why))

    def _timed_out(self, gen: Generation) -> None:
        self._host.stats.failed_transfers += 1
        why = f"Request {gen.room} timed out after {self._timeout_s}s in KVPoll.WaitingForInput"
        self._fail(gen, self._failure("transfer", gen, why))

    def _stop_timer(self, gen: Generation) -> None:
        timer = self._timers.pop(gen.id, None)
        if timer is not None:
            timer.cancel()

    @staticmethod
    def _failure(stage: str, gen: Generation, why: str) -> str:
        return (
            f"Decode {stage} failed for request rank=0 decode_req.req.rid={gen.id!r} "
            f"decode_req.req.bootstrap_room={gen.room} with exception "
            f"KVTransferError(bootstrap_room={gen.room}): {why}"
        )
