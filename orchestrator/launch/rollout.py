"""What goes on between the steps of a rollout: a look at how requests fare, a pause when they fare worse."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from orchestrator.errors import LaunchError
from orchestrator.launch.routerlink import Figures, RouterLink
from orchestrator.topology.plan import Plan

LEAST = 10
"""Requests of which a share is worth something."""
WORSE = 0.02
"""By how much a share may be above what it was before without being taken for a change."""


class _Share(NamedTuple):
    bad: float
    all: float

    def __str__(self) -> str:
        return f"{self.bad:.0f} of {self.all:.0f}"

    def worse_than(self, usual: _Share) -> bool:
        if self.all < LEAST:
            return False
        return self.bad / self.all > (usual.bad / usual.all if usual.all else 0.0) + WORSE


class Lookout:
    """Watches one rollout by the router's own counters, for `watch_s` after each step, and compares them with
    what they said before."""

    def __init__(self, watch_s: float, link: RouterLink) -> None:
        self._watch_s = watch_s
        self._link = link
        self._usual: Figures | None = None
        self._before: Figures | None = None

    async def begin(self) -> None:
        """Take what was so far, over the router's life, as what is usual."""
        self._usual = self._before = await self._link.figures()

    async def look(self) -> str:
        """Watch a while after a step; why the rollout should pause, else an empty text."""
        await asyncio.sleep(self._watch_s)
        now, before = await self._link.figures(), self._before
        self._before = now
        if now is None or before is None or now.requests < before.requests:
            # No router, or another one, whose counters began anew.
            self._usual = self._usual or now
            return ""
        return compare(self._usual or before, before, now)


def compare(usual: Figures, before: Figures, now: Figures) -> str:
    """What got worse between `before` and `now` against all until `usual`; empty if nothing did."""
    failed = _Share(now.failed - before.failed, now.requests - before.requests)
    if failed.worse_than(_Share(usual.failed, usual.requests)):
        return f"{failed} requests failed since the step before"
    missed = _Share(now.missed - before.missed, now.promised - before.promised)
    if missed.worse_than(_Share(usual.missed, usual.promised)):
        return f"{missed} promises were not kept since the step before"
    return ""


def narrowed(plan: Plan, running: Plan, pool: str) -> Plan:
    """`running` with the instances of `pool` as `plan` has them; all else, the router too, stays.

    Raises LaunchError: there is no such pool (`no-pool`), or what changes of other pools would have to change
    too (`cannot-start`).
    """
    pools = dict.fromkeys(i.pool for i in (*plan.instances, *running.instances))
    if pool not in pools:
        raise LaunchError(f"no pool {pool!r} here; there are: {', '.join(pools)}", reason="no-pool")
    others = [i.in_other_role() if i.switched else i for i in running.instances if i.pool != pool]
    made = replace(running, instances=(*others, *(i for i in plan.instances if i.pool == pool)))
    ports = Counter((p.node, port) for i in made.instances for p in i.processes for port in p.ports.values())
    if doubly := sorted({port for (_, port), count in ports.items() if count > 1}):
        shown = ", ".join(map(str, doubly))
        raise LaunchError(
            f"the new {pool} would have ports of other pools as they run now ({shown}); roll out all of them",
            reason="cannot-start",
        )
    return made
