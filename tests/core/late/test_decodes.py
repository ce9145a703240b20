from collections import Counter

import pytest

from orchestrator.core.inflight import Ledger
from orchestrator.core.late.decodes import Decodes, DecodeSide
from orchestrator.core.prediction import Step
from orchestrator.core.types import Role, Route
from orchestrator.policy.testing import make_endpoint, make_request


class Rig:
    """Decode sides with these base steps in milliseconds, and a ledger of what they have been given."""

    def __init__(self, *base_ms: float) -> None:
        self.ledger = Ledger()
        ends = [make_endpoint(f"d{i}", Role.DECODE) for i in range(len(base_ms))]
        self.ledger.observe(ends)
        sides = [DecodeSide(end, Step(ms / 1000, 60e-6, 1e-8)) for end, ms in zip(ends, base_ms, strict=True)]
        self.decodes = Decodes(self.ledger, sides)
        self.given = 0

    def give(self, tokens: int = 1000) -> str:
        """Another request for the best side, which stays there."""
        side = self.decodes.best(tokens, 1.0)
        assert side is not None
        self.decodes.use(side)
        self.given += 1
        request = make_request(id=f"r{self.given}", prompt_tokens=tokens)
        self.ledger.start(request, Route(side.id), 0.0)
        self.decodes.changed(side.id)
        return side.id

    def end(self, number: int, side: str) -> None:
        self.ledger.finish(f"r{number}")
        self.decodes.changed(side)


def test_equals_share_alike_though_they_were_measured_a_little_apart() -> None:
    rig = Rig(12.0, 12.4, 11.9)
    assert Counter(rig.give() for _ in range(30)) == {"d0": 10, "d1": 10, "d2": 10}


def test_idle_equals_take_turns() -> None:
    rig = Rig(0.6, 0.9)
    turns = []
    for number in range(1, 7):
        turns.append(rig.give())
        rig.end(number, turns[-1])
    assert turns == ["d0", "d1"] * 3


@pytest.mark.parametrize("fast", [0, 1])
def test_a_faster_machine_is_not_an_equal(fast: int) -> None:
    """It gets all until its batch makes its steps as long as the other's."""
    rig = Rig(*(10.0 if place == fast else 14.0 for place in range(2)))
    assert {rig.give() for _ in range(40)} == {f"d{fast}"}
    assert {rig.give() for _ in range(60)} == {"d0", "d1"}
