"""What SGLang tells of itself: readiness, identity, sizes and load (0.5.23)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from orchestrator.core.types import Load, Role
from orchestrator.engines.base import HttpCall, InstanceSpec, NotYet, Probes

ROUTE = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
"""The bootstrap server's account of its prefill: 200 once every rank has registered, which its own /health
does not wait for."""

INFO_TIMEOUT_S = 10.0
"""/server_info asks the scheduler, which answers between two steps: a long prefill delays it."""

ENCODER_TIMEOUT_S = 10.0
"""An encoder's /health waits for the batch before it; the engine itself gives it 30 s."""

_SIZES = {
    "version": str,
    "max_running_requests": int,
    "max_req_input_len": int,
    "dp_size": int,
    "tp_size": int,
    "dtype": str,
    "kv_cache_dtype": str,
    "model_path": str,
    "revision": str,
}
_BOOTSTRAP = {
    "dp_size": int,
    "attn_tp_size": int,
    "pp_size": int,
    "page_size": int,
    "kv_cache_dtype": str,
    "follow_bootstrap_room": bool,
}


def probes(spec: InstanceSpec) -> Probes:
    """Ready by /ready (instant, 503 while starting, paused or draining), a prefill also by its bootstrap
    server. Alive by /ping, a mere flag: /health generates a token, takes over a second, and times out
    behind a long prefill. An encoder's server has nothing but /health, which encodes a tiny image."""
    if spec.role is Role.ENCODE:
        health = HttpCall("GET", "/health", timeout_s=ENCODER_TIMEOUT_S)
        return Probes(ready=(health,), live=health)
    ready = [HttpCall("GET", "/ready", timeout_s=2.0)]
    if spec.role is Role.PREFILL and "bootstrap" in spec.ports:
        ready.append(HttpCall("GET", ROUTE, port=spec.ports["bootstrap"], timeout_s=2.0))
    return Probes(ready=tuple(ready), live=HttpCall("GET", "/ping", timeout_s=5.0))


def discover(role: Role, facts: Mapping[str, Any]) -> Mapping[str, HttpCall]:
    """`/server_info` under a name with the role, so that `learn` sees an engine started in another one."""
    if role is Role.ENCODE:
        return {}
    calls = {
        f"{role.value}-info": HttpCall("GET", "/server_info", timeout_s=INFO_TIMEOUT_S),
        "models": HttpCall("GET", "/v1/models"),
    }
    if role is Role.PREFILL and facts.get("bootstrap_port"):
        calls["bootstrap"] = HttpCall("GET", ROUTE, port=facts["bootstrap_port"])
    return calls


def learn(name: str, status: int, body: bytes) -> Mapping[str, Any] | NotYet:
    """Facts from one answer. Raises ValueError for a body that is not what it should be."""
    if status != 200:
        return NotYet(f"{name}: HTTP {status} {body[:200].decode('utf-8', 'replace').strip()}".strip())
    told = orjson.loads(body)
    if not isinstance(told, dict):
        raise ValueError(f"{name} is not an object")
    if name == "models":
        return _models(told)
    if name == "bootstrap":
        return _typed(told, _BOOTSTRAP)
    return _server_info(told, name.removesuffix("-info"))


def load(body: bytes, at_s: float) -> Load:
    """The sum over DP ranks of `/v1/loads`.

    No answer of SGLang numbers its lives. `progress` is the prompt tokens computed plus the tokens
    generated since the process began: it starts at 0 again with a new one.
    """
    told = orjson.loads(body)
    ranks = told.get("loads") if isinstance(told, dict) else None
    if not isinstance(ranks, list) or not ranks or not all(isinstance(rank, dict) for rank in ranks):
        raise ValueError("no `loads`")
    return Load(
        at_s=at_s,
        running=_sum(ranks, "num_running_reqs"),
        waiting=_sum(ranks, "num_waiting_reqs"),
        kv_used_tokens=_sum(ranks, "num_used_tokens"),
        kv_total_tokens=_sum(ranks, "max_total_num_tokens") or None,
        progress=float(sum(_progress(rank) for rank in ranks)),
    )


def _server_info(told: Mapping[str, Any], role: str) -> Mapping[str, Any] | NotYet:
    mode = told.get("disaggregation_mode")
    wanted = role if role in ("prefill", "decode") else "null"
    if isinstance(mode, str) and mode != wanted:
        return NotYet(f"it runs with --disaggregation-mode {mode}, its pool's role needs {wanted}")
    facts = _typed(told, _SIZES)
    page, capacity = told.get("page_size"), told.get("max_total_num_tokens")
    if isinstance(page, int) and page > 0:
        facts["block_size"] = page * (told.get("dcp_size") or 1)
    if isinstance(capacity, int) and capacity > 0:
        facts["kv_total_tokens"] = capacity * (told.get("dp_size") or 1)
    if isinstance(told.get("kv_events"), dict):
        facts["kv_events"] = told["kv_events"]
    life = _life(told)
    return facts | {"incarnation": life} if life else facts


def _life(told: Mapping[str, Any]) -> str | None:
    """A name for this life of the process: its start-up durations (clock readings to the nanosecond) and its
    random seed, both fixed at start, are not met twice."""
    if not isinstance(told.get("startup_time"), dict):
        return None
    mark = orjson.dumps([told["startup_time"], told.get("random_seed")], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(mark, digest_size=8).hexdigest()


def _models(told: Mapping[str, Any]) -> Mapping[str, Any]:
    models = told.get("data")
    if not isinstance(models, list) or not models or not isinstance(models[0], dict):
        raise ValueError("no model in `data`")
    return _typed(models[0], {"id": str, "max_model_len": int})


def _typed(told: Mapping[str, Any], wanted: Mapping[str, type]) -> dict[str, Any]:
    return {name: told[name] for name, kind in wanted.items() if type(told.get(name)) is kind}


def _sum(ranks: list[dict[str, Any]], name: str) -> int:
    total = 0
    for rank in ranks:
        value = rank.get(name)
        if not isinstance(value, int | float) or value < 0:
            raise ValueError(f"no `{name}`")
        total += int(value)
    return total


def _progress(rank: Mapping[str, Any]) -> float:
    prefilled = rank.get("total_prefill_uncached_tokens") or 0
    moments = rank.get("decode_moments")  # its last is the sum of generated tokens
    generated = moments[-1] if isinstance(moments, list) and moments else 0
    return float(prefilled) + float(generated)
