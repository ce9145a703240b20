"""One endpoint's state as the router learns it: which life of its process, and whether work gets done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from orchestrator.core.breaker import Breaker, Circuit
from orchestrator.core.ramp import allowance
from orchestrator.core.types import Endpoint, Load
from orchestrator.engines.base import Engine
from orchestrator.router.health import Health
from orchestrator.topology.plan import InstancePlan

_OF_THE_PROCESS = (
    "url", "engine", "role", "model", "facts", "ports", "probes", "digest", "disaggregated", "options",
)  # fmt: skip


@dataclass(slots=True)
class State:
    """One endpoint as it is now. Only the registry changes it; the prober and the admin read.

    `joined` is true between a join and the next leave; an endpoint that is gated, hangs, does not go with the
    others, or whose breaker is open stays joined and is given nothing. `why` says what keeps it out, for
    people. `learned` are this incarnation's facts. `since_s` is when it last became ready or stopped to be.
    """

    plan: InstancePlan
    engine: Engine
    health: Health
    since_s: float
    joined: bool = False
    gates: set[str] = field(default_factory=set)
    """Who keeps new work from it (`router.gates`)."""
    hung: bool = False
    apart: str = ""
    """Why it does not go with the engines of the other role that are used."""
    strange: str = ""
    """What it told otherwise than was planned, when that was last said."""
    breaker: Breaker = field(default_factory=Breaker)
    shuns: frozenset[str] = frozenset()
    cap: int | None = None
    stuck: str = ""
    """Why it was found to hang, until its counters move: it may have been rid of its work meanwhile."""
    silent: bool = False
    """Its last answer to a probe came too late, or was broken."""
    why: str = "not probed yet"
    learned: Mapping[str, Any] = field(default_factory=dict)
    load: Load | None = None
    moved_s: float = 0.0
    """When it last counted work, or had none to count."""
    incarnation: str = ""
    told: str = ""
    """The engine's own name for this life, at the last join."""
    lives: int = 0
    suspected: bool = True
    """There may be a new process: a join decides, by the engine's own account if it gives one."""
    certain: bool = False
    """There is a new process, whatever it says."""
    told_life: str = ""
    """The controller's number for its process, and `lives` when it was told."""
    told_at: int = 0
    _view: Endpoint | None = None

    @property
    def gated(self) -> bool:
        """Whether somebody keeps new work from it."""
        return bool(self.gates)

    @property
    def ready(self) -> bool:
        """It may be given work."""
        gone = self.gated or self.hung or self.apart or self.breaker.shut or self.bad
        return self.joined and not gone

    @property
    def bad(self) -> bool:
        """It serves alone, and gives wrong answers."""
        return self.plan.name in self.shuns

    def stands_in(self, other: State) -> bool:
        """Whether another endpoint may be given what this one would be."""
        mine, theirs = self.plan, other.plan
        same = mine.role is theirs.role and mine.model == theirs.model
        return other is not self and other.ready and same

    def allowed(self, now_s: float) -> int | None:
        """How much it may be given at once."""
        return allowance(now_s - self.since_s, tried=self.breaker.circuit is Circuit.CLOSED)

    def changed(self) -> None:
        """What `endpoint` gives has to be made anew."""
        self._view = None

    def endpoint(self) -> Endpoint:
        """The frozen view of it; the same object until `changed`."""
        if self._view is None:
            plan = self.plan
            facts = {**plan.facts, **self.learned}
            self._view = Endpoint(
                id=plan.name,
                pool=plan.pool,
                role=plan.role,
                engine=plan.engine,
                model=plan.model,
                url=plan.url,
                ready=self.ready,
                incarnation=self.incarnation,
                max_model_len=facts.get("max_model_len"),
                block_size=facts.get("block_size"),
                load=self.load,
                labels=plan.labels,
                facts=MappingProxyType(facts),
                ready_since_s=self.since_s if self.ready else None,
                shuns=self.shuns,
                cap=self.cap,
            )
        return self._view

    def told_of_life(self, life: str) -> bool:
        """The controller's number for the process that runs now; True if it is one not noticed before."""
        if not life or life == self.told_life:
            return False
        unnoticed = bool(self.told_life) and self.lives == self.told_at
        self.told_life, self.told_at = life, self.lives
        return unnoticed

    def settle(self) -> bool:
        """Decide at a join whether this is the process that was known; True if it is another one.

        `incarnation` is a new name then, whatever the engine calls itself; the load of the old one is gone.
        """
        told = str(self.learned.get("incarnation", ""))
        by_account = told != self.told if told and self.told else self.suspected
        another = by_account or self.certain
        repeated = bool(told) and told == self.told
        self.suspected, self.certain, self.told = False, False, told
        if not another:
            return False
        self.lives += 1
        self.load = None
        self.incarnation = f"{told}/{self.lives}" if repeated else told or f"life-{self.lives}"
        return self.lives > 1

    def read(self, load: Load, now_s: float, given: bool) -> float:
        """Take in an account of its load; for how long it has had work and counted none of it done.

        A scheduler can die behind a server that goes on answering probes: its counters stand still then.
        `given`: it has requests from us.
        """
        before, self.load = self.load, load
        if before is not None and load.progress != before.progress:
            self.stuck = ""
        still = before is not None and load.progress is not None and load.progress == before.progress
        # What only waits may be held up by a peer: a decode side without room, for instance.
        working = load.running > 0 or (given and not load.waiting)
        if not (still and working):
            self.moved_s = now_s
        return now_s - self.moved_s


def same_process(old: InstancePlan, new: InstancePlan) -> bool:
    """Whether a reload leaves an endpoint what it was: labels and the like may change under it."""
    return all(getattr(old, name) == getattr(new, name) for name in _OF_THE_PROCESS)


def another_process(before: Load | None, now: Load) -> bool:
    """Whether two accounts of load cannot come from one process."""
    if before is None:
        return False
    if before.incarnation and now.incarnation:
        return before.incarnation != now.incarnation
    return before.progress is not None and now.progress is not None and now.progress < before.progress
