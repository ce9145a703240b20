"""vLLM's command line, environment and ports for one instance (0.32.0)."""

from __future__ import annotations

from typing import Any

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

DEFAULT_TRANSFER = "nixl"
KEEP_ALIVE_S = 75
"""Rendered as VLLM_HTTP_TIMEOUT_KEEP_ALIVE; the engine's own default of 5 s makes a router reconnect."""

LEASE_S = 30
"""Seconds a prefill holds KV that nobody has come for; decode renews it from when it has the request. The
engine's default, rendered so that a plan shows it."""

KILL_MARGIN_S = 5
"""Seconds between the end of the engine's own drain and KILL, for it to leave in good order."""

EVENT_PORTS = 2
"""Per DP rank: KV events and their replay."""

RANKS_MAP = "0.32.0"
"""The first version known to read the variables below."""

RANK_VARIABLES = ("VLLM_GPU_NIC_PCIE_MAPPING", "VLLM_NIC_SELECTION_VARS")
"""Pairs of PCI addresses, and the variable that each rank sets by its own; both or neither, on CUDA alone
(v1/executor/vllm_net_devices.py)."""

ALIASES = {
    "tp": "tensor-parallel-size",
    "tp-size": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "pp-size": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dp-size": "data-parallel-size",
    "dpp": "data-parallel-rpc-port",
    "ep": "enable-expert-parallel",
    "device-memory-utilization": "gpu-memory-utilization",
}

_CONNECTORS = {
    "nixl": ("nixl", "NixlConnector"),
    "nixlconnector": ("nixl", "NixlConnector"),
    "nixlpullconnector": ("nixl", "NixlPullConnector"),
    "mooncake": ("mooncake", "MooncakeConnector"),
    "mooncake_tcp": ("mooncake", "MooncakeConnector"),
    "mooncakeconnector": ("mooncake", "MooncakeConnector"),
}
_KV_ROLES = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


def family(transfer: str | None) -> str | None:
    """Which hand-off a transfer speaks, `nixl` or `mooncake`; None for one that pdctl does not know."""
    found = _CONNECTORS.get((transfer or DEFAULT_TRANSFER).lower())
    return found[0] if found else None


def ports(role: Role, shape: Shape, transfer: str | None) -> tuple[PortNeed, ...]:
    """HTTP; NIXL's side channel, one per DP rank; Mooncake's bootstrap server; KV events; DP's own port.

    On several nodes, process 0 serves; what a DP rank opens is on its own node, at the same offset of a run
    that each node sets aside. One DP rank on several nodes meets at a master port, several at DP's own."""
    needs = [PortNeed("http", head=True)]
    if role in _KV_ROLES:
        if family(transfer) == "mooncake":
            if role is Role.PREFILL:
                needs.append(PortNeed("bootstrap", head=True))
        else:
            needs.append(PortNeed("side-channel", shape.dp))
    needs.append(PortNeed("kv-events", EVENT_PORTS * shape.dp))
    if shape.dp > 1:
        needs.append(PortNeed("dp-rpc", head=True))
    elif shape.nnodes > 1:
        needs.append(PortNeed("master", head=True))
    return tuple(needs)


def command(spec: InstanceSpec) -> Command:
    """Arguments after the interpreter, and the environment to add."""
    merged = flags.merge(_flags(spec), spec.flags, ALIASES)
    _place_events(spec, merged)
    start = [Word(word, "adapter") for word in ("-m", "vllm.entrypoints.cli.main", "serve")]
    start.append(Word(spec.model_path, "plan"))
    env = _env(spec) | dict(spec.env)
    return Command(argv=(*start, *flags.words(merged)), env=flags.variables(env))


def shutdown_timeout_s(spec: InstanceSpec) -> int:
    """Seconds of drain after TERM (vLLM's default is 0: running requests are cut): all that KILL leaves."""
    return max(1, int(spec.drain_s) - KILL_MARGIN_S)


def kv_transfer_config(spec: InstanceSpec) -> dict[str, Any] | None:
    """What the role implies for `--kv-transfer-config`; None for a unified instance."""
    kv_role = _KV_ROLES.get(spec.role)
    known = _CONNECTORS.get((spec.transfer or DEFAULT_TRANSFER).lower())
    if kv_role is None:
        return None
    config: dict[str, Any] = {
        "kv_connector": known[1] if known else spec.transfer,
        "kv_role": kv_role,
    }
    if spec.role is Role.DECODE:
        # The default fails the request; recomputing costs a prefill and keeps it right.
        config["kv_load_failure_policy"] = "recompute"
    if known and known[0] == "nixl" and spec.role is Role.PREFILL:
        config["kv_connector_extra_config"] = {"kv_lease_duration": LEASE_S}
    if spec.transfer == "mooncake_tcp":
        config["kv_connector_extra_config"] = {"mooncake_protocol": "tcp"}
    elif known and known[0] == "mooncake" and spec.nics:
        # One list for all ranks: Mooncake takes the nearest of it for each.
        config["kv_connector_extra_config"] = {"device_name": ",".join(spec.nics)}
    return config


def lease_s(spec: InstanceSpec) -> float:
    """Seconds that a NIXL prefill keeps KV for decode, by role or as the topology overrides it."""
    merged = flags.merge(
        {"kv-transfer-config": Setting(kv_transfer_config(spec), "role")}, spec.flags, ALIASES
    )
    config = flags.as_object(merged["kv-transfer-config"].value) or {}
    extra = config.get("kv_connector_extra_config")
    lease = extra.get("kv_lease_duration") if isinstance(extra, dict) else None
    return float(lease) if isinstance(lease, int | float) else LEASE_S


def _flags(spec: InstanceSpec) -> flags.Settings:
    own, role, shape = flags.Settings(), f"role {spec.role.value}", spec.shape
    own.put("plan", served_model_name=spec.served_name)
    if spec.rank == 0:
        own.put("plan", host=spec.bind, port=spec.ports["http"])
    own.put("plan", revision=spec.revision)
    own.put(role, kv_transfer_config=kv_transfer_config(spec))
    sizes = {
        "tensor_parallel_size": shape.tp,
        "pipeline_parallel_size": shape.pp,
        "data_parallel_size": shape.dp,
    }
    own.put("plan", **{name: size for name, size in sizes.items() if size > 1})
    own.put("plan", enable_expert_parallel=shape.ep > 1 or None)
    own.put("plan", data_parallel_rpc_port=spec.ports.get("dp-rpc"))
    _spanning(spec, own)
    if spec.kv_events:
        own.put("pool kv_events", kv_events_config={"enable_kv_cache_events": True})
    own.put("adapter", enable_prompt_tokens_details=True, enable_server_load_tracking=True)
    own.put("plan", shutdown_timeout=shutdown_timeout_s(spec))
    return own


def _spanning(spec: InstanceSpec, own: flags.Settings) -> None:
    """What the processes of an instance on several nodes are told of each other; all but the first one are
    headless, without an API server."""
    nnodes = spec.shape.nnodes
    if nnodes == 1:
        return
    if spec.shape.dp > 1:
        local = spec.shape.dp // nnodes
        own.put("plan", data_parallel_size_local=local, data_parallel_address=spec.head_address)
        own.put("plan", data_parallel_start_rank=spec.rank * local if spec.rank else None)
    else:
        own.put("plan", nnodes=nnodes, node_rank=spec.rank, master_addr=spec.head_address)
        own.put("plan", master_port=spec.ports.get("master"), distributed_executor_backend="mp")
    own.put("plan", headless=True if spec.rank else None)


def _env(spec: InstanceSpec) -> flags.Settings:
    own = flags.Settings()
    own.env("adapter", {"PYTHONSAFEPATH": "1", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": KEEP_ALIVE_S})
    own.env("plan", {"VLLM_HOST_IP": spec.address})
    if any(near.gpu_pci for near in spec.near):
        # Without it CUDA puts the fastest GPU first, and the map would be of others.
        own.env("plan", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    if spec.devices:
        own.env("plan", {"CUDA_VISIBLE_DEVICES": ",".join(map(str, spec.devices))})
    if spec.key is not None:  # unlike the flag, not to be read in the process list
        own.env("credentials", {"VLLM_API_KEY": spec.key})
    if spec.role not in _KV_ROLES:
        return own
    if family(spec.transfer) == "mooncake":
        own.env("plan", {"VLLM_MOONCAKE_BOOTSTRAP_PORT": spec.ports.get("bootstrap")})
        return own
    own.env("plan", {"VLLM_NIXL_SIDE_CHANNEL_HOST": spec.address})
    own.env("plan", {"VLLM_NIXL_SIDE_CHANNEL_PORT": spec.ports.get("side-channel")})
    own.env("plan", _nics(spec))
    return own


def _nics(spec: InstanceSpec) -> dict[str, FlagValue]:
    """UCX_NET_DEVICES of NIXL: set by the engine itself for each rank where it can find the GPU's NIC by
    their places on the bus, else one list for all ranks, of which UCX takes the nearest."""
    if devicemap.UCX in spec.env or any(name in spec.env for name in RANK_VARIABLES):
        return {}  # the user's own; the engine would add ours to it
    pairs = devicemap.pairs(spec)
    if pairs and devicemap.form(spec) == devicemap.INLINE and devicemap.at_least(spec.version, RANKS_MAP):
        mapping = ",".join(f"{gpu}={nic}" for gpu, nic in pairs.items())
        return dict(zip(RANK_VARIABLES, (mapping, f"{devicemap.UCX}:1"), strict=True))
    return {devicemap.UCX: devicemap.for_ucx(spec)}


def carriage(name: str | None) -> Carriage | None:
    """How a connector travels; None for one that nothing is known of."""
    if name == "mooncake_tcp":
        return Carriage("tcp")
    by_family = {"nixl": Carriage("either"), "mooncake": Carriage("rdma", tcp="mooncake_tcp")}
    return by_family.get(family(name) or "")


def _place_events(spec: InstanceSpec, merged: dict[str, Setting]) -> None:
    """Give KV events that were asked for without an endpoint the ports that the plan set aside for them."""
    asked = merged.get("kv-events-config")
    config = flags.as_object(asked.value) if asked is not None else None
    if asked is None or config is None or "endpoint" in config or "kv-events" not in spec.ports:
        return
    first = spec.ports["kv-events"]
    placed = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{first}",
        "replay_endpoint": f"tcp://*:{first + spec.shape.dp}",
    }
    merged["kv-events-config"] = Setting(placed | config, f"plan + {asked.origin}")
