"""`pdctl down`: what it stops, and that nothing stays."""

from __future__ import annotations

import pytest
from families import FAMILIES
from pair import Pair, stop

pytestmark = pytest.mark.parametrize("pair", FAMILIES, indirect=True)


def test_down_leaves_no_process(pair: Pair) -> None:
    running = pair.deployment.processes()
    assert len(running) >= 4, "a controller, a router and two engines at least"
    stopped = stop(pair.deployment)
    assert stopped.ended.code == 0, pair.deployment.told("pdctl down", stopped.ended)
    assert not stopped.marked
    assert not stopped.left
    assert pair.deployment.ps() == {}
