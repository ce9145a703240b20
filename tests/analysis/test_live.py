"""Figures of a live run beside its replay's."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.analysis.live import Cached, Figure, Machine, cached, figures, machine_lines, row, slowed
from orchestrator.analysis.summary import Spread, Summary


def summary(**told: Any) -> Summary:
    fields: dict[str, Any] = {
        "name": "default", "rate": 10.0, "offered": 4, "attainment": 0.75, "served": 3,
        "refused": {"slo-unreachable": 1}, "by_class": {}, "ttft": Spread(0.2, 0.1, 0.4, 0.5),
        "tpot": Spread(0.01, 0.01, 0.02, 0.02), "itl": Spread(None, 0.01, 0.02, 0.03),
        "worst_gap": Spread(), "e2e": Spread(1.0, 1.0, 2.0, 2.0), "cached_tokens": 512,
        "prompt_tokens": 4096, "hit_share": 1.0, "output_tokens_per_s": 100.0, "seconds": 3.0,
        "attempts": 3, "interrupted": False, "instances": [], "ttft_cdf": [(0.1, 0.5)],
    }  # fmt: skip
    return Summary(**{**fields, **told})


def test_what_is_compared_and_by_how_much() -> None:
    live, replay = summary(), summary(attainment=1.0, served=4, refused={}, ttft=Spread(0.1, 0.1, 0.4, 0.5))
    told = {figure.name: figure for figure in figures(live, [replay])}
    assert list(told)[:4] == ["attainment", "answered", "refused", "TTFT mean"]
    assert told["attainment"].difference == pytest.approx(-25.0), "points"
    assert told["attainment"].percent == pytest.approx(-25.0)
    assert told["TTFT mean"].difference == pytest.approx(0.1)
    assert told["TTFT mean"].percent == pytest.approx(100.0)
    assert told["refused"].percent is None, "of nothing there are no per cent"
    assert told["tokens found cached"].difference == 0
    assert row(told["attainment"]).split() == [
        "attainment",
        "75.0%",
        "100.0%",
        "-25.0",
        "points",
        "-25.0",
        "%",
    ]
    assert row(told["TTFT mean"]).split() == ["TTFT", "mean,", "s", "0.200", "0.100", "+0.100", "+100.0", "%"]


def test_several_replays_differ_by_chance() -> None:
    runs = [summary(attainment=share) for share in (0.7, 0.9, 0.8)]
    attained, *_ = figures(summary(attainment=0.84), runs)
    assert attained.replay == pytest.approx(0.8)
    assert attained.percent == pytest.approx(5.0)
    assert "70.0% to 90.0%" in row(attained)


def test_what_was_not_measured() -> None:
    assert figures(summary(ttft=Spread()), [summary(ttft=Spread())])[3].replay is None
    figure = Figure("TTFT p99", "s", None, (1.0,))
    assert figure.difference is None
    assert figure.percent is None
    assert row(figure).split() == ["TTFT", "p99,", "s", "-", "1.000", "-"]


def test_a_run_of_fast_engines_in_their_own_time() -> None:
    slow = slowed(summary(), 5.0)
    assert slow.ttft == Spread(1.0, 0.5, 2.0, 2.5)
    assert slow.itl.mean_s is None
    assert slow.itl.p99_s == pytest.approx(0.15)
    assert (slow.rate, slow.seconds, slow.output_tokens_per_s) == (2.0, 15.0, 20.0)
    assert slow.ttft_cdf == [(0.5, 0.5)]
    assert (slow.attainment, slow.cached_tokens, slow.hit_share) == (0.75, 512, 1.0)


def test_how_well_the_router_knew_the_caches() -> None:
    records: list[dict[str, Any]] = [
        {"predicted": {"cached_tokens": 128}, "cached_tokens": 128},
        {"predicted": {"cached_tokens": 512}, "cached_tokens": 448},
        {"predicted": None, "cached_tokens": None},
        {"cached_tokens": 64},
    ]
    assert cached(records) == Cached(requests=2, exact=1, predicted_tokens=640, reported_tokens=576)


def test_a_machine_in_words() -> None:
    first, second = machine_lines(Machine(2, 0.4, 0.25, 0.5, None, 0.001, 0.002, 0.005))
    assert first == "2 cores, load average 0.4 before; cores used: client 0.25, router 0.50"
    assert second.endswith("requests sent 1.0 ms, the client's loop 2.0 ms, the router's loop 5 ms")
