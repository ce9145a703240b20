"""The router's metrics: cheap counters behind their table, and Prometheus text out of them."""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from orchestrator.clock import Clock
from orchestrator.core.prediction import Accuracy
from orchestrator.core.types import Endpoint, Outcome, PathKind, Snapshot
from orchestrator.metrictable import METRICS, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What `RouterMetrics.render` writes: the Prometheus text format that every scraper reads."""

OTHER = "other"
"""The label value for whatever is not known: a client cannot make series."""

MAX_SERIES = 1000
"""Label sets kept per metric; a plug-in that makes up reasons ends in `other`, not in a full memory."""

BY_NAME = {m.name: m for m in METRICS}

Labels = tuple[str, ...]


class Counters:
    """The values of one counter or gauge by label set."""

    __slots__ = ("metric", "values")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.values: dict[Labels, float] = {}

    def add(self, labels: Labels, amount: float = 1.0) -> None:
        """Add `amount`; beyond MAX_SERIES label sets it goes to the one where every label is `other`."""
        values = self.values
        if labels in values:
            values[labels] += amount
            return
        if len(values) >= MAX_SERIES:
            labels = (OTHER,) * len(labels)
        values[labels] = values.get(labels, 0.0) + amount

    def family(self) -> Family:
        """The values as the exposition library wants them."""
        kind = CounterMetricFamily if self.metric.kind == "counter" else GaugeMetricFamily
        family = kind(self.metric.name, self.metric.help, labels=self.metric.labels)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        return family


class Buckets:
    """One histogram series: plain counts, since it is fed for every streamed chunk by one thread."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count `value` in the first bucket whose bound is not below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """(bound, observations up to it), the last bound being infinite."""
        seen, rows = 0, []
        for bound, count in zip((*map(repr, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            rows.append((bound, float(seen)))
        return rows


class Histogram:
    """The series of one histogram by label set."""

    __slots__ = ("metric", "series")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.series: dict[Labels, Buckets] = {} if metric.labels else {(): Buckets(metric.buckets)}

    def of(self, labels: Labels) -> Buckets:
        """The series of `labels`, made at first use; bounded as counters are."""
        found = self.series.get(labels)
        if found is None:
            if len(self.series) >= MAX_SERIES:
                labels = (OTHER,) * len(labels)
            found = self.series.setdefault(labels, Buckets(self.metric.buckets))
        return found

    def observe(self, labels: Labels, value: float) -> None:
        """Count `value` in the series of `labels`."""
        found = self.series.get(labels)
        if found is None:
            found = self.of(labels)
        # As `Buckets.observe`, without the call: this runs several times for every request.
        found.counts[bisect_left(found.bounds, value)] += 1
        found.total += value

    def family(self) -> Family:
        """The series as the exposition library wants them."""
        family = HistogramMetricFamily(self.metric.name, self.metric.help, labels=self.metric.labels)
        for labels, buckets in self.series.items():
            family.add_metric(labels, buckets.cumulative(), buckets.total)
        return family


class RouterMetrics(Collector):
    """What the router counts, and its rendering. One per router; for one thread.

    `models` are the served names: any other name a client sends is counted as `other`.
    """

    def __init__(self, models: Iterable[str], clock: Clock, version: str) -> None:
        self._clock = clock
        self._models = frozenset(models)
        self._snapshot: Callable[[], Snapshot] | None = None
        self._accuracy: Callable[[], Iterable[Accuracy]] | None = None
        self._followed: dict[str, Callable[[], Mapping[Labels, float]]] = {}
        self._counters = {m.name: Counters(m) for m in METRICS if m.kind != "histogram"}
        self._histograms = {m.name: Histogram(m) for m in METRICS if m.kind == "histogram"}
        self._counters["pdctl_build_info"].add((version, platform.python_version()))
        self.inflight(0, 0)
        # Bound once: these run for every request, and those below for every streamed chunk.
        self._requests = self._counters["pdctl_requests_total"]
        self._legs = self._counters["pdctl_legs_total"]
        self._prompt_tokens = self._counters["pdctl_prompt_tokens_total"]
        self._cached_tokens = self._counters["pdctl_cached_tokens_total"]
        self._output_tokens = self._counters["pdctl_output_tokens_total"]
        self._request_s = self._histograms["pdctl_request_s"]
        self._ttft_s = self._histograms["pdctl_ttft_s"]
        self._tpot_s = self._histograms["pdctl_tpot_s"]
        self._stage_s = self._histograms["pdctl_stage_s"]
        self.itl: Callable[[float], None] = self._histograms["pdctl_itl_s"].of(()).observe
        """Count one gap between two chunks of a stream, in seconds."""
        self.loop_lag: Callable[[float], None] = self._histograms["pdctl_loop_lag_s"].of(()).observe
        """Count how late a timer of the event loop came, in seconds."""
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def serve_models(self, models: Iterable[str]) -> None:
        """The served names from now on (a reload)."""
        self._models = frozenset(models)

    def watch(self, snapshot: Callable[[], Snapshot]) -> None:
        """Take the endpoints' gauges from `snapshot()` at each rendering."""
        self._snapshot = snapshot

    def follow(self, name: str, read: Callable[[], Mapping[Labels, float]]) -> None:
        """Take the values of one counter or gauge from `read()` at each rendering."""
        self._followed[name] = read

    def watch_predictions(self, report: Callable[[], Iterable[Accuracy]]) -> None:
        """Take the predictor's account of itself from `report()` at each rendering."""
        self._accuracy = report

    def request_done(
        self, outcome: Outcome, path: str, model: str, slo_class: str = "", choices: int = 1
    ) -> None:
        """Count a request that ended: its result, its duration, its mean gap and its tokens.

        `path` is a PathKind, or anything else, counted as `other`; `slo_class` is empty where there is none.
        Of several `choices` the gaps are not known. TTFT and stages are not read from the outcome: they are
        counted when they happen.
        """
        shown = str(path) if path in _PATHS else OTHER
        known = model if model in self._models else OTHER
        labels = (shown, known, str(outcome.end), str(outcome.http_status), outcome.reason)
        self._requests.add(labels)
        if outcome.e2e_s is not None:
            self._request_s.observe((shown,), outcome.e2e_s)
        tpot_s = outcome.tpot_s if choices == 1 else None
        if tpot_s is not None:
            self._tpot_s.observe((slo_class,), tpot_s)
        if outcome.prompt_tokens:
            self._prompt_tokens.add((known,), outcome.prompt_tokens)
        if outcome.cached_tokens:
            self._cached_tokens.add((known,), outcome.cached_tokens)
        if outcome.output_tokens:
            self._output_tokens.add((known,), outcome.output_tokens)

    def ttft(self, seconds: float, slo_class: str) -> None:
        """Count one time to first token; `slo_class` is empty where there is none."""
        self._ttft_s.observe((slo_class,), seconds)

    def leg_done(self, leg: str, endpoint: str, result: str) -> None:
        """Count an engine call that ended; `result` is `ok` or a reason slug."""
        self._legs.add((str(leg), endpoint, result))

    def stripped(self, field: str) -> None:
        """Count a guarded field that was taken out of a request."""
        self._counters["pdctl_stripped_fields_total"].add((field,))

    def retried(self, kind: str, result: str) -> None:
        """Count a failed attempt that could be made up for; `result` is `again`, or why it was not."""
        self._counters["pdctl_retries_total"].add((kind, str(result)))

    def canary(self, prefill: str, decode: str, result: str) -> None:
        """Count a try of a pair; `result` is what is thought of it now, or what was found."""
        self._counters["pdctl_canaries_total"].add((prefill, decode, result))

    def alarm(self, endpoint: str, alarm: str, times: float) -> None:
        """Count what must not happen to KV, and did."""
        self._counters["pdctl_kv_alarms_total"].add((endpoint, alarm), times)

    def stage(self, name: str, seconds: float) -> None:
        """Count one stage of a request (`queue`, `prefill`, ...)."""
        self._stage_s.observe((name,), seconds)

    def policy_error(self, name: str) -> None:
        """Count a policy that failed and was bypassed."""
        self._counters["pdctl_policy_errors_total"].add((name,))

    def inflight(self, requests: int, queued: int) -> None:
        """Set how many requests are accepted and not ended, and how many of them wait for an endpoint."""
        self._counters["pdctl_inflight_requests"].values[()] = float(requests)
        self._counters["pdctl_queued_requests"].values[()] = float(queued)

    def endpoint_changed(self, endpoint: str, to: str, why: str) -> None:
        """Count a join (`to` = ready) or a leave (`to` = out) and its cause, a slug."""
        self._counters["pdctl_endpoint_changes_total"].add((endpoint, to, why))

    def incarnation(self, endpoint: str) -> None:
        """Count a new process behind an endpoint."""
        self._counters["pdctl_endpoint_incarnations_total"].add((endpoint,))

    def probe_error(self, endpoint: str, call: str, why: str) -> None:
        """Count a probe, discovery call or load read that failed; `why` is a slug."""
        self._counters["pdctl_probe_errors_total"].add((endpoint, call, why))

    def promise(self, slo_class: str, verdict: str) -> None:
        """Count a request of a class that ended, and how its promise was kept."""
        self._counters["pdctl_slo_requests_total"].add((slo_class, verdict))

    def decision(self, result: str, number: int = 1) -> None:
        """Count decision records: `written`, or dropped for want of `disk`, `rate` or room (`overflow`)."""
        self._counters["pdctl_decisions_total"].add((result,), number)

    def worker_ended(self, how: str) -> None:
        """Count a relay process that ended by itself: `exit-CODE`, or the signal that ended it."""
        self._counters["pdctl_worker_exits_total"].add((how,))

    def reload(self, result: str) -> None:
        """Count a reload of the plan: `ok` or `refused`."""
        self._counters["pdctl_reloads_total"].add((result,))

    def render(self) -> bytes:
        """Everything in the Prometheus text format, process metrics included."""
        return generate_latest(self._registry)

    def counts(self) -> Iterator[tuple[str, Labels, float | tuple[tuple[int, ...], float]]]:
        """Every series that only grows: its value, or a histogram's counts by bucket and its sum."""
        for name, counters in self._counters.items():
            if counters.metric.kind == "counter":
                yield from ((name, labels, float(value)) for labels, value in counters.values.items())
        for name, histogram in self._histograms.items():
            for labels, series in histogram.series.items():
                yield name, labels, (tuple(series.counts), series.total)

    def add_counts(self, name: str, labels: Labels, value: float | Sequence[Any]) -> None:
        """Add to a series what another process has counted, in the form of `counts`."""
        if isinstance(value, float | int):
            self._counters[name].add(labels, value)
            return
        series = self._histograms[name].of(labels)
        counts, total = value
        series.counts = [mine + more for mine, more in zip(series.counts, counts, strict=True)]
        series.total += total

    def collect(self) -> Iterator[Family]:
        """One family per row of METRICS."""
        self._read_endpoints()
        for name, read in self._followed.items():
            self._counters[name].values = dict(read())
        self._read_predictions()
        for metric in METRICS:
            store = self._counters if metric.kind != "histogram" else self._histograms
            yield store[metric.name].family()

    def _read_endpoints(self) -> None:
        # Written anew each time, so that an endpoint that was removed takes its gauges along.
        for name in _GAUGES:
            self._counters[name].values.clear()
        now_s = self._clock.now_s()
        for endpoint in self._snapshot().endpoints if self._snapshot else ():
            for name, labels, value in _gauges(endpoint, now_s):
                if value is not None:
                    self._counters[name].values[labels] = float(value)

    def _read_predictions(self) -> None:
        for name in _PREDICTIONS:
            self._counters[name].values.clear()
        for accuracy in self._accuracy() if self._accuracy else ():
            for name, labels, value in _predictions(accuracy):
                self._counters[f"pdctl_prediction_{name}"].values[labels] = float(value)


_PATHS = frozenset(PathKind)
_PREDICTIONS = tuple(m.name for m in METRICS if m.name.startswith("pdctl_prediction_"))
_GAUGES = tuple(m.name for m in METRICS if m.kind == "gauge" and "endpoint" in m.labels)


def _gauges(endpoint: Endpoint, now_s: float) -> Iterator[tuple[str, Labels, float | None]]:
    own, load, given = (endpoint.id,), endpoint.load, endpoint.inflight
    yield "pdctl_endpoint_ready", (endpoint.id, endpoint.pool, str(endpoint.role)), endpoint.ready
    yield "pdctl_endpoint_inflight_requests", own, given.requests
    yield "pdctl_endpoint_inflight_prefill_tokens", own, given.prefill_tokens
    yield "pdctl_endpoint_inflight_kv_tokens", own, given.kv_tokens
    if load is not None:
        yield "pdctl_endpoint_running_requests", own, load.running
        yield "pdctl_endpoint_waiting_requests", own, load.waiting
        yield "pdctl_endpoint_kv_used_tokens", own, load.kv_used_tokens
        yield "pdctl_endpoint_kv_total_tokens", own, load.kv_total_tokens
        yield "pdctl_endpoint_load_age_s", own, max(0.0, now_s - load.at_s)


def _predictions(accuracy: Accuracy) -> Iterator[tuple[str, Labels, float]]:
    whose = (accuracy.model, accuracy.endpoint or "")
    for stage in accuracy.stages:
        labels = (*whose, stage.stage)
        yield "predicted_s_total", labels, stage.predicted_s
        yield "actual_s_total", labels, stage.actual_s
        yield "bias_ratio", labels, stage.bias
        yield "error_ratio", labels, stage.error
    for coverage in accuracy.coverage:
        labels = (*whose, coverage.horizon)
        yield "outcomes_total", labels, coverage.outcomes
        yield "promises_total", (*labels, "kept"), coverage.kept
        yield "promises_total", (*labels, "missed"), coverage.given - coverage.kept
        for quantile, within in coverage.within.items():
            yield "within_total", (*labels, str(quantile)), within
