"""vLLM's metrics page."""

from __future__ import annotations

import time
from typing import Any

from orchestrator.sim.host import Host
from orchestrator.sim.stats import EngineStats, Exposition, Histogram

VERSION = "0.32.0"
TTFT_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
    640, 2560,
)  # fmt: skip
ITL_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
E2E_EDGES = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
REASONS = ("stop", "length", "abort", "error", "repetition")


def new_stats() -> EngineStats:
    """Histograms with vLLM's bucket edges."""
    return EngineStats(Histogram(TTFT_EDGES), Histogram(ITL_EDGES), Histogram(E2E_EDGES))


def event_sources(host: Host) -> dict[str, Any]:
    """`GET /kv_event_sources`: the configuration of each DP rank that publishes."""
    teller = host.engine.teller
    if teller is None:
        return {}
    publisher = teller.publisher
    return {
        "0": {
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{publisher.port}",
            "replay_endpoint": f"tcp://*:{publisher.replay_port}", "buffer_steps": 10_000, "hwm": 100_000,
            "max_queue_size": 100_000, "topic": publisher.topic.decode(),
        }
    }  # fmt: skip


def metrics(host: Host) -> bytes:
    """`GET /metrics`: the names and labels of the real exposition that matter to whoever scrapes it."""
    host.engine.catch_up()
    options, stats = host.options, host.stats
    model, load = host.engine.model, host.engine.model.load()
    c = model.counters
    e = Exposition({"engine": "0", "model_name": options.served_model_name})
    waiting = load.waiting + load.gated + load.prealloc
    e.gauge("vllm:num_requests_running", load.running + load.prefilling)
    e.gauge("vllm:num_requests_waiting", waiting + load.reserved)
    e.gauge("vllm:num_requests_waiting_by_reason", waiting, reason="capacity")
    e.gauge("vllm:num_requests_waiting_by_reason", load.reserved, reason="deferred")
    e.gauge("vllm:num_requests_kv_fetch_by_stage", load.prealloc, stage="waiting_to_start")
    e.gauge("vllm:num_requests_kv_fetch_by_stage", load.reserved, stage="in_progress")
    e.gauge("vllm:kv_cache_usage_perc", load.used_tokens / load.total_tokens)
    e.counter("vllm:num_preemptions", c.preemptions)
    e.counter("vllm:prefix_cache_queries", c.prompt_tokens)
    e.counter("vllm:prefix_cache_hits", c.cached_tokens)
    e.counter("vllm:external_prefix_cache_queries", c.received_tokens)
    e.counter("vllm:external_prefix_cache_hits", c.received_tokens)
    e.counter("vllm:prompt_tokens", stats.prompt_tokens)
    for source, tokens in (
        ("local_compute", c.prefill_tokens),
        ("local_cache_hit", c.cached_tokens),
        ("external_kv_transfer", c.received_tokens),
    ):
        e.counter("vllm:prompt_tokens_by_source", tokens, source=source)
    e.counter("vllm:generation_tokens", stats.output_tokens)
    for reason in REASONS:
        e.counter("vllm:request_success", stats.finished.get(reason, 0), finished_reason=reason)
    e.histogram("vllm:time_to_first_token_seconds", stats.ttft_s)
    e.histogram("vllm:inter_token_latency_seconds", stats.itl_s)
    e.histogram("vllm:e2e_request_latency_seconds", stats.e2e_s)
    if options.role in ("prefill", "decode"):
        e.counter("vllm:nixl_num_failed_transfers", stats.failed_transfers)
        e.counter("vllm:nixl_num_kv_expired_reqs", c.expired)
        e.counter("vllm:nixl_num_notifications_after_expiry", stats.late_notifications)
    config = {
        "block_size": options.page_size, "cache_dtype": "auto",
        "enable_prefix_caching": options.prefix_tokens != 0, "num_gpu_blocks": model.memory.pool.blocks,
        "kv_cache_size_tokens": load.total_tokens, "effective_attention_block_size": options.page_size,
        "prefix_caching_hash_algo": "sha256", **options.tells.get("cache_config", {}),
    }  # fmt: skip
    e.gauge("vllm:cache_config_info", 1, **{name: str(value) for name, value in config.items()})
    e.bare("process_start_time_seconds", host.started_s)
    e.bare("process_cpu_seconds_total", time.process_time())
    return e.text()
