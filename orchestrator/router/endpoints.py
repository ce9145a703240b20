"""The registry of endpoints: who joins, leaves or is another process now, and the snapshot made of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import Any, Protocol

from orchestrator.clock import Clock
from orchestrator.core.types import Endpoint, Inflight, Load, PathKind, Snapshot
from orchestrator.engines.base import Engine
from orchestrator.engines.told import Side, contradictions, grave
from orchestrator.router.adapters import adapters
from orchestrator.router.ask import refused
from orchestrator.router.fitting import apart
from orchestrator.router.gates import OPERATOR, GateFile
from orchestrator.router.health import Answer, Health, Thresholds
from orchestrator.router.listeners import Listeners
from orchestrator.router.state import State, another_process, same_process
from orchestrator.topology.plan import InstancePlan, Plan

log = logging.getLogger(__name__)

_NOBODY: frozenset[str] = frozenset()


class Counts(Protocol):
    """What the registry reports to; `RouterMetrics` is one."""

    def endpoint_changed(self, endpoint: str, to: str, why: str) -> None:
        """An endpoint joined (`ready`) or left (`out`), and why."""
        ...

    def incarnation(self, endpoint: str) -> None:
        """A new process is behind an endpoint."""
        ...

    def alarm(self, endpoint: str, alarm: str, times: float) -> None:
        """An engine has counted something that must not happen to KV."""
        ...


class Registry(Listeners):
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
        gates: GateFile | None = None,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._counts = counts
        self._thresholds = thresholds
        self._inflight = inflight
        self._states: dict[str, State] = {}
        self._models: tuple[str, ...] = ()
        self._engines: dict[str, Engine] = {}
        self._snapshot: Snapshot | None = None
        self._plan = plan
        self._gate_file = gates or GateFile(None)
        self._gates = self._gate_file.load()
        self.apply(plan)

    # What decisions are made on.

    def snapshot(self, now_s: float) -> Snapshot:
        """Every endpoint as it is; the same object until something changes."""
        if self._snapshot is None:
            views = tuple(s.endpoint() for s in self._states.values())
            self._snapshot = Snapshot(at_s=now_s, endpoints=views, unix_s=self._clock.wall_s())
        return self._snapshot

    def get(self, endpoint_id: str) -> Endpoint | None:
        """One endpoint as it is; None if the plan has no such instance."""
        state = self._states.get(endpoint_id)
        return state.endpoint() if state else None

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
        return self._models

    def states(self) -> Iterable[State]:
        """Every endpoint's state, in the plan's order."""
        return self._states.values()

    def state(self, endpoint_id: str) -> State | None:
        """One endpoint's state."""
        return self._states.get(endpoint_id)

    # What the operator and the controller say.

    def apply(self, plan: Plan) -> None:
        """Serve `plan` from now on: new instances start to join, gone ones leave, unchanged ones go on.

        Nothing changes when it raises TopologyError.
        """
        fresh = adapters(plan)
        gone = [name for name in self._states if name not in fresh]
        states = {}
        for instance in plan.instances:
            old = self._states.get(instance.name)
            if old is not None and same_process(old.plan, instance):
                old.plan, old.engine = instance, fresh[instance.name]
                old.changed()
                states[instance.name] = old
            else:
                if old is not None:
                    gone.append(instance.name)
                states[instance.name] = self._fresh(instance, fresh[instance.name], old is not None)
        self._plan, self._states = plan, states
        self._models = tuple(sorted({i.model for i in plan.instances}))
        self._gates = {name: state.gates for name, state in states.items()}
        self._gate_file.save(self._gates)
        self._engines |= fresh
        for name in gone:
            log.info("endpoint removed or redefined", extra={"endpoint": name})
            self._tell(self._on_incarnation, name)
        for state in self._states.values():
            # Those that are gone may have been what others did not go with.
            self._sort_out(state, state.ready, "reload")
        self._changed()

    def gate(self, endpoint_id: str, closed: bool, life: str = "", by: str = OPERATOR) -> bool:
        """Keep new work from an endpoint, or let it come again; False if there is no such endpoint.

        What several keep closed is open when all of them (`by`) have opened it.

        `life` is the controller's number for the process that runs now, where it says: another number
        than before is a new process, which joins anew unless its start was noticed already.
        """
        state = self._states.get(endpoint_id)
        if state is None:
            return False
        if state.told_of_life(life):
            self._replaced(state)
        was, gated = state.ready, state.gated
        state.gates.add(by) if closed else state.gates.discard(by)
        self._gate_file.save(self._gates)
        if state.gated != gated:
            # Those that it goes with may be too few now, or enough again.
            self._sort_out(state, was, "gate" if closed else "ungate")
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

    # What the data path has seen.

    def well(self, endpoint_id: str) -> None:
        """A leg has been answered there, the first since something went wrong."""
        state = self._states.get(endpoint_id)
        if state is not None:
            was = state.ready
            if state.breaker.succeeded():
                self._moved(state, was, "well")

    def moved_s(self, endpoint_id: str) -> float:
        """When its own counters last moved, or it had nothing to count; -inf if it tells of none."""
        state = self._states.get(endpoint_id)
        told = state is not None and state.load is not None and state.load.progress is not None
        return state.moved_s if state is not None and told else -inf

    def failed(self, endpoint_id: str) -> None:
        """An engine failed at a leg: after several in a row it is given nothing until it is tried again.

        But for the last of its role, which would fail no more requests by that, but all.
        """
        state = self._states.get(endpoint_id)
        if state is not None and any(state.stands_in(other) for other in self._states.values()):
            was = state.ready
            if state.breaker.failed(self._clock.now_s()):
                state.why = f"{state.breaker.failures} requests in a row have failed there"
                self._moved(state, was, "failures")

    def keep_apart(self, apart: Mapping[str, frozenset[str]]) -> None:
        """By endpoint, those whom it must not be paired with: decode sides, or itself if it serves alone."""
        moved = [(s, s.ready) for name, s in self._states.items() if s.shuns != apart.get(name, _NOBODY)]
        for state, _ in moved:
            state.shuns = apart.get(state.plan.name, _NOBODY)
            state.why = "gives wrong answers" if state.bad else state.why
            state.changed()
        for state, was in moved:
            self._moved(state, was, "pair")

    def hangs(self, endpoint_id: str, silent_s: float) -> None:
        """It has work, and has shown no sign of life for so long: nothing for it until it is tried again."""
        state = self._states.get(endpoint_id)
        if state is not None and not state.breaker.shut:
            was = state.ready
            state.breaker.trip(self._clock.now_s())
            state.why = f"has work, but has shown no sign of life for {silent_s:.0f} s"
            self._moved(state, was, "hung")

    # What the prober found.

    def answered(self, endpoint_id: str, answer: Answer, why: str) -> bool:
        """Take in one round of readiness probes; True when the endpoint should be discovered and joined."""
        state = self._states[endpoint_id]
        was = state.ready
        busy = self._inflight(endpoint_id).requests > 0
        state.health.observe(answer, self._clock.now_s(), busy)
        state.silent = answer in (Answer.SLOW, Answer.FAILING)
        if answer is Answer.REFUSED:
            state.suspected = True
        if answer is not Answer.OK:
            state.why = why
        if state.breaker.look(self._clock.now_s()):
            self._moved(state, was, "half-open")
            was = state.ready
        cap = state.allowed(self._clock.now_s())
        if cap != state.cap:
            state.cap = cap
            state.changed()
            self._changed()
        if state.joined and not state.health.fit:
            state.joined = False
            self._sort_out(state, was, str(answer))
        return state.health.fit and not state.joined

    def not_yet(self, endpoint_id: str, why: str) -> None:
        """Discovery was not satisfied; the endpoint stays out."""
        self._states[endpoint_id].why = why

    def join(self, endpoint_id: str, learned: Mapping[str, Any]) -> None:
        """Discovery is done: freeze what it told and let the endpoint be given work, unless it tells of
        another engine than was planned, or does not go with those that have joined."""
        state = self._states[endpoint_id]
        if self._is_another(state, learned):
            return
        was = state.ready
        state.learned = MappingProxyType(dict(learned))
        if state.settle():
            fields = {"endpoint": endpoint_id, "incarnation": state.incarnation}
            log.warning("endpoint has a new process", extra=fields)
            self._counts.incarnation(endpoint_id)
            self._tell(self._on_incarnation, endpoint_id)
        state.joined, state.hung, state.why, state.stuck = True, False, "", ""
        state.breaker.reset()
        state.moved_s = self._clock.now_s()
        state.changed()
        self._snapshot = None
        for on_join in self._on_join:
            on_join()
        self._sort_out(state, was, "probe")

    def loaded(self, endpoint_id: str, load: Load) -> None:
        """Take in what an engine says of its load."""
        state = self._states[endpoint_id]
        before, replaced = state.load, another_process(state.load, load)
        given = self._inflight(endpoint_id).requests > 0
        stalled_s = state.read(load, self._clock.now_s(), given)
        if replaced:
            self._replaced(state)
            return
        for alarm, count in load.alarms.items():
            new = 0.0 if before is None else count - before.alarms.get(alarm, count)
            if new > 0:
                self._counts.alarm(endpoint_id, alarm, new)
                log.warning("KV alarm", extra={"endpoint": endpoint_id, "alarm": alarm, "times": new})
                for on_alarm in self._on_alarm:
                    on_alarm(endpoint_id, alarm)
        hung = stalled_s >= self._stalled_s(state)
        if hung is not state.hung:
            was, state.hung = state.ready, hung
            state.why = f"has work, but none got done for {stalled_s:.0f} s" if hung else ""
            state.stuck = state.why or state.stuck
            self._moved(state, was, "hung" if hung else "progress")
            for callback in self._on_hung if hung else ():
                callback(state.plan.name, state.why)
        else:
            state.changed()
            self._changed()

    def hang(self, endpoint_id: str) -> str:
        """Why an endpoint is taken to hang, so that only a new process will help; empty if it is not.

        A hung process may have lost its scheduler alone, or answer nothing at all (stopped, or stuck).
        """
        state = self._states[endpoint_id]
        if state.stuck:
            return state.stuck
        silent_s = self._clock.now_s() - state.health.last_good_s
        if not state.silent or not self._stalled_s(state) <= silent_s < inf:
            return ""
        return f"its probes have not been answered for {silent_s:.0f} s ({state.why})"

    # Inside.

    def _fresh(self, instance: InstancePlan, engine: Engine, redefined: bool) -> State:
        """The state of an instance that is new, or another one under its name: what an operator said of the
        name holds for that too."""
        state = State(instance, engine, Health(self._thresholds), self._clock.now_s())
        known = self._gates.get(instance.name, set())
        state.gates = known & {OPERATOR} if redefined else set(known)
        return state

    def _stalled_s(self, state: State) -> float:
        """How long an endpoint may have work and get none of it done."""
        router = self._plan.router
        if router is None:
            return self._thresholds.stalled_s(state.plan.role, 0.0)
        thresholds = replace(self._thresholds, stall_s=router.timeouts.stall_s)
        return thresholds.stalled_s(state.plan.role, router.timeouts.prefill_s)

    def _is_another(self, state: State, learned: Mapping[str, Any]) -> bool:
        """Whether it tells of another engine than was planned; lesser differences are only told."""
        known = {**state.plan.facts, **learned}
        found = contradictions(state.plan.expects, Side(state.plan.name, known, state.plan.silenced))
        why = "; ".join(map(str, found))
        if why and why != state.strange:
            log.warning("endpoint is not as planned", extra={"endpoint": state.plan.name, "why": why})
        state.strange = why
        if refused := grave(found):
            state.why = refused
        return bool(refused)

    def _sort_out(self, state: State, was: bool, cause: str) -> None:
        """Tell that `state` has joined or left, and of all that go with the others now, or no more."""
        ready = {one.plan.name: one.ready for one in self._states.values()} | {state.plan.name: was}
        reasons, moved = apart(self._states.values()), [state]
        for one in self._states.values():
            why = reasons.get(one.plan.name, "")
            if why != one.apart:
                one.apart = why
                one.why = why if one.joined else one.why
                moved += [one] if one is not state else []
        for one in moved:
            of_pair = "mismatch" if one.apart else "match"
            self._moved(one, ready[one.plan.name], cause if one is state and not one.apart else of_pair)

    def _replaced(self, state: State) -> None:
        """There is another process: out, until it has joined by itself."""
        was = state.ready
        state.certain, state.joined = True, False
        state.health.reset()
        state.why = "its process was replaced"
        self._sort_out(state, was, "incarnation")
        self._tell(self._on_suspect, state.plan.name)

    def _moved(self, state: State, was: bool, cause: str) -> None:
        if state.ready != was:
            state.since_s = self._clock.now_s()
        state.cap = state.allowed(self._clock.now_s())
        state.changed()
        if state.ready != was:
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

    def _changed(self) -> None:
        self._snapshot = None
        for callback in self._on_change:
            callback()
