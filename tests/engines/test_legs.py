"""The plain data of a hand-off."""

from orchestrator.core.types import Endpoint, LegKind, PathKind, Role
from orchestrator.engines.legs import HandoffDone, HandoffRequest
from orchestrator.engines.splice import JsonBody

DECODE = Endpoint("d", "decode", Role.DECODE, "sim", "m", "http://d", True)


def test_no_id_of_a_leg_begins_like_another() -> None:
    ids = [
        HandoffRequest(
            "r", "/x", PathKind.CHAT, JsonBody(b"{}"), False, 1, DECODE, attempt=attempt, item=item
        ).engine_id(kind)
        for kind in (LegKind.PREFILL, LegKind.DECODE)
        for attempt in (0, 1)
        for item in (1, 11)
    ]
    assert not [(a, b) for a in ids for b in ids if a is not b and a.startswith(b)]
    assert HandoffDone().notes is not HandoffDone().notes
