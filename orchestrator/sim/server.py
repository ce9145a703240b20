"""One simulated instance: its listeners, the faults that strike requests, how it starts and stops."""

from __future__ import annotations

import asyncio
import hmac
import os
import signal
import sys
from collections.abc import Callable
from random import Random

import orjson

from orchestrator.clock import Clock
from orchestrator.sim import dialect_sglang, dialect_vllm, sglang_pages, vllm_pages
from orchestrator.sim.dialect import NOT_FOUND, Dialect
from orchestrator.sim.engine import Die
from orchestrator.sim.faults import BadFault, Rule, parse
from orchestrator.sim.host import Host, answer
from orchestrator.sim.kvpublish import KvPublisher, KvTeller
from orchestrator.sim.options import SimOptions
from orchestrator.sim.ranks import Head
from orchestrator.sim.replies import Failure
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.server import Server, WireLimits, serve

LIMITS = WireLimits(max_body_bytes=512 * 1024 * 1024, idle_timeout_s=5.0)
"""Both engines' HTTP server (uvicorn) closes a connection that has been idle for 5 s, real ones."""


def crash(reason: str) -> None:
    """End the process as a crashed scheduler does: the reason in the log, every connection cut."""
    sys.stdout.flush()
    sys.stderr.write(f"{reason}\nThe engine is dead; the server exits.\n")
    sys.stderr.flush()
    os._exit(1)


def make(options: SimOptions, clock: Clock, die: Die) -> tuple[Host, Dialect]:
    """The shared parts and the dialect that `options` ask for."""
    # Ids must differ between instances of one seed; faults and hashes take theirs from the seed alone.
    rng = Random(f"{options.seed}/{options.dialect}/{options.role}/{os.getpid()}/{clock.wall_s()}")
    if options.dialect == "sglang":
        host = Host(options, clock, rng, die, options.link, sglang_pages.new_stats())
        return host, dialect_sglang.SglangDialect(host)
    host = Host(options, clock, rng, die, dialect_vllm.link(options), vllm_pages.new_stats())
    return host, dialect_vllm.VllmDialect(host)


class Instance:
    """A running simulated engine. `await run()` returns when it has been told to leave."""

    def __init__(self, options: SimOptions, clock: Clock, die: Die = crash) -> None:
        self.options = options
        self.host, self.dialect = make(options, clock, die)
        self.host.leave = self._leave
        self._server: Server | None = None
        self._control: Server | None = None
        self._over = asyncio.Event()
        self._head = Head(options, die)
        self._frozen = False
        if options.faults:
            self.host.faults.add(parse(options.faults))

    @property
    def port(self) -> int:
        """The API port."""
        return self.host.port

    async def start(self) -> None:
        """Open every port, in the order and at the times of the real engine. Raises OSError."""
        options, host = self.options, self.host
        if options.control_port is not None:
            self._control = await serve(self._handle_control, host=options.host, port=options.control_port)
        if options.kv_events_port is not None:
            self._publish(options.kv_events_port)
        await self.dialect.start()
        await self._head.gather()
        if options.load_delay_s:
            await host.sleep(options.load_delay_s)
        self._server = await serve(self._handle, host=options.host, port=options.port, limits=LIMITS)
        host.port = self._server.port
        host.loaded = True
        self._arm_rules(list(host.faults.rules.values()))

    async def run(self, say: Callable[[str], None]) -> None:
        """Serve until SIGTERM (drained as the engine does) or SIGINT (at once)."""
        await self.start()
        # Not before: an engine that is loading does not drain, it dies of the signal.
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.dialect.terminate)
        loop.add_signal_handler(signal.SIGINT, self._leave)
        for purpose, port in {**self.dialect.ports(), **self._control_port()}.items():
            say(f"{purpose} port {port}")
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        say(f"listening on http://{host}:{self.port}")
        await self._over.wait()
        await self.stop()

    async def stop(self) -> None:
        """Close everything."""
        if self.host.engine.teller is not None:
            self.host.engine.teller.publisher.close()
            self.host.engine.teller = None
        self._head.dismiss()
        self.dialect.close()
        for server in (self._server, self._control):
            if server is not None:
                await server.drained(0.2)

    def _publish(self, port: int) -> None:
        options, host = self.options, self.host
        publisher = KvPublisher(options.host, port, options.kv_replay_port, "kv-events")
        pool = host.engine.model.memory.pool
        host.engine.teller = KvTeller(publisher, pool, options.page_size, options.dialect, host.wall.wall_s)

    def _leave(self) -> None:
        self._over.set()

    def _control_port(self) -> dict[str, int]:
        return {"control": self._control.port} if self._control is not None else {}

    # -- requests -----------------------------------------------------------------------------------

    def _handle(self, exchange: Exchange) -> None:
        path = exchange.path
        if path.startswith("/sim/"):
            self._handle_control(exchange)
            return
        if (
            self.options.api_key is not None
            and not self.dialect.open_to_all(path)
            and not self._allowed(exchange)
        ):
            answer(exchange, 401, b'{"error":"Unauthorized"}')
            return
        if self.host.faults.rules and self._struck(exchange):
            return
        route = self.dialect.routes.get((exchange.method, path))
        if route is None:
            known = any(path == other for _, other in self.dialect.routes)
            answer(
                exchange, 405 if known else 404, b'{"detail":"Method Not Allowed"}' if known else NOT_FOUND
            )
            return
        try:
            route(exchange)
        except ValueError as error:
            answer(exchange, 400, self.dialect.error_body(Failure(400, str(error), "BadRequestError")))

    def _allowed(self, exchange: Exchange) -> bool:
        given = exchange.header(b"authorization") or b""
        return hmac.compare_digest(given, f"Bearer {self.options.api_key}".encode())

    def _struck(self, exchange: Exchange) -> bool:
        """Whether a fault takes this request."""
        faults, path = self.host.faults, exchange.path
        generating = path in self.dialect.generating
        rule = faults.first("error")
        # An error rule strikes generation unless it names another path.
        if rule is not None and (generating or rule.path != "/"):
            hit = faults.strike("error", path)
            if hit is not None:
                answer(exchange, hit.status, self.dialect.error_body(Failure(hit.status, hit.message)))
                return True
        if not generating:
            return False
        deadly = faults.first("die")
        if deadly is not None and deadly.after_tokens <= 0:
            self.host.die(f"injected fault: {deadly.message}")
            return True
        return faults.strike("hang", path) is not None

    # -- control ------------------------------------------------------------------------------------

    def _handle_control(self, exchange: Exchange) -> None:
        key = (exchange.method, exchange.path)
        if key == ("POST", "/sim/faults"):
            try:
                added = self.host.faults.add(parse(orjson.loads(exchange.body)))
            except (BadFault, orjson.JSONDecodeError) as error:
                answer(exchange, 400, orjson.dumps({"error": str(error)}))
                return
            answer(exchange, 200, orjson.dumps({"added": [rule.id for rule in added]}))
            self._arm_rules(added)
        elif key == ("GET", "/sim/faults"):
            rules = list(self.host.faults.rules.values())
            answer(exchange, 200, orjson.dumps({"rules": rules, "fired": self.host.faults.fired}))
        elif key == ("DELETE", "/sim/faults"):
            self.host.faults.clear()
            answer(exchange, 200, b"{}")
            self._rules_changed()
        elif key == ("GET", "/sim/state"):
            answer(exchange, 200, orjson.dumps(self._state()))
        else:
            answer(exchange, 404, NOT_FOUND)

    def _state(self) -> dict[str, object]:
        engine = self.host.engine
        now_s = engine.catch_up()
        return {
            "now_s": now_s, "load": engine.model.load(), "counters": engine.model.counters,
            "calls": self.host.calls, "generations": len(engine.generations),
            "draining": self.host.draining, "pid": os.getpid(),
            "ports": {"http": self.port, **self.dialect.ports(), **self._control_port()},
            **self.dialect.state(),
        }  # fmt: skip

    def _arm_rules(self, rules: list[Rule]) -> None:
        """Let rules that hold for a time end, and those on the process itself begin."""
        for rule in rules:
            if rule.for_s is not None:
                self.host.later(rule.for_s, lambda rule=rule: self._end_rule(rule))  # type: ignore[misc]
        self._rules_changed()

    def _end_rule(self, rule: Rule) -> None:
        self.host.faults.drop(rule)
        self._rules_changed()

    def _rules_changed(self) -> None:
        faults, host = self.host.faults, self.host
        host.engine.catch_up()
        frozen = faults.first("freeze") is not None
        if frozen:
            host.clock.hold()
        elif self._frozen:
            host.clock.go()
        self._frozen = frozen
        host.engine.arm()
        refusing = faults.first("refuse") is not None
        if refusing and self._server is not None and not self._server.closing:
            self._server.close()
        elif not refusing and self._server is not None and self._server.closing and not self._over.is_set():
            host.spawn(self._listen_again())

    async def _listen_again(self) -> None:
        self._server = await serve(self._handle, host=self.options.host, port=self.port, limits=LIMITS)
