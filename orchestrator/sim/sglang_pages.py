"""SGLang's pages about itself: loads, server and model info, metrics."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from orchestrator.sim.host import Host
from orchestrator.sim.stats import EngineStats, Exposition, Histogram

VERSION = "0.5.23"
MODES = {"prefill": "prefill", "decode": "decode"}
TTFT_EDGES = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
ITL_EDGES = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6,
    0.8, 1, 2, 4, 6, 8,
)  # fmt: skip
E2E_EDGES = (*TTFT_EDGES, 600, 1200, 1800, 2400)

SECTIONS = frozenset(("all", "core", "memory", "spec", "lora", "disagg", "queues"))


def new_stats() -> EngineStats:
    """Histograms with SGLang's bucket edges."""
    return EngineStats(Histogram(TTFT_EDGES), Histogram(ITL_EDGES), Histogram(E2E_EDGES))


class Pages:
    """The figures behind the pages; `throughput` is what the last look at them saw."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._started_as = host.options.role
        self._throughput = 0.0
        self._seen = (0.0, 0)

    def loads(self) -> dict[str, Any]:
        """`GET /v1/loads`, for the one rank there is."""
        host = self._host
        host.engine.catch_up()
        at_s = host.wall.wall_s()
        return {
            "timestamp": iso(at_s), "version": VERSION, "accelerator": None, "num_accelerators": 1,
            "loads": [self._load(at_s)],
        }  # fmt: skip

    def _load(self, at_s: float) -> dict[str, Any]:
        engine, options, real_s = self._host.engine, self._host.options, self._host.clock.real_s
        load, c = engine.model.load(), engine.model.counters
        decode, prefill = options.role == "decode", options.role == "prefill"
        waiting = load.waiting + load.gated + load.prealloc + (load.reserved if decode else 0)
        usage = load.used_tokens / load.total_tokens
        speed, transfer_s = 0.0, real_s(c.last_transfer_s)
        if transfer_s and prefill:
            mean_tokens = c.transfer_tokens / max(1, c.transfers)
            speed = mean_tokens * engine.model.config.timing.kv_token_bytes / transfer_s / 1e9
        seen = c.cached_tokens + c.prefill_tokens
        gb = options.kv_tokens * engine.model.config.timing.kv_token_bytes / 1e9
        moments = [
            float(c.decode_steps), float(c.decode_batch), real_s(c.decode_us), float(c.decode_batch2),
            real_s(c.decode_batch_us), float(c.decode_batch),
        ]  # fmt: skip
        return {
            "timestamp": at_s, "dp_rank": 0, "num_running_reqs": load.running + load.prefilling,
            "num_waiting_reqs": waiting, "num_waiting_uncached_tokens": load.waiting_tokens,
            "num_used_tokens": load.used_tokens, "num_total_tokens": load.used_tokens + load.waiting_tokens,
            "num_active_tokens": load.used_tokens, "num_prealloc_ready_tokens": 0,
            "max_total_num_tokens": load.total_tokens, "max_running_requests": options.max_running,
            "token_usage": round(usage, 4), "gen_throughput": self._rate(),
            "cache_hit_rate": round(c.cached_tokens / seen, 4) if seen else 0.0,
            "utilization": -1.0 if prefill else 0.0,
            "total_prefill_uncached_tokens": c.prefill_tokens,
            "total_prefill_busy_us": int(real_s(c.prefill_busy_us)),
            "decode_moments": None if prefill else moments,
            "memory": {
                "weight_gb": 32.8, "kv_cache_gb": round(gb, 3), "graph_gb": 0.0,
                "token_capacity": load.total_tokens,
            },
            "disaggregation": {
                "mode": MODES.get(options.role, "null"),
                "prefill_bootstrap_queue_reqs": load.gated,
                "prefill_inflight_queue_reqs": load.held,
                "decode_prealloc_queue_reqs": load.prealloc,
                "decode_transfer_queue_reqs": load.reserved,
                "decode_retracted_queue_reqs": 0,
                "kv_transfer_speed_gb_s": speed,
                "kv_transfer_latency_ms": transfer_s * 1e3 if prefill else 0.0,
            },
            "queues": {
                "waiting": load.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0,
            },
        }  # fmt: skip

    def _rate(self) -> float:
        """Output tokens per second over the last half second or more."""
        clock = self._host.clock
        now_s, count = clock.real_s(clock.now_s()), self._host.engine.model.counters.generated_tokens
        at_s, before = self._seen
        if now_s - at_s >= 0.5:
            self._throughput = round((count - before) / (now_s - at_s), 2)
            self._seen = (now_s, count)
        return self._throughput

    def loads_text(self) -> bytes:
        """`GET /v1/loads?format=prometheus`."""
        lines = []
        for name, value in _flat(self.loads()["loads"][0]):
            if isinstance(value, int | float) and name != "dp_rank":
                lines.append(f'# TYPE sglang_{name} gauge\nsglang_{name}{{dp_rank="0"}} {value}\n')
        return "".join(lines).encode()

    def model_info(self) -> dict[str, Any]:
        """`GET /model_info`."""
        options = self._host.options
        return {
            "model_path": options.model_path, "served_model_name": options.served_model_name,
            "tokenizer_path": options.model_path, "is_generation": True, "preferred_sampling_params": None,
            "weight_version": "default", "load_format": "auto", "reasoning_parser": None,
            "tool_call_parser": None, "disaggregation_mode": MODES.get(options.role, "null"),
            "has_image_understanding": False, "has_audio_understanding": False, "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
        }  # fmt: skip

    def server_info(self, bootstrap_port: int) -> dict[str, Any]:
        """`GET /server_info`: the arguments that matter, then what only a running server knows."""
        host, options = self._host, self._host.options
        args = {
            "model_path": options.model_path, "tokenizer_path": options.model_path,
            "served_model_name": options.served_model_name, "host": options.host, "port": host.port,
            "context_length": options.max_model_len, "dtype": "bfloat16", "kv_cache_dtype": "auto",
            "quantization": None, "max_running_requests": options.max_running,
            "max_queued_requests": None, "max_total_tokens": options.kv_tokens,
            "chunked_prefill_size": options.chunk, "page_size": options.page_size,
            "schedule_policy": "fcfs", "tp_size": 1, "pp_size": 1, "dp_size": 1, "ep_size": 1,
            "attn_dp_size": 1, "nnodes": 1, "node_rank": 0, "enable_metrics": True,
            "enable_cache_report": options.cache_report, "load_balance_method": "round_robin",
            "disaggregation_mode": MODES.get(self._started_as, "null"),
            "disaggregation_transfer_backend": "mooncake",
            "disaggregation_bootstrap_port": bootstrap_port or 8998,
            "disaggregation_ib_device": None, "disaggregation_decode_enable_radix_cache": False,
            "disaggregation_decode_allocation_policy": "early",
            "random_seed": options.seed, "revision": None,
        }  # fmt: skip
        total = host.engine.model.memory.tokens
        internal = {
            **args, "world_size": 1, "effective_max_running_requests_per_dp": options.max_running,
            "last_gen_throughput": self._rate(),
            "memory_usage": {
                "weight": 32.8, "kvcache": 0.0, "token_capacity": total,
                "graph": {"prefill": 0.0, "decode": 0.0},
            },
            "avg_spec_accept_length": None,
        }  # fmt: skip
        return {
            **args, "status": "ready", "max_total_num_tokens": total,
            "max_req_input_len": options.max_model_len - 6,
            # Durations that no second life repeats: by them clients tell a restart, as with the real one.
            "startup_time": {
                "load_weight": options.load_delay_s,
                "tokenizer_e2e": options.load_delay_s + host.started_s % 1,
            },
            "kv_events": self._events(),
            "internal_states": [internal], "version": VERSION,
        }  # fmt: skip

    def _events(self) -> dict[str, Any] | None:
        teller = self._host.engine.teller
        if teller is None:
            return None
        publisher = teller.publisher
        return {
            "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": publisher.port,
            "topic": publisher.topic.decode(), "block_size": self._host.options.page_size, "dp_size": 1,
            "replay_endpoint_port_base": publisher.replay_port,
        }  # fmt: skip

    def metrics(self) -> bytes:
        """`GET /metrics`: the names and labels of the real exposition that matter to whoever scrapes it."""
        host, options, stats = self._host, self._host.options, self._host.stats
        host.engine.catch_up()
        kind = MODES.get(options.role, "unified")
        base = {"engine_type": kind, "model_name": options.served_model_name}
        ranks = {"moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        e = Exposition({**base, **ranks})
        load, c = self._load(0.0), host.engine.model.counters
        d, pool = load["disaggregation"], host.engine.model.load()
        gauges = {
            "num_running_reqs": load["num_running_reqs"], "num_queue_reqs": load["queues"]["waiting"],
            "num_grammar_queue_reqs": 0, "gen_throughput": load["gen_throughput"],
            "cache_hit_rate": load["cache_hit_rate"], "token_usage": load["token_usage"],
            "full_token_usage": load["token_usage"], "num_used_tokens": pool.used_tokens,
            "kv_available_tokens": pool.total_tokens - pool.used_tokens - pool.cached_tokens,
            "kv_evictable_tokens": pool.cached_tokens, "kv_used_tokens": pool.used_tokens,
            "max_total_num_tokens": pool.total_tokens, "page_size": options.page_size,
            "context_len": options.max_model_len, "utilization": load["utilization"],
            "num_prefill_bootstrap_queue_reqs": d["prefill_bootstrap_queue_reqs"],
            "num_prefill_inflight_queue_reqs": d["prefill_inflight_queue_reqs"],
            "num_decode_prealloc_queue_reqs": d["decode_prealloc_queue_reqs"],
            "num_decode_transfer_queue_reqs": d["decode_transfer_queue_reqs"],
        }  # fmt: skip
        for name, value in gauges.items():
            e.gauge(f"sglang:{name}", value)
        e.counter("sglang:num_retracted_requests", c.preemptions)
        if kind != "unified":
            e.counter("sglang:num_bootstrap_failed_reqs", stats.failed_bootstraps)
            e.counter("sglang:num_transfer_failed_reqs", stats.failed_transfers)
        e.counter("sglang:realtime_tokens", c.prefill_tokens, mode="prefill_compute")
        e.counter("sglang:realtime_tokens", c.cached_tokens, mode="prefill_cache")
        return e.text() + (b"" if kind == "prefill" else self._request_metrics(base))

    def _request_metrics(self, base: dict[str, str]) -> bytes:
        """What the tokenizer process counts; a prefill engine has no such samples."""
        stats = self._host.stats
        e = Exposition(base)
        e.histogram("sglang:time_to_first_token_seconds", stats.ttft_s, is_streaming="true")
        e.histogram("sglang:e2e_request_latency_seconds", stats.e2e_s, is_streaming="true")
        e.histogram("sglang:inter_token_latency_seconds", stats.itl_s)
        e.counter("sglang:prompt_tokens", stats.prompt_tokens, is_streaming="true")
        e.counter("sglang:generation_tokens", stats.output_tokens, is_streaming="true")
        e.counter("sglang:num_requests", sum(stats.finished.values()), is_streaming="true")
        e.counter("sglang:num_aborted_requests", stats.finished.get("abort", 0))
        return e.text()


def iso(at_s: float) -> str:
    """An instant as SGLang writes it."""
    return datetime.fromtimestamp(at_s, UTC).isoformat()


def _flat(load: dict[str, Any]) -> Sequence[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in load.items():
        prefix = "disagg" if name == "disaggregation" else name
        if isinstance(value, dict):
            pairs += [(f"{prefix}_{inner}", one) for inner, one in value.items()]
        else:
            pairs.append((name, value))
    return pairs
