"""What SGLang's sizes, buffers and caches allow: of a prefill pool beside a decode pool, and of one alone.

From its own checks (0.5.23: `pd_disaggregation_hook.py`, `disaggregation/common/conn.py`, `prefill.py`,
`decode.py`), which speak when the engine starts or when the first request is handed off.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.rules import ERROR, WARN, Rule
from orchestrator.core.types import Role
from orchestrator.engines import rules as shared
from orchestrator.engines.base import InstanceSpec, Setting
from orchestrator.engines.linting import Writer, is_on, one_per_pool, sides, variable
from orchestrator.engines.parallel import latent, shared_out, uneven
from orchestrator.engines.sglang import rules
from orchestrator.engines.sglang.command import transfer
from orchestrator.errors import Problem

STAGING = "SGLANG_DISAGG_STAGING_BUFFER"
LANE_QUEUE = "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"
LANE_QUEUE_MOST = 65535
"""Mooncake takes no more, and falls back to 1024 when it is told to."""

STAGED = ("mooncake", "mooncake_tcp", "nixl")
"""Transfers that have a staging buffer."""

CHUNK = 8192
"""The chunk that the staging grid is cut by where none is set."""


def pairing(writer: Writer) -> Iterator[Problem]:
    """Findings about pairs of pools: tensor parallelism by model class and transfer, and what it needs."""
    for prefill, decode in sides(writer.context.specs):
        p, d = attention_tp(writer, prefill), attention_tp(writer, decode)
        yield from _one_sided_staging(writer, prefill, decode)
        if p != d:
            yield from _unequal(writer, prefill, decode, p, d)
        elif all(is_on(variable(spec, STAGING)) for spec in (prefill, decode)) and not latent(writer):
            yield _staging(writer, decode, "does nothing with equal tp but take memory", severity=WARN)


def attention_tp(writer: Writer, spec: InstanceSpec) -> int:
    """Ranks that share one attention: the tensor parallelism, less what DP attention takes of it."""
    given = writer.flag(spec, "attn-dp-size") or 1
    return max(1, spec.shape.tp // int(str(given)) if str(given).isdigit() and int(str(given)) else 1)


def _unequal(
    writer: Writer, prefill: InstanceSpec, decode: InstanceSpec, p: int, d: int
) -> Iterator[Problem]:
    if (bad := uneven(writer, prefill, decode, p, d)) is not None:
        yield bad
        return
    if (why := _never_unequal(writer, prefill, decode)) is not None:
        yield writer.problem(
            decode,
            shared.ILLEGAL_TP,
            f"tp {d} here and {p} in {prefill.pool}, and {why}",
            hint="give both pools the same tp",
            field="tp",
        )
        return
    if latent(writer):
        return  # each rank has the whole latent: nothing is cut
    backend = transfer(decode)
    staged = all(is_on(variable(spec, STAGING)) for spec in (prefill, decode))
    if backend == "mooncake_tcp" and not staged:
        yield from _lane_queue(writer, prefill)
    if not staged:
        hint = f"equal tp, or {STAGING}: 1 on both sides (CUDA, not with MLA)"
        yield writer.problem(
            decode,
            shared.UNEQUAL_TP,
            f"tp {d} here, {p} in {prefill.pool}: KV is cut into a slice per token, measured at 10 to 52 % "
            f"more TTFT{'' if latent(writer) is False else ' (models with MLA excepted)'}",
            hint=hint if backend in STAGED else f"equal tp: {backend} has no staging buffer",
            field="tp",
        )


def _never_unequal(writer: Writer, prefill: InstanceSpec, decode: InstanceSpec) -> str | None:
    """Why this model or pool can have no unequal tensor parallelism at all."""
    if not latent(writer) and "mxfp8" in (writer.value(s, "kv-cache-dtype") for s in (prefill, decode)):
        return "KV in mxfp8 has scales that cannot be cut"
    if latent(writer) and writer.value(prefill, "enable-kv-cache-sharding"):
        return "a prefill that shards MLA's KV needs equal tp"
    return None


def _lane_queue(writer: Writer, prefill: InstanceSpec) -> Iterator[Problem]:
    setting = prefill.env.get(LANE_QUEUE)
    if setting is not None and str(setting.value) != str(LANE_QUEUE_MOST):
        yield writer.problem(
            prefill,
            rules.TCP_LANE_QUEUE,
            f"{LANE_QUEUE} is {setting.value or 'left out'} with unequal tp over TCP",
            hint=f"leave it to the plan, which sets {LANE_QUEUE_MOST}",
            field=f"env.{LANE_QUEUE}",
            at=setting,
        )


def _one_sided_staging(writer: Writer, prefill: InstanceSpec, decode: InstanceSpec) -> Iterator[Problem]:
    on = [spec for spec in (prefill, decode) if is_on(variable(spec, STAGING))]
    if len(on) == 1:
        other = decode if on[0] is prefill else prefill
        yield _staging(writer, on[0], f"is on here, and not in {other.pool}")


def _staging(writer: Writer, spec: InstanceSpec, why: str, severity: str = ERROR) -> Problem:
    return writer.problem(
        spec,
        rules.STAGING_BUFFER,
        f"{STAGING} {why}",
        hint="it is for unequal tp without MLA, on CUDA, in both pools",
        field=f"env.{STAGING}",
        at=spec.env.get(STAGING),
        severity=severity,
    )


def alone(writer: Writer) -> Iterator[Problem]:
    """Findings about one pool by itself."""
    yield from shared_out(writer)
    for spec in one_per_pool(writer.context.specs):
        if spec.role not in (Role.PREFILL, Role.DECODE):
            continue
        yield from _staging_of(writer, spec)
        yield from _prefill_complete(writer, spec)
        yield from _role_switch(writer, spec)
        yield from _radix_cache(writer, spec)


def _staging_of(writer: Writer, spec: InstanceSpec) -> Iterator[Problem]:
    if not is_on(variable(spec, STAGING)):
        return
    page, chunk = _size(writer, spec, "page-size", 1), _size(writer, spec, "chunked-prefill-size", CHUNK)
    backend, device = transfer(spec), writer.value(spec, "device")
    whys = {
        "with MLA stops the engine": bool(latent(writer)),
        f"is not known to the transfer {backend}": backend not in STAGED,
        f"does not work on {device}": device is not None and device not in ("cuda", "xpu"),
        f"needs a chunked-prefill-size above 0 that page-size {page} divides, not {chunk}": (
            spec.role is Role.PREFILL and (chunk <= 0 or chunk % page != 0)
        ),
        "with pp needs mooncake": spec.shape.pp > 1 and backend == "nixl",
    }
    for why, holds in whys.items():
        if holds:
            yield _staging(writer, spec, why)


def _size(writer: Writer, spec: InstanceSpec, name: str, otherwise: int) -> int:
    try:
        return int(str(writer.value(spec, name)))
    except ValueError:
        return otherwise


def _prefill_complete(writer: Writer, spec: InstanceSpec) -> Iterator[Problem]:
    name = "disaggregation-decode-allocation-policy"
    if writer.value(spec, name) != "prefill_complete":
        return
    decode = spec.role is Role.DECODE
    whys = {
        f"transfer {transfer(spec)}": transfer(spec) not in ("mooncake", "mooncake_tcp"),
        "pp": spec.shape.pp > 1,
        "attention tensor parallelism above 1": attention_tp(writer, spec) > 1,
        "--enable-pd-role-switch": _on(writer, spec, "enable-pd-role-switch"),
        "encoders": spec.encoders is not None,
        "the staging buffer": is_on(variable(spec, STAGING)),
        "--enable-hisparse": _on(writer, spec, "enable-hisparse"),
        "a decode radix cache": decode and _on(writer, spec, "disaggregation-decode-enable-radix-cache"),
        "HiCache on decode": decode and _on(writer, spec, "enable-hierarchical-cache"),
    }
    yield from _excluded(writer, spec, rules.ALLOCATION_POLICY, name, "prefill_complete", whys)


def _role_switch(writer: Writer, spec: InstanceSpec) -> Iterator[Problem]:
    name = "enable-pd-role-switch"
    if not _on(writer, spec, name):
        return
    whys = {
        "ep": spec.shape.ep > 1,
        "pp": spec.shape.pp > 1,
        "--moe-a2a-backend": writer.value(spec, "moe-a2a-backend") not in (None, "none"),
        "--dcp-size": _size(writer, spec, "dcp-size", 1) > 1,
        "speculative decoding": writer.value(spec, "speculative-algorithm") is not None,
        "the staging buffer": is_on(variable(spec, STAGING)),
        "--disaggregation-decode-host-receive-threshold below 1": (
            _ratio(writer.value(spec, "disaggregation-decode-host-receive-threshold")) < 1
        ),
    }
    yield from _excluded(writer, spec, rules.ROLE_SWITCH, name, f"--{name}", whys)


def _ratio(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 1.0


def _radix_cache(writer: Writer, spec: InstanceSpec) -> Iterator[Problem]:
    name = "disaggregation-decode-enable-radix-cache"
    if not _on(writer, spec, name):
        return
    algorithm = writer.value(spec, "speculative-algorithm")
    whys = {
        "a prefill pool: it is for decode": spec.role is not Role.DECODE,
        "--enable-hisparse": _on(writer, spec, "enable-hisparse"),
        "transfer fake": transfer(spec) == "fake",
        "--disable-radix-cache, which it overrides": _on(writer, spec, "disable-radix-cache"),
        f"--speculative-algorithm {algorithm}": algorithm not in (None, "DSPARK", "EAGLE", "EAGLE3"),
    }
    yield from _excluded(writer, spec, rules.DECODE_RADIX_CACHE, name, f"--{name}", whys)


def _on(writer: Writer, spec: InstanceSpec, name: str) -> bool:
    return writer.value(spec, name) is True


def _excluded(
    writer: Writer, spec: InstanceSpec, rule: Rule, name: str, what: str, whys: dict[str, bool]
) -> Iterator[Problem]:
    """One finding that names everything that `what` does not go with."""
    found = [why for why, holds in whys.items() if holds]
    if found:
        setting: Setting | None = writer.user(spec).get(name)
        yield writer.problem(
            spec,
            rule,
            f"{what} does not go with {', '.join(found)}",
            hint="remove the one or the other",
            field=f"flags.{name}",
            at=setting,
        )
