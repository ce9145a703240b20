"""Which stage each leg of a request is in, and which of them is past its deadline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.errors import StageDeadline
from orchestrator.router.legs import Call, Item, leg_name
from orchestrator.router.record import Record
from orchestrator.topology.plan import Timeouts


@dataclass(frozen=True, slots=True)
class Late:
    """What is late: the error that it becomes, and the endpoint whose leg it is, if it is one's."""

    error: StageDeadline
    endpoint: str | None


def overdue(
    calls: Iterable[Call],
    items: Sequence[Item],
    record: Record,
    paused: bool,
    timeouts: Timeouts,
    now_s: float,
) -> Late | None:
    """The first thing that is late, if any. `paused`: the client itself does not read just now."""
    if now_s - record.arrived_s > timeouts.total_s:
        return Late(_error("the request", "total", timeouts.total_s), None)
    feeding = {call.item for call in calls if not call.leg.relay}
    for call in calls:
        item = items[call.item]
        if not call.leg.relay:
            if item.begun:
                continue
            stage, since_s, limit_s = "prefill", call.sent_s, timeouts.prefill_s
        elif call.last_s is not None:
            if paused:
                continue
            stage, since_s, limit_s = "inter-token", call.last_s, timeouts.inter_token_s
        elif call.item in feeding or not call.leg.stream:
            # Bounded by the other leg's deadline; or, with nothing to see before the end, by the total.
            continue
        else:
            since_s = max(call.sent_s, item.fed_s)
            stage, limit_s = "first-token", timeouts.first_token_s
        if now_s - since_s > limit_s:
            return Late(_error(leg_name(call.leg), stage, limit_s), call.leg.endpoint)
    return None


def _error(who: str, stage: str, limit_s: float) -> StageDeadline:
    message = f"{who} was not done with its stage `{stage}` within {limit_s:g} s"
    return StageDeadline(message, reason=f"{stage}-deadline")
