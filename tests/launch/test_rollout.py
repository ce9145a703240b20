"""When a rollout pauses, and what of a plan one pool takes up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.types import Role
from orchestrator.errors import LaunchError
from orchestrator.launch.rollout import Lookout, compare, narrowed
from orchestrator.launch.routerlink import Figures
from orchestrator.launch.testing import FakeRouterLink, instance, plan

USUAL = Figures(1000, 20, 100, 10)


@pytest.mark.parametrize(
    ("requests", "failed", "promised", "missed", "why"),
    [
        (100, 4, 0, 0, ""),
        (100, 5, 0, 0, "5 of 100 requests failed since the step before"),
        (9, 9, 0, 0, ""),
        (100, 0, 50, 6, ""),
        (100, 0, 50, 7, "7 of 50 promises were not kept since the step before"),
    ],
)
def test_a_share_that_is_worse_than_usual(
    requests: int, failed: int, promised: int, missed: int, why: str
) -> None:
    now = Figures(1000 + requests, 20 + failed, 100 + promised, 10 + missed)
    assert compare(USUAL, USUAL, now) == why


async def test_each_step_is_held_against_what_was_before_the_first() -> None:
    link = FakeRouterLink(counted=USUAL)
    lookout = Lookout(0.0, link)
    await lookout.begin()
    for step in (1, 2):
        link.counted = Figures(1000 + 100 * step, 20 + 4 * step, 100, 10)
        assert await lookout.look() == ""
    link.counted = Figures(1300, 100, 100, 10)
    assert await lookout.look() == "72 of 100 requests failed since the step before"


async def test_another_router_or_none_tells_nothing() -> None:
    link = FakeRouterLink(counted=USUAL)
    lookout = Lookout(0.0, link)
    await lookout.begin()
    for counted in (None, Figures(50, 50, 0, 0), Figures(10, 10, 0, 0)):
        link.counted = counted
        assert await lookout.look() == ""


def test_one_pool_alone(tmp_path: Path) -> None:
    p0, d0 = (instance(r.value, r, port, ["x"]) for r, port in ((Role.PREFILL, 1), (Role.DECODE, 2)))
    running = plan(tmp_path, p0, d0)
    new = plan(tmp_path, *(replace(i, digest="new") for i in (p0, d0)))
    assert [i.digest for i in narrowed(new, running, "decode").instances] == ["", "new"]
    with pytest.raises(LaunchError, match="no pool 'x' here; there are: prefill, decode"):
        narrowed(new, running, "x")
    clash = plan(tmp_path, p0, replace(d0, ports={"http": 1}))
    with pytest.raises(LaunchError, match="the new decode would have ports of other pools"):
        narrowed(clash, running, "decode")
