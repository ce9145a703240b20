"""vLLM's Mooncake hand-off: both legs at once, matched by a transfer id, found through a bootstrap server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import orjson

from orchestrator.sim.fetching import get
from orchestrator.sim.frames import EVERYWHERE, FrameConnection, Message, connect, listen
from orchestrator.sim.generation import Generation
from orchestrator.sim.host import Host, answer
from orchestrator.sim.jobs import Mode
from orchestrator.sim.text import corrupt
from orchestrator.wire.client import Pool, WireError
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.server import Server, serve

ABORT_TIMEOUT_S = 480.0
"""Default of VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT: how long either side waits for the other."""


class MooncakeSide:
    """Producer and consumer. A producer holds a prompt's KV under its transfer id until it is asked for."""

    def __init__(self, host: Host, fail: Callable[[Generation], None]) -> None:
        self._host = host
        self._fail = fail
        self._timeout_s = host.options.env_s("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", ABORT_TIMEOUT_S)
        self.engine_id = f"{host.hexid(8)}-{host.hexid(4)}-{host.hexid(4)}-{host.hexid(4)}-{host.hexid(12)}"
        self.bootstrap_port = 0
        self._server: Server | None = None
        self._listener: asyncio.AbstractServer | None = None
        self._worker_port = 0
        self._pool = Pool(connect_timeout_s=1.0)
        self._held: dict[str, Generation] = {}
        self._asked: dict[str, tuple[FrameConnection, Message]] = {}
        self._transfers: dict[str, str] = {}
        """Transfer id by generation."""
        self._wanted: dict[str, dict[str, Any]] = {}

    async def start(self) -> None:
        """Open the worker's port, and a producer's bootstrap server."""
        options = self._host.options
        self._listener, self._worker_port = await listen(options.host, 0, self._heard, lambda _: None)
        if options.role == "prefill":
            self._server = await serve(self._serve, host=options.host, port=options.bootstrap_port)
            self.bootstrap_port = self._server.port

    def close(self) -> None:
        """Stop listening."""
        for server in (self._server, self._listener):
            if server is not None:
                server.close()

    def _serve(self, exchange: Exchange) -> None:
        if (exchange.method, exchange.path) != ("GET", "/query"):
            answer(exchange, 404, b'{"detail":"Not Found"}')
            return
        host = self._host.options.host
        worker = f"tcp://[{host}]:{self._worker_port}" if ":" in host else f"tcp://{host}:{self._worker_port}"
        known = {"0": {"engine_id": self.engine_id, "worker_addr": {"0": {"0": worker}}}}
        answer(exchange, 200, orjson.dumps(known if self._host.loaded else {}))

    # -- producer -----------------------------------------------------------------------------------

    def produce(self, gen: Generation, transfer_id: str) -> None:
        """Prefill, and keep the KV for the transfer."""
        self._transfers[gen.id] = transfer_id
        self._held[transfer_id] = gen
        gated = transfer_id not in self._asked
        self._host.engine.admit(gen, Mode.PREFILL, gated=gated, optimistic=True)
        self._host.later(self._timeout_s, lambda: self._expire(gen))

    def prefilled(self, gen: Generation) -> None:
        """The answer goes out at once. KV of a request that did not end by length is dropped."""
        gen.done = gen.reason
        if gen.reason != "length":
            self._host.later(0.0, lambda: self._drop(gen))

    def _drop(self, gen: Generation) -> None:
        self.cancelled(gen)
        self._host.engine.release(gen)

    def _expire(self, gen: Generation) -> None:
        if gen.id in self._transfers:
            self._drop(gen)

    def sent(self, gen: Generation) -> None:
        """The transfer is over: whoever asked gets the KV."""
        transfer_id = self._transfers.pop(gen.id, None)
        if transfer_id is not None:
            self._held.pop(transfer_id, None)
            connection, question = self._asked.pop(transfer_id)
            connection.answer(question, {"state": gen.state, "cached": gen.cached_tokens})

    def _heard(self, connection: FrameConnection, message: Message) -> None:
        transfer_id = message.get("transfer_id")
        if not isinstance(transfer_id, str):
            connection.close()
            return
        self._asked[transfer_id] = (connection, message)
        gen = self._held.get(transfer_id)
        if gen is not None:
            self._host.engine.ungate(gen)

    # -- consumer -----------------------------------------------------------------------------------

    def consume(self, gen: Generation, params: dict[str, Any]) -> None:
        """Decode from the KV that comes for the transfer id."""
        self._wanted[gen.id] = params
        self._host.engine.admit(gen, Mode.DECODE)

    def reserved(self, gen: Generation) -> None:
        """Memory is there: ask for the KV."""
        self._host.spawn(self._ask(gen))

    async def _ask(self, gen: Generation) -> None:
        params = self._wanted.get(gen.id, {})
        address = str(params.get("remote_bootstrap_addr"))
        url = urlsplit(address)
        peer = f"{url.hostname}:{url.port}"
        if self._host.faults.strike("no-kv", peer=peer) is not None:
            return
        try:
            worker = await self._worker(
                url.hostname or "", url.port or 8998, str(params.get("remote_engine_id"))
            )
            got = await self._kv(worker, gen, str(params.get("transfer_id")))
        except (OSError, TimeoutError, WireError, LookupError):
            if self._wanted.pop(gen.id, None) is not None:
                self._host.stats.failed_transfers += 1
                self._give_up(gen)
            return
        if self._wanted.pop(gen.id, None) is None:
            return
        state = int(got["state"])
        if self._host.faults.strike("garbage", peer=peer) is not None:
            state = corrupt(state, 1)
        gen.cached = int(got["cached"])
        self._host.engine.take_over(gen, state, first_token=False)

    async def _kv(self, worker: FrameConnection, gen: Generation, transfer_id: str) -> Message:
        """What the producer says once it has written the KV. Until then, or until it is not waited for any
        longer, the memory is the producer's: also that of a request that is aborted meanwhile."""
        engine = self._host.engine
        engine.pinned.add(gen.id)
        try:
            return await worker.ask({"transfer_id": transfer_id}, self._host.clock.real_s(self._timeout_s))
        finally:
            worker.close()
            engine.pinned.discard(gen.id)
            if gen.done is not None:
                engine.cancel(gen, gen.done)

    def _give_up(self, gen: Generation) -> None:
        if self._host.options.recompute:
            self._host.engine.recompute(gen)
        else:
            self._fail(gen)

    async def _worker(self, host: str, port: int, engine_id: str) -> FrameConnection:
        """A connection to the worker of an engine; a bootstrap server that is not there is waited for."""
        deadline_s = self._host.wall.now_s() + self._host.clock.real_s(self._timeout_s)
        while True:
            try:
                _, body = await get(self._pool, host, port, "/query", 2.0)
                entry = orjson.loads(body).get("0")
                if entry is not None:
                    break
            except (OSError, TimeoutError, WireError):
                if self._host.wall.now_s() >= deadline_s:
                    raise
            await self._host.sleep(0.5)
        if entry["engine_id"] != engine_id:
            raise LookupError(f"engine {engine_id} is not at {host}:{port}")
        at = urlsplit(entry["worker_addr"]["0"]["0"])
        ip = at.hostname or host
        return await connect(
            host if ip in EVERYWHERE else ip, at.port or 0, lambda c, m: None, lambda c: None, 2.0
        )

    def arrived(self, gen: Generation) -> None:
        """KV is pushed here, never fetched."""

    def cancelled(self, gen: Generation) -> None:
        """The generation is gone."""
        self._wanted.pop(gen.id, None)
        transfer_id = self._transfers.pop(gen.id, None)
        if transfer_id is not None:
            self._held.pop(transfer_id, None)
