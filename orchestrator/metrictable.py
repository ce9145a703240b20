"""Every metric of the router as one table: name, kind, what it says, labels and buckets."""

from __future__ import annotations

from dataclasses import dataclass

_REQUEST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0, 600.0)
_TTFT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
_ITL = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)
_STAGE = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LAG = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One declaration. `kind` is counter, gauge or histogram; `buckets` are upper bounds, for histograms."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


METRICS: tuple[Metric, ...] = (
    Metric("pdctl_build_info", "gauge", "Always 1; what runs.", ("version", "python")),
    Metric(
        "pdctl_requests_total",
        "counter",
        "Requests that ended, by how the client saw it.",
        ("path", "model", "end", "status", "reason"),
    ),
    Metric("pdctl_request_s", "histogram", "Arrival to last byte.", ("path",), _REQUEST),
    Metric("pdctl_prompt_tokens_total", "counter", "Prompt tokens, as engines counted them.", ("model",)),
    Metric("pdctl_cached_tokens_total", "counter", "Prompt tokens found in a prefix cache.", ("model",)),
    Metric("pdctl_output_tokens_total", "counter", "Tokens generated.", ("model",)),
    Metric("pdctl_workers", "gauge", "Relay processes that serve; 0 where one process does all."),
    Metric("pdctl_worker_exits_total", "counter", "Relay processes that ended and were replaced.", ("how",)),
    Metric("pdctl_inflight_requests", "gauge", "Requests accepted and not ended."),
    Metric("pdctl_queued_requests", "gauge", "Those of them that wait in the router for an endpoint."),
    Metric(
        "pdctl_ttft_s",
        "histogram",
        "Arrival to the first event of a stream that is passed on.",
        ("slo_class",),
        _TTFT,
    ),
    Metric("pdctl_tpot_s", "histogram", "Mean gap between the tokens of one stream.", ("slo_class",), _ITL),
    Metric("pdctl_itl_s", "histogram", "Gap between two chunks of a stream.", (), _ITL),
    Metric("pdctl_stage_s", "histogram", "A stage of a request's life.", ("stage",), _STAGE),
    Metric("pdctl_legs_total", "counter", "Engine calls that ended.", ("leg", "endpoint", "result")),
    Metric("pdctl_stripped_fields_total", "counter", "Guarded fields taken out of requests.", ("field",)),
    Metric(
        "pdctl_retries_total",
        "counter",
        "Failed attempts that could be made up for, and whether they were.",
        ("kind", "result"),
    ),
    Metric(
        "pdctl_canaries_total", "counter", "Pairs tried by a known question.", ("prefill", "decode", "result")
    ),
    Metric("pdctl_pairs", "gauge", "Pairs of endpoints by what is thought of them.", ("standing",)),
    Metric("pdctl_kv_alarms_total", "counter", "What must not happen to KV, and did.", ("endpoint", "alarm")),
    Metric("pdctl_policy_errors_total", "counter", "Policies that failed and were bypassed.", ("policy",)),
    Metric("pdctl_endpoint_ready", "gauge", "1 while it may be given work.", ("endpoint", "pool", "role")),
    Metric("pdctl_endpoint_inflight_requests", "gauge", "Legs given to it and not ended.", ("endpoint",)),
    Metric(
        "pdctl_endpoint_inflight_prefill_tokens",
        "gauge",
        "Uncached prompt tokens still to be computed there.",
        ("endpoint",),
    ),
    Metric("pdctl_endpoint_inflight_kv_tokens", "gauge", "KV its legs will hold at most.", ("endpoint",)),
    Metric("pdctl_endpoint_running_requests", "gauge", "Running, by its own account.", ("endpoint",)),
    Metric("pdctl_endpoint_waiting_requests", "gauge", "Waiting, by its own account.", ("endpoint",)),
    Metric("pdctl_endpoint_kv_used_tokens", "gauge", "KV in use, by its own account.", ("endpoint",)),
    Metric("pdctl_endpoint_kv_total_tokens", "gauge", "KV capacity, by its own account.", ("endpoint",)),
    Metric("pdctl_endpoint_load_age_s", "gauge", "Age of its last account of its load.", ("endpoint",)),
    Metric(
        "pdctl_endpoint_changes_total", "counter", "Joins and leaves, by cause.", ("endpoint", "to", "why")
    ),
    Metric("pdctl_endpoint_incarnations_total", "counter", "New processes seen behind it.", ("endpoint",)),
    Metric(
        "pdctl_probe_errors_total",
        "counter",
        "Probes, discovery calls and load reads that failed.",
        ("endpoint", "call", "why"),
    ),
    Metric(
        "pdctl_slo_requests_total",
        "counter",
        "Requests of an SLO class, by how its promise was kept.",
        ("slo_class", "verdict"),
    ),
    Metric("pdctl_decisions_total", "counter", "Decision records written or dropped.", ("result",)),
    Metric("pdctl_prefix_prompt_tokens_total", "counter", "Prompt tokens sent.", ("model",)),
    Metric("pdctl_prefix_hit_tokens_total", "counter", "Those found cached there.", ("model",)),
    Metric(
        "pdctl_prefix_ceiling_tokens_total",
        "counter",
        "Those that one endless cache shared by all endpoints would have held.",
        ("model",),
    ),
    Metric("pdctl_prefix_predicted_tokens_total", "counter", "Cached tokens expected.", ("endpoint",)),
    Metric("pdctl_prefix_reported_tokens_total", "counter", "Cached tokens its engine told.", ("endpoint",)),
    Metric("pdctl_prefix_wrong_tokens_total", "counter", "Differences of both, by request.", ("endpoint",)),
    Metric("pdctl_prefix_blocks", "gauge", "Blocks it is believed to hold.", ("endpoint",)),
    Metric("pdctl_prefix_capacity_blocks", "gauge", "Blocks it is taken to have room for.", ("endpoint",)),
    *(
        Metric(f"pdctl_kv_{name}", kind, text, ("endpoint",))
        for name, kind, text in (
            ("blocks", "gauge", "Blocks it holds by its KV events."),
            ("exact", "gauge", "1 while they are gone by, 0 while the approximate index is."),
            ("error_ratio", "gauge", "Share of prompt tokens they were wrong by of late."),
            ("drops_total", "counter", "Times that the index by them was dropped."),
            ("batches_total", "counter", "Batches of KV events taken in."),
            ("gaps_total", "counter", "Times that batches were missing."),
        )
    ),
    Metric("pdctl_kv_resets_total", "counter", "Times that all they told was void.", ("endpoint", "why")),
    Metric("pdctl_tokens_total", "counter", "Prompts by how their tokens were found.", ("how",)),
    *(
        Metric(f"pdctl_prediction_{name}", kind, text, ("model", "endpoint", *labels))
        for name, kind, text, labels in (
            (
                "outcomes_total",
                "counter",
                "First tokens and gaps held against their prediction.",
                ("horizon",),
            ),
            ("within_total", "counter", "Those within a quantile of it.", ("horizon", "quantile")),
            ("promises_total", "counter", "Predictions at the class's quantile.", ("horizon", "result")),
            ("predicted_s_total", "counter", "Seconds that stages were predicted to take.", ("stage",)),
            ("actual_s_total", "counter", "Seconds that they took.", ("stage",)),
            ("bias_ratio", "gauge", "Actual by predicted time of late, geometric mean.", ("stage",)),
            ("error_ratio", "gauge", "How far one is off the other of late, median.", ("stage",)),
        )
    ),
    Metric("pdctl_reloads_total", "counter", "Reloads of the plan.", ("result",)),
    Metric("pdctl_loop_lag_s", "histogram", "How late the event loop woke: work queued before it.", (), _LAG),
)
"""Every metric of the router; docs/metrics.md lists them, and a test holds the two together."""
