"""SGLang's command line, environment and ports for one instance (0.5.23)."""

from __future__ import annotations

from math import ceil

from orchestrator.core.address import join_host_port
from orchestrator.core.types import Role
from orchestrator.engines import devicemap, flags
from orchestrator.engines.base import (
    Carriage,
    Command,
    FlagValue,
    InstanceSpec,
    PortNeed,
    Setting,
    Shape,
    Word,
)

DEFAULT_TRANSFER = "mooncake"
KEEP_ALIVE_S = 75
"""Rendered as SGLANG_TIMEOUT_KEEP_ALIVE; the engine's own default of 5 s makes a router reconnect."""

DEFAULT_ENCODER_TRANSFER = "zmq_to_scheduler"
"""How embeddings travel, written out: `auto` is the engine's to change between versions."""

ENCODER_TRANSFERS = ("zmq_to_scheduler", "zmq_to_tokenizer", "mooncake", "auto")

HANDOFF_MARGIN_S = 30
"""Seconds that P waits for D's memory, and D for P's KV, beyond the router's own deadlines: the router gives
up first, and tells both. Both count from the request's arrival (the engine's defaults are 300 s)."""

DIST_PORTS = 14
"""Ports from --dist-init-addr on: torch's own, six derived ones, and the DP handshake at +13."""

EVENT_PORTS = 3
"""Per DP rank: KV events, their replay, load statistics."""

MAP_FLAG = "disaggregation-ib-device"

NIXL_BINDS = "0.5.23"
"""The first version known to give NIXL's UCX the NICs of each rank by that flag (in nixl/conn.py there)."""

ALIASES = {
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
    "attention-data-parallel-size": "attn-dp-size",
    "nccl-init-addr": "dist-init-addr",
    "model": "model-path",
}

_MODES = {Role.PREFILL: "prefill", Role.DECODE: "decode"}
_COMPUTES_PROMPTS = (Role.PREFILL, Role.UNIFIED)


def ports(role: Role, shape: Shape) -> tuple[PortNeed, ...]:
    """HTTP; the bootstrap server (decode opens one too once it may switch roles); NCCL's rendezvous, random
    and racy unless given; KV events; and the run that data parallelism derives from one address. Last, and
    whether or not there are encoders, so that adding some moves no port: where encoders can register, which
    every instance that computes prompts opens, by default all on one port.

    On several nodes, process 0 has the bootstrap server, where all ranks register, and the rendezvous; each
    has an HTTP server (only process 0's serves) and publishes the KV events of its own ranks."""
    needs = [PortNeed("http")]
    if role in _MODES:
        needs.append(PortNeed("bootstrap", head=True))
    needs.append(PortNeed("nccl", head=True))
    if role is not Role.ENCODE:
        needs.append(PortNeed("kv-events", EVENT_PORTS * shape.dp))
    if shape.dp > 1 or shape.nnodes > 1:
        needs.append(PortNeed("dist", DIST_PORTS, head=True))
    if role in _COMPUTES_PROMPTS:
        needs.append(PortNeed("encoder-bootstrap", head=True))
    return tuple(needs)


def command(spec: InstanceSpec) -> Command:
    """Arguments after the interpreter, and the environment to add."""
    merged = flags.merge(_flags(spec), spec.flags, ALIASES)
    _place_events(spec, merged)
    start = tuple(Word(word, "adapter") for word in ("-m", "sglang.launch_server"))
    if spec.key is not None and spec.role is not Role.ENCODE:  # an encoder's server demands none
        # SGLang reads its key from the command line only.
        merged["api-key"] = Setting(spec.key, "credentials")
    env = _env(spec) | dict(spec.env)
    written = merged.get(MAP_FLAG)
    files = {}
    if written is not None and written.value == map_file(spec):
        files[map_file(spec)] = flags.as_text(devicemap.by_gpu(spec))
    return Command(argv=(*start, *flags.words(merged)), env=flags.variables(env), files=files)


def transfer(spec: InstanceSpec) -> str:
    """The KV transfer backend."""
    return spec.transfer or DEFAULT_TRANSFER


def carriage(name: str | None) -> Carriage | None:
    """How a KV transfer backend travels; None for one that nothing is known of."""
    return {
        "mooncake": Carriage("rdma", tcp="mooncake_tcp"),
        "mooncake_tcp": Carriage("tcp"),
        "nixl": Carriage("either"),
    }.get(name or DEFAULT_TRANSFER)


def encoder_transfer(spec: InstanceSpec) -> str:
    """How embeddings travel from an encode instance, or to one that has encoders."""
    chosen = spec.encoders.transfer if spec.encoders is not None else spec.transfer
    return chosen or DEFAULT_ENCODER_TRANSFER


def has_encoders(spec: InstanceSpec) -> bool:
    """Whether encoders work for this very instance; decode computes no images."""
    return spec.encoders is not None and spec.role in _COMPUTES_PROMPTS


def handoff_timeout_s(spec: InstanceSpec) -> int:
    """Whole seconds, as the engine reads them."""
    return ceil(spec.patience_s) + HANDOFF_MARGIN_S


def _flags(spec: InstanceSpec) -> flags.Settings:
    own, role, shape = flags.Settings(), f"role {spec.role.value}", spec.shape
    own.put("plan", model_path=spec.model_path, served_model_name=spec.served_name)
    own.put("plan", revision=spec.revision)
    own.put("plan", host=spec.bind, port=spec.ports["http"], nccl_port=spec.ports.get("nccl"))
    if spec.role in _MODES:
        own.put(role, disaggregation_mode=_MODES[spec.role], disaggregation_transfer_backend=transfer(spec))
        own.put("plan", disaggregation_bootstrap_port=spec.ports.get("bootstrap"))
    if takes_map(spec):
        own.put("plan", disaggregation_ib_device=_device_map(spec))
    _encoding(spec, own)
    sizes = {"tp_size": shape.tp, "pp_size": shape.pp, "dp_size": shape.dp, "ep_size": shape.ep}
    own.put("plan", **{name: size for name, size in sizes.items() if size > 1})
    if "dist" in spec.ports:
        head = spec.head_address or spec.address
        own.put("plan", dist_init_addr=join_host_port(head, spec.ports["dist"]))
    if shape.nnodes > 1:
        own.put("plan", nnodes=shape.nnodes, node_rank=spec.rank)
    if spec.kv_events and spec.role is not Role.ENCODE:
        own.put("pool kv_events", kv_events_config={"publisher": "zmq"})
    own.put("adapter", enable_metrics=True, enable_cache_report=spec.role is not Role.ENCODE or None)
    return own


def _encoding(spec: InstanceSpec, own: flags.Settings) -> None:
    """What an encoder is told, and who has encoders."""
    if spec.role is Role.ENCODE:
        own.put(f"role {spec.role.value}", encoder_only=True)
    elif has_encoders(spec):
        assert spec.encoders is not None
        own.put("encoders", language_only=True, encoder_urls=list(spec.encoders.urls))
        own.put("plan", encoder_bootstrap_port=spec.ports.get("encoder-bootstrap"))
    else:
        return
    own.put("encoders", encoder_transfer_backend=encoder_transfer(spec))


def takes_map(spec: InstanceSpec) -> bool:
    """Whether the engine itself is told its NICs, by --disaggregation-ib-device.

    Mooncake, of KV or of embeddings, and Ascend take them there. So does NIXL's UCX, from 0.5.23 on, rank by
    rank; where all ranks use the same, and before, the environment says it, which every version reads.
    """
    if not spec.nics:
        return False
    if (spec.role is Role.ENCODE or has_encoders(spec)) and encoder_transfer(spec) == "mooncake":
        return True
    if spec.role not in _MODES:
        return False
    if transfer(spec) == "nixl":
        alike = devicemap.form(spec) == devicemap.LIST
        return not alike and not _names_nics(spec) and devicemap.at_least(spec.version, NIXL_BINDS)
    return transfer(spec) in ("mooncake", "ascend")


def map_file(spec: InstanceSpec) -> str:
    """Where the device map of an instance lies if it is to be a file."""
    return f"{spec.folder}/{spec.name}.{spec.rank}.nics.json"


def _device_map(spec: InstanceSpec) -> FlagValue:
    """In one of the engine's three forms: names for all ranks, a map by visible GPU, a file of it."""
    form = devicemap.form(spec)
    if form == devicemap.FILE:
        return map_file(spec)
    return dict(devicemap.by_gpu(spec)) if form == devicemap.INLINE else ",".join(spec.nics)


def _env(spec: InstanceSpec) -> flags.Settings:
    own = flags.Settings()
    own.env("adapter", {"PYTHONSAFEPATH": "1"})
    if spec.role is not Role.ENCODE:
        own.env("adapter", {"SGLANG_TIMEOUT_KEEP_ALIVE": KEEP_ALIVE_S})
    own.env("plan", {"SGLANG_HOST_IP": spec.address})
    if any(near.gpu_pci for near in spec.near):
        # Without it CUDA puts the fastest GPU first, and the map would be of others.
        own.env("plan", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    if spec.devices:
        own.env("plan", {"CUDA_VISIBLE_DEVICES": ",".join(map(str, spec.devices))})
    if spec.role in _MODES:
        names = ("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT")
        own.env(f"role {spec.role.value}", dict.fromkeys(names, handoff_timeout_s(spec)))
        if transfer(spec) == "mooncake_tcp":
            # Unequal TP sends a slice per token; over 1024 queued ones fail the transfer and
            # blacklist the peer. 65535 is the largest value that Mooncake accepts.
            own.env("adapter", {"MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": 65535})
        if transfer(spec) == "nixl" and not takes_map(spec) and not _names_nics(spec):
            own.env("plan", {devicemap.UCX: devicemap.for_ucx(spec)})
    return own


def _names_nics(spec: InstanceSpec) -> bool:
    """Whether the user names NICs for NIXL in one of its three places: another beside it would undo it, or
    keep the engine from starting."""
    written = any(flags.plain(name, ALIASES) == MAP_FLAG and s.value for name, s in spec.flags.items())
    params = spec.env.get("SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS")
    return written or devicemap.UCX in spec.env or (params is not None and "device_list" in str(params.value))


def _place_events(spec: InstanceSpec, merged: dict[str, Setting]) -> None:
    """Give KV events that were asked for without an endpoint the ports that the plan set aside for them."""
    asked = merged.get("kv-events-config")
    config = flags.as_object(asked.value) if asked is not None else None
    if asked is None or config is None or "endpoint" in config or "kv-events" not in spec.ports:
        return
    first = spec.ports["kv-events"]
    placed = {
        "publisher": "zmq",
        "endpoint": f"tcp://*:{first}",
        "replay_endpoint": f"tcp://*:{first + spec.shape.dp}",
    }
    merged["kv-events-config"] = Setting(placed | config, f"plan + {asked.origin}")
