"""Which NICs the ranks of an instance use: in the forms that transfers want, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.engines import rules
from orchestrator.engines.base import InstanceSpec, Setting
from orchestrator.engines.capabilities import order
from orchestrator.engines.flags import as_object
from orchestrator.engines.linting import Writer
from orchestrator.errors import Problem

OPTION = "device_map"
"""The pool's option that chooses the form."""

LIST, INLINE, FILE = "list", "inline", "file"

UCX = "UCX_NET_DEVICES"


def by_gpu(spec: InstanceSpec) -> dict[str, str]:
    """Comma-separated NICs by the GPU as the process sees it (`"0"`, `"1"`, ...); every GPU has an entry.

    Empty where some GPU is told none, or none of them: a map with gaps stops the engine at start.
    """
    near = [nics.names for nics in spec.near] or [spec.nics] * len(spec.devices)
    return {str(i): ",".join(names) for i, names in enumerate(near)} if near and all(near) else {}


def form(spec: InstanceSpec) -> str:
    """The form that is asked for, else the one needed: a list says as much where all GPUs are alike."""
    asked = spec.options.get(OPTION)
    if asked in (LIST, INLINE, FILE) and (asked == LIST or by_gpu(spec)):
        return str(asked)
    return INLINE if len(set(by_gpu(spec).values())) > 1 else LIST


def for_ucx(spec: InstanceSpec) -> str | None:
    """UCX_NET_DEVICES for a whole instance: port 1 of its NICs, or its one network interface over TCP.

    UCX picks the nearest of them for each rank's GPU.
    """
    if spec.nics:
        return ",".join(f"{nic}:1" for nic in spec.nics)
    return spec.interface


def lint_option(writer: Writer, spec: InstanceSpec, forms: Sequence[str]) -> Iterator[Problem]:
    """A finding where the pool asks for a form that there is not, or that cannot be made."""
    asked = spec.options.get(OPTION)
    if asked is None:
        return
    if asked not in forms:
        message = f"{OPTION} is {' or '.join(forms)}, not {asked!r}"
    elif asked != LIST and not by_gpu(spec):
        message = f"{OPTION} {asked} needs NICs for every GPU: nodes[].nics, or nodes[].fabric"
    else:
        return
    yield writer.problem(spec, rules.BAD_OPTION, message, field=f"options.{OPTION}")


def lint_names(
    writer: Writer, spec: InstanceSpec, names: Sequence[str], field: str, at: Setting
) -> Iterator[Problem]:
    """Findings for devices that a user names and the instance's node lacks, or whose link is down there."""
    for name in names:
        state = spec.node_nics.get(name)
        if not spec.node_nics or state in ("ACTIVE", ""):
            continue
        if state is None:
            message = f"node {spec.node} has no RDMA device {name}, which {spec.name} would use"
            hint = f"it has {', '.join(spec.node_nics)}"
        else:
            message = f"the link of {name} on node {spec.node}, which {spec.name} would use, is {state}"
            up = [nic for nic, its in spec.node_nics.items() if its == "ACTIVE"]
            hint = f"mend the link, or use {', '.join(up) or 'TCP'}"
        yield writer.problem(spec, rules.NIC_MISSING, message, hint=hint, field=field, at=at)


def lint_map(writer: Writer, spec: InstanceSpec, setting: Setting, field: str) -> Iterator[Problem]:
    """Findings for a list, or a map by GPU, that a user wrote as the value of a flag."""

    def wrong(message: str, hint: str | None = None) -> Problem:
        return writer.problem(spec, rules.DEVICE_MAP, message, hint=hint, field=field, at=setting)

    written = as_object(setting.value)
    if written is None:
        if isinstance(setting.value, str) and not setting.value.endswith(".json"):
            yield from lint_names(writer, spec, split(setting.value), field, setting)
        elif not isinstance(setting.value, str) and setting.value is not None and setting.value is not False:
            yield wrong(f"{setting.value!r} is neither devices with commas between them nor a map by GPU")
        return
    for key, value in written.items():
        if not str(key).isdecimal():
            yield wrong(f"the key {key!r} is no GPU: they are numbered as the process sees them, from 0 on")
        elif not isinstance(value, str):
            yield wrong(f"the devices of GPU {key} must be one text", 'write "mlx5_0,mlx5_1", not a list')
        else:
            yield from lint_names(writer, spec, split(value), field, setting)
    # The plan's own map lies beneath, if it is one.
    covered = {*written, *(by_gpu(spec) if form(spec) == INLINE else ())}
    gaps = [i for i in range(len(spec.devices)) if str(i) not in covered]
    if gaps:
        seen = f"0 to {len(spec.devices) - 1}" if len(spec.devices) > 1 else "0 alone"
        message = f"no devices for GPU {', '.join(map(str, gaps))}: the engine would not start"
        yield wrong(message, f"{spec.name} sees its GPUs as {seen}, whatever they are on the node")


def lint_ucx(writer: Writer, spec: InstanceSpec, reads: bool) -> Iterator[Problem]:
    """Findings for UCX_NET_DEVICES as a user wrote it; `reads` is whether the transfer does."""
    setting = spec.env.get(UCX)
    if setting is None or setting.value is None:
        return
    field = f"env.{UCX}"
    if not reads:
        message = f"{UCX} is not read by transfer {spec.transfer}"
        hint = "write nodes[].nics: each transfer is told them as it wants"
        yield writer.problem(spec, rules.INEFFECTIVE_FLAG, message, hint=hint, field=field, at=setting)
        return
    # With a port it is an RDMA device; interfaces and `all` have none.
    named = [name.partition(":")[0] for name in split(str(setting.value)) if ":" in name]
    yield from lint_names(writer, spec, named, field, setting)


def per_node(specs: Sequence[InstanceSpec]) -> list[InstanceSpec]:
    """One instance of each pool on each node: names of devices differ between hosts."""
    return list({(spec.pool, spec.node): spec for spec in reversed(specs)}.values())[::-1]


def at_least(version: str | None, least: str) -> bool:
    """Whether a version is `least` or later; one that is not known counts as the one pdctl is written for."""
    return version is None or order(version) >= order(least)


def split(names: str) -> list[str]:
    """Names with commas between them."""
    return [name.strip() for name in names.split(",") if name.strip()]


def pairs(spec: InstanceSpec) -> Mapping[str, str]:
    """The PCI address of each GPU's NIC by the GPU's own, where every GPU has one NIC and all are known."""
    if not spec.near or any(len(n.pci) != 1 or not n.gpu_pci or not n.pci[0] for n in spec.near):
        return {}
    return {near.gpu_pci: near.pci[0] for near in spec.near}
