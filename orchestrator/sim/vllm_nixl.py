"""vLLM's NIXL hand-off: leased KV blocks on the prefill side, pulled by block id from the decode side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from orchestrator.sim.frames import FrameConnection, Message, connect, listen
from orchestrator.sim.generation import Generation
from orchestrator.sim.host import Host
from orchestrator.sim.jobs import Mode
from orchestrator.sim.replies import Reply
from orchestrator.sim.text import corrupt

HANDSHAKE_S = 5.0
"""How long a first contact with a side channel may take."""

Address = tuple[str, int]
NAMES = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


class NixlSide:
    """Both sides of the hand-off: roles are cosmetic, as they are on the real engine.

    Reads are one-sided. Whoever names a block gets what is in it, whosever it is by now.
    """

    def __init__(
        self, host: Host, fail: Callable[[Generation], None], dead: Callable[[Generation], None]
    ) -> None:
        self._host = host
        self._fail = fail
        self._dead = dead
        self.engine_id = f"{host.hexid(8)}-{host.hexid(4)}-{host.hexid(4)}-{host.hexid(4)}-{host.hexid(12)}"
        self.port = 0
        self._listener: asyncio.AbstractServer | None = None
        self._sessions: dict[Address, FrameConnection] = {}
        self._known: set[Address] = set()
        self._wanted: dict[str, dict[str, Any]] = {}
        """Params by generation, until the KV is here or given up."""
        self._pulled: dict[str, list[int]] = {}
        self._beat: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Open the side channel."""
        options = self._host.options
        self._listener, self.port = await listen(
            options.side_channel_host, options.side_channel_port, self._heard, lambda _: None
        )

    def close(self) -> None:
        """Let go of peers."""
        if self._listener is not None:
            self._listener.close()
        for session in list(self._sessions.values()):
            session.close()

    # -- prefill side -------------------------------------------------------------------------------

    def lease(self, gen: Generation) -> None:
        """Prefill, and hold the KV for whoever pulls it."""
        self._host.engine.admit(gen, Mode.PREFILL, lease_s=self._host.options.lease_s)

    def prefilled(self, gen: Generation) -> None:
        """The answer goes out at once; the KV stays."""
        gen.done = gen.reason
        if isinstance(gen.owner, Reply):
            gen.owner.extra["kv_transfer_params"] = self.params(gen)

    def params(self, gen: Generation) -> dict[str, Any]:
        """What the prefill leg answers with, for the decode leg."""
        job = gen.job
        assert job is not None
        return {
            "do_remote_prefill": True, "do_remote_decode": False,
            "remote_block_ids": [list(job.blocks)], "remote_engine_id": self.engine_id,
            "remote_request_id": gen.id, "remote_host": self._host.options.side_channel_host,
            "remote_port": self.port, "tp_size": 1, "dcp_size": 1, "pp_size": 1,
            "remote_num_tokens": len(gen.prompt), "remote_blocks_expiry_time": None,
            "transfer_mode": "pull", "remote_prefill_cached_tokens": gen.cached_tokens,
        }  # fmt: skip

    def _heard(self, connection: FrameConnection, message: Message) -> None:
        op, engine = message.get("op"), self._host.engine
        if op == "meta":
            connection.answer(message, {"engine_id": self.engine_id})
        elif op == "read":
            engine.catch_up()
            blocks = message["blocks"]
            if all(isinstance(block, int) and 0 <= block < len(engine.contents) for block in blocks):
                connection.answer(message, {"states": [engine.contents[block] for block in blocks]})
            else:
                connection.answer(message, {"error": "NIXL_ERR_INVALID_PARAM"})
        elif op == "done":
            gen = engine.generations.get(message["request_id"])
            if gen is None or not engine.release(gen):
                self._host.stats.late_notifications += 1
        elif op == "beat":
            until_s = engine.catch_up() + self._host.options.lease_s * 2 / 3
            for name in message["request_ids"]:
                engine.model.renew(name, until_s)

    # -- decode side --------------------------------------------------------------------------------

    def pull(self, gen: Generation, params: dict[str, Any]) -> None:
        """Decode from another engine's KV. Nonsense in `params` does what it does to the real engine."""
        groups = params.get("remote_block_ids")
        blocks = groups[0] if isinstance(groups, list) and groups and isinstance(groups[0], list) else groups
        if not blocks:
            self._dead(gen)
            return
        if any(params.get(name) is None for name in NAMES) or not isinstance(params["remote_port"], int):
            # "Got invalid KVTransferParams": the request waits for KV that nobody asks for.
            return
        self._wanted[gen.id] = {**params, "blocks": blocks}
        self._host.engine.admit(gen, Mode.DECODE)
        if self._beat is None:
            self._schedule_beat()

    def reserved(self, gen: Generation) -> None:
        """Memory is there: pull."""
        self._host.spawn(self._pull(gen))

    async def _pull(self, gen: Generation) -> None:
        want, job, engine = self._wanted.get(gen.id), gen.job, self._host.engine
        if want is None or job is None:
            return
        missing = (
            engine.model.memory.blocks_for(job.prompt_tokens) - job.hit_tokens // self._host.options.page_size
        )
        if len(want["blocks"]) < missing:
            self._dead(gen)
            return
        address = (str(want["remote_host"]), int(want["remote_port"]))
        peer = f"{address[0]}:{address[1]}"
        if self._host.faults.strike("no-kv", peer=peer) is not None:
            return
        try:
            session = await self._session(address, str(want["remote_engine_id"]))
            # The last ones: what the own cache has is the head of the prompt.
            answer = await session.ask({"op": "read", "blocks": want["blocks"][-missing:]})
            states = answer["states"]
        except (OSError, TimeoutError, LookupError, ValueError):
            self._lost(gen)
            return
        if gen.id not in self._wanted:
            return
        if self._host.faults.strike("garbage", peer=peer) is not None:
            states = [corrupt(state, 1) for state in states]
        self._pulled[gen.id] = states
        engine.fetch(gen, job.prompt_tokens - job.hit_tokens)

    def _lost(self, gen: Generation) -> None:
        """The KV cannot be had."""
        self._host.stats.failed_transfers += 1
        if self._wanted.pop(gen.id, None) is None:
            return
        if self._host.options.recompute:
            self._host.engine.recompute(gen)
        else:
            self._fail(gen)

    def arrived(self, gen: Generation) -> None:
        """The KV is here: tell its holder, check nothing, go on."""
        job, engine = gen.job, self._host.engine
        want, states = self._wanted.pop(gen.id, None), self._pulled.pop(gen.id, None)
        if want is None or states is None or job is None:
            return
        self.notify(want)
        gen.cached = want.get("remote_prefill_cached_tokens") or 0
        first = job.hit_tokens // self._host.options.page_size
        for block, state in zip(job.blocks[first:], states, strict=True):
            engine.contents[block] = state
        whole = job.prompt_tokens // self._host.options.page_size
        spoiled = engine.spoiled(gen, job.blocks[:whole])
        if spoiled is None and whole < len(job.blocks) and engine.contents[job.blocks[whole]] != gen.final:
            spoiled = engine.contents[job.blocks[whole]]
        if spoiled is not None:
            gen.spoiled = True
            engine.replan(gen, corrupt(gen.final, spoiled))
        engine.receive(gen, first_token=False)

    def sent(self, gen: Generation) -> None:
        """KV is pulled, never sent."""

    def cancelled(self, gen: Generation) -> None:
        """A request that will not pull its KV lets its holder free it."""
        self._pulled.pop(gen.id, None)
        want = self._wanted.pop(gen.id, None)
        if want is not None:
            self.notify(want)

    def notify(self, params: dict[str, Any]) -> None:
        """Tell the holder of KV that it is not needed any more."""
        if all(params.get(name) is not None for name in NAMES) and isinstance(params["remote_port"], int):
            address = (str(params["remote_host"]), int(params["remote_port"]))
            message = {"op": "done", "request_id": params["remote_request_id"]}
            self._host.spawn(self._tell(address, str(params["remote_engine_id"]), message))

    async def _tell(self, address: Address, engine_id: str, message: Message) -> None:
        """Send what wants no answer, if the engine is there."""
        try:
            session = await self._session(address, engine_id)
        except (OSError, TimeoutError, LookupError):
            return
        session.send(message)

    async def _session(self, address: Address, engine_id: str) -> FrameConnection:
        """A connection to the engine of that id. Raises OSError, TimeoutError, LookupError."""
        session = self._sessions.get(address)
        if session is None or not session.alive:
            session = await self._connect(address)
            self._sessions[address] = session
            self._known.add(address)
        meta = await session.ask({"op": "meta"}, self._host.clock.real_s(HANDSHAKE_S))
        if meta.get("engine_id") != engine_id:
            raise LookupError(f"engine {engine_id} is not at {address}")
        return session

    async def _connect(self, address: Address) -> FrameConnection:
        deadline_s = self._host.wall.now_s() + self._host.clock.real_s(HANDSHAKE_S)
        while True:
            try:
                return await connect(*address, lambda c, m: None, lambda c: None, 1.0)
            except (OSError, TimeoutError):
                # An engine met before is known to be gone; a stranger may still be coming up.
                if address in self._known or self._host.wall.now_s() >= deadline_s:
                    self._known.discard(address)
                    raise
            await self._host.sleep(HANDSHAKE_S / 50)

    def _schedule_beat(self) -> None:
        self._beat = self._host.later(self._host.options.lease_s / 6, self._heartbeat)

    def _heartbeat(self) -> None:
        """Renew the leases of all KV still to be pulled."""
        self._beat = None
        by_engine: dict[tuple[str, int, str], list[str]] = {}
        for want in self._wanted.values():
            key = (str(want["remote_host"]), int(want["remote_port"]), str(want["remote_engine_id"]))
            by_engine.setdefault(key, []).append(want["remote_request_id"])
        for (host, port, engine_id), names in by_engine.items():
            self._host.spawn(self._tell((host, port), engine_id, {"op": "beat", "request_ids": names}))
        if self._wanted:
            self._schedule_beat()
