"""What a plan is made from: the typed topology with its adapters and profiles, all read already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.fabric import Fabric
from orchestrator.core.placement import Seat
from orchestrator.core.transfer import KvShape
from orchestrator.engines.base import Carriage, Engine
from orchestrator.engines.capabilities import Capabilities
from orchestrator.errors import Problem
from orchestrator.topology.load import Folder
from orchestrator.topology.profiles import LaunchProfile
from orchestrator.topology.schema import Pool, Topology
from orchestrator.topology.source import Place, Source


@dataclass(frozen=True, slots=True)
class Part:
    """One pool with what its references led to."""

    name: str
    pool: Pool
    adapter: Engine
    profile: LaunchProfile
    chosen_transfer: str | None = None
    """What it transfers KV by where the hosts have no RDMA for what it would use by default."""
    over_tcp: bool = False
    """Whether a transfer that takes RDMA or TCP has TCP alone, as one of the hosts has no RDMA."""

    @property
    def place(self) -> Place:
        """Where the pool stands in the file."""
        return ("pools", self.name)

    @property
    def transfer(self) -> str | None:
        """The KV transfer backend or connector: the pool's, else the profile's."""
        return self.pool.transfer or self.chosen_transfer or self.profile.transfer

    @property
    def carriage(self) -> Carriage | None:
        """How that travels; None where it is not known, or does not matter (simulated engines)."""
        told: Callable[[str | None], Carriage | None] = getattr(self.adapter, "carriage", lambda _: None)
        return told(self.transfer)

    @property
    def dialect(self) -> str:
        """The protocol its endpoints speak: the adapter's name, or the one it imitates."""
        return str(getattr(self.adapter, "dialect", self.adapter.name))

    @property
    def gpus(self) -> int:
        """GPUs that each of its instances takes."""
        if self.pool.gpus is not None:
            return self.pool.gpus
        return self.pool.tp * self.pool.pp * self.pool.dp if self.profile.gpus else 0

    @property
    def spans_nodes(self) -> bool:
        """Whether its engine can run one instance on several nodes."""
        return bool(getattr(self.adapter, "spans_nodes", False))

    def instances(self) -> Iterator[tuple[int, str]]:
        """Index and name of each instance, external ones included."""
        return ((index, f"{self.name}-{index}") for index in range(self.pool.size))


@dataclass(frozen=True, slots=True)
class Held:
    """Where a process was launched: its seat, and its ports by purpose."""

    seat: Seat
    ports: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that `build` looks at; nothing else, so that equal inputs give equal plans.

    `python` is the interpreter of pdctl itself, `versions` the engine's version by pool where it is
    known, `secrets` every text that must not be printed, `scheduling` the profile in force as data,
    `vocab_size` the tokens in the model's vocabulary, if they are known, `fabrics` what nodes have, by name,
    as far as they say, `kv` what the model's KV takes, where its folder tells, `tls_fault` the field of
    `router.tls` whose file cannot be used, and why.
    """

    topology: Topology
    source: Source
    file: str
    folder: Folder
    state_dir: str
    parts: tuple[Part, ...]
    python: str
    versions: Mapping[str, str] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()
    scheduling: Mapping[str, Any] = field(default_factory=dict)
    vocab_size: int | None = None
    fabrics: Mapping[str, Fabric] = field(default_factory=dict)
    kv: KvShape | None = None
    tls_fault: tuple[str, str] | None = None
    tables: Mapping[str, Capabilities] = field(default_factory=dict)
    """Tables of flags and variables that pools bring themselves, by pool."""
    held: Mapping[str, Held] = field(default_factory=dict)
    """What was launched already, by process; it stays where it is as far as the topology still allows it."""
    found: tuple[Problem, ...] = ()
    """What was found while reading, and keeps nobody from a plan."""
