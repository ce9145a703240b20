"""SGLang's command line, environment and ports for one instance (0.5.23)."""

from __future__ import annotations

from orchestrator.core.address import join_host_port
from orchestrator.core.types import Role
from orchestrator.engines import flags
from orchestrator.engines.base import Command, InstanceSpec, PortNeed, Setting, Shape, Word

DEFAULT_TRANSFER = "mooncake"
KEEP_ALIVE_S = 75
"""Rendered as SGLANG_TIMEOUT_KEEP_ALIVE; the engine's own default of 5 s makes a router reconnect."""

DEFAULT_ENCODER_TRANSFER = "zmq_to_scheduler"
"""How embeddings travel, written out: `auto` is the engine's to change between versions."""

ENCODER_TRANSFERS = ("zmq_to_scheduler", "zmq_to_tokenizer", "mooncake", "auto")

HANDOFF_TIMEOUT_S = 300
"""Seconds P waits for D's memory, and D for P's KV. The engine's defaults, rendered so that a plan shows
them; both count from the request's arrival, so they must cover the queue and the longest prefill."""

DIST_PORTS = 14
"""Ports from --dist-init-addr on: torch's own, six derived ones, and the DP handshake at +13."""

EVENT_PORTS = 3
"""Per DP rank: KV events, their replay, load statistics."""

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
    return Command(argv=(*start, *flags.words(merged)), env=flags.variables(env))


def transfer(spec: InstanceSpec) -> str:
    """The KV transfer backend."""
    return spec.transfer or DEFAULT_TRANSFER


def encoder_transfer(spec: InstanceSpec) -> str:
    """How embeddings travel from an encode instance, or to one that has encoders."""
    chosen = spec.encoders.transfer if spec.encoders is not None else spec.transfer
    return chosen or DEFAULT_ENCODER_TRANSFER


def has_encoders(spec: InstanceSpec) -> bool:
    """Whether encoders work for this very instance; decode computes no images."""
    return spec.encoders is not None and spec.role in _COMPUTES_PROMPTS


def _flags(spec: InstanceSpec) -> flags.Settings:
    own, role, shape = flags.Settings(), f"role {spec.role.value}", spec.shape
    own.put("plan", model_path=spec.model_path, served_model_name=spec.served_name)
    own.put("plan", revision=spec.revision)
    own.put("plan", host=spec.bind, port=spec.ports["http"], nccl_port=spec.ports.get("nccl"))
    if spec.role in _MODES:
        own.put(role, disaggregation_mode=_MODES[spec.role], disaggregation_transfer_backend=transfer(spec))
        own.put("plan", disaggregation_bootstrap_port=spec.ports.get("bootstrap"))
        if spec.nics and transfer(spec) in ("mooncake", "ascend"):
            own.put("plan", disaggregation_ib_device=",".join(spec.nics))
    _encoding(spec, own)
    sizes = {"tp_size": shape.tp, "pp_size": shape.pp, "dp_size": shape.dp, "ep_size": shape.ep}
    own.put("plan", **{name: size for name, size in sizes.items() if size > 1})
    if "dist" in spec.ports:
        head = spec.head_address or spec.address
        own.put("plan", dist_init_addr=join_host_port(head, spec.ports["dist"]))
    if shape.nnodes > 1:
        own.put("plan", nnodes=shape.nnodes, node_rank=spec.rank)
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
    if spec.nics and encoder_transfer(spec) == "mooncake":
        own.put("plan", disaggregation_ib_device=",".join(spec.nics))


def _env(spec: InstanceSpec) -> flags.Settings:
    own = flags.Settings()
    own.env("adapter", {"PYTHONSAFEPATH": "1"})
    if spec.role is not Role.ENCODE:
        own.env("adapter", {"SGLANG_TIMEOUT_KEEP_ALIVE": KEEP_ALIVE_S})
    own.env("plan", {"SGLANG_HOST_IP": spec.address})
    if spec.devices:
        own.env("plan", {"CUDA_VISIBLE_DEVICES": ",".join(map(str, spec.devices))})
    if spec.role in _MODES:
        names = ("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT")
        own.env(f"role {spec.role.value}", dict.fromkeys(names, HANDOFF_TIMEOUT_S))
        if transfer(spec) == "mooncake_tcp":
            # Unequal TP sends a slice per token; over 1024 queued ones fail the transfer and
            # blacklist the peer. 65535 is the largest value that Mooncake accepts.
            own.env("adapter", {"MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": 65535})
        if spec.nics and transfer(spec) == "nixl":
            own.env("plan", {"UCX_NET_DEVICES": ",".join(f"{nic}:1" for nic in spec.nics)})
    return own


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
