"""One line of the decision log: what was known of a request, decided, predicted, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import pack
from typing import Any, NamedTuple

from orchestrator.core.contracts import Assign, Bind, Reject
from orchestrator.core.types import Choice, Outcome, Prediction, RequestView, Role, Route
from orchestrator.router.promises import Kept

FORMAT = 1
"""Grows when a field changes its meaning; new fields alone do not count."""

MAX_TEXT = 500


class Closed(NamedTuple):
    """All that a line is made of: plain data, so that a thread may make it."""

    recorded: str
    wall_s: float
    outcome: Outcome
    path: str
    model: str
    tenant: str | None
    client_id: bytes | None
    clamped_from: str | None
    message: str
    view: RequestView | None
    assign: Assign | None
    bind: Bind | None
    reject: Reject | None
    tries: tuple[tuple[Route | None, str, float], ...]
    kept: Kept | None


def entry(closed: Closed, hashes: int, block_tokens: int) -> dict[str, Any]:
    """The line of a request as plain data; docs/explain.md lists the fields."""
    outcome, view, assign = closed.outcome, closed.view, closed.assign
    told = assign if assign is not None else closed.reject
    line: dict[str, Any] = {
        "v": FORMAT,
        "request_id": outcome.request_id,
        "client_request_id": None if closed.client_id is None else _text(closed.client_id.decode("latin-1")),
        "recorded": closed.recorded,
        "arrived_s": round(closed.wall_s, 6),
        "model": _text(closed.model),
        "path": closed.path,
        "tenant": closed.tenant,
        "slo_class": None if view is None else view.slo_class,
        "clamped_from": closed.clamped_from,
        "prompt_tokens": 0 if view is None else outcome.prompt_tokens or view.prompt_tokens,
        "output_tokens": outcome.output_tokens or 0,
        "cached_tokens": outcome.cached_tokens,
        "end": str(outcome.end),
        "status": outcome.http_status,
        "reason": outcome.reason,
        "message": _text(_own_words(closed)),
        "route": _route(outcome.route),
        "tries": [{"route": _route(r), "reason": why, "at_s": _s(at)} for r, why, at in closed.tries],
        "ttft_s": _s(outcome.ttft_s),
        "e2e_s": _s(outcome.e2e_s),
        "stages": {name: _s(seconds) for name, seconds in outcome.stages.items()},
        "promise": None if closed.kept is None else closed.kept.fields(),
    }
    if view is not None:
        line |= {
            "estimated_tokens": view.prompt_tokens,
            "max_tokens": view.max_tokens,
            "n": view.n,
            "stream": view.stream,
            "blocks": len(view.block_hashes),
            "block_tokens": block_tokens,
            "block_hashes": _hex(view.block_hashes[:hashes]),
        }
    if told is not None:
        line["admitted"] = _prediction(told.admitted if isinstance(told, Assign) else told.predicted)
        line["predicted"] = _prediction(told.predicted) if isinstance(told, Assign) else None
    if closed.reject is not None:
        line["retry_after_s"] = _s(closed.reject.retry_after_s)
        line["choices"] = [_choice(choice) for choice in closed.reject.why]
    if assign is not None:
        line["choices"] = [_choice(choice) for choice in _choices(assign, closed.bind)]
    return line


def _choices(assign: Assign, bind: Bind | None) -> Iterable[Choice]:
    """One of each role: who decodes is a guess, and none of the choices, until it is bound."""
    if not assign.provisional:
        return assign.why
    told = [choice for choice in assign.why if choice.role is not Role.DECODE]
    return told if bind is None else (*told, *bind.why)


def _own_words(closed: Closed) -> str:
    """What the router itself said: an engine's message may quote the prompt."""
    return closed.message if closed.outcome.route is None and not closed.tries else ""


def _text(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."


def _hex(blocks: Sequence[int]) -> list[str]:
    """Sixteen digits each; many times as fast as formatting one by one."""
    return pack(f">{len(blocks)}Q", *blocks).hex(" ", 8).split()


def _s(seconds: float | None) -> float | None:
    """To the microsecond; in half the time of `round`."""
    return None if seconds is None else int(seconds * 1e6 + 0.5) / 1e6


def _route(route: Route | None) -> Mapping[str, str] | None:
    if route is None:
        return None
    ends = (("encode", route.encode), ("prefill", route.prefill), ("decode", route.decode))
    return {role: endpoint for role, endpoint in ends if endpoint is not None}


def _prediction(told: Prediction | None) -> Mapping[str, Any] | None:
    if told is None:
        return None
    return {
        "waited_s": _s(told.waited_s),
        "wait_s": _s(told.wait_s),
        "encode_s": _s(told.encode_s),
        "prefill_s": _s(told.prefill_s),
        "handoff_s": _s(told.handoff_s),
        "ttft_s": _s(told.ttft_s),
        "tail_s": _s(told.tail_s),
        "quantile": told.quantile,
        "itl_s": _s(told.itl_s),
        "itl_tail_s": _s(told.itl_tail_s),
        "cached_tokens": told.cached_tokens,
        "due_s": _s(told.due_s),
    }


def _choice(choice: Choice) -> Mapping[str, Any]:
    return {
        "role": str(choice.role),
        "chosen": choice.chosen,
        "runner_up": choice.runner_up,
        "unit": choice.unit,
        "scored": [
            {
                "endpoint": one.endpoint,
                "total": _s(one.total),
                "parts": {k: _s(v) for k, v in one.parts.items()},
            }
            for one in choice.scored
        ],
        "filtered": dict(choice.filtered),
        "fallbacks": list(choice.fallbacks),
    }
