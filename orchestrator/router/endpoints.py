"""The registry: every endpoint's state as the router learns it, and the snapshot decisions are made on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, cast

from orchestrator import plugins
from orchestrator.clock import Clock
from orchestrator.core.types import Endpoint, Inflight, Load, PathKind, Snapshot
from orchestrator.engines.base import Engine
from orchestrator.router.health import Answer, Health, Thresholds
from orchestrator.topology.plan import InstancePlan, Plan

log = logging.getLogger(__name__)


class Counts(Protocol):
    """What the registry reports to; `RouterMetrics` is one."""

    def endpoint_changed(self, endpoint: str, to: str, why: str) -> None:
        """An endpoint joined (`ready`) or left (`out`), and why."""
        ...

    def incarnation(self, endpoint: str) -> None:
        """A new process is behind an endpoint."""
        ...


@dataclass(slots=True)
class State:
    """One endpoint as it is now. Only the registry writes here; the prober and the admin read.

    `joined` is true between a join and the next leave; a gated endpoint stays joined and is given
    nothing. `why` says what keeps it out, for people. `learned` are the facts of this incarnation.
    """

    plan: InstancePlan
    engine: Engine
    health: Health
    joined: bool = False
    gated: bool = False
    why: str = "not probed yet"
    learned: Mapping[str, Any] = field(default_factory=dict)
    load: Load | None = None
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
    since_s: float = 0.0
    view: Endpoint | None = None

    @property
    def ready(self) -> bool:
        """It may be given work."""
        return self.joined and not self.gated


class Registry:
    """All endpoints of a plan, by instance name.

    An endpoint joins on the router's own evidence: its readiness probes answered and its discovery
    told what the hand-off needs. One that does not come up keeps nobody waiting. Facts are frozen for
    one incarnation; a new process is noticed by its own account, or else by a refused connection or a
    counter that runs backwards, and has to join anew.

    For one thread. Raises TopologyError when the plan names an engine that does not load.
    """

    def __init__(
        self,
        plan: Plan,
        clock: Clock,
        counts: Counts,
        thresholds: Thresholds = Thresholds(),
        inflight: Callable[[str], Inflight] = lambda _: Inflight(),
    ) -> None:
        self._clock = clock
        self._counts = counts
        self._thresholds = thresholds
        self._inflight = inflight
        self._states: dict[str, State] = {}
        self._engines: dict[str, Engine] = {}
        self._snapshot: Snapshot | None = None
        self._on_change: list[Callable[[], None]] = []
        self._on_incarnation: list[Callable[[str], None]] = []
        self._on_suspect: list[Callable[[str], None]] = []
        self._plan = plan
        self.apply(plan)

    # What decisions are made on.

    def snapshot(self, now_s: float) -> Snapshot:
        """Every endpoint as it is; the same object until something changes."""
        if self._snapshot is None:
            views = tuple(self._view(s) for s in self._states.values())
            self._snapshot = Snapshot(at_s=now_s, endpoints=views)
        return self._snapshot

    def get(self, endpoint_id: str) -> Endpoint | None:
        """One endpoint as it is; None if the plan has no such instance."""
        state = self._states.get(endpoint_id)
        return self._view(state) if state else None

    def engine(self, endpoint_id: str) -> Engine:
        """The adapter of an endpoint, also of one that was removed while it had legs. Raises KeyError."""
        return self._engines[endpoint_id]

    def serves(self, kind: PathKind, endpoint: Endpoint) -> bool:
        """Whether an endpoint answers this kind of request in its role."""
        state = self._states.get(endpoint.id)
        if state is None:
            return False
        return state.engine.serves(kind, endpoint.role, state.plan.disaggregated)

    def models(self) -> tuple[str, ...]:
        """The served model names of the plan, sorted, whether or not an endpoint is ready now."""
        return tuple(sorted({s.plan.model for s in self._states.values()}))

    def states(self) -> Iterable[State]:
        """Every endpoint's state, in the plan's order."""
        return self._states.values()

    def state(self, endpoint_id: str) -> State | None:
        """One endpoint's state."""
        return self._states.get(endpoint_id)

    # Who wants to know.

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change of the snapshot."""
        self._on_change.append(callback)

    def on_incarnation(self, callback: Callable[[str], None]) -> None:
        """Call `callback(endpoint_id)` when all that was believed of its process is void."""
        self._on_incarnation.append(callback)

    def on_suspect(self, callback: Callable[[str], None]) -> None:
        """Call `callback(endpoint_id)` when it should be probed right now."""
        self._on_suspect.append(callback)

    # What the operator and the controller say.

    def apply(self, plan: Plan) -> None:
        """Serve `plan` from now on: new instances start to join, gone ones leave, unchanged ones go on.

        Nothing changes when it raises TopologyError.
        """
        fresh = _adapters(plan)
        gone = [name for name in self._states if name not in fresh]
        states = {}
        for instance in plan.instances:
            old = self._states.get(instance.name)
            if old is not None and _same_process(old.plan, instance):
                old.plan, old.engine, old.view = instance, fresh[instance.name], None
                states[instance.name] = old
            else:
                if old is not None:
                    gone.append(instance.name)
                states[instance.name] = State(
                    instance, fresh[instance.name], Health(self._thresholds), since_s=self._clock.now_s()
                )
        self._plan, self._states = plan, states
        self._engines |= fresh
        for name in gone:
            log.info("endpoint removed or redefined", extra={"endpoint": name})
            self._tell(self._on_incarnation, name)
        self._changed()

    def gate(self, endpoint_id: str, closed: bool, life: str = "") -> bool:
        """Keep new work from an endpoint, or let it come again; False if there is no such endpoint.

        `life` is the controller's number for the process that runs now, where it says: another number
        than before is a new process, which joins anew unless its start was noticed already.
        """
        state = self._states.get(endpoint_id)
        if state is None:
            return False
        if life and life != state.told_life:
            if state.told_life and state.lives == state.told_at:
                self._replaced(state)
            state.told_life, state.told_at = life, state.lives
        if state.gated != closed:
            was = state.ready
            state.gated = closed
            self._moved(state, was, "gate" if closed else "ungate")
            if not closed:
                # It may have been restarted behind the gate.
                self._tell(self._on_suspect, endpoint_id)
        return True

    def leg_failed(self, endpoint_id: str, error: BaseException) -> None:
        """A hint from the data path: probe it right now; a refused connection takes it out at once."""
        state = self._states.get(endpoint_id)
        if state is None:
            return
        if refused(error):
            self.answered(endpoint_id, Answer.REFUSED, "connection refused to a request")
        self._tell(self._on_suspect, endpoint_id)

    # What the prober found.

    def answered(self, endpoint_id: str, answer: Answer, why: str) -> bool:
        """Take in one round of readiness probes; True when the endpoint should be discovered and joined."""
        state = self._states[endpoint_id]
        was = state.ready
        busy = self._inflight(endpoint_id).requests > 0
        state.health.observe(answer, self._clock.now_s(), busy)
        if answer is Answer.REFUSED:
            state.suspected = True
        if answer is not Answer.OK:
            state.why = why
        if state.joined and not state.health.fit:
            state.joined = False
            self._moved(state, was, str(answer))
        return state.health.fit and not state.joined

    def not_yet(self, endpoint_id: str, why: str) -> None:
        """Discovery was not satisfied; the endpoint stays out."""
        self._states[endpoint_id].why = why

    def join(self, endpoint_id: str, learned: Mapping[str, Any]) -> None:
        """Discovery is done: freeze what it told and let the endpoint be given work."""
        state = self._states[endpoint_id]
        was = state.ready
        state.learned = MappingProxyType(dict(learned))
        self._settle_incarnation(state)
        state.joined, state.why = True, ""
        self._moved(state, was, "probe")

    def loaded(self, endpoint_id: str, load: Load) -> None:
        """Take in what an engine says of its load."""
        state = self._states[endpoint_id]
        before, state.load = state.load, load
        if before is not None and _another_process(before, load):
            self._replaced(state)
        else:
            state.view = None
            self._changed()

    # Inside.

    def _replaced(self, state: State) -> None:
        """There is another process: out, until it has joined by itself."""
        was = state.ready
        state.certain, state.joined = True, False
        state.health.reset()
        state.why = "its process was replaced"
        self._moved(state, was, "incarnation")
        self._tell(self._on_suspect, state.plan.name)

    def _settle_incarnation(self, state: State) -> None:
        """Decide at a join whether this is the process that was known."""
        told = str(state.learned.get("incarnation", ""))
        by_account = told != state.told if told and state.told else state.suspected
        changed = by_account or state.certain
        same_name = told and told == state.told
        state.suspected, state.certain, state.told = False, False, told
        if not changed:
            return
        state.lives += 1
        state.load = None
        state.incarnation = f"{told}/{state.lives}" if same_name else told or f"life-{state.lives}"
        if state.lives > 1:
            log.warning(
                "endpoint has a new process",
                extra={"endpoint": state.plan.name, "incarnation": state.incarnation},
            )
            self._counts.incarnation(state.plan.name)
            self._tell(self._on_incarnation, state.plan.name)

    def _moved(self, state: State, was: bool, cause: str) -> None:
        state.view = None
        if state.ready != was:
            state.since_s = self._clock.now_s()
            to = "ready" if state.ready else "out"
            self._counts.endpoint_changed(state.plan.name, to, cause)
            level = logging.INFO if state.ready or cause == "gate" else logging.WARNING
            fields = {
                "endpoint": state.plan.name,
                "role": str(state.plan.role),
                "cause": cause,
                "why": state.why,
            }
            log.log(level, "endpoint %s", "ready" if state.ready else "out", extra=fields)
        self._changed()

    def _view(self, state: State) -> Endpoint:
        if state.view is None:
            plan = state.plan
            facts = {**plan.facts, **state.learned}
            state.view = Endpoint(
                id=plan.name,
                pool=plan.pool,
                role=plan.role,
                engine=plan.engine,
                model=plan.model,
                url=plan.url,
                ready=state.ready,
                incarnation=state.incarnation,
                max_model_len=facts.get("max_model_len"),
                block_size=facts.get("block_size"),
                load=state.load,
                labels=plan.labels,
                facts=MappingProxyType(facts),
            )
        return state.view

    def _changed(self) -> None:
        self._snapshot = None
        for callback in self._on_change:
            callback()

    @staticmethod
    def _tell(callbacks: Iterable[Callable[[str], None]], endpoint_id: str) -> None:
        for callback in callbacks:
            callback(endpoint_id)


def _adapters(plan: Plan) -> dict[str, Engine]:
    """The adapter of each instance by name; instances of one engine and equal options share one."""
    made: dict[tuple[str, str], Engine] = {}
    for instance in plan.instances:
        key = (instance.engine, repr(instance.options))
        if key not in made:
            found = plugins.resolve("pdctl.engines", instance.engine, plan.base_dir)
            adapter = cast(Engine, found() if isinstance(found, type) else found)
            made[key] = adapter.bind(instance.options)
    return {i.name: made[i.engine, repr(i.options)] for i in plan.instances}


def _same_process(old: InstancePlan, new: InstancePlan) -> bool:
    """Whether a reload leaves an endpoint what it was: labels and the like may change under it."""
    kept = (
        "url",
        "engine",
        "role",
        "model",
        "facts",
        "ports",
        "probes",
        "digest",
        "disaggregated",
        "options",
    )
    return all(getattr(old, name) == getattr(new, name) for name in kept)


def _another_process(before: Load, now: Load) -> bool:
    if before.incarnation and now.incarnation:
        return before.incarnation != now.incarnation
    return before.progress is not None and now.progress is not None and now.progress < before.progress


def refused(error: BaseException) -> bool:
    """Whether a connection was refused, however deep the library has wrapped it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ConnectionRefusedError):
            return True
        if isinstance(seen, BaseExceptionGroup):
            return any(refused(e) for e in seen.exceptions)
        seen = seen.__cause__ or seen.__context__
    return False
