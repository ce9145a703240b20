"""What counts as served well, of the requests that were offered."""

from __future__ import annotations

import pytest

from orchestrator.analysis.targets import Judge, attainment, begun_in_time, kept, parse_slo
from orchestrator.core.slo import SloClass, Target
from orchestrator.core.types import PathKind, RequestView
from orchestrator.errors import ParamError
from orchestrator.sim.replay.life import Life
from orchestrator.sim.timing import QWEN3_32B_TP2

COLD_8K_S = QWEN3_32B_TP2.prefill_s(0, 8192)


def life(
    first_s: float | None,
    last_s: float | None = None,
    *,
    output: int = 11,
    gap_s: float = 0.0,
    name: str | None = None,
) -> Life:
    view = RequestView("r", "m", PathKind.CHAT, 10.0, 8192, 100, slo_class=name)
    one = Life(view, (), output)
    one.first_s, one.last_s, one.worst_gap_s = first_s, last_s, gap_s
    return one


def test_targets_as_a_person_writes_them() -> None:
    slo = parse_slo("ttft=1.5s+2x, tpot=40ms,e2e=1m")
    assert slo.ttft == Target(1.5, 0.99, 2.0)
    assert (slo.tpot, slo.e2e, slo.itl) == (Target(0.04), Target(60.0), None)
    assert parse_slo("itl=20ms").itl == Target(0.02)


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=1.5", "ttft=2s,ttft=3s", "speed=2s", "ttft=1s+x", "ttft=1parsec"]
)
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(ParamError) as caught:
        parse_slo(text)
    assert "ttft=1.5s+2x" in str(caught.value)


def test_a_first_token_has_the_time_of_its_own_cold_prefill() -> None:
    slo = SloClass("s", ttft=Target(1.5, per_cold_prefill=2.0))
    due_s = 10.0 + 1.5 + 2 * COLD_8K_S
    assert begun_in_time(life(due_s - 1e-6), slo)
    assert not begun_in_time(life(due_s + 1e-6), slo)
    assert not begun_in_time(life(None), slo)


def test_every_target_must_be_met_and_the_answer_whole() -> None:
    slo = SloClass("s", tpot=Target(0.04), itl=Target(0.1), e2e=Target(2.0))
    assert kept(life(11.0, 11.39, gap_s=0.1), slo)
    assert not kept(life(11.0, 11.41, gap_s=0.1), slo)
    assert not kept(life(11.0, 11.3, gap_s=0.11), slo)
    assert not kept(life(11.8, 12.1), slo)
    assert not kept(life(11.0, None), slo)
    assert kept(life(11.0, 11.0, output=1), slo)


def test_attainment_is_of_what_was_offered() -> None:
    slo = SloClass("s", ttft=Target(2.0))
    lives = [life(11.0, 12.0, name="s"), life(13.0, 14.0, name="s"), life(None, name="s"), life(99.0, 100.0)]
    assert attainment(lives, 4, {"s": slo}) == 0.5
    assert attainment([], 0, {}) == 1.0


def test_a_judge_stops_when_the_share_is_out_of_reach_and_not_before() -> None:
    slo = SloClass("s", ttft=Target(2.0), tpot=Target(0.04))
    judge = Judge({None: slo}, 100, 0.98)
    late = life(13.0)
    assert not judge.begun(late)
    late.last_s = 13.1
    assert not judge.ended(late)
    slow = life(11.0, 13.0)
    slow.view.id = "slow"  # type: ignore[misc]
    assert not judge.begun(slow)
    assert not judge.ended(slow)
    third = life(None)
    third.view.id = "third"  # type: ignore[misc]
    assert judge.ended(third)
