"""Goodput from runs made up: what is kept, the rates at 90 and 99 %, what runs (goodput, goodputpage)."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import goodput, goodputpage, own
from benchmarks.goodputpage import Point, Rank, judged
from benchmarks.machine import Machine

from orchestrator.analysis.targets import parse_slo
from orchestrator.core.types import PathKind, RequestView
from orchestrator.sim.replay.life import Life

HERE = Machine("A CPU", 2, 8.0, "6.1", "3.11", "abc", "2026-01-01 00:00 UTC", 0.1)
SLO = parse_slo("ttft=1s,tpot=40ms", "live")
RANKS = [Rank("priced", 1.0), Rank("cache-aware", 0.9), Rank("least-tokens", 0.8), Rank("power-of-two", 0.5),
         Rank("round-robin", 0.4), Rank("random", 0.3)]  # fmt: skip


def life(ttft_s: float, gap_s: float, refused: str = "") -> Life:
    view = RequestView(
        id="0" * 32, model="m", path=PathKind.COMPLETION, arrived_s=5.0, prompt_tokens=100, max_tokens=11,
        stream=True, slo_class=None, block_hashes=(),
    )  # fmt: skip
    made = Life(view, (), 11)
    made.refused = refused
    if not refused:
        made.first_s = 5.0 + ttft_s
        made.last_s = made.first_s + 10 * gap_s
    return made


def point(name: str, rate: float, kept: float) -> Point:
    return Point(name, "sglang", name.startswith("pdctl"), rate, 100, kept, {"late": 1}, 0.001, 0.001, 1.0)


def test_targets_are_judged_in_the_engines_own_time() -> None:
    lives = [life(0.09, 0.003), life(0.11, 0.003), life(0.09, 0.005), life(0, 0, "slo-unreachable")]
    share, missed = judged(lives, 5, SLO, speed=10.0)
    assert share == pytest.approx(0.2)
    assert missed == {"late": 2, "slo-unreachable": 1}
    assert judged(lives, 5, SLO, speed=1.0)[0] == pytest.approx(0.6)


def test_each_peer_runs_the_policies_whose_rules_do_best_in_replay() -> None:
    names = [setup.name for setup in goodput.setups(RANKS, 2, [])]
    assert names[:3] == ["pdctl default (sglang)", "pdctl default (vllm)", "pdctl priced (sglang)"]
    assert "smg cache_aware" in names
    assert "smg least_load" in names
    assert "vllm-router power_of_two" in names
    assert [setup.name for setup in goodput.setups(RANKS, 1, ["smg"])] == ["smg cache_aware"]


def test_overload_is_twice_what_the_best_peer_keeps() -> None:
    points = [point("a", 1.0, 1.0), point("a", 2.0, 0.8), point("b", 1.0, 0.5), point("pdctl", 2.0, 1.0)]
    assert goodput.overload(points) == pytest.approx(3.0)
    assert goodput.overload([point("b", 1.0, 0.5)]) is None


def test_a_page_has_the_whole_curve(tmp_path: Path) -> None:
    points = [point("a", 1.0, 1.0), point("a", 2.0, 0.8), point("pdctl", 1.0, 1.0), point("pdctl", 3.0, 0.95)]
    about = {"trace": "t", "requests": 100, "slo": "ttft=1s", "speed": 10.0, "short": True, "prefill": 2,
             "decode": 1, "compiled": False, "routers": ["a"]}  # fmt: skip
    report = goodputpage.report(points, RANKS, 3.0, ["b (no)"], about, HERE)
    page = report.write(tmp_path).read_text()
    assert "| a | 1.50 | 1.05 |  |" in page
    assert "| pdctl | >= 3.00 | 1.40 | 95.0% |" in page
    assert "Not run: b (no)." in page
    assert "short form" in page
    assert "`scripts/bench goodput --short --trace FILE --first 100 --router 'a' --write`" in page
    assert (tmp_path / "goodput-curve.svg").exists()
    assert goodputpage.report([], [], None, [], about, HERE).pictures == {}


def test_pdctl_is_told_the_same_targets_for_faster_engines() -> None:
    slo = parse_slo("ttft=1.5s+2x,tpot=40ms", "live")
    told = own.targets(slo, 10.0)
    assert told == {
        "ttft": {"p99": "0.150000000s", "per_cold_prefill": 2.0}, "tpot": {"p99": "0.004000000s"},
    }  # fmt: skip


def test_faster_engines_than_the_machine_can_stand_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        goodput.parse(["--speed", "11"])
    assert "10 at most" in capsys.readouterr().err
    assert goodput.parse(["--short"]).first == 120
    assert goodput.main(["--trace", "/nowhere.jsonl"]) == 2
