"""A comparison end to end: figures, goodput, JSON, page.

Covers `trials`, `summary`, `report`, `html` and `svg`.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from orchestrator.analysis.compare import Step, compare
from orchestrator.analysis.html import page
from orchestrator.analysis.report import Report, goal_name, time
from orchestrator.analysis.summary import quantile, spread
from orchestrator.analysis.svg import Axis, Line, plot
from orchestrator.analysis.targets import parse_slo
from orchestrator.analysis.trials import Trials
from orchestrator.sim.replay.fleet import published
from orchestrator.sim.replay.loading import load
from orchestrator.sim.replay.requests import Requests
from orchestrator.sim.replay.schedulers import Recipe, bare_router

DATA = Path(__file__).resolve().parents[1] / "data" / "traces"
SLO = parse_slo("ttft=1.5s+2x,tpot=40ms")


def trials(*profiles: str, first: int = 120) -> list[Trials]:
    requests = Requests(load(DATA / "mooncake_synthetic_400.jsonl").first(first), default_class=SLO.name)
    fleet = published(4, 1)
    return [
        Trials(name, Recipe(name, bare_router([SLO])), requests, fleet, {SLO.name: SLO}) for name in profiles
    ]


@pytest.fixture(scope="module")
def report() -> Report:
    return compare(trials("slo", "round-robin"), 0.25)


def test_figures(report: Report) -> None:
    late, robin = report.policies
    assert (late.name, robin.name) == ("slo", "round-robin")
    assert report.rate == pytest.approx(late.rate)
    assert late.offered == robin.offered == 120
    assert late.served + sum(late.refused.values()) == 120
    assert set(late.refused) <= {"slo-unreachable"}
    assert robin.refused == {}
    assert late.attainment > robin.attainment
    assert late.by_class == {"replay": late.attainment}
    assert 0.0 < robin.hit_share < late.hit_share <= 1.0  # type: ignore[operator]
    assert late.ttft.p50_s <= late.ttft.p90_s <= late.ttft.p99_s  # type: ignore[operator]
    assert 0.010 < late.itl.p50_s < 0.030  # type: ignore[operator]
    assert [i.name for i in late.instances] == [*(f"prefill-{i}" for i in range(4)), "decode-0"]
    assert all(0.0 < i.busy <= 1.0 for i in late.instances)
    assert sum(i.requests for i in late.instances if i.role == "prefill") == late.served
    assert late.ttft_cdf[-1][1] == pytest.approx(late.served / 120)


def test_goodput_is_the_rate_that_the_curve_crosses_the_goal_at(report: Report) -> None:
    late, robin = report.policies
    assert late.goodput["p90"] > 1.4 * robin.goodput["p90"]
    assert late.goodput["p99"] <= late.goodput["p90"]
    rates = [rate for rate, _ in robin.curve]
    assert rates == sorted(rates)
    below = [share for rate, share in robin.curve if rate <= robin.goodput["p90"]]
    above = [share for rate, share in robin.curve if rate > robin.goodput["p90"] * 1.02]
    assert min(below) >= 0.9 > max(above)
    assert report.best("p90") is late
    assert report.best("p50") is None


def test_json_says_that_it_is_simulated(report: Report) -> None:
    told = json.loads(report.as_json())
    assert (told["v"], told["simulated"], told["trace"]) == (1, True, "mooncake_synthetic_400")
    assert told["policies"][1]["goodput"].keys() == {"p90", "p99"}
    assert told["notes"] == ["first 120 of 400 requests", "time divided by 0.25"]
    assert told["promises"] == ["replay: TTFT <= 1.50 s + 2 x own cold prefill, TPOT <= 40.0 ms"]
    assert told["fleet"] == "4 prefill + 1 decode (sglang), 5 ms one way"


class Tags(HTMLParser):
    """The tags that are open, and links to anything outside."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.outside += [f"{k}={v}" for k, v in attrs if k in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone(report: Report) -> None:
    made = page(report)
    tags = Tags()
    tags.feed(made)
    assert (tags.open, tags.outside) == ([], [])
    assert "All figures are simulated" in made
    assert "script" not in made
    drawn = re.findall(r"<svg.*?</svg>", made)
    assert len(drawn) == 2 + 2 * 5
    for one in drawn:
        ElementTree.fromstring(one)


def test_a_name_cannot_break_the_page(report: Report) -> None:
    nasty = Report("<b>&", 1, 1.0, "<i>", ("<u>",), ("<s>",), 0)
    assert "<b>" not in page(nasty)
    assert "&lt;b&gt;&amp;" in page(nasty)


def test_points_are_drawn_inside_their_axes() -> None:
    lines = [Line("a", [(0.01, 0.0), (1000.0, 1.0), (1e9, 7.0)])]
    drawn = plot("t", lines, Axis("x", 0.01, 1000.0, log=True), Axis("y", 0.0, 1.0))
    points = re.search(r'polyline[^>]*points="([^"]*)"', drawn)
    assert points is not None
    where = [tuple(map(float, p.split(","))) for p in points[1].split()]
    assert where[0] == (56.0, 276.0)
    assert where[1] == where[2] == (624.0, 12.0)
    assert Axis("x", 0.01, 1000.0, log=True).ticks() == pytest.approx([0.01, 0.1, 1, 10, 100, 1000])
    assert Axis("y", 0.0, 1.0).ticks() == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert Axis("z", 3.0, 3.0).place(3.0) == 0.5


def test_what_is_interrupted_is_told_as_far_as_it_got() -> None:
    seen: list[Step] = []

    def stop(step: Step) -> None:
        seen.append(step)
        if step.policy == "round-robin" and step.share > 0.4:
            raise KeyboardInterrupt

    report = compare(trials("least-requests", "round-robin", "slo"), 0.25, on_step=stop)
    assert report.interrupted
    assert [p.name for p in report.policies] == ["least-requests", "round-robin"]
    whole, part = report.policies
    assert not whole.interrupted
    assert part.interrupted
    assert 0 < part.offered < 65
    assert whole.goodput == {}
    assert report.notes[-1].startswith("interrupted")
    assert (seen[0].policy, seen[0].number, seen[0].of, seen[0].share) == ("least-requests", 1, 3, 0.0)


def test_an_interrupted_search_keeps_the_first_figures() -> None:
    def stop(step: Step) -> None:
        if step.what.startswith("goodput"):
            raise KeyboardInterrupt

    report = compare(trials("least-requests"), 0.25, on_step=stop)
    assert report.interrupted
    assert report.policies[0].served == 120
    assert page(report)


def test_without_goodput_each_policy_runs_once() -> None:
    seen: list[str] = []
    report = compare(trials("least-requests"), 0.25, goodput=False, on_step=lambda s: seen.append(s.what))
    assert set(seen) == {f"{report.rate:.2f} requests/s"}
    assert (report.policies[0].goodput, report.policies[0].curve) == ({}, [])


def test_quantiles_and_times_as_they_are_told() -> None:
    assert spread([]).mean_s is None
    assert spread([1.0, 2.0, 3.0, 4.0]).mean_s == 2.5
    assert [quantile([1.0, 2.0, 3.0, 4.0], share) for share in (0.0, 0.25, 0.26, 0.5, 0.99, 1.0)] == [
        1,
        1,
        2,
        2,
        4,
        4,
    ]
    assert [time(s) for s in (None, 0.0123, 0.25, 1.5, 250.0, 12_345.0)] == [
        "-", "12.3 ms", "250 ms", "1.50 s", "250 s", "12,345 s",
    ]  # fmt: skip
    assert (goal_name(0.9), goal_name(0.999)) == ("p90", "p99.9")
