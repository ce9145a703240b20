"""What vLLM's sizes, layouts and leases allow of a prefill pool beside a decode pool.

From its own checks (0.32.0: `nixl/base_worker.py`, `kv_connector/utils.py`, `mooncake_connector.py`), which
speak when the first request is handed off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.core.types import Role
from orchestrator.engines import flags
from orchestrator.engines import rules as shared
from orchestrator.engines.base import InstanceSpec, Setting
from orchestrator.engines.linting import Writer, impatient, is_on, one_per_pool, sides, variable
from orchestrator.engines.parallel import heads, latent, shared_out, uneven
from orchestrator.engines.vllm import rules
from orchestrator.engines.vllm.command import ALIASES, family, kv_transfer_config, lease_s
from orchestrator.errors import Problem

LAYOUT = "VLLM_KV_CACHE_LAYOUT"
ABORT_TIMEOUT = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"
CONNECTS = 2
"""Connections that the router may try before decode has a request: a kept one that turned out closed, and
another."""

_CONFIG = "flags.kv-transfer-config"


def pairing(writer: Writer) -> Iterator[Problem]:
    """Findings about pairs of pools, and about what a pool promises the other side."""
    yield from shared_out(writer)
    for prefill, decode in sides(writer.context.specs):
        yield from _tensor(writer, prefill, decode)
        yield from _context(writer, prefill, decode)
        yield from _layout(writer, prefill, decode)
        yield from _connectors(writer, prefill, decode)
    for spec in one_per_pool(writer.context.specs):
        yield from _promises(writer, spec)


def _tensor(writer: Writer, prefill: InstanceSpec, decode: InstanceSpec) -> Iterator[Problem]:
    p, d = prefill.shape.tp, decode.shape.tp
    if p == d:
        return
    if (bad := uneven(writer, prefill, decode, p, d)) is not None:
        yield bad
        return
    count = heads(writer)
    if family(prefill.transfer) == "nixl" and p > d and count is not None and p > count:
        yield writer.problem(
            decode,
            shared.ILLEGAL_TP,
            f"tp {d} here, {p} in {prefill.pool}, whose ranks hold the model's {count} KV heads several "
            "times: decode cannot read from more ranks than it has where heads are repeated",
            hint=f"tp {count} or less on prefill, or tp {p} on both",
            field="tp",
        )


def _context(writer: Writer, prefill: InstanceSpec, decode: InstanceSpec) -> Iterator[Problem]:
    name = "decode-context-parallel-size"
    p, d = (flags.number(writer.user(spec).get(name)) or 1 for spec in (prefill, decode))
    if p % d and d % p:
        yield writer.problem(
            decode,
            shared.ILLEGAL_TP,
            f"--{name} {d} here and {p} in {prefill.pool}: neither divides the other",
            hint="sizes of which one divides the other",
            field=f"flags.{name}",
            at=writer.user(decode).get(name),
        )


def _layout(writer: Writer, prefill: InstanceSpec, decode: InstanceSpec) -> Iterator[Problem]:
    ours, theirs = variable(prefill, LAYOUT), variable(decode, LAYOUT)
    if ours == theirs or latent(writer) or is_on(_config(decode).get("enable_permute_local_kv")):
        return
    yield writer.problem(
        decode,
        shared.KV_LAYOUT,
        f"{LAYOUT} is {theirs or 'not set'} here and {ours or 'not set'} in {prefill.pool}",
        hint="give both pools the same, or enable_permute_local_kv in decode's kv-transfer-config",
        field=f"env.{LAYOUT}",
        at=decode.env.get(LAYOUT) or prefill.env.get(LAYOUT),
    )


def _connectors(writer: Writer, prefill: InstanceSpec, decode: InstanceSpec) -> Iterator[Problem]:
    """Keys of the connector that both sides must have alike."""
    for key, otherwise in {"bidirectional_kv_xfer": False, "mooncake_protocol": "rdma"}.items():
        ours, theirs = (_extra(spec).get(key, otherwise) for spec in (prefill, decode))
        if ours != theirs and family(prefill.transfer) == family(decode.transfer):
            yield writer.problem(
                decode,
                shared.TRANSFER_MISMATCH,
                f"{key} is {theirs} here and {ours} in {prefill.pool}",
                hint="give both pools the same",
                field=_CONFIG,
                at=_setting(writer, decode) or _setting(writer, prefill),
            )


def _promises(writer: Writer, spec: InstanceSpec) -> Iterator[Problem]:
    if _extra(spec).get("enforce_handshake_compat") is False:
        yield writer.problem(
            spec,
            rules.HANDSHAKE_UNCHECKED,
            "enforce_handshake_compat: false lets sides exchange KV that do not fit",
            hint="remove it",
            field=_CONFIG,
            at=_setting(writer, spec),
        )
    setting = spec.env.get(ABORT_TIMEOUT)
    seconds = flags.number(setting)
    if setting is not None and seconds is not None and seconds <= spec.patience_s:
        yield impatient(writer, spec, ABORT_TIMEOUT, setting)
    if spec.role is not Role.PREFILL or family(spec.transfer) != "nixl":
        return
    lease, longest = lease_s(spec), CONNECTS * writer.context.connect_s
    if lease <= longest:
        yield writer.problem(
            spec,
            rules.SHORT_LEASE,
            f"kv_lease_duration {lease:g} s: decode renews it once it has the request, which may take "
            f"{longest:g} s",
            hint=f"kv_lease_duration: {int(longest) + 1} or more, or a shorter router.timeouts.connect",
            field=_CONFIG,
            at=_setting(writer, spec),
        )


def _setting(writer: Writer, spec: InstanceSpec) -> Setting | None:
    return writer.user(spec).get("kv-transfer-config")


def _config(spec: InstanceSpec) -> Mapping[str, Any]:
    """What the pool's `--kv-transfer-config` will be."""
    own = {"kv-transfer-config": Setting(kv_transfer_config(spec), "role")}
    merged = flags.merge(own, spec.flags, ALIASES)
    return flags.as_object(merged["kv-transfer-config"].value) or {}


def _extra(spec: InstanceSpec) -> Mapping[str, Any]:
    extra = _config(spec).get("kv_connector_extra_config")
    return extra if isinstance(extra, dict) else {}
