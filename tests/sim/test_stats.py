"""Histograms and the Prometheus text they become."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from orchestrator.sim.stats import EngineStats, Exposition, Histogram


def test_a_histogram_counts_up_to_and_including_each_bound() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    histogram.observe(2.0, times=3)
    assert histogram.counts == [2, 4, 1]
    assert (histogram.total, histogram.sum) == (7, 18.0)


def test_the_text_is_read_by_a_prometheus_parser() -> None:
    e = Exposition({"model_name": 'a "b"\\\n'})
    histogram = Histogram((1, 2))
    histogram.observe(1.5)
    e.gauge("x:g", 3, reason="r")
    e.gauge("x:g", 4, reason="s")
    e.counter("x:c", 5)
    e.histogram("x:h", histogram)
    e.bare("process_start_time_seconds", 12.5)
    families = {f.name: f for f in text_string_to_metric_families(e.text().decode())}
    assert [s.value for s in families["x:g"].samples] == [3, 4]
    assert families["x:g"].samples[0].labels == {"model_name": 'a "b"\\\n', "reason": "r"}
    assert families["x:c"].samples[0].name == "x:c_total"
    buckets = {s.labels["le"]: s.value for s in families["x:h"].samples if s.name.endswith("_bucket")}
    assert buckets == {"1.0": 0, "2.0": 1, "+Inf": 1}
    assert families["process_start_time_seconds"].samples[0].value == 12.5


def test_finished_requests_are_counted_by_reason() -> None:
    stats = EngineStats(Histogram((1,)), Histogram((1,)), Histogram((1,)))
    for reason in ("stop", "stop", "abort"):
        stats.finish(reason)
    assert stats.finished == {"stop": 2, "abort": 1}
