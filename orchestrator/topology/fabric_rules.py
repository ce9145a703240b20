"""The lint rules about what nodes have, held against the plan."""

from __future__ import annotations

from orchestrator.core.rules import WARN, Rule

CROSS_NUMA = Rule(
    "cross-numa",
    "A GPU that moves KV uses a NIC on another NUMA node.",
    "Half the bandwidth (24 of 48.9 GB/s were measured), several times the latency: hand-offs wait longer.",
    "Use the NIC that the finding names, or leave `nics` to the fabric.",
    WARN,
)
NIC_DOWN = Rule(
    "nic-down",
    "The link of the NIC nearest to a GPU is down, and another one carries its KV along.",
    "GPUs share a NIC, and each has a part of its bandwidth.",
    "Mend the link and run `pdctl doctor --json` again.",
    WARN,
)
IDLE_NICS = Rule(
    "idle-nics",
    "NICs near the GPUs of a node are used by none of its instances.",
    "All KV goes over those that are named: one of eight is an eighth of the bandwidth.",
    "Map each GPU to its own (`nics: {0: ..., 1: ...}`), or leave `nics` to the fabric.",
    WARN,
)
NO_RDMA = Rule(
    "no-rdma",
    "A transfer that needs RDMA, on a node that has no RDMA device whose link is up.",
    "The engine stops at start.",
    "Write the transfer over TCP that the finding names, in both pools, and know what it costs.",
    fixed=True,
)
TCP_COST = Rule(
    "tcp-cost",
    "KV goes over TCP: chosen because a node has no RDMA, or written although all have it.",
    "Each hand-off waits for its KV many times as long as over RDMA.",
    "Use hosts with RDMA, write the transfer by RDMA, or serve short prompts from unified pools.",
    WARN,
)
LINK_LAYERS = Rule(
    "link-layers",
    "The NICs of prefill are InfiniBand and those of decode Ethernet, or the other way round.",
    "There is no path between them; no hand-off succeeds.",
    "Name NICs of one kind on both sides in `nodes[].nics`.",
)
SLOWER_PEER = Rule(
    "slower-peer",
    "The NICs of one side of a hand-off have at most half the rate of the other's.",
    "The slower end sets the pace.",
    "Use NICs of one rate, or more of the slower ones (`nics_per_gpu`).",
    WARN,
)
MEMLOCK = Rule(
    "memlock",
    "The memory that may be locked on a node with RDMA is limited.",
    "Registering buffers for RDMA fails with `Cannot allocate memory`.",
    "`ulimit -l unlimited` for whoever starts pdctl (systemd: `LimitMEMLOCK=infinity`).",
    WARN,
)
GPU_MISSING = Rule(
    "gpu-missing",
    "`gpus` of a node names one that its fabric does not have.",
    "The engine would find no such device.",
    "Leave `gpus` to the fabric, or run `pdctl doctor --json` again.",
    fixed=True,
)
PROFILE_CARD = Rule(
    "profile-card",
    "A launch profile is for other GPUs than those of a node that its pool may use.",
    "Its chunk sizes, time-outs and predictions are of another card.",
    "Name the profile of these GPUs, or one of your own.",
    WARN,
)
NIC_GAPS = Rule(
    "nic-gaps",
    "`nics` of a node maps some GPUs of an instance to NICs, and not the others.",
    "A map with gaps would stop the engine, so all of its GPUs get one list, near or not.",
    "Map every GPU of the node, or none.",
    WARN,
)
OWN: tuple[Rule, ...] = tuple(value for value in vars().copy().values() if isinstance(value, Rule))
"""All of them, in the order above."""
