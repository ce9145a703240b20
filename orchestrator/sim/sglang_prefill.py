"""The prefill side of SGLang's hand-off: the bootstrap server, and the rooms that KV is sent to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson

from orchestrator.sim.frames import FrameConnection, Message, listen
from orchestrator.sim.generation import Generation
from orchestrator.sim.host import Host, answer
from orchestrator.sim.jobs import Mode
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.server import Server, serve

FAKE_BOOTSTRAP_HOST = "2.2.2.2"
"""SGLang's own probe address: a hand-off to nobody."""

BOOTSTRAP_TIMEOUT_S = 300.0
"""Default of SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT."""

GenerationFailed = Callable[[Generation, str], None]


class PrefillSide:
    """Rooms by number: a generation waits in its room until a decode engine asks for its KV.

    As on the real engine, a second live generation in a room crashes the process.
    """

    def __init__(self, host: Host, fail: GenerationFailed) -> None:
        self._host = host
        self._fail = fail
        self._timeout_s = host.options.env_s("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", BOOTSTRAP_TIMEOUT_S)
        self._rooms: dict[int, Generation] = {}
        self._asked: dict[int, tuple[FrameConnection, str]] = {}
        """Who has asked for a room's KV; before or after the room's own request came."""
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._dp_ranks: dict[str, int] = {}
        self._server: Server | None = None
        self._listener: asyncio.AbstractServer | None = None
        self._rank_port = 0
        self.bootstrap_port = 0
        self.registered = host.options.role == "prefill"
        """Whether the ranks have registered with it: of a decode engine, only once it was switched."""

    async def start(self) -> None:
        """Open the bootstrap server, as early as the real one does: before the model is loaded."""
        options = self._host.options
        self._listener, self._rank_port = await listen(options.host, 0, self._heard, self._lost)
        self._server = await serve(self._serve, host=options.host, port=options.bootstrap_port)
        self.bootstrap_port = self._server.port

    def close(self) -> None:
        """Stop listening."""
        for server in (self._server, self._listener):
            if server is not None:
                server.close()

    def state(self) -> dict[str, int]:
        """How many rooms are occupied, and how many were asked for."""
        return {"rooms": len(self._rooms), "asked": len(self._asked)}

    def begin(self, gen: Generation, room: int, host: str | None) -> None:
        """Take a generation in. Its reply comes when its KV has been sent."""
        gen.hold = True
        if host == FAKE_BOOTSTRAP_HOST:
            self._host.engine.admit(gen, Mode.PREFILL, private=True)
            return
        if room in self._rooms:
            self._host.die(
                f"Unexpected poll state 4 for bootstrap_room={room} in pop_bootstrapped: two live requests"
            )
            return
        gen.room = room
        self._rooms[room] = gen
        gated = room not in self._asked
        if gated:
            self._timers[room] = self._host.later(self._timeout_s, lambda: self._timed_out(gen, room))
        optimistic = self._host.options.optimistic_prefill
        self._host.engine.admit(gen, Mode.PREFILL, gated=gated, optimistic=optimistic)

    def aborted(self, gen: Generation) -> str:
        """What a request that is aborted in its room is told."""
        return self._failure(gen, "Aborted by AbortReq.")

    def reserved(self, gen: Generation) -> None:
        """KV never comes to a prefill engine."""

    def arrived(self, gen: Generation) -> None:
        """KV never comes to a prefill engine."""

    def prefilled(self, gen: Generation) -> None:
        """Nothing to do: the KV leaves by itself."""

    def sent(self, gen: Generation) -> None:
        """The transfer is over: hand the KV to whoever asked for it, and let the request be answered."""
        room = gen.room
        if room is None:
            return
        asked = self._asked.get(room)
        self._forget(gen)
        if asked is None:
            return
        connection, peer = asked
        if self._host.faults.strike("no-kv", peer=peer) is None:
            connection.send({
                "room": room,
                "state": gen.state,
                "cached": gen.cached_tokens,
                "tokens": len(gen.prompt),
            })  # fmt: skip

    def cancelled(self, gen: Generation) -> None:
        """The generation is gone."""
        self._forget(gen)

    def _forget(self, gen: Generation) -> None:
        room = gen.room
        if room is not None and self._rooms.get(room) is gen:
            del self._rooms[room]
            self._asked.pop(room, None)
            timer = self._timers.pop(room, None)
            if timer is not None:
                timer.cancel()

    def _timed_out(self, gen: Generation, room: int) -> None:
        self._host.stats.failed_bootstraps += 1
        self._fail(
            gen,
            self._failure(gen, f"Request {room} timed out after {self._timeout_s}s in KVPoll.Bootstrapping"),
        )

    @staticmethod
    def _failure(gen: Generation, why: str) -> str:
        return (
            f"Prefill bootstrap failed for request rank=0 req.rid={gen.id!r} req.bootstrap_room={gen.room} "
            f"with exception KVTransferError(bootstrap_room={gen.room}): {why}"
        )

    def _heard(self, connection: FrameConnection, message: Message) -> None:
        """A decode engine is ready to receive a room's KV."""
        room = message.get("room")
        if not isinstance(room, int):
            connection.close()
            return
        self._asked[room] = (connection, str(message.get("from")))
        gen = self._rooms.get(room)
        if gen is None:
            self._host.later(self._timeout_s, lambda: self._nobody_came(room))
        else:
            timer = self._timers.pop(room, None)
            if timer is not None:
                timer.cancel()
            self._host.engine.ungate(gen)

    def _nobody_came(self, room: int) -> None:
        if room not in self._rooms:
            self._asked.pop(room, None)

    def _lost(self, connection: FrameConnection) -> None:
        gone = [room for room, (other, _) in self._asked.items() if other is connection]
        for room in gone:
            if room not in self._rooms:
                del self._asked[room]

    def _serve(self, exchange: Exchange) -> None:
        """The bootstrap server's routes."""
        key = (exchange.method, exchange.path)
        if key == ("GET", "/health"):
            answer(exchange, 200, b"OK", ((b"content-type", b"text/plain; charset=utf-8"),))
        elif key == ("GET", "/route"):
            self._route(exchange)
        elif key == ("PUT", "/route"):
            answer(exchange, 200, b"OK", ((b"content-type", b"text/plain; charset=utf-8"),))
        elif key == ("POST", "/register_dp_rank"):
            body = orjson.loads(exchange.body)
            self._dp_ranks[str(body.get("bootstrap_room"))] = int(body.get("dp_rank", 0))
            answer(exchange, 200, b"OK", ((b"content-type", b"text/plain; charset=utf-8"),))
        elif key == ("POST", "/query_dp_ranks"):
            rooms = [str(room) for room in orjson.loads(exchange.body).get("bootstrap_rooms", ())]
            known = {room: self._dp_ranks[room] for room in rooms if room in self._dp_ranks}
            answer(exchange, 200, orjson.dumps(known))
        else:
            answer(exchange, 404, b"404: Not Found", ((b"content-type", b"text/plain; charset=utf-8"),))

    def _route(self, exchange: Exchange) -> None:
        query = dict(part.partition("=")[::2] for part in exchange.query.decode("latin-1").split("&"))
        names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
        plain = ((b"content-type", b"text/plain; charset=utf-8"),)
        if any(name not in query for name in names):
            answer(exchange, 400, b"Missing inputs for bootstrap server.", plain)
        elif not self._host.loaded or not self.registered:
            answer(exchange, 503, b"Prefill server not fully registered yet (0 workers registered).", plain)
        elif all(query[name] == "-1" for name in names):
            answer(exchange, 200, orjson.dumps(self._topology()))
        elif all(query[name] == "0" for name in names):
            rank = {"rank_ip": self._host.options.host, "rank_port": self._rank_port}
            answer(exchange, 200, orjson.dumps(rank))
        else:
            answer(exchange, 404, b"Bootstrap info not Found", plain)

    def _topology(self) -> dict[str, object]:
        return {
            "attn_tp_size": 1,
            "attn_cp_size": 1,
            "dp_size": 1,
            "pp_size": 1,
            "page_size": self._host.options.page_size,
            "kv_cache_dtype": "auto",
            "follow_bootstrap_room": True,
            "decode_allocation_policy": "early",
            "prefill_http_port": self._host.port,
            **self._host.options.tells.get("route", {}),
        }
