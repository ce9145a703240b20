"""What SGLang tells of itself: readiness, identity, sizes and load (0.5.23)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from orchestrator.core.types import Load, Role
from orchestrator.engines import flags
from orchestrator.engines.base import STARTED_AS, HttpCall, InstanceSpec, NotYet, Probes

ROUTE = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
"""The bootstrap server's account of its prefill: 200 once every rank has registered, which its own /health
does not wait for."""

INFO_TIMEOUT_S = 10.0
"""/server_info asks the scheduler, which answers between two steps: a long prefill delays it."""

ENCODER_TIMEOUT_S = 10.0
"""An encoder's /health waits for the batch before it; the engine itself gives it 30 s."""

FRESH_S = 0.1
"""A load snapshot older than this is not from a scheduler that comes round: twice LOAD_STALL_REFRESH_S."""

_MOMENTS = (
    ("decode_steps", 1.0), ("decode_batch", 1.0), ("decode_s", 1e-6), ("decode_batch2", 1.0),
    ("decode_batch_s", 1e-6),
)  # fmt: skip
"""The first five decode moments: our names, and what their unit is in ours. The sixth is tokens generated."""

_SIZES = {
    "version": str,
    "max_running_requests": int,
    "max_req_input_len": int,
    "dp_size": int,
    "tp_size": int,
    "pp_size": int,
    "dtype": str,
    "kv_cache_dtype": str,
    "model_path": str,
    "revision": str,
    "sleep_on_idle": bool,
    "disaggregation_transfer_backend": str,
    "disaggregation_decode_allocation_policy": str,
    "disaggregation_enable_kv_checksum": bool,
}
_MODE = "-mode"
"""Ends the name of the call that tells the role of one that can switch."""

_ATTENTION = ("attn-dp-size", "enable-dp-attention", "attn-cp-size", "attention-data-parallel-size")
"""Flags that take of the tensor parallelism that attention has."""

# Not its KV type: that is what came of "auto", and /server_info of both sides has what was asked for.
_BOOTSTRAP = {
    "dp_size": int,
    "attn_tp_size": int,
    "pp_size": int,
    "page_size": int,
    "follow_bootstrap_room": bool,
}


def probes(spec: InstanceSpec) -> Probes:
    """Ready by /ready (instant, 503 while starting, paused or draining), a prefill also by its bootstrap
    server. Alive by /ping, a mere flag: /health generates a token, takes over a second, and times out
    behind a long prefill. An encoder's server has nothing but /health, which encodes a tiny image; process 1
    and on of an instance on several nodes have a dummy that answers it, and 404 on /ready."""
    if spec.role is Role.ENCODE:
        health = HttpCall("GET", "/health", timeout_s=ENCODER_TIMEOUT_S)
        return Probes(ready=(health,), live=health)
    if spec.rank:
        health = HttpCall("GET", "/health", timeout_s=5.0)
        return Probes(ready=(health,), live=health)
    ready = [HttpCall("GET", "/ready", timeout_s=2.0)]
    if spec.role is Role.PREFILL and "bootstrap" in spec.ports:
        ready.append(HttpCall("GET", ROUTE, port=spec.ports["bootstrap"], timeout_s=2.0))
    return Probes(ready=tuple(ready), live=HttpCall("GET", "/ping", timeout_s=5.0))


def expects(spec: InstanceSpec) -> Mapping[str, Any]:
    """What `learn` will tell of an engine that is as planned; only what is named outright, not what a default
    may come to."""
    if spec.role is Role.ENCODE:
        return {}
    known: dict[str, Any] = {"id": spec.served_name, "tp_size": spec.shape.tp, "pp_size": spec.shape.pp}
    if spec.version is not None:
        known["version"] = spec.version
    if spec.revision is not None:
        known["revision"] = spec.revision
    given = {flags.plain(name, {}): setting for name, setting in spec.flags.items()}
    page = flags.number(given.get("page-size"))
    if page is not None and "dcp-size" not in given:
        known |= {"block_size": page, "page_size": page}
    if not any(name in given for name in _ATTENTION):
        known["attn_tp_size"] = spec.shape.tp
    return known


def discover(role: Role, facts: Mapping[str, Any]) -> Mapping[str, HttpCall]:
    """`/server_info` under a name with the role, so that `learn` sees an engine started in another one."""
    if role is Role.ENCODE:
        return {}
    started_as = facts.get(STARTED_AS)
    calls = {
        f"{started_as or role.value}-info": HttpCall("GET", "/server_info", timeout_s=INFO_TIMEOUT_S),
        "models": HttpCall("GET", "/v1/models"),
    }
    if started_as is not None:
        # /server_info keeps the role that it was started in.
        calls[f"{role.value}{_MODE}"] = HttpCall("GET", "/model_info")
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
    if name.endswith(_MODE):
        return _mode(told, name.removesuffix(_MODE))
    if name == "bootstrap":
        return _typed(told, _BOOTSTRAP)
    return _server_info(told, name.removesuffix("-info"))


def load(body: bytes, known: Mapping[str, Any], at_s: float) -> Load:
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
        prefilling=_prefilling(told, ranks, known),
        counters=_counters(ranks),
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
    one_cache = not told.get("disable_radix_cache") and (told.get("dp_size") or 1) == 1
    facts["slices"] = wanted == "null" and one_cache
    life = _life(told)
    return facts | {"incarnation": life} if life else facts


def _mode(told: Mapping[str, Any], role: str) -> Mapping[str, Any] | NotYet:
    """Of one that can switch, the role that it has now."""
    mode = told.get("disaggregation_mode")
    return {} if mode == role else NotYet(f"its role is {mode} now, and should be {role}")


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


def _prefilling(told: Mapping[str, Any], ranks: list[dict[str, Any]], known: Mapping[str, Any]) -> int | None:
    """Prompts that a prefill engine still has to compute; None of an engine in another role.

    What is in its inflight queue is computed and only being sent. A request leaves the waiting queue when its
    compute begins, and nothing then counts it: but the scheduler writes its snapshot as often as it comes
    round, every 50 ms at least, and not while it computes. So an old snapshot is a prompt being computed,
    unless the engine sleeps when it is idle.
    """
    count = 0
    for rank in ranks:
        mode = rank.get("disaggregation")
        if not isinstance(mode, dict) or mode.get("mode") != "prefill":
            return None
        here = _sum([rank], "num_waiting_reqs") + _sum([rank], "num_running_reqs")
        if not here and _sum([rank], "num_waiting_uncached_tokens"):
            here = 1  # the rest of one that is computed in chunks
        elif not here and _age_s(told, rank) > FRESH_S:
            if known.get("sleep_on_idle") and not _sum([rank], "num_used_tokens"):
                return None
            here = 1
        count += here
    return count


def _age_s(told: Mapping[str, Any], rank: Mapping[str, Any]) -> float:
    """How old a rank's snapshot was when it was read, both by the engine's own clock."""
    written_s, read = rank.get("timestamp"), told.get("timestamp")
    if not isinstance(written_s, int | float) or not isinstance(read, str):
        raise ValueError("no `timestamp`")
    return datetime.fromisoformat(read).timestamp() - written_s


def _counters(ranks: list[dict[str, Any]]) -> dict[str, float]:
    """Under the names of `core.types.COUNTERS`.

    Prefill time is that during which any prefill batch was between its launch and its result, in
    microseconds, with all the tokens of those batches. Decode moments are of steps that followed another
    decode step at once; null until there was one.
    """
    sums = dict.fromkeys(("prefill_tokens", "prefill_busy_s"), 0.0)
    for rank in ranks:
        sums["prefill_tokens"] += rank.get("total_prefill_uncached_tokens") or 0
        sums["prefill_busy_s"] += (rank.get("total_prefill_busy_us") or 0) / 1e6
        moments = rank.get("decode_moments")
        if isinstance(moments, list) and len(moments) >= len(_MOMENTS):
            for (name, unit), value in zip(_MOMENTS, moments, strict=False):
                sums[name] = sums.get(name, 0.0) + value * unit
    return sums


def _progress(rank: Mapping[str, Any]) -> float:
    prefilled = rank.get("total_prefill_uncached_tokens") or 0
    moments = rank.get("decode_moments")  # its last is the sum of generated tokens
    generated = moments[-1] if isinstance(moments, list) and moments else 0
    return float(prefilled) + float(generated)
