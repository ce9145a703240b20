"""What a launcher is: the one place that knows how a unit's processes are made, found again and ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.launch.process import Identity, Mark
from orchestrator.launch.unit import Unit
from orchestrator.topology.plan import Plan


class Process(Protocol):
    """One incarnation's process tree."""

    identity: Identity
    """The leading process: rank 0, the one that serves."""

    async def exited(self) -> int | None:
        """Return when the leader has ended: its exit code (negative: killed by that signal), or None when
        it was adopted and the kernel tells its parent alone. May be awaited any number of times."""
        ...

    def pids(self) -> Collection[int]:
        """The leader's pid, then those last known of its tree, of the living and the dead."""
        ...

    def terminate(self) -> None:
        """Ask the leader to end (TERM)."""
        ...

    async def sweep(self, grace_s: float) -> Sequence[str]:
        """Give all processes of the tree `grace_s` to end by themselves, then kill them, also those that
        left its session or group. Returns descriptions of those that even KILL did not end; empty when
        nothing is left."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """A leader that lives from an earlier controller. `digest` is empty when it cannot be told."""

    mark: Mark
    identity: Identity
    digest: str


class Launcher(Protocol):
    """Starts units and finds those that earlier controllers started. Registered in `pdctl.launchers`."""

    async def follow(self, plan: Plan, ours: Sequence[Process]) -> None:
        """Take up who launches what in `plan`, before anything of it is begun; `ours` runs. Raises
        LaunchError when it cannot be launched so."""
        ...

    def refusals(self, units: Sequence[Unit], ours: Sequence[Process]) -> Sequence[str]:
        """Why any of `units` cannot be started here now, one sentence each; what `ours` hold is free."""
        ...

    def start(self, unit: Unit, incarnation: int) -> Process:
        """Start it. Raises OSError when it cannot be."""
        ...

    def adopt(self, identity: Identity, mark: Mark) -> Process:
        """What an earlier controller started, also when its leader has ended and only children may live."""
        ...

    def find(self) -> Sequence[Found]:
        """The living leaders that bear this deployment's marker."""
        ...

    def remember(self, processes: Sequence[Process]) -> None:
        """Look up who belongs to each of these trees now, so that a process is known even after its parents
        died. Called every few seconds."""
        ...

    async def sweep_strays(self, keep: Collection[Mark]) -> Sequence[str]:
        """End every marked process whose mark is not in `keep`; as `Process.sweep` returns."""
        ...
