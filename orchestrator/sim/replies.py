"""Answers in the making: what a call's generations produce, as server-sent events or as one body."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

from orchestrator.sim.calls import Call
from orchestrator.sim.engine import Engine
from orchestrator.sim.faults import Rule
from orchestrator.sim.generation import Generation
from orchestrator.wire.exchange import Exchange

JSON_HEADERS = ((b"content-type", b"application/json"),)
SSE_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"),)
TEXT_SLOT = "\ue000"
"""Stands for the text in a chunk's template: a private-use character that nothing else holds."""


class Failure(Exception):
    """An error answer: its status, message, and the fields of the dialect's error body."""

    def __init__(self, status: int, message: str, type: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param


class Shape(Protocol):
    """How one kind of call is answered in one dialect. Chunks are whole JSON objects."""

    headers: tuple[tuple[bytes, bytes], ...]

    def opening(self, reply: Reply, gen: Generation) -> bytes | None:
        """A chunk before a generation's first token."""
        ...

    def template(self, reply: Reply, gen: Generation) -> bytes | None:
        """A chunk with `TEXT_SLOT` for its text, if all but the last differ in nothing else."""
        ...

    def chunk(self, reply: Reply, gen: Generation, start: int, end: int) -> Sequence[bytes]:
        """The chunks for tokens `start..end`; the last ones once `gen.done` is set."""
        ...

    def usage(self, reply: Reply) -> bytes | None:
        """The chunk after all, if one was asked for."""
        ...

    def whole(self, reply: Reply) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def error(self, failure: Failure, call: Call | None) -> dict[str, object]:
        """The body of an error; `call` is given when it is sent within a stream."""
        ...


class Reply:
    """One call's answer; the owner of its generations."""

    def __init__(
        self, exchange: Exchange, call: Call, shape: Shape, engine: Engine, id: str, created: int, model: str
    ) -> None:
        self.exchange = exchange
        self.call = call
        self.shape = shape
        self.engine = engine
        self.id = id
        self.created = created
        self.model = model
        self.generations: list[Generation] = []
        self.extra: dict[str, object] = {}
        """What the dialect puts into the whole answer (`kv_transfer_params`)."""
        self.on_done: Callable[[], None] | None = None
        """Called once, when the answer is over, however it ended."""
        self._templates: dict[int, tuple[bytes, bytes] | None] = {}
        self._streamed = 0
        """Generations whose last chunk is out. Several may end in one step, and are told one by one."""
        self._cut: Rule | None = None
        exchange.on_close = self.drop

    def watch(self) -> None:
        """Throw the dice of the faults that strike an answer in the making."""
        path = self.exchange.path
        self._cut = self.engine.faults.strike("truncate", path) or self.engine.faults.strike("close", path)

    @property
    def done(self) -> bool:
        """Whether every generation has ended."""
        return all(gen.done is not None for gen in self.generations)

    def drop(self) -> None:
        """The client is gone."""
        for gen in self.generations:
            if gen.done is None:
                self.engine.cancel(gen)
        self._over()

    def _over(self) -> None:
        done, self.on_done = self.on_done, None
        if done is not None:
            done()

    def fail(self, failure: Failure) -> None:
        """Give up: the error is the answer, or the end of the stream."""
        for gen in self.generations:
            if gen.done is None:
                self.engine.cancel(gen, "error")
                gen.done = "error"
        self._over()
        exchange = self.exchange
        if exchange.ended or exchange.closed:
            return
        if not self.call.stream:
            body = self.shape.error(failure, None)
            exchange.respond(failure.status, _compact(body), JSON_HEADERS)
            return
        # The status line of a stream is out before anything is known: errors come as events.
        self._begin()
        error = json.dumps({"error": self.shape.error(failure, self.call)})
        exchange.write(b"data: " + error.encode() + b"\n\ndata: [DONE]\n\n")
        exchange.end()

    def flush(self, gen: Generation) -> None:
        """Pass on what is new of one generation."""
        if self.exchange.ended or self.exchange.closed:
            return
        if self._cut is not None and self._strike(gen, self._cut):
            self._over()
            return
        if self.call.stream:
            self._stream(gen)
        else:
            gen.sent = gen.produced
            if self.done:
                self.exchange.respond(200, self.shape.whole(self), (*JSON_HEADERS, *self.shape.headers))
        if self.exchange.ended:
            self._over()

    def _begin(self) -> None:
        if not self.exchange.started:
            self.exchange.start(200, (*SSE_HEADERS, *self.shape.headers))

    def _stream(self, gen: Generation) -> None:
        self._begin()
        out = []
        if gen.index not in self._templates:
            opening = self.shape.opening(self, gen)
            if opening is not None:
                out.append(_event(opening))
            template = self.shape.template(self, gen)
            self._templates[gen.index] = None if template is None else _split(template)
        start, end = gen.sent, gen.produced
        parts = self._templates[gen.index]
        if gen.done is None and parts is not None:
            before, after = parts
            out.append(before + b"".join(gen.texts[start:end]) + after)
        else:
            out += [_event(chunk) for chunk in self.shape.chunk(self, gen, start, end)]
        gen.sent = end
        self._streamed += gen.done is not None
        if self._streamed == len(self.generations):
            usage = self.shape.usage(self)
            if usage is not None:
                out.append(_event(usage))
            out.append(b"data: [DONE]\n\n")
            self.exchange.write(b"".join(out))
            self.exchange.end()
        else:
            self.exchange.write(b"".join(out))

    def _strike(self, gen: Generation, rule: Rule) -> bool:
        """A broken answer: cut off, or ended as if it were whole."""
        if gen.produced <= rule.after_tokens and gen.done is None:
            return False
        for other in self.generations:
            if other.done is None:
                self.engine.cancel(other)
        if rule.kind == "truncate" and self.call.stream:
            self._begin()
            self.exchange.end()
        else:
            if self.call.stream:
                self._begin()
            self.exchange.abort()
        return True


def _event(chunk: bytes) -> bytes:
    return b"data: " + chunk + b"\n\n"


def _split(template: bytes) -> tuple[bytes, bytes]:
    before, _, after = template.partition(TEXT_SLOT.encode())
    return b"data: " + before, after + b"\n\n"


def _compact(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
