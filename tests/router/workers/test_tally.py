"""What a relay counts arrives once in the scheduler's process."""

from __future__ import annotations

from orchestrator.clock import FakeClock
from orchestrator.core.types import End, Outcome
from orchestrator.metrics import RouterMetrics
from orchestrator.router.workers import tally


def make() -> RouterMetrics:
    return RouterMetrics(("m",), FakeClock(), "1")


def value(metrics: RouterMetrics, name: str) -> float:
    rows = (line.rpartition(" ") for line in metrics.render().decode().splitlines())
    return sum(float(number) for series, _, number in rows if series.split("{")[0] == name)


def test_growth_of_several_is_summed() -> None:
    total, relays = make(), [make(), make()]
    tallies = [tally.Tally(one) for one in relays]
    for round_ in range(2):
        for relay, told in zip(relays, tallies, strict=True):
            relay.request_done(
                Outcome("r", End.COMPLETED, 200, e2e_s=1.0 + round_, output_tokens=5), "chat", "m"
            )
            relay.itl(0.02)
            tally.add(total, told.take())
    assert value(total, "pdctl_requests_total") == 4
    assert value(total, "pdctl_output_tokens_total") == 20
    assert value(total, "pdctl_itl_s_count") == 4
    assert value(total, "pdctl_request_s_sum") == 6.0


def test_nothing_new_is_nothing() -> None:
    metrics = make()
    told = tally.Tally(metrics)
    metrics.ttft(0.1, "chat")
    assert told.take()
    assert told.take() == b""


def test_gauges_are_left_to_who_owns_them() -> None:
    total, metrics = make(), make()
    metrics.inflight(7, 3)
    metrics.ttft(0.1, "chat")
    tally.add(total, tally.Tally(metrics).take())
    assert value(total, "pdctl_inflight_requests") == 0
    assert value(total, "pdctl_build_info") == 1
