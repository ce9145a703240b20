"""The messages between relay processes and the scheduler's, as bytes and back; pure, and no pickles.

A frame is its body's length and kind (`<IB`), then the body. What comes once per request or oftener begins
with fixed fields; what is seldom, or of any shape, is JSON. Both ends are of one version: `VERSION` is the
first thing a relay says.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

import orjson

from orchestrator.core.contracts import Assign, Bind, Decision, Reject, Slice, Spent
from orchestrator.core.types import (
    Choice,
    End,
    LegEvent,
    LegKind,
    Outcome,
    PathKind,
    Prediction,
    RequestView,
    Role,
    Route,
    Scored,
)

VERSION = 1
MAX_FRAME_BYTES = 256 * 1024 * 1024
"""More than any plan takes: a longer frame is a broken one."""


class Kind(IntEnum):
    """What a frame is. Up: from a relay to the scheduler; down: the other way."""

    # up
    HELLO = 1
    SUBMIT = 2
    REBIND = 3
    CANCEL = 4
    PROGRESS = 5
    FINISH = 6
    OVER = 7
    RESUME = 8
    NOTE = 9
    COUNTS = 10
    SERVING = 11
    # down
    PLAN = 32
    VIEWS = 33
    DECISION = 34
    HUNG = 35
    ASK_COUNTS = 36
    DRAIN = 37
    RETIRE = 38


_HEAD = Struct("<IB")
_ID = Struct("<16s")
_VIEW = Struct("<16sBBddIIHI")
_EVENT = Struct("<16sBBdI")
_PATHS = tuple(PathKind)
_LEGS = tuple(LegKind)
_WHATS = ("sent", "first_token", "done", "failed")
_PATH_AT = {path: at for at, path in enumerate(_PATHS)}
_LEG_AT = {leg: at for at, leg in enumerate(_LEGS)}
_WHAT_AT = {what: at for at, what in enumerate(_WHATS)}
_STREAM, _WANTS, _DEADLINE, _COMPUTED, _BEGUN, _PARTS = 1, 2, 4, 8, 16, 32


class BadFrame(ValueError):
    """Bytes that are no frame: the other end is broken, or not what it says."""


def frame(kind: Kind, body: bytes = b"") -> bytes:
    """One frame."""
    return _HEAD.pack(len(body), kind) + body


class Frames:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._left = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that `data` completes, as (kind, body). Raises BadFrame."""
        data = self._left + data if self._left else data
        at, end = 0, len(data)
        # Kept before anything is given out, so that one who stops in the middle loses no more than that.
        found: list[tuple[int, bytes]] = []
        while end - at >= _HEAD.size:
            size, kind = _HEAD.unpack_from(data, at)
            if size > MAX_FRAME_BYTES:
                raise BadFrame(f"a frame of {size} bytes")
            stop = at + _HEAD.size + size
            if stop > end:
                break
            found.append((kind, data[at + _HEAD.size : stop]))
            at = stop
        self._left = data[at:]
        return iter(found)


def id_frame(kind: Kind, request_id: str) -> bytes:
    """A frame that says no more than which request."""
    return frame(kind, bytes.fromhex(request_id))


def request_id_of(body: bytes) -> str:
    """The request that a frame is about."""
    return body[:16].hex()


def json_frame(kind: Kind, value: Any) -> bytes:
    """A frame of JSON."""
    return frame(kind, orjson.dumps(value))


class Submitted(NamedTuple):
    """A request as it is offered, or reported anew: `route` is there if it has one already.

    `wants`: its decision is to be explained. `computed`, `begun`: prefill is done, the first token is out.
    """

    view: RequestView
    wants: bool = False
    route: Route | None = None
    computed: bool = False
    begun: bool = False


def submit(kind: Kind, asked: Submitted) -> bytes:
    """A SUBMIT, REBIND or RESUME frame."""
    view, route = asked.view, asked.route
    flags = (
        (_STREAM if view.stream else 0)
        | (_WANTS if asked.wants else 0)
        | (_DEADLINE if view.deadline_s is not None else 0)
        | (_COMPUTED if asked.computed else 0)
        | (_BEGUN if asked.begun else 0)
        | (_PARTS if view.parts else 0)
    )
    head = _VIEW.pack(
        bytes.fromhex(view.id),
        _PATH_AT[view.path],
        flags,
        view.arrived_s,
        view.deadline_s or 0.0,
        view.prompt_tokens,
        min(view.max_tokens, 0xFFFF_FFFF),
        min(view.n, 0xFFFF),
        len(view.block_hashes),
    )
    tail: list[Any] = [view.model, view.slo_class, view.tenant, dict(view.headers), view.avoid, view.media]
    if route is not None:
        tail.append((route.decode, route.prefill, route.encode))
    return frame(kind, head + array("Q", view.block_hashes).tobytes() + orjson.dumps(tail))


def submitted(body: bytes) -> Submitted:
    """What a SUBMIT, REBIND or RESUME frame says."""
    raw, path, flags, arrived_s, deadline_s, prompt, most, n, hashes = _VIEW.unpack_from(body)
    blocks = array("Q")
    end = _VIEW.size + 8 * hashes
    blocks.frombytes(body[_VIEW.size : end])
    model, slo_class, tenant, headers, avoid, media, *route = orjson.loads(body[end:])
    view = RequestView(
        id=raw.hex(),
        model=model,
        path=_PATHS[path],
        arrived_s=arrived_s,
        prompt_tokens=prompt,
        max_tokens=most,
        stream=bool(flags & _STREAM),
        n=n,
        slo_class=slo_class,
        tenant=tenant,
        block_hashes=tuple(blocks),
        headers=headers,
        deadline_s=deadline_s if flags & _DEADLINE else None,
        avoid=tuple(avoid),
        parts=bool(flags & _PARTS),
        media=media,
    )
    return Submitted(
        view,
        bool(flags & _WANTS),
        _route(route[0]) if route else None,
        bool(flags & _COMPUTED),
        bool(flags & _BEGUN),
    )


def progress(event: LegEvent) -> bytes:
    """A PROGRESS frame."""
    head = _EVENT.pack(
        bytes.fromhex(event.request_id), _LEG_AT[event.leg], _WHAT_AT[event.what], event.at_s, event.tokens
    )
    return frame(Kind.PROGRESS, head + event.endpoint.encode())


def progressed(body: bytes) -> LegEvent:
    """What a PROGRESS frame says."""
    raw, leg, what, at_s, tokens = _EVENT.unpack_from(body)
    return LegEvent(raw.hex(), _LEGS[leg], body[_EVENT.size :].decode(), _WHATS[what], at_s, tokens)


def finish(outcome: Outcome) -> bytes:
    """A FINISH frame."""
    o = outcome
    told = (
        o.end,
        o.http_status,
        o.reason,
        _plain(o.route),
        o.prompt_tokens,
        o.cached_tokens,
        o.output_tokens,
        o.ttft_s,
        o.e2e_s,
        dict(o.stages),
    )
    return frame(Kind.FINISH, bytes.fromhex(o.request_id) + orjson.dumps(told))


def finished(body: bytes) -> Outcome:
    """What a FINISH frame says."""
    end, status, reason, route, prompt, cached, output, ttft_s, e2e_s, stages = orjson.loads(body[16:])
    return Outcome(
        request_id=request_id_of(body),
        end=End(end),
        http_status=status,
        reason=reason,
        route=None if route is None else _route(route),
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        stages=stages,
    )


def decision(told: Decision) -> bytes:
    """A DECISION frame, for every decision but a Poll. Its reasons are those in `why`."""
    if isinstance(told, Assign):
        predicted, admitted = _prediction(told.predicted), _prediction(told.admitted)
        said: tuple[Any, ...] = ("assign", _plain(told.route), told.provisional, predicted, admitted)
        said = (*said, [_choice(choice) for choice in told.why])
    elif isinstance(told, Bind):
        said = ("bind", _plain(told.route), [_choice(choice) for choice in told.why])
    elif isinstance(told, Reject):
        fields = (told.reason, told.message, told.http_status, told.retry_after_s)
        said = ("reject", *fields, _prediction(told.predicted))
    elif isinstance(told, Spent):
        said = ("spent", told.reason)
    elif isinstance(told, Slice):
        said = ("slice", _plain(told.route), told.tokens, told.number)
    else:
        raise TypeError(f"no message for {told!r}")
    return frame(Kind.DECISION, bytes.fromhex(told.request_id) + orjson.dumps(said))


def decided(body: bytes) -> Decision:
    """What a DECISION frame says."""
    request_id = request_id_of(body)
    kind, *said = orjson.loads(body[16:])
    if kind == "assign":
        route, provisional, predicted, admitted, why = said
        return Assign(
            request_id,
            _route(route),
            _choices(why),
            provisional,
            _predicted(predicted),
            admitted=_predicted(admitted),
        )
    if kind == "bind":
        return Bind(request_id, _route(said[0]), why=_choices(said[1]))
    if kind == "reject":
        reason, message, status, retry_after_s, predicted = said
        return Reject(request_id, reason, message, status, retry_after_s, _predicted(predicted))
    if kind == "spent":
        return Spent(request_id, said[0])
    if kind == "slice":
        route, tokens, number = said
        return Slice(request_id, _route(route), tokens, number)
    raise BadFrame(f"no decision {kind!r}")


def _plain(route: Route | None) -> tuple[str, str | None, str | None] | None:
    return None if route is None else (route.decode, route.prefill, route.encode)


def _route(told: Sequence[str]) -> Route:
    decode, prefill, encode = told
    return Route(decode, prefill, encode)


def _prediction(told: Prediction | None) -> tuple[Any, ...] | None:
    if told is None:
        return None
    p = told
    times = (p.at_s, p.waited_s, p.wait_s, p.prefill_s, p.handoff_s, p.tail_s, p.quantile, p.itl_s)
    return (*times, p.cached_tokens, p.due_s, p.itl_tail_s, p.encode_s)


def _predicted(told: Sequence[Any] | None) -> Prediction | None:
    return None if told is None else Prediction(*told)


def _choice(choice: Choice) -> tuple[Any, ...]:
    scored = [(one.endpoint, one.total, dict(one.parts)) for one in choice.scored]
    rest = (dict(choice.filtered), choice.fallbacks, choice.unit)
    return (choice.role, choice.chosen, choice.runner_up, scored, *rest)


def _choices(told: Sequence[Sequence[Any]]) -> tuple[Choice, ...]:
    return tuple(
        Choice(
            Role(role),
            chosen,
            runner_up,
            tuple(Scored(endpoint, total, parts) for endpoint, total, parts in scored),
            filtered,
            tuple(fallbacks),
            unit,
        )
        for role, chosen, runner_up, scored, filtered, fallbacks, unit in told
    )
