"""Which stage each leg of a request is in, and which of them is past its deadline, or overdue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from orchestrator.core.hang import Overdue
from orchestrator.core.types import Prediction
from orchestrator.errors import StageDeadline
from orchestrator.router.legs import Call, Item, leg_name
from orchestrator.router.record import Record
from orchestrator.router.road import Road

PAUSED_S = 1.0
"""How soon a unit is looked at again whose client does not read just now."""


class Late(NamedTuple):
    """What is late: the error that it becomes, and the endpoint whose leg it is, if it is one's."""

    error: StageDeadline
    endpoint: str | None


class Look(NamedTuple):
    """What a look at the legs has found: what is late, who is overdue, and when the next look is due."""

    late: Late | None
    overdue: tuple[Overdue, ...]
    next_s: float


def look(
    calls: Iterable[Call], items: Sequence[Item], record: Record, paused: bool, road: Road, now_s: float
) -> Look:
    """The first thing that is late, if any, and the legs that are overdue by their prediction.

    A leg that is overdue is late too if its endpoint has meanwhile answered what it was sent after it: that
    one was lost there. `paused`: the client itself does not read just now.
    """
    timeouts = record.timeouts or road.timeouts
    next_s = record.arrived_s + timeouts.total_s
    if now_s > next_s:
        return Look(Late(_error("the request", "total", timeouts.total_s), None), (), now_s)
    predicted = None if record.assign is None else record.assign.predicted
    running = {call.item: call.leg.endpoint for call in calls if not call.leg.relay}
    waiting = {call.item: call.leg.endpoint for call in calls if call.leg.relay and call.last_s is None}
    overdue: list[Overdue] = []
    for call in calls:
        item, leg = items[call.item], call.leg
        feeder = running.get(call.item) if leg.relay else None
        if not leg.relay:
            if item.begun:
                continue
            stage, since_s, limit_s = "prefill", call.sent_s, timeouts.prefill_s
        elif call.last_s is not None:
            if paused:
                next_s = min(next_s, now_s + PAUSED_S)
                continue
            stage, since_s, limit_s = "inter-token", call.last_s, timeouts.inter_token_s
        else:
            stage, since_s, limit_s = "first-token", max(call.sent_s, item.fed_s), timeouts.first_token_s
            if feeder is not None or not leg.stream:
                # Bounded by the other leg's deadline; or, with nothing to see before the end, by the total.
                limit_s = inf
        if now_s - since_s > limit_s:
            return Look(Late(_error(leg_name(leg), stage, limit_s), leg.endpoint), (), now_s)
        signs = road.signs_of(leg.endpoint)
        patience_s = signs.patience_s(timeouts.hang_s, _predicted_s(call, predicted, record))
        if now_s - since_s > patience_s:
            if feeder is None and call.last_s is None and signs.newest_s > since_s and limit_s < inf:
                late = _lost(leg_name(leg), stage, now_s - since_s)
                return Look(Late(late, leg.endpoint), (), now_s)
            peer = feeder if leg.relay else waiting.get(call.item)
            overdue.append(Overdue(leg.endpoint, since_s, patience_s, peer, not leg.relay))
            next_s = min(next_s, since_s + limit_s, now_s)
        else:
            next_s = min(next_s, since_s + limit_s, since_s + patience_s)
    return Look(None, tuple(overdue), next_s)


def _predicted_s(call: Call, predicted: Prediction | None, record: Record) -> float:
    """How long the leg should show nothing, by prediction: to its next token, or to the whole answer."""
    if predicted is None:
        return 0.0
    if call.last_s is not None:
        return predicted.itl_s
    first_s = predicted.takes_s
    if call.leg.relay and not call.leg.stream and record.view is not None:
        return first_s + predicted.itl_s * record.view.max_tokens
    return first_s


def _error(who: str, stage: str, limit_s: float) -> StageDeadline:
    message = f"{who} was not done with its stage `{stage}` within {limit_s:g} s"
    return StageDeadline(message, reason=f"{stage}-deadline")


def _lost(who: str, stage: str, waited_s: float) -> StageDeadline:
    message = f"{who} has brought nothing for {waited_s:.0f} s, and what was sent after it is answered"
    return StageDeadline(message, reason=f"{stage}-deadline")
