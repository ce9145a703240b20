"""The page of `bench router` from figures made up (routerpage): ratios, added latency, what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import router, routerpage
from benchmarks.machine import Machine
from benchmarks.routerpage import DIRECT, Memory, Sample

HERE = Machine("A CPU", 2, 8.0, "6.1", "3.11", "abc", "2026-01-01 00:00 UTC", 0.1)


def samples(cpu_us: dict[str, float], rounds: int = 2) -> list[Sample]:
    """Each router's CPU at each load, in PD mode; 0.1 ms for the engine itself and 0.001 per us beyond."""
    return [
        Sample("PD", number, name, load.name, us, 0.1 + us / 1000, 1.0, 100.0, 0)
        for number in range(rounds)
        for load in router.LOADS
        for name, us in {DIRECT: 0.0, **cpu_us}.items()
    ]


def test_pdctl_is_compared_with_the_best_peer_and_with_nginx() -> None:
    table = routerpage.against(samples({"pdctl": 90.0, "slow": 400.0, "fast": 200.0, "nginx": 20.0}))
    rows = {row[1] + " " + row[2]: row[3:] for row in table.rows}
    assert rows["CPU per PD request, 1 KB fast"] == ["0.45 (0.45-0.45)", "0.5", "met"]
    assert rows["CPU per chunk, 64 streams nginx"][1:] == ["1.4", "missed"]
    assert rows["added p50, one at a time fast"][0] == "0.45 (0.45-0.45)"


def test_without_peers_nothing_is_compared() -> None:
    assert routerpage.against(samples({"pdctl": 1.0})).rows == []


def test_added_latency_is_beyond_the_engine_itself_round_by_round() -> None:
    values = routerpage.grouped(samples({"pdctl": 50.0}))
    added = routerpage.added_ms(values, "PD", "one at a time", "pdctl")
    assert added is not None
    assert added.median == pytest.approx(0.05)
    assert routerpage.added_ms(values, "regular", "one at a time", "pdctl") is None


def test_a_page_has_every_router_and_says_what_is_missing(tmp_path: Path) -> None:
    taken = samples({"pdctl": 90.0, "smg": 200.0})
    report = routerpage.report(taken, [Memory("PD", "smg", 60.0)], ["nginx (not installed)"], HERE, [])
    page = report.write(tmp_path).read_text()
    assert "Not measured: nginx (not installed)." in page
    assert "| smg | 200 (200-200) |" in page
    assert (tmp_path / "router-pd-chunk.svg").exists()


def test_a_run_needs_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        router.parse(["--rounds", "0"])
    assert "at least one" in capsys.readouterr().err
