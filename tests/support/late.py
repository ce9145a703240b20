"""A small fleet with a predictor that never learns, to drive a LateScheduler by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

from orchestrator.core.choosing import OnPolicyError
from orchestrator.core.choosing import Step as PolicyStep
from orchestrator.core.contracts import Assign, Bind, Decision, Poll, Reject, Slice, Spent, Waiting
from orchestrator.core.late.scheduler import LateScheduler
from orchestrator.core.lateprofile import LateProfile, LateSettings
from orchestrator.core.prediction import Curve, Decoded, Exposed, Served, Step
from orchestrator.core.slo import Priority, SloClass, Target
from orchestrator.core.types import (
    End,
    Endpoint,
    LegEvent,
    LegKind,
    Load,
    Outcome,
    RequestView,
    Role,
    Route,
    Snapshot,
)
from orchestrator.policy.testing import make_endpoint, make_request

MS = 0.001
"""Prefill of one token: prompts of n tokens take n ms."""


class Fixed:
    """A predictor of given curves: 1 ms a token, by endpoint times its speed; it records what it is told."""

    def __init__(self, speeds: dict[str, float] | None = None) -> None:
        self.version = 0
        self.speeds = speeds or {}
        self.told: list[Served] = []
        self.ended: list[Decoded] = []

    def prefill(self, endpoint: Endpoint) -> Curve:
        return Curve(MS * self.speeds.get(endpoint.id, 1.0))

    def encode_s(self, model: str, media: int) -> float:
        return 0.3 * media

    def exposed(self, prefill: Endpoint, decode: Endpoint) -> Exposed:
        return Exposed(0.0 if prefill is decode else 0.02)

    def step(self, endpoint: Endpoint) -> Step:
        return Step(0.01, 0.001, 1e-6)

    def tail_s(self, prefill: str, predicted_s: float, quantile: float, *, queued_s: float = 0.0) -> float:
        return 0.0 if quantile <= 0.5 else 0.1 * predicted_s

    def output_tokens(self, slo_class: str | None, limit: int, quantile: float = 0.5) -> int:
        return min(limit, 100)

    def itl_tail_s(self, endpoint: str, predicted_s: float, quantile: float) -> float:
        return 0.0

    def reference_s(self, model: str, tokens: int) -> float:
        return MS * tokens

    def served(self, what: Served, now_s: float) -> None:
        self.told.append(what)

    def decoded(self, what: Decoded, now_s: float) -> None:
        self.ended.append(what)

    def observe(self, snapshot: Snapshot, now_s: float) -> None:
        pass


class Shortest:
    def key(self, waiting: Waiting) -> float:
        return waiting.work_s


class Fcfs:
    def key(self, waiting: Waiting) -> float:
        return waiting.arrived_s


class PutsOff:
    """In order of arrival; puts off whomever it is told to."""

    def __init__(self, defer: Callable[[Sequence[Waiting]], Sequence[Waiting]]) -> None:
        self._defer = defer
        self.asked: list[tuple[int, float, float]] = []

    def key(self, waiting: Waiting) -> float:
        return waiting.arrived_s

    def defer(self, queue: Sequence[Waiting], now_s: float, capacity: float) -> Sequence[Waiting]:
        self.asked.append((len(queue), now_s, capacity))
        return self._defer(queue)


def prefills(*names: str, **facts: Any) -> list[Endpoint]:
    return [make_endpoint(name, Role.PREFILL, facts=facts) for name in names]


def decodes(*names: str, total: int | None = 1_000_000, used: int = 0) -> list[Endpoint]:
    load = Load(0.0, kv_used_tokens=used, kv_total_tokens=total)
    return [make_endpoint(name, Role.DECODE, load=load) for name in names]


def unified(*names: str, **facts: Any) -> list[Endpoint]:
    return [make_endpoint(name, Role.UNIFIED, facts=facts) for name in names]


PROMISES = {
    "chat": SloClass("chat", ttft=Target(2.0)),
    "bulk": SloClass("bulk", e2e=Target(900.0), priority=Priority.BATCH),
}


class Deck:
    """A LateScheduler with hands to drive it, and everything it has decided."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        order: object = None,
        classes: dict[str, SloClass] | None = None,
        speeds: dict[str, float] | None = None,
        profile: LateProfile | None = None,
        on_policy_error: OnPolicyError = lambda name, error: None,
        **settings: Any,
    ) -> None:
        self.predictor = Fixed(speeds)
        usual = {"hand_ahead_s": 0.0, "unit_tokens": 0, **settings}
        self.scheduler = LateScheduler(
            profile or LateProfile(PolicyStep("order", order or Shortest()), settings=LateSettings(**usual)),
            self.predictor,
            rng=Random(1),
            classes=classes,
            on_policy_error=on_policy_error,
        )
        self.endpoints = list(endpoints)
        self.now_s = 0.0
        self.made: dict[str, list[Decision]] = {}
        self.views: dict[str, RequestView] = {}
        self.polls: list[Poll] = []
        self.observe()

    def observe(self, *endpoints: Endpoint) -> None:
        if endpoints:
            self.endpoints = list(endpoints)
        self._take(self.scheduler.observe(Snapshot(self.now_s, tuple(self.endpoints)), self.now_s))

    def change(self, name: str, **fields: Any) -> None:
        self.observe(*(replace(e, **fields) if e.id == name else e for e in self.endpoints))

    def ask(self, name: str, tokens: int, **fields: Any) -> None:
        fields = {"arrived_s": self.now_s, "block_hashes": (), "max_tokens": 100, "stream": True, **fields}
        self.views[name] = make_request(id=name, prompt_tokens=tokens, **fields)
        self._take(self.scheduler.submit(self.views[name], self.now_s))

    def at(self, now_s: float) -> None:
        """Let time pass, ticking whenever the scheduler asks to be."""
        while (due_s := self.scheduler.due_s()) is not None and due_s <= now_s:
            self.now_s = max(self.now_s, due_s)
            before = due_s
            self._take(self.scheduler.tick(self.now_s))
            assert self.scheduler.due_s() != before, "it asks to be called at a time that has passed"
        self.now_s = now_s

    def prefilled(self, name: str) -> None:
        self._leg(name, LegKind.PREFILL, "done")

    def first(self, name: str) -> None:
        alone = self.route(name).prefill is None
        self._leg(name, LegKind.UNIFIED if alone else LegKind.DECODE, "first_token")

    def finish(self, name: str, end: End = End.COMPLETED, **fields: Any) -> None:
        fields = {"output_tokens": 50, **fields}
        outcome = Outcome(name, end, 200, route=self.route(name), **fields)
        self._take(self.scheduler.finish(outcome, self.now_s))

    def cancel(self, name: str) -> None:
        self._take(self.scheduler.cancel(name, self.now_s))

    def rebind(self, name: str, avoid: str) -> None:
        view = self.views[name]
        self.views[name] = view = replace(view, avoid=(*view.avoid, avoid))
        self._take(self.scheduler.rebind(view, self.now_s))

    def sliced(self, name: str, what: str = "done") -> None:
        """The last slice that was sent is over."""
        last = self.made[name][-1]
        assert isinstance(last, Slice)
        endpoint = last.route.prefill or last.route.decode
        event = LegEvent(name, LegKind.PREFILL, endpoint, what, self.now_s)
        self._take(self.scheduler.progress(event, self.now_s))

    def route(self, name: str) -> Route:
        bound = [d.route for d in self.made[name] if isinstance(d, Assign | Bind)]
        return bound[-1]

    def decision(self, name: str) -> str:
        """`wait`, `->prefill/decode`, `->alone`, `tokens@endpoint` (a slice), `no:reason`, or `spent`."""
        made = self.made.get(name)
        if not made:
            return "wait"
        last = made[-1]
        if isinstance(last, Reject):
            return f"no:{last.reason}"
        if isinstance(last, Spent):
            return "spent"
        if isinstance(last, Slice):
            return f"{last.tokens}@{last.route.prefill or last.route.decode}"
        assert isinstance(last, Assign | Bind)
        route = last.route
        return f"->{route.decode}" if route.prefill is None else f"->{route.prefill}/{route.decode}"

    def _leg(self, name: str, leg: LegKind, what: str) -> None:
        route = self.route(name)
        endpoint = route.prefill if leg is LegKind.PREFILL else route.decode
        self._take(self.scheduler.progress(LegEvent(name, leg, endpoint or "", what, self.now_s), self.now_s))

    def _take(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Poll):
                self.polls.append(decision)
            else:
                self.made.setdefault(decision.request_id, []).append(decision)


__all__ = ["MS", "PROMISES", "Deck", "Fcfs", "Fixed", "Shortest", "decodes", "inf", "prefills", "unified"]
