"""vLLM's pools against each other, before anything is launched (0.32.0)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from orchestrator.core.types import Role
from orchestrator.engines import devicemap, flags, linting
from orchestrator.engines import rules as shared
from orchestrator.engines.base import InstanceSpec, LintContext, Setting
from orchestrator.engines.capabilities import known
from orchestrator.engines.linting import Writer, one_per_pool, sides
from orchestrator.engines.names import against_table
from orchestrator.engines.vllm import rules
from orchestrator.engines.vllm.command import (
    ALIASES,
    KILL_MARGIN_S,
    RANK_VARIABLES,
    family,
    kv_transfer_config,
    lease_s,
    shutdown_timeout_s,
)
from orchestrator.engines.vllm.pairing import pairing
from orchestrator.errors import Problem

_OWNED = {
    "model": "write model.path in the topology",
    "served-model-name": "write model.served_name in the topology",
    "revision": "write model.revision in the topology",
    "host": "engines listen on the address of their node: nodes[].address",
    "port": "ports come from the range of the node: nodes[].ports",
    "uds": "engines are reached over TCP",
    "data-parallel-rpc-port": "ports come from the range of the node: nodes[].ports",
    "master-addr": "instances are placed by the plan",
    "master-port": "ports come from the range of the node: nodes[].ports",
    "data-parallel-address": "instances are placed by the plan",
    "data-parallel-size-local": "instances are placed by the plan",
    "data-parallel-start-rank": "instances are placed by the plan",
    "headless": "instances are placed by the plan",
    "nnodes": "instances are placed by the plan",
    "node-rank": "instances are placed by the plan",
    "tensor-parallel-size": "write tp: N in the pool: GPUs are counted by it",
    "pipeline-parallel-size": "write pp: N in the pool: GPUs are counted by it",
    "data-parallel-size": "write dp: N in the pool: GPUs and ports are counted by it",
    "api-key": "write router.credentials.engine_key: probes and requests need it too",
    "device-ids": "GPUs are given by the plan: an instance sees only its own, from 0 on",
}
_OWNED_ENV = ("VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_MOONCAKE_BOOTSTRAP_PORT")
PREFIXES = {"VLLM_": True, "MC_": False}
"""Of variables: those whose names are looked up, and whether they are the engine's own."""

_HASHED = "the engines refuse the hand-shake (compatibility hash)"
_PAIRED = {
    "block-size": (shared.PAGE_SIZE, "decode fetches as many blocks as it counts itself"),
    "dtype": (shared.MODEL_DTYPE, _HASHED),
    "kv-cache-dtype": (shared.KV_DTYPE, _HASHED),
    "attention-backend": (rules.COMPATIBILITY_HASH, _HASHED),
    "speculative-config": (rules.COMPATIBILITY_HASH, _HASHED),
    "disable-hybrid-kv-cache-manager": (rules.COMPATIBILITY_HASH, _HASHED),
    "hf-overrides": (rules.COMPATIBILITY_HASH, _HASHED),
    "max-model-len": (shared.CONTEXT_LENGTH, "what one side takes the other refuses"),
    "prefix-caching-hash-algo": (shared.HASH_SEED, "blocks get other names"),
}
_RENDERED = "the two sides would make different prompts of one request"
_PAIRED |= dict.fromkeys(
    (
        *("chat-template", "chat-template-content-format", "default-chat-template-kwargs"),
        *("tokenizer", "tokenizer-mode", "tokenizer-revision"),
    ),
    (shared.PROMPT_RENDERING, _RENDERED),
)
_PAIRED_ENV = {"PYTHONHASHSEED": (shared.HASH_SEED, "blocks get other names")}


def lint(context: LintContext) -> Sequence[Problem]:
    """Every finding, errors and warnings."""
    tables = partial(known, __package__)
    writer = Writer(context, ALIASES, tables)
    return [
        *linting.owned(writer, _OWNED),
        *against_table(writer, tables, PREFIXES),
        *_owned_variables(writer),
        *_contradictions(writer),
        *linting.disagreements(writer, _PAIRED, writer.value),
        *linting.disagreements(writer, _PAIRED_ENV, linting.variable),
        *_pairs(writer),
        *pairing(writer),
        *_prefills(writer),
        *_killed_early(writer),
        *_spanning(writer),
        *_devices(writer),
        *linting.kv_events(writer, "block-size"),
        *linting.unroutable(writer, _side_channel, "the address that decode fetches KV from"),
    ]


def _devices(writer: Writer) -> Iterator[Problem]:
    """NICs that the user names: they are there, and what belongs together is given together."""
    for spec in one_per_pool(writer.context.specs):
        yield from devicemap.lint_option(writer, spec, (devicemap.LIST, devicemap.INLINE))
        if spec.options.get(devicemap.OPTION) == devicemap.INLINE and not devicemap.pairs(spec):
            message = f"{devicemap.OPTION} inline needs the places of GPUs and NICs on the bus, one NIC a GPU"
            yield writer.problem(
                spec,
                shared.BAD_OPTION,
                message,
                hint="write nodes[].fabric",
                field=f"options.{devicemap.OPTION}",
            )
        given = {name: spec.env[name] for name in RANK_VARIABLES if name in spec.env}
        if len(given) == 1:
            (missing,) = set(RANK_VARIABLES) - set(given)
            name, alone = given.popitem()
            yield writer.problem(
                spec,
                shared.DEVICE_MAP,
                f"{name} without {missing}: the engine stops at start",
                hint="give both or neither; nodes[].fabric renders them",
                field=f"env.{name}",
                at=alone,
            )
    for spec in devicemap.per_node(writer.context.specs):
        if kv_transfer_config(spec) is None:
            continue
        yield from devicemap.lint_ucx(writer, spec, family(spec.transfer) != "mooncake")
        setting = writer.user(spec).get("kv-transfer-config")
        config = flags.as_object(setting.value) if setting is not None else None
        extra = (config or {}).get("kv_connector_extra_config")
        named = extra.get("device_name") if isinstance(extra, dict) else None
        if setting is not None and isinstance(named, str):
            names = devicemap.split(named)
            yield from devicemap.lint_names(writer, spec, names, "flags.kv-transfer-config", setting)


def _owned_variables(writer: Writer) -> Iterator[Problem]:
    for spec in one_per_pool(writer.context.specs):
        for name in _OWNED_ENV:
            if name in spec.env:
                yield writer.problem(
                    spec,
                    shared.PLANNED_FLAG,
                    f"{name} is set by the plan, for each instance its own",
                    hint="ports come from the range of the node: nodes[].ports",
                    field=f"env.{name}",
                    at=spec.env[name],
                )


def _contradictions(writer: Writer) -> Iterator[Problem]:
    """A role implies a connector and a KV role; others make an engine that cannot serve its pool."""
    for spec in one_per_pool(writer.context.specs):
        setting = writer.user(spec).get("kv-transfer-config")
        own = kv_transfer_config(spec)
        if own is not None and family(spec.transfer) is None:
            yield writer.problem(
                spec,
                shared.UNKNOWN_TRANSFER,
                f"pdctl knows no hand-off for transfer {spec.transfer}",
                hint="nixl, mooncake or mooncake_tcp",
                field="transfer",
            )
        if setting is None or own is None:
            continue
        yield from _config(writer, spec, setting, own)


def _config(
    writer: Writer, spec: InstanceSpec, setting: Setting, own: Mapping[str, Any]
) -> Iterator[Problem]:
    field = "flags.kv-transfer-config"
    config = flags.as_object(setting.value)
    if config is None:
        yield writer.problem(
            spec,
            shared.ROLE_CONTRADICTION,
            f"--kv-transfer-config without an object leaves role {spec.role.value} without a connector",
            hint="remove it, or write only the keys to add, as a mapping",
            field=field,
            at=setting,
        )
        return
    for key in ("kv_connector", "kv_role"):
        right = (own[key], "kv_both") if key == "kv_role" else (own[key],)
        if config.get(key, own[key]) not in right:
            yield writer.problem(
                spec,
                shared.ROLE_CONTRADICTION,
                f"{key} {config[key]} contradicts role {spec.role.value}, which needs {own[key]}",
                hint="remove it: role and transfer imply it",
                field=field,
                at=setting,
            )
    if spec.role is Role.DECODE and config.get("kv_load_failure_policy") == "fail":
        yield writer.problem(
            spec,
            rules.FAILS_ON_LOST_KV,
            "with kv_load_failure_policy fail, a prefill that goes away fails its requests on decode",
            hint="recompute, the default here, costs a prefill and answers right",
            field=field,
            at=setting,
        )


def _pairs(writer: Writer) -> Iterator[Problem]:
    for prefill, decode in sides(writer.context.specs):
        if prefill.model_path != decode.model_path:
            yield writer.problem(
                decode,
                shared.MODEL_MISMATCH,
                f"the model is written {decode.model_path} here and {prefill.model_path} in {prefill.pool}: "
                "the engines compare the very text (compatibility hash)",
                field="model",
            )
        if family(prefill.transfer) != family(decode.transfer):
            yield writer.problem(
                decode,
                shared.TRANSFER_MISMATCH,
                f"transfer is {decode.transfer} here and {prefill.transfer} in {prefill.pool}",
                hint="give both pools the same transfer",
                field="transfer",
            )
        if None not in (prefill.version, decode.version) and prefill.version != decode.version:
            yield writer.problem(
                decode,
                shared.ENGINE_VERSION,
                f"version {decode.version} here and {prefill.version} in {prefill.pool}: the engines refuse "
                "the hand-shake (compatibility hash)",
                hint="run both pools from one environment",
            )


def _prefills(writer: Writer) -> Iterator[Problem]:
    for spec in one_per_pool(writer.context.specs):
        if spec.role is not Role.PREFILL:
            continue
        if family(spec.transfer) == "mooncake" and spec.shape.dp > 1:
            yield writer.problem(
                spec,
                shared.PREFILL_DP,
                "a Mooncake hand-off names one DP rank, and requests are spread over all of them",
                hint=f"use {spec.shape.dp} instances with dp: 1",
                field="dp",
            )
        merged = flags.merge({}, spec.flags, ALIASES)
        lease = lease_s(spec)
        own = flags.number(merged.get("shutdown-timeout"))
        drain = shutdown_timeout_s(spec) if own is None else own
        if family(spec.transfer) == "nixl" and drain < lease:
            enough = f"drain_timeout: {int(lease) + KILL_MARGIN_S}s"
            yield writer.problem(
                spec,
                rules.DRAIN_BELOW_LEASE,
                f"--shutdown-timeout {drain} is below the lease of {lease:g} s: stopping a prefill can "
                "take KV away that decode was promised",
                hint=f"{enough if own is None else f'--shutdown-timeout {int(lease)}'} or more",
                field="drain_timeout" if own is None else "flags.shutdown-timeout",
                at=merged.get("shutdown-timeout"),
            )


def _killed_early(writer: Writer) -> Iterator[Problem]:
    for spec in one_per_pool(writer.context.specs):
        setting = writer.user(spec).get("shutdown-timeout")
        own = flags.number(setting)
        if own is not None and own > spec.drain_s:
            yield writer.problem(
                spec,
                shared.INEFFECTIVE_FLAG,
                f"--shutdown-timeout {own} is longer than drain_timeout, {spec.drain_s:g} s: KILL is first",
                hint="leave it out: it follows from drain_timeout",
                field="flags.shutdown-timeout",
                at=setting,
            )


def _spanning(writer: Writer) -> Iterator[Problem]:
    for spec in one_per_pool(writer.context.specs):
        dp, nnodes = spec.shape.dp, spec.shape.nnodes
        if nnodes > 1 and dp > 1 and dp % nnodes:
            yield writer.problem(
                spec,
                shared.SPANNING_DP,
                f"dp {dp} over {nnodes} nodes does not put equally many whole DP ranks on each",
                hint=f"a dp that {nnodes} divides, or instances with dp: 1",
                field="dp",
            )


def _side_channel(spec: InstanceSpec) -> tuple[str, Setting | None]:
    name = "VLLM_HOST_IP" if family(spec.transfer) == "mooncake" else "VLLM_NIXL_SIDE_CHANNEL_HOST"
    setting = spec.env.get(name)
    return (str(setting.value), setting) if setting is not None else (spec.address, None)
