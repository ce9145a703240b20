"""SGLang's pools against each other, before anything is launched (0.5.23)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from orchestrator.core.rules import WARN
from orchestrator.core.types import Role
from orchestrator.engines import devicemap, flags, linting
from orchestrator.engines import rules as shared
from orchestrator.engines.base import InstanceSpec, LintContext, Setting
from orchestrator.engines.capabilities import known
from orchestrator.engines.linting import Writer, one_per_pool, sides
from orchestrator.engines.names import against_table
from orchestrator.engines.sglang import rules
from orchestrator.engines.sglang.command import (
    ALIASES,
    ENCODER_TRANSFERS,
    MAP_FLAG,
    encoder_transfer,
    has_encoders,
    transfer,
)
from orchestrator.engines.sglang.media import UNCHECKED
from orchestrator.engines.sglang.pairing import alone, pairing
from orchestrator.errors import Problem

_OWNED = {
    "model-path": "write model.path in the topology",
    "served-model-name": "write model.served_name in the topology",
    "revision": "write model.revision in the topology",
    "host": "engines listen on the address of their node: nodes[].address",
    "port": "ports come from the range of the node: nodes[].ports",
    "disaggregation-bootstrap-port": "ports come from the range of the node: nodes[].ports",
    "nccl-port": "ports come from the range of the node: nodes[].ports",
    "dist-init-addr": "ports come from the range of the node: nodes[].ports",
    "nnodes": "instances are placed by the plan",
    "node-rank": "instances are placed by the plan",
    "tp-size": "write tp: N in the pool: GPUs are counted by it",
    "pp-size": "write pp: N in the pool: GPUs are counted by it",
    "dp-size": "write dp: N in the pool: GPUs and ports are counted by it",
    "ep-size": "write ep: N in the pool",
    "api-key": "write router.credentials.engine_key: probes and requests need it too",
    "encoder-urls": "write a pool with role: encode; external: names encoders that run already",
    "encoder-register-urls": "the plan tells prefill its encoders",
    "encoder-bootstrap-port": "ports come from the range of the node: nodes[].ports",
    "encoder-transfer-backend": "write transfer: in the encode pool",
    "base-gpu-id": "GPUs are given by the plan: an instance sees only its own, from 0 on",
}
_PAIRED = {
    "page-size": (shared.PAGE_SIZE, "the engines refuse each other's KV pages"),
    "kv-cache-dtype": (shared.KV_DTYPE, "the engines refuse each other's KV pages"),
    "dtype": (
        shared.MODEL_DTYPE,
        "KV has the model's type unless given, so the engines refuse each other's KV pages",
    ),
    "disaggregation-decode-allocation-policy": (
        rules.ALLOCATION_POLICY,
        "requests fail with an allocation policy mismatch",
    ),
    "disaggregation-enable-kv-checksum": (
        rules.KV_CHECKSUM,
        "one side checks what the other does not send",
    ),
}
_RENDERED = "the two sides would make different prompts of one request"
_PAIRED |= dict.fromkeys(
    (
        "chat-template",
        "completion-template",
        "tokenizer-path",
        "tokenizer-mode",
        "default-chat-template-kwargs",
    ),
    (shared.PROMPT_RENDERING, _RENDERED),
)
_PAIRED["context-length"] = (shared.CONTEXT_LENGTH, "what one side takes the other refuses")
_PAIRED["dsv4-attn-backend"] = (shared.KV_LAYOUT, "KV has another layout with each")
_PAIRED_ENV = {
    "PYTHONHASHSEED": (shared.HASH_SEED, "blocks get other names"),
    "SGLANG_DSV4_KV_LAYOUT": (shared.KV_LAYOUT, "KV has another layout with each"),
}
PREFIXES = {"SGLANG_": True, "SGL_": True, "MC_": False}
"""Of variables: those whose names are looked up, and whether they are the engine's own."""

_HANDS_OFF = (Role.PREFILL, Role.DECODE)
_SECONDS = ("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT")


def lint(context: LintContext) -> Sequence[Problem]:
    """Every finding, errors and warnings."""
    tables = partial(known, __package__)
    writer = Writer(context, ALIASES, tables)
    return [
        *linting.owned(writer, _OWNED),
        *against_table(writer, tables, PREFIXES),
        *_contradictions(writer),
        *linting.disagreements(writer, _PAIRED, writer.value),
        *linting.disagreements(writer, _PAIRED_ENV, linting.variable),
        *_pairs(writer),
        *pairing(writer),
        *alone(writer),
        *_encoders(writer),
        *_ineffective(writer),
        *_durations(writer),
        *_spanning(writer),
        *_devices(writer),
        *linting.kv_events(writer, "page-size", 1),
        *linting.unroutable(writer, lambda spec: (spec.bind, None), "the bootstrap server's address"),
    ]


def _contradictions(writer: Writer) -> Iterator[Problem]:
    """A role implies flags; one that says otherwise makes an engine that cannot serve its pool."""
    for spec in one_per_pool(writer.context.specs):
        own = {
            "disaggregation-mode": spec.role.value if spec.role in _HANDS_OFF else "null",
            "disaggregation-transfer-backend": transfer(spec) if spec.role is not Role.ENCODE else "null",
            "encoder-only": spec.role is Role.ENCODE,
            "language-only": has_encoders(spec),
        }
        for name, right in own.items():
            setting = writer.user(spec).get(name)
            if setting is None or setting.value == right:
                continue
            if setting.value in (None, False) and right in ("null", False):
                continue
            hint = "remove it: the role implies it"
            if name == "disaggregation-transfer-backend" and spec.role is not Role.ENCODE:
                hint = "write transfer: in the pool instead, for both sides"
            elif name == "language-only" and not right:
                hint = "write a pool with role: encode; external: names encoders that run already"
            yield writer.problem(
                spec,
                shared.ROLE_CONTRADICTION,
                f"--{name} {'left out' if setting.value is None else setting.value} contradicts role "
                f"{spec.role.value}, which needs {right}",
                hint=hint,
                field=f"flags.{name}",
                at=setting,
            )


def _pairs(writer: Writer) -> Iterator[Problem]:
    for prefill, decode in sides(writer.context.specs):
        if transfer(prefill) != transfer(decode):
            yield writer.problem(
                decode,
                shared.TRANSFER_MISMATCH,
                f"transfer is {transfer(decode)} here and {transfer(prefill)} in {prefill.pool}",
                hint="give both pools the same transfer",
                field="transfer",
            )
        if decode.shape.pp not in (1, prefill.shape.pp):
            yield writer.problem(
                decode,
                shared.PIPELINE_SIZE,
                f"pp {decode.shape.pp} on decode needs pp {decode.shape.pp} or decode pp 1; "
                f"{prefill.pool} has pp {prefill.shape.pp}",
                field="pp",
            )
        if None not in (prefill.version, decode.version) and prefill.version != decode.version:
            yield writer.problem(
                decode,
                shared.ENGINE_VERSION,
                f"version {decode.version} here and {prefill.version} in {prefill.pool}",
                hint="run both pools from one environment",
                severity=WARN,
            )


def _encoders(writer: Writer) -> Iterator[Problem]:
    """What is wrong with encode pools, and what they put at risk; said of their users if all are external."""
    pools = one_per_pool(writer.context.specs)
    launched = [spec for spec in pools if spec.role is Role.ENCODE]
    concerned = launched or [spec for spec in pools if has_encoders(spec)]
    for spec in concerned:
        if encoder_transfer(spec) not in ENCODER_TRANSFERS:
            yield writer.problem(
                spec,
                shared.UNKNOWN_TRANSFER,
                f"embeddings cannot travel by {encoder_transfer(spec)}",
                hint=f"{', '.join(ENCODER_TRANSFERS)}; a launch profile sets it under roles.encode",
                field="transfer",
            )
        options = spec.options if spec.encoders is None else spec.encoders.options
        if not isinstance(options.get(UNCHECKED, False), bool):
            yield writer.problem(
                spec, shared.BAD_OPTION, f"{UNCHECKED} is true or false", field=f"options.{UNCHECKED}"
            )
    for spec in launched[1:]:
        first = launched[0]
        if _used(spec) != _used(first):
            yield writer.problem(
                spec,
                rules.ENCODER_MISMATCH,
                f"transfer or {UNCHECKED} is not that of encode pool {first.pool}: all are used alike",
                hint="give both pools the same",
                field="transfer",
            )
    if concerned:
        yield writer.problem(
            concerned[0],
            rules.ENCODER_HAZARD,
            "an image that an encoder cannot read, or an encoder that has died, ends the engine that asked, "
            "and all requests there",
            hint="the router refuses images it sees to be broken, and media it cannot check unless "
            f"options.{UNCHECKED} is true; stop or restart encoders only without traffic",
        )


def _used(spec: InstanceSpec) -> tuple[str, object]:
    """What those who ask an encoder have to be told of it."""
    return encoder_transfer(spec), spec.options.get(UNCHECKED, False)


def _ineffective(writer: Writer) -> Iterator[Problem]:
    for spec in one_per_pool(writer.context.specs):
        if spec.role not in _HANDS_OFF:
            continue
        yield from _ineffective_flags(writer, spec)
        if spec.role is Role.PREFILL and spec.shape.dp > 1:
            yield writer.problem(
                spec,
                shared.PREFILL_DP,
                "with --dp-size, half or more of the rooms fail with a follow_bootstrap_room conflict",
                hint=f"use {spec.shape.dp} instances with dp: 1, or --attn-dp-size",
                field="dp",
            )
        if spec.role is Role.PREFILL and transfer(spec) == "fake":
            yield writer.problem(
                spec,
                rules.FAKE_TRANSFER,
                "a prefill engine refuses this transfer",
                field="transfer",
            )


def _ineffective_flags(writer: Writer, spec: InstanceSpec) -> Iterator[Problem]:
    said = {
        "max-queued-requests": (
            "is ignored under disaggregation",
            "queue-depth-limit in the router bounds it",
        ),
        "sleep-on-idle": ("delays hand-offs by up to a second: arriving KV does not wake the engine", None),
    }
    for name, (message, hint) in said.items():
        setting = writer.user(spec).get(name)
        if setting is not None and setting.value not in (None, False):
            yield writer.problem(
                spec,
                shared.INEFFECTIVE_FLAG,
                f"--{name} {message}",
                hint=hint,
                field=f"flags.{name}",
                at=setting,
            )


def _devices(writer: Writer) -> Iterator[Problem]:
    """NICs that the user names: they are there, in a form the engine takes, and nothing undoes them."""
    for spec in one_per_pool(writer.context.specs):
        yield from devicemap.lint_option(writer, spec, (devicemap.LIST, devicemap.INLINE, devicemap.FILE))
    for spec in devicemap.per_node(writer.context.specs):
        by_ucx = spec.role in _HANDS_OFF and transfer(spec) == "nixl"
        if spec.role in _HANDS_OFF:
            yield from devicemap.lint_ucx(writer, spec, by_ucx)
        setting = writer.user(spec).get(MAP_FLAG)
        if setting is None or setting.value in (None, False):
            continue
        field = f"flags.{MAP_FLAG}"
        if spec.role in _HANDS_OFF and transfer(spec) == "mooncake_tcp" and spec.encoders is None:
            yield writer.problem(
                spec,
                shared.INEFFECTIVE_FLAG,
                f"--{MAP_FLAG} is ignored over TCP",
                hint="transfer: mooncake goes by RDMA",
                field=field,
                at=setting,
            )
            continue
        if by_ucx and (undone := _undone(spec, setting)) is not None:
            yield writer.problem(spec, shared.DEVICE_MAP, undone[0], hint=undone[1], field=field, at=setting)
        yield from devicemap.lint_map(writer, spec, setting, field)


def _undone(spec: InstanceSpec, setting: Setting) -> tuple[str, str] | None:
    """What keeps NIXL from using the devices of a flag, and what to do; None for nothing."""
    variable = spec.env.get(devicemap.UCX)
    if variable is not None and variable.value is not None:
        return (
            f"{devicemap.UCX} is set too, and the engine then ignores --{MAP_FLAG}",
            "keep the one of them",
        )
    if ":" in flags.as_text(list((flags.as_object(setting.value) or {"": setting.value}).values())):
        return f"--{MAP_FLAG} takes names without a port: the engine stops at start", "mlx5_0, not mlx5_0:1"
    return None


def _durations(writer: Writer) -> Iterator[Problem]:
    for spec in one_per_pool(writer.context.specs):
        for name in _SECONDS:
            setting = spec.env.get(name)
            if setting is None or setting.value is None:
                continue
            if not str(setting.value).isdigit():
                yield writer.problem(
                    spec,
                    rules.BAD_DURATION,
                    f"{name} must be whole seconds, not {setting.value!r}",
                    hint="the engine reads it as an integer and fails on anything else",
                    field=f"env.{name}",
                    at=setting,
                )
            elif spec.role in _HANDS_OFF and int(str(setting.value)) <= spec.patience_s:
                yield linting.impatient(writer, spec, name, setting)


def _spanning(writer: Writer) -> Iterator[Problem]:
    for spec in one_per_pool(writer.context.specs):
        if spec.shape.nnodes > 1 and spec.shape.dp > 1:
            yield writer.problem(
                spec,
                shared.SPANNING_DP,
                f"dp {spec.shape.dp} on {spec.shape.nnodes} nodes: the engine keeps DP ranks on one node",
                hint="instances with dp: 1 on one node each, or --attn-dp-size with tp alone",
                field="dp",
            )
