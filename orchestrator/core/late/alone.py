"""Requests that are never handed off nor wait (tokenizing, embedding): the least busy endpoint gets them."""

from __future__ import annotations

from random import Random

from orchestrator.core.choosing import least_work
from orchestrator.core.decisions import Assign, Decision
from orchestrator.core.inflight import Ledger
from orchestrator.core.late.board import Board, Serves
from orchestrator.core.late.refusals import Refusals
from orchestrator.core.types import PathKind, RequestView, Route

ONE_ENDPOINT = frozenset({PathKind.TOKENIZE, PathKind.EMBED})
"""Kinds for which any endpoint that serves them will do, whatever its role."""


def decide(
    request: RequestView,
    ledger: Ledger,
    board: Board,
    serves: Serves,
    refusals: Refusals,
    rng: Random,
    now_s: float,
) -> tuple[Decision]:
    """Where such a request goes, counted as in flight there; or a refusal, where nobody serves it."""
    snapshot = ledger.snapshot(now_s)
    mine = [e for e in snapshot.endpoints if e.ready and e.model == request.model and serves(request.path, e)]
    if not mine:
        return (refusals.no_capacity(request, snapshot.endpoints),)
    route = Route(least_work([e for e in mine if e.id not in request.avoid] or mine, rng).id)
    ledger.start(request, route, now_s)
    for lane in board.lanes.values():
        lane.changed(route.decode)
    return (Assign(request.id, route),)
