"""Whether what answers at a unit's port is the unit, what it tells of itself, and whether its peers fit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.address import split_http_url
from orchestrator.core.types import Role
from orchestrator.engines.base import Engine
from orchestrator.engines.rules import FOREIGN_PROCESS
from orchestrator.engines.told import Finding, Side, agreements, contradictions, disagreements, grave
from orchestrator.fabric.ports import Holder, holders
from orchestrator.launch.process import MARK, environment, parse_mark, read_stat
from orchestrator.launch.unit import Unit
from orchestrator.topology.adapters import load_adapter

log = logging.getLogger(__name__)

Told = Mapping[str, Any] | str
"""What an engine tells of itself, as facts; or why that cannot be known yet."""

Tell = Callable[[Unit], Awaitable[Told]]
"""Asks a unit what it tells of itself."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """What answers is not the unit, as far as `text` says. `hopeless`: waiting will not change it."""

    text: str
    hopeless: bool = False


def adapter_of(unit: Unit) -> Engine:
    """The adapter of a unit with an identity. Raises PluginError or TopologyError when it does not load."""
    assert unit.identity is not None
    return load_adapter(unit.identity.engine, unit.identity.base_dir).bind(unit.identity.options)


@dataclass(slots=True)
class Identities:
    """What the engines that run tell of themselves, by unit name.

    `state_id` is the deployment's (processes of another one bear another); `who` finds the processes that
    listen at a host and port.
    """

    state_id: str = ""
    who: Callable[[str, int], Sequence[Holder]] = holders
    _told: dict[str, tuple[Unit, Mapping[str, Any]]] = field(default_factory=dict)

    async def foreign(self, unit: Unit, pids: Collection[int]) -> Wrong | None:
        """Whether a process that is none of `unit`'s answers at its port, as far as that can be seen."""
        if unit.is_router or unit.wrapped or unit.elsewhere or not unit.url:
            return None
        host, port = split_http_url(unit.url)
        found = [one for one in await asyncio.to_thread(self.who, host, port) if one.pid is not None]
        if not found or any(self._belongs(one.pid, unit, pids) for one in found if one.pid is not None):
            return None
        return Wrong(f"port {port} is answered by {found[0]}, which is no process of {unit.name}'s"
                     f" [{FOREIGN_PROCESS.name}]")  # fmt: skip

    def _belongs(self, pid: int, unit: Unit, pids: Collection[int]) -> bool:
        """Whether a process is of a unit's tree: known to be, or by its marker, or by one of its parents."""
        mark = parse_mark(environment(pid).get(MARK, ""))
        if mark is not None:
            return (mark.state_id, mark.name) == (self.state_id or mark.state_id, unit.name)
        seen: set[int] = set()
        while pid > 1 and pid not in seen:
            if pid in pids:
                return True
            seen.add(pid)
            stat = read_stat(pid)
            pid = stat.ppid if stat is not None else 0
        return False

    async def check(self, unit: Unit, pids: Collection[int], tell: Tell) -> Wrong | None:
        """Why what answers is not `unit` as it was planned; None if it is."""
        wrong = await self.foreign(unit, pids)
        if wrong is not None or unit.identity is None:
            return wrong
        return self.learn(unit, await tell(unit))

    async def hear(self, unit: Unit, tell: Tell) -> None:
        """Ask a ready unit that has not told of itself: one that was adopted, which is taken as it is."""
        if unit.identity is not None and not self.knows(unit.name):
            self.learn(unit, await tell(unit))

    def learn(self, unit: Unit, told: Told) -> Wrong | None:
        """Take in what `unit` told; what keeps it from counting as ready, if anything does."""
        if isinstance(told, str):
            return Wrong(told)
        self._told[unit.name] = (unit, told)
        for finding in self.about(unit.name):
            log.warning("%s", finding)
        wrong = grave(self._planned(unit, told))
        return Wrong(wrong, hopeless=True) if wrong else None

    def knows(self, name: str) -> bool:
        """Whether a unit has told of itself since it was last forgotten."""
        return name in self._told

    def forget(self, unit: Unit) -> None:
        """A unit is not ready any more; another that has taken its name may be."""
        if unit.name in self._told and self._told[unit.name][0] is unit:
            del self._told[unit.name]

    def about(self, name: str) -> list[Finding]:
        """Findings about a unit that has told of itself: against the plan, and against the other side."""
        if name not in self._told:
            return []
        unit, told = self._told[name]
        return [*self._planned(unit, told), *self._paired(unit, told)]

    def _planned(self, unit: Unit, told: Mapping[str, Any]) -> list[Finding]:
        return [] if unit.identity is None else contradictions(unit.identity.expects, _side(unit, told))

    def _paired(self, unit: Unit, told: Mapping[str, Any]) -> list[Finding]:
        found: list[Finding] = []
        for other, theirs in self._told.values():
            sides = {one.role: _side(one, facts) for one, facts in ((unit, told), (other, theirs))}
            prefill, decode = sides.get(Role.PREFILL), sides.get(Role.DECODE)
            if prefill is not None and decode is not None:
                found += disagreements(agreements(adapter_of(unit)), prefill, decode)
        return found


def _side(unit: Unit, told: Mapping[str, Any]) -> Side:
    assert unit.identity is not None
    return Side(unit.name, {**unit.identity.facts, **told}, unit.identity.silenced)
