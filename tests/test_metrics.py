"""The metrics and their table (metrictable): bounded labels, right buckets, and a document that lists all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.clock import FakeClock
from orchestrator.core.prediction import Accuracy, Coverage, StageAccuracy
from orchestrator.core.types import End, Endpoint, Inflight, Load, Outcome, PathKind, Role, Snapshot
from orchestrator.metrics import BY_NAME, MAX_SERIES, RouterMetrics
from orchestrator.metrictable import METRICS

DOC = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"

ACCURACY = Accuracy(
    "m",
    "p0",
    (StageAccuracy("prefill", 10, predicted_s=4.0, actual_s=5.0, bias=1.25, error=0.3),),
    (Coverage("dispatch", 10, {0.5: 6, 0.99: 9}, given=8, kept=7),),
)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def make(clock: FakeClock | None = None) -> RouterMetrics:
    return RouterMetrics(["m", "other-model"], clock or FakeClock(), "1.2.3")


def samples(metrics: RouterMetrics) -> Samples:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}


def value(metrics: RouterMetrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def outcome(**changes: object) -> Outcome:
    fields: dict[str, object] = {"request_id": "r", "end": End.COMPLETED, "http_status": 200, **changes}
    return Outcome(**fields)  # type: ignore[arg-type]


def test_a_request_is_counted_by_how_the_client_saw_it() -> None:
    metrics = make()
    metrics.request_done(outcome(e2e_s=0.3, prompt_tokens=10, cached_tokens=4, output_tokens=7), "chat", "m")
    metrics.request_done(outcome(end=End.REFUSED, http_status=429, reason="queue-full"), "chat", "m")
    assert (
        value(
            metrics, "pdctl_requests_total", path="chat", model="m", end="completed", status="200", reason=""
        )
        == 1
    )
    assert (
        value(
            metrics,
            "pdctl_requests_total",
            path="chat",
            model="m",
            end="refused",
            status="429",
            reason="queue-full",
        )
        == 1
    )
    assert value(metrics, "pdctl_prompt_tokens_total", model="m") == 10
    assert value(metrics, "pdctl_cached_tokens_total", model="m") == 4
    assert value(metrics, "pdctl_output_tokens_total", model="m") == 7
    assert value(metrics, "pdctl_request_s_count", path="chat") == 1
    assert value(metrics, "pdctl_request_s_sum", path="chat") == pytest.approx(0.3)


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=30))
def test_a_client_cannot_make_series(names: list[tuple[str, str]]) -> None:
    metrics = make()
    for path, model in names:
        metrics.request_done(outcome(), path, model)
    seen = [dict(labels) for name, labels in samples(metrics) if name == "pdctl_requests_total"]
    assert {s["path"] for s in seen} <= {*PathKind, "other"}
    assert {s["model"] for s in seen} <= {"m", "other-model", "other"}


def test_a_plugin_that_makes_up_reasons_is_bounded() -> None:
    metrics = make()
    for i in range(MAX_SERIES + 500):
        metrics.leg_done("prefill", "p0", f"reason-{i}")
        metrics.stage(f"stage-{i}", 0.1)
    found = samples(metrics)
    legs = [v for (name, _), v in found.items() if name == "pdctl_legs_total"]
    assert len(legs) == MAX_SERIES + 1
    assert value(metrics, "pdctl_legs_total", leg="other", endpoint="other", result="other") == 500
    assert value(metrics, "pdctl_stage_s_count", stage="other") == 500


def test_label_values_are_escaped() -> None:
    metrics = make()
    metrics.stripped('a"b\\c\nd')
    assert value(metrics, "pdctl_stripped_fields_total", field='a"b\\c\nd') == 1


@given(st.lists(st.floats(min_value=0, max_value=100), max_size=50))
def test_a_histogram_counts_each_value_in_every_bucket_that_holds_it(gaps: list[float]) -> None:
    metrics = make()
    for gap in gaps:
        metrics.itl(gap)
    found = samples(metrics)
    for bound in BY_NAME["pdctl_itl_s"].buckets:
        key = ("pdctl_itl_s_bucket", frozenset({("le", str(bound))}))
        assert found[key] == sum(gap <= bound for gap in gaps)
    assert found[("pdctl_itl_s_count", frozenset())] == len(gaps)
    assert found[("pdctl_itl_s_sum", frozenset())] == pytest.approx(sum(gaps))


def endpoint(name: str, **changes: object) -> Endpoint:
    fields: dict[str, object] = {
        "id": name, "pool": "p", "role": Role.PREFILL, "engine": "e", "model": "m", "url": "", "ready": True
    }  # fmt: skip
    return Endpoint(**{**fields, **changes})  # type: ignore[arg-type]


def test_endpoints_are_read_from_the_snapshot_and_go_with_it() -> None:
    clock = FakeClock(100.0)
    metrics = make(clock)
    load = Load(at_s=97.0, running=2, waiting=3, kv_used_tokens=40)
    shown = [
        endpoint("p0", load=load, inflight=Inflight(requests=5, prefill_tokens=60, kv_tokens=70)),
        endpoint("p1", ready=False),
    ]
    metrics.watch(lambda: Snapshot(at_s=0.0, endpoints=tuple(shown)))
    assert value(metrics, "pdctl_endpoint_ready", endpoint="p0", pool="p", role="prefill") == 1
    assert value(metrics, "pdctl_endpoint_ready", endpoint="p1", pool="p", role="prefill") == 0
    assert value(metrics, "pdctl_endpoint_inflight_requests", endpoint="p0") == 5
    assert value(metrics, "pdctl_endpoint_inflight_prefill_tokens", endpoint="p0") == 60
    assert value(metrics, "pdctl_endpoint_inflight_kv_tokens", endpoint="p0") == 70
    assert value(metrics, "pdctl_endpoint_waiting_requests", endpoint="p0") == 3
    assert value(metrics, "pdctl_endpoint_load_age_s", endpoint="p0") == 3.0
    assert value(metrics, "pdctl_endpoint_kv_total_tokens", endpoint="p0") is None
    assert value(metrics, "pdctl_endpoint_running_requests", endpoint="p1") is None
    shown.pop(0)
    assert value(metrics, "pdctl_endpoint_ready", endpoint="p0", pool="p", role="prefill") is None


def test_the_mean_gap_of_a_stream_is_counted_by_its_class() -> None:
    metrics = make()
    streamed = outcome(ttft_s=1.0, e2e_s=1.2, output_tokens=11)
    metrics.request_done(streamed, "chat", "m", "gold")
    metrics.request_done(outcome(e2e_s=1.2, output_tokens=11), "chat", "m", "gold")  # not streamed
    metrics.request_done(outcome(ttft_s=1.0, e2e_s=1.0, output_tokens=1), "chat", "m", "gold")
    metrics.request_done(streamed, "chat", "m", "gold", 2)  # whose tokens are counted together
    assert value(metrics, "pdctl_tpot_s_count", slo_class="gold") == 1
    assert value(metrics, "pdctl_tpot_s_sum", slo_class="gold") == pytest.approx(0.02)


def test_every_method_feeds_its_metric() -> None:
    metrics = make()
    metrics.request_done(
        outcome(ttft_s=0.5, e2e_s=1.0, prompt_tokens=1, cached_tokens=1, output_tokens=2), "chat", "m"
    )
    metrics.inflight(4, 3)
    metrics.ttft(0.1, "chat")
    metrics.itl(0.01)
    metrics.loop_lag(0.0)
    metrics.stage("queue", 0.0)
    metrics.leg_done("decode", "d0", "ok")
    metrics.stripped("bootstrap_room")
    metrics.policy_error("tenant")
    metrics.endpoint_changed("d0", "ready", "probe")
    metrics.incarnation("d0")
    metrics.probe_error("d0", "ready", "refused")
    metrics.reload("ok")
    metrics.worker_ended("sigkill")
    metrics.follow("pdctl_workers", lambda: {(): 2.0})
    metrics.retried("retry", "again")
    metrics.canary("p0", "d0", "good")
    metrics.alarm("p0", "expired", 2)
    metrics.follow("pdctl_pairs", lambda: {("good",): 1.0})
    metrics.promise("interactive", "kept")
    metrics.decision("written", 3)
    for field in ("prompt", "hit", "ceiling"):
        metrics.follow(f"pdctl_prefix_{field}_tokens_total", lambda: {("m",): 5.0})
    for field in ("predicted_tokens_total", "reported_tokens_total", "wrong_tokens_total", "blocks"):
        metrics.follow(f"pdctl_prefix_{field}", lambda: {("d0",): 6.0})
    metrics.follow("pdctl_prefix_capacity_blocks", lambda: {("d0",): 7.0})
    for name in ("blocks", "exact", "error_ratio", "drops_total", "batches_total", "gaps_total"):
        metrics.follow(f"pdctl_kv_{name}", lambda: {("d0",): 1.0})
    metrics.follow("pdctl_kv_resets_total", lambda: {("d0", "lost"): 1.0})
    metrics.follow("pdctl_tokens_total", lambda: {("asked",): 1.0})
    metrics.watch_predictions(lambda: [ACCURACY])
    full = Load(at_s=0.0, kv_used_tokens=1, kv_total_tokens=2)
    metrics.watch(lambda: Snapshot(at_s=0.0, endpoints=(endpoint("d0", load=full),)))
    named = {name for name, _ in samples(metrics)}
    for metric in METRICS:
        assert metric.name + ("_count" if metric.kind == "histogram" else "") in named, metric.name
    assert value(metrics, "pdctl_inflight_requests") == 4
    assert value(metrics, "pdctl_queued_requests") == 3
    assert value(metrics, "pdctl_decisions_total", result="written") == 3
    assert value(metrics, "pdctl_prefix_blocks", endpoint="d0") == 6
    assert value(metrics, "pdctl_prefix_hit_tokens_total", model="m") == 5


def test_the_models_of_a_reload_are_counted_by_name() -> None:
    metrics = make()
    metrics.serve_models(["new"])
    metrics.request_done(outcome(), "chat", "new")
    metrics.request_done(outcome(), "chat", "m")
    models = {
        dict(labels).get("model") for name, labels in samples(metrics) if name == "pdctl_requests_total"
    }
    assert models == {"new", "other"}


def test_the_process_itself_is_measured() -> None:
    assert (value(make(), "process_open_fds") or 0) > 0


def test_two_routers_in_one_process_share_nothing() -> None:
    one, two = make(), make()
    one.policy_error("x")
    assert value(two, "pdctl_policy_errors_total", policy="x") is None


def test_the_document_lists_every_metric_with_its_labels() -> None:
    text = DOC.read_text()
    rows = dict(re.findall(r"^\| `(pdctl_\w+)` \| \w+ \|([^|]*)\|", text, re.MULTILINE))
    assert set(rows) == set(BY_NAME)
    for name, labels in rows.items():
        assert tuple(re.findall(r"`(\w+)`", labels)) == BY_NAME[name].labels, name


def test_a_predictor_is_held_to_account() -> None:
    metrics = make()
    said = [ACCURACY, Accuracy("m", None, (), (Coverage("admission", 3, {}),))]
    metrics.watch_predictions(lambda: said)
    at = {"model": "m", "endpoint": "p0"}
    name = "pdctl_prediction_{}".format
    assert value(metrics, name("predicted_s_total"), **at, stage="prefill") == 4.0
    assert value(metrics, name("actual_s_total"), **at, stage="prefill") == 5.0
    assert value(metrics, name("bias_ratio"), **at, stage="prefill") == 1.25
    assert value(metrics, name("error_ratio"), **at, stage="prefill") == 0.3
    assert value(metrics, name("outcomes_total"), **at, horizon="dispatch") == 10
    assert value(metrics, name("within_total"), **at, horizon="dispatch", quantile="0.99") == 9
    assert value(metrics, name("promises_total"), **at, horizon="dispatch", result="missed") == 1
    assert value(metrics, name("outcomes_total"), model="m", endpoint="", horizon="admission") == 3
    said.clear()  # an endpoint that is gone takes its figures along
    assert not [n for n, _ in samples(metrics) if n.startswith("pdctl_prediction_")]
