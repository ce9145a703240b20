"""Plays a trace live: a client that sends its requests over HTTP when they are due, and times the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import orjson

from orchestrator.sim.replay.driver import Requests
from orchestrator.sim.replay.life import Life, Run
from orchestrator.sim.replay.prompts import Prompts
from orchestrator.sim.replay.steps import Histogram
from orchestrator.wire.client import Connection, Pool, WireError, request_head

PATH = "/v1/completions"
DONE = b"data: [DONE]"
NO_TOKENS = 2
"""Events at the end of a stream that bring none: usage, and `[DONE]`."""

TAIL_BYTES = 4096
"""What is kept of an answer: its usage, or the whole of a refusal."""

IDLE_S = 60.0
"""How long a connection to the router is kept; it closes those idle for two minutes."""

TICK_S = 0.01
"""How often the client looks how late it wakes."""


@dataclass(slots=True)
class Client:
    """How well the client did its own part: seconds by which each request was sent late, and by which its
    event loop woke late; CPU and wall-clock seconds."""

    sent_late_s: list[float] = field(default_factory=list)
    woke_late_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Server:
    """Where to send: a router or an engine, the model to ask for, and a key if it wants one."""

    host: str
    port: int
    model: str
    key: str | None = None


class Answer:
    """A sink for one answer: tells `life` when its tokens came, in seconds since `start_s`."""

    __slots__ = ("_last_s", "_over", "_start_s", "_status", "_tail", "gaps", "life")

    def __init__(self, life: Life, start_s: float, gaps: Histogram, over: Callable[[], None]) -> None:
        self.life = life
        self.gaps = gaps
        self._start_s = start_s
        self._over = over
        self._status = 0
        self._tail = b""
        self._last_s = 0.0

    def on_head(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The status says whether tokens will follow."""
        self._status = status

    def on_body(self, data: bytes) -> None:
        """Note when tokens came, and what a stream ends with."""
        now_s = time.monotonic() - self._start_s
        self._tail = data[-TAIL_BYTES:] if len(data) >= TAIL_BYTES else (self._tail + data)[-TAIL_BYTES:]
        if self._status != 200:
            return
        life, events = self.life, data.count(b"data: ")
        if DONE in data:
            events -= NO_TOKENS
        if events <= 0:
            return
        if life.first_s is None:
            life.first_s = now_s
        else:
            gap_s = now_s - self._last_s
            self.gaps.add(gap_s)
            life.worst_gap_s = max(life.worst_gap_s, gap_s)
        if events > 1:
            self.gaps.add(0.0, events - 1)
        self._last_s = now_s

    def on_end(self) -> None:
        """Whole, refused, or not what was asked for."""
        life = self.life
        if self._status != 200:
            life.refused = _reason(self._tail) or f"status-{self._status}"
        elif DONE not in self._tail:
            life.refused = _reason(self._tail.rpartition(b"data: ")[2]) or "incomplete"
        else:
            usage = _usage(self._tail)
            life.cached_tokens = usage.get("cached_tokens", 0)
            if usage.get("completion_tokens") != life.output_tokens:
                life.refused = "wrong-length"
            elif usage.get("prompt_tokens") != life.view.prompt_tokens:
                life.refused = "wrong-prompt"
            else:
                life.last_s = self._last_s
        self._ended()

    def on_failure(self, error: Exception) -> None:
        """Cut off, or never begun."""
        if not self.life.refused:  # of one that was given up already the connection is closed as well
            self.life.refused = error.reason if isinstance(error, WireError) else "failed"
        self._ended()

    def _ended(self) -> None:
        self.life.ended_s = time.monotonic() - self._start_s
        self._over()


class Player:
    """Sends each request at its time divided by `rate`, whether or not earlier ones are answered.

    Times of the lives are real seconds since the first was due, and of arrivals those at which they were due:
    what the client is late counts as well. `on_progress` is told now and then how many
    were sent and how many are over. After the last was sent, the rest are waited for `patience_s` at most.
    """

    def __init__(
        self,
        requests: Requests,
        server: Server,
        *,
        rate: float = 1.0,
        patience_s: float = 600.0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.client = Client()
        self.lives: list[Life] = []
        self._requests = requests
        self._prompts = Prompts(requests.trace)
        self._server = server
        self._rate = rate
        self._patience_s = patience_s
        self._on_progress = on_progress
        self._gaps = Histogram()
        self._over = 0
        self._all_over = asyncio.Event()
        self._connecting: set[asyncio.Task[None]] = set()
        self._start_s = 0.0

    async def play(self) -> Run:
        """All of it. What got no answer in time is `unanswered`."""
        entries = self._requests.trace.entries
        pool = Pool()
        cpu_s = time.process_time()
        self._start_s = begun_s = time.monotonic() + TICK_S
        ticking = asyncio.create_task(self._tick())
        try:
            for index, entry in enumerate(entries):
                body = self._body(index)
                due_s = entry.at_s / self._rate
                await asyncio.sleep(max(0.0, self._start_s + due_s - time.monotonic()))
                self._send(pool, index, due_s, body)
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._all_over.wait()
            except TimeoutError:
                for life in self.lives:
                    if life.ended_s is None:
                        life.refused = "unanswered"
        finally:
            ticking.cancel()
            for task in tuple(self._connecting):
                task.cancel()
            pool.close()
        self.client.wall_s = time.monotonic() - begun_s
        self.client.cpu_s = time.process_time() - cpu_s
        return self._run()

    def _body(self, index: int) -> bytes:
        limit = self._requests.trace.entries[index].output_tokens
        told = {
            "model": self._server.model, "max_tokens": limit, "ignore_eos": True, "temperature": 0.0,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        # What is sent last is read last, and need not be copied by an encoder.
        return orjson.dumps(told)[:-1] + b',"prompt":"' + self._prompts.text(index) + b'"}'

    def _send(self, pool: Pool, index: int, due_s: float, body: bytes) -> None:
        requests, server = self._requests, self._server
        view = requests.view(index, due_s)
        life = Life(view, requests.engine_hashes[index], requests.trace.entries[index].output_tokens)
        life.attempts = 1
        self.lives.append(life)
        self.client.sent_late_s.append(time.monotonic() - self._start_s - due_s)
        headers = [("content-type", "application/json")]
        if server.key is not None:
            headers.append(("authorization", f"Bearer {server.key}"))
        if view.slo_class is not None and view.slo_class != requests.default_class:
            headers.append(("x-pdctl-class", view.slo_class))
        head = request_head("POST", PATH, f"{server.host}:{server.port}", headers, len(body))
        answer = Answer(life, self._start_s, self._gaps, self._ended)
        connection = pool.take(server.host, server.port)
        if connection is not None:
            connection.send(head, (body,), answer)
        else:
            task = asyncio.create_task(self._connect(pool, head, body, answer))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        if self._on_progress is not None:
            self._on_progress(index + 1, self._over)

    async def _connect(self, pool: Pool, head: bytes, body: bytes, answer: Answer) -> None:
        try:
            connection: Connection = await pool.acquire(self._server.host, self._server.port, IDLE_S)
        except WireError as error:
            answer.on_failure(error)
        else:
            connection.send(head, (body,), answer)

    def _ended(self) -> None:
        self._over += 1
        if self._on_progress is not None:
            self._on_progress(len(self.lives), self._over)
        if self._over == len(self._requests.trace.entries):
            self._all_over.set()

    async def _tick(self) -> None:
        while True:
            due_s = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self.client.woke_late_s.append(time.monotonic() - due_s)

    def _run(self) -> Run:
        entries = self._requests.trace.entries
        span_s = entries[-1].at_s - entries[0].at_s
        return Run(
            lives=self.lives,
            offered=len(entries),
            seconds=max((life.ended_s or 0.0 for life in self.lives), default=0.0),
            events=self._gaps.count,
            stopped=False,
            interrupted=False,
            rate=len(entries) / span_s * self._rate if span_s > 0 else inf,
            gaps={"client": self._gaps},
            busy_s={},
            counters={},
            queue_s={},
            polls=0,
        )


def _reason(body: bytes) -> str:
    """The slug of an error body; empty if it is none."""
    try:
        return str(orjson.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def _usage(tail: bytes) -> dict[str, int]:
    """The counts of a stream's last events, `cached_tokens` among them; empty where none are told."""
    for line in reversed(tail.split(b"\n")):
        if not line.startswith(b"data: {"):
            continue
        try:
            usage = orjson.loads(line[6:]).get("usage")
        except ValueError:
            return {}
        if usage:
            details = usage.get("prompt_tokens_details") or {}
            return {**usage, "cached_tokens": details.get("cached_tokens") or 0}
    return {}
