"""The launchers of a deployment as one: the router is started here, engines as the topology says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from orchestrator.errors import LaunchError
from orchestrator.launch.base import Found, Launcher, Process
from orchestrator.launch.local import LocalLauncher, LocalProcess
from orchestrator.launch.paths import StateDir
from orchestrator.launch.process import Identity, Mark
from orchestrator.launch.ray_launcher import RayLauncher
from orchestrator.launch.unit import ROUTER, Unit
from orchestrator.topology.plan import RAY, Plan


class Launchers:
    """The local launcher, and beside it the one that engines are started by elsewhere, if there is one."""

    def __init__(
        self,
        state: StateDir,
        ray: Callable[[StateDir, str], RayLauncher] = RayLauncher,
        reopen: Callable[[StateDir], RayLauncher | None] = RayLauncher.reopen,
    ) -> None:
        """Raises LaunchError when engines were started through a cluster that cannot be reached."""
        self._state = state
        self._local = LocalLauncher(state)
        self._make = ray
        self._far: RayLauncher | None = reopen(state)

    async def follow(self, plan: Plan, ours: Sequence[Process]) -> None:
        """See `Launcher`. Raises LaunchError (`launcher-changed`) while engines of another launcher run."""
        engines = [p for p in ours if not (isinstance(p, LocalProcess) and p.mark.name == ROUTER)]
        here = any(isinstance(process, LocalProcess) for process in engines)
        wanted = plan.ray_address if plan.launcher == RAY else None
        now = None if self._far is None else self._far.address
        if engines and (wanted is not None) == here:
            raise _changed("this host" if here else f"the Ray cluster at {now}")
        if self._far is not None and wanted not in (None, now) and engines:
            raise _changed(f"the Ray cluster at {now}")
        if wanted is None:
            self._far = None
        elif self._far is None or now != wanted:
            self._far = self._make(self._state, wanted)
        if self._far is not None:
            await self._far.follow(plan, engines)

    def refusals(self, units: Sequence[Unit], ours: Sequence[Process]) -> Sequence[str]:
        """See `Launcher`."""
        far = self._far
        if far is None:
            return self._local.refusals(units, ours)
        here = [unit for unit in units if unit.is_router]
        there = [unit for unit in units if not unit.is_router]
        local = [process for process in ours if isinstance(process, LocalProcess)]
        away = [process for process in ours if not isinstance(process, LocalProcess)]
        return [*self._local.refusals(here, local), *far.refusals(there, away)]

    def start(self, unit: Unit, incarnation: int) -> Process:
        """See `Launcher`."""
        return self._of(unit.name).start(unit, incarnation)

    def adopt(self, identity: Identity, mark: Mark) -> Process:
        """See `Launcher`."""
        return self._of(mark.name).adopt(identity, mark)

    def find(self) -> Sequence[Found]:
        """See `Launcher`."""
        return [*self._local.find(), *(self._far.find() if self._far is not None else ())]

    def remember(self, processes: Sequence[Process]) -> None:
        """See `Launcher`."""
        self._local.remember(processes)
        if self._far is not None:
            self._far.remember(processes)

    async def sweep_strays(self, keep: Collection[Mark]) -> Sequence[str]:
        """See `Launcher`."""
        stuck = list(await self._local.sweep_strays(keep))
        if self._far is not None:
            stuck += await self._far.sweep_strays([mark for mark in keep if mark.name != ROUTER])
        return stuck

    def _of(self, name: str) -> Launcher:
        return self._local if self._far is None or name == ROUTER else self._far


def _changed(where: str) -> LaunchError:
    return LaunchError(
        f"engines of this deployment run by another `launcher`, on {where}; `pdctl down` first",
        reason="launcher-changed",
    )
