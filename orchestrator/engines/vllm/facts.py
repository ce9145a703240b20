"""What vLLM tells of itself: readiness, identity, sizes and load (0.32.0)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from orchestrator.core.types import Load, Role
from orchestrator.engines import flags
from orchestrator.engines.base import HttpCall, InstanceSpec, NotYet, Probes

_SAMPLE = re.compile(
    rb"^(?:vllm:)?(num_requests_running|num_requests_waiting|kv_cache_usage_perc|prompt_tokens_total"
    rb"|nixl_num_kv_expired_reqs_total|nixl_num_notifications_after_expiry_total|generation_tokens_total|inter_token_latency_seconds_(?:count|sum)|prompt_tokens_by_source_total"
    rb"|process_start_time_seconds)(?:\{(.*)\})? (\S+)$",
    re.MULTILINE,
)
_COUNTERS = {
    "prompt_tokens_total": "prompt_tokens",
    "inter_token_latency_seconds_count": "decode_batch",
    "inter_token_latency_seconds_sum": "decode_batch_s",
    "local_compute": "prefill_tokens",
    "local_cache_hit": "cached_tokens",
}
"""Names of counters, or for those by source of the sources, and ours."""
EVENTS = "kv-events"
_CONFIG = re.compile(rb"^vllm:cache_config_info\{(.*)\} 1", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="([^"]*)"')


def probes(spec: InstanceSpec) -> Probes:
    """Ready by /health and /v1/models. /health is all that tells of life: with its engine dead the whole
    server exits; draining, it still answers 200. Process 1 and on of an instance on several nodes have no
    server: they count as ready once they run, and the first one is not ready without them."""
    if spec.rank:
        return Probes(ready=(), live=HttpCall("GET", "/health"))
    health = HttpCall("GET", "/health", timeout_s=5.0)
    return Probes(ready=(health, HttpCall("GET", "/v1/models", timeout_s=5.0)), live=health)


def expects(spec: InstanceSpec) -> Mapping[str, Any]:
    """What `learn` will tell of an engine that is as planned; only what is named outright, not what a default
    may come to."""
    known: dict[str, Any] = {"id": spec.served_name, "root": spec.model_path}
    if spec.version is not None:
        known["version"] = spec.version
    given = {flags.plain(name, {}): setting for name, setting in spec.flags.items()}
    for flag, fact in {"block-size": "block_size", "max-model-len": "max_model_len"}.items():
        if (count := flags.number(given.get(flag))) is not None:
            known[fact] = count
    return known


def discover(role: Role, facts: Mapping[str, Any]) -> Mapping[str, HttpCall]:
    """Models, version, metrics; of a Mooncake prefill also its bootstrap server's /query."""
    calls = {
        "models": HttpCall("GET", "/v1/models"),
        "version": HttpCall("GET", "/version"),
        "metrics": HttpCall("GET", "/metrics"),
    }
    if role is Role.PREFILL and facts.get("transfer") == "mooncake" and facts.get("bootstrap_port"):
        calls["query"] = HttpCall("GET", "/query", port=facts["bootstrap_port"])
    if facts.get("kv_events"):
        calls[EVENTS] = HttpCall("GET", "/kv_event_sources")
    return calls


def learn(name: str, status: int, body: bytes) -> Mapping[str, Any] | NotYet:
    """Facts from one answer. Raises ValueError for a body that is not what it should be."""
    if name == EVENTS and status == 404:
        return {}  # an older version publishes all the same, where a topology may name its address
    if status != 200:
        return NotYet(f"{name}: HTTP {status} {body[:200].decode('utf-8', 'replace').strip()}".strip())
    if name == "metrics":
        return _metrics(body)
    told = orjson.loads(body)
    if not isinstance(told, dict):
        raise ValueError(f"{name} is not an object")
    if name == "version":
        return _typed(told, {"version": str})
    if name == "query":
        return _query(told)
    if name == EVENTS:
        return {"kv_events": [rank for rank in told.values() if isinstance(rank, dict)]}
    models = told.get("data")
    if not isinstance(models, list) or not models or not isinstance(models[0], dict):
        raise ValueError("no model in `data`")
    return _typed(models[0], {"id": str, "root": str, "max_model_len": int})


_ALARMS = {
    "nixl_num_kv_expired_reqs_total": "expired",
    "nixl_num_notifications_after_expiry_total": "after-expiry",
}


def load(body: bytes, facts: Mapping[str, Any], at_s: float) -> Load:
    """The sum over engine ranks, from /metrics. A life of the process is named by its start time."""
    found: dict[str, list[float]] = {}
    start = ""
    for name, text in _samples(body):
        if name == "process_start_time_seconds":
            start = text
        found.setdefault(name, []).append(float(text))
    if "num_requests_running" not in found:
        raise ValueError("no vllm:num_requests_running")
    usage, total = found.get("kv_cache_usage_perc"), facts.get("kv_total_tokens")
    used = round(sum(usage) / len(usage) * total) if usage and isinstance(total, int) else None
    return Load(
        at_s=at_s,
        running=int(sum(found["num_requests_running"])),
        waiting=int(sum(found.get("num_requests_waiting", [0.0]))),
        kv_used_tokens=used,
        kv_total_tokens=total if isinstance(total, int) else None,
        incarnation=start,
        progress=sum(sum(found.get(n, [])) for n in ("prompt_tokens_total", "generation_tokens_total")),
        counters=_counters(found),
        alarms={ours: sum(found[name]) for name, ours in _ALARMS.items() if name in found},
    )


def _counters(found: Mapping[str, list[float]]) -> dict[str, float]:
    """Under the names of `core.types.COUNTERS`, those that vLLM tells.

    A gap between two tokens of a sequence is one step with that sequence in its batch: their number and their
    sum are the batch sizes, and batch sizes times seconds, summed over steps. Prefill time is told per
    request only, when it ends, a second in which several were computed counting several times: left out.
    """
    return {ours: sum(found[name]) for name, ours in _COUNTERS.items() if name in found}


def _metrics(body: bytes) -> Mapping[str, Any]:
    facts: dict[str, Any] = {}
    for name, text in _samples(body):
        if name == "process_start_time_seconds":
            facts["incarnation"] = text
    total = 0
    for found in _CONFIG.finditer(body):  # one line per engine rank
        labels = {name.decode(): value.decode() for name, value in _LABEL.findall(found[1])}
        block = _count(labels.get("block_size"))
        tokens = _count(labels.get("kv_cache_size_tokens"))
        if tokens is None and block is not None:
            tokens = block * (_count(labels.get("num_gpu_blocks")) or 0)
        total += tokens or 0
        facts |= {"block_size": block} if block else {}
        # With several caches the engine chooses one each time: the next part would not find the last.
        facts |= {"slices": labels.get("enable_prefix_caching") == "True" and "slices" not in facts}
        facts |= {"kv_cache_dtype": labels["cache_dtype"]} if "cache_dtype" in labels else {}
    return facts | {"kv_total_tokens": total} if total else facts


def _query(told: Mapping[str, Any]) -> Mapping[str, Any] | NotYet:
    """The engine id of the only DP rank: {} until the prefill has registered."""
    ranks = [rank for rank in told.values() if isinstance(rank, dict)]
    if not ranks:
        return NotYet("its bootstrap server knows no engine yet")
    if len(ranks) > 1:
        return NotYet("it has several DP ranks, which a Mooncake hand-off cannot choose between")
    engine = ranks[0].get("engine_id")
    if not isinstance(engine, str) or not engine:
        raise ValueError("no `engine_id`")
    return {"engine_id": engine}


def _samples(body: bytes) -> Iterator[tuple[str, str]]:
    """Name and value of each sample wanted; instead of the name the source, where there is one of each."""
    for name, labels, text in _SAMPLE.findall(body):
        source = dict(_LABEL.findall(labels)).get(b"source") if name.endswith(b"source_total") else None
        yield (source or name).decode(), text.decode()


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _typed(told: Mapping[str, Any], wanted: Mapping[str, type]) -> dict[str, Any]:
    return {name: told[name] for name, kind in wanted.items() if type(told.get(name)) is kind}
