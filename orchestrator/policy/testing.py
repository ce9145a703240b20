"""The conformance kit: makers of what policies are given, and `check`, which tries a policy on odd fleets."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any, TypeVar

from orchestrator.core.contracts import Context, DeferringOrder, Filter, Order, Picker, Scorer, Waiting
from orchestrator.core.prediction import Curve, Decoded, Exposed, Served, Step
from orchestrator.core.slo import Priority, SloClass, Target, Unattainable
from orchestrator.core.types import Endpoint, Inflight, Load, PathKind, RequestView, Role, Scored, Snapshot
from orchestrator.policy.guard import Budget
from orchestrator.policy.loading import make_policy

MODEL = "test-model"

T = TypeVar("T")


class FakePrefix:
    """A prefix index that holds the given number of leading blocks for each endpoint id."""

    def __init__(self, cached: Mapping[str, int] | None = None) -> None:
        self._cached = dict(cached or {})

    def cached_blocks(self, endpoint_id: str, block_hashes: Sequence[int]) -> int:
        """The given number, at most the whole prompt."""
        return min(self._cached.get(endpoint_id, 0), len(block_hashes))


class FakePredictor:
    """A predictor that knows and learns nothing: the same for every endpoint but for its `speeds`.

    A prefill takes `token_s` for each uncached token, times the endpoint's speed factor (default 1; 2 is
    half as fast); a hand-off `handoff_s`; a decode step `step`. The tail of a first token is `tail` times the
    median above it, that of a gap `itl_tail`. A medium takes `media_s`.
    """

    version = 0

    def __init__(
        self,
        speeds: Mapping[str, float] | None = None,
        *,
        token_s: float = 1e-4,
        handoff_s: float = 0.02,
        step: Step = Step(0.012, 6e-5, 2e-8),
        tail: float = 0.0,
        itl_tail: float = 0.0,
        media_s: float = 0.0,
        tokens: int = 200,
    ) -> None:
        self._speeds = dict(speeds or {})
        self._token_s, self._handoff_s, self._step = token_s, handoff_s, step
        self._tail, self._itl_tail, self._media_s, self._tokens = tail, itl_tail, media_s, tokens

    def prefill(self, endpoint: Endpoint) -> Curve:
        """Linear in the uncached tokens."""
        return Curve(self._token_s * self._speeds.get(endpoint.id, 1.0))

    def exposed(self, prefill: Endpoint, decode: Endpoint) -> Exposed:
        """`handoff_s` times the decode endpoint's speed factor."""
        return Exposed(self._handoff_s * self._speeds.get(decode.id, 1.0))

    def encode_s(self, model: str, media: int) -> float:
        """`media_s` for each."""
        return self._media_s * media

    def step(self, endpoint: Endpoint) -> Step:
        """The same everywhere but for the speed factor."""
        speed, step = self._speeds.get(endpoint.id, 1.0), self._step
        return Step(step.base_s * speed, step.request_s * speed, step.token_s * speed)

    def tail_s(self, prefill: str, predicted_s: float, quantile: float, *, queued_s: float = 0.0) -> float:
        """`tail` times the prediction, whatever the quantile."""
        return self._tail * predicted_s

    def itl_tail_s(self, endpoint: str, predicted_s: float, quantile: float) -> float:
        """`itl_tail` times the prediction, whatever the quantile."""
        return self._itl_tail * predicted_s

    def output_tokens(self, slo_class: str | None, limit: int, quantile: float = 0.5) -> int:
        """`tokens`, within the limit."""
        return min(limit, self._tokens)

    def reference_s(self, model: str, tokens: int) -> float:
        """A prefill at speed 1."""
        return self._token_s * tokens

    def served(self, what: Served, now_s: float) -> None:
        """Nothing is learned."""

    def decoded(self, what: Decoded, now_s: float) -> None:
        """Nothing is learned."""

    def observe(self, snapshot: Snapshot, now_s: float) -> None:
        """Nothing is learned."""


def make_request(**fields: Any) -> RequestView:
    """A request of 1000 prompt tokens in 8 blocks, at most 100 output tokens; `fields` replace any part."""
    usual: dict[str, Any] = {
        "id": "0" * 32,
        "model": MODEL,
        "path": PathKind.CHAT,
        "arrived_s": 0.0,
        "prompt_tokens": 1000,
        "max_tokens": 100,
        "block_hashes": tuple(range(1, 9)),
    }
    return RequestView(**{**usual, **fields})


def make_endpoint(endpoint_id: str = "e0", role: Role = Role.UNIFIED, **fields: Any) -> Endpoint:
    """A ready endpoint that reports nothing and has nothing in flight; `fields` replace any part."""
    usual: dict[str, Any] = {
        "id": endpoint_id,
        "pool": role.value,
        "role": role,
        "engine": "test",
        "model": MODEL,
        "url": f"http://{endpoint_id}.invalid",
        "ready": True,
    }
    return Endpoint(**{**usual, **fields})


def make_context(candidates: Sequence[Endpoint], role: Role = Role.UNIFIED, **fields: Any) -> Context:
    """The context of a decision among `candidates` at time 0, nothing predicted; `fields` replace parts."""
    usual: dict[str, Any] = {
        "snapshot": Snapshot(at_s=0.0, endpoints=tuple(candidates)),
        "role": role,
        "now_s": 0.0,
        "rng": Random(0),
        "prefix": FakePrefix(),
    }
    return Context(**{**usual, **fields})


def make_waiting(request: RequestView | None = None, **fields: Any) -> Waiting:
    """A request that arrived at 0, has 0.1 s of prefill left and is due at 2 s; `fields` replace any part."""
    usual: dict[str, Any] = {
        "arrived_s": 0.0,
        "work_s": 0.1,
        "first_token_by_s": 2.0,
        "latest_start_s": 1.9,
    }
    return Waiting(request or make_request(), **{**usual, **fields})


def check(
    use: str,
    *,
    base_dir: str | os.PathLike[str] = ".",
    rounds: int = 200,
    budget: Budget | None = Budget(),
    clock: Callable[[], float] = time.perf_counter,
    **params: Any,
) -> None:
    """Load the policy that `use` names, as a topology would, and hold it to its contract.

    It is tried on `rounds` random fleets of one to eight endpoints (every twentieth has 64) in every role,
    among them ones that report nothing, are overcommitted, or have changed their mind since, with a predictor
    and without; the fleets are the same each time. Orders are tried on queues. A call that takes longer than
    `budget` each time it is made (`budget.strikes` times) has broken the contract; None: it is not timed.
    Raises AssertionError, which says what it did wrong, and PluginError or ParamError as loading would.
    """
    check_policy(make_policy(use, params, base_dir), rounds=rounds, budget=budget, clock=clock)


def check_policy(
    policy: object,
    *,
    rounds: int = 200,
    budget: Budget | None = Budget(),
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """`check` for a policy that is there already."""
    fits = [kind for kind in (Filter, Scorer, Order, Picker) if isinstance(policy, kind)]
    name = type(policy).__name__
    assert fits, f"{name} has no method filter, score (with a class attribute unit), key or pick"
    for seed in range(rounds):
        case = _Case(seed, budget, clock)
        if isinstance(policy, Filter):
            _check_filter(policy, case)
        if isinstance(policy, Scorer):
            _check_scorer(policy, case)
        if isinstance(policy, Order):
            _check_order(policy, case)
        if isinstance(policy, Picker):
            _check_picker(policy, case)


class _Case:
    """One random question, which can be asked twice."""

    def __init__(self, seed: int, budget: Budget | None, clock: Callable[[], float]) -> None:
        self.name = f"round {seed}"
        self.rng = rng = Random(seed)
        self.role = rng.choice([Role.PREFILL, Role.DECODE, Role.UNIFIED])
        n = 64 if seed % 20 == 19 else rng.randint(1, 8)
        self.endpoints = tuple(_random_endpoint(i, self.role, rng) for i in range(n))
        self.request = _random_request(rng)
        self.queue = tuple(_random_waiting(i, rng) for i in range(rng.choice([1, 3, 50])))
        self._cached = {e.id: rng.randint(0, len(self.request.block_hashes)) for e in self.endpoints}
        self._fields = _random_prediction(self.endpoints, rng)
        self._budget, self._clock = budget, clock

    def context(self) -> Context:
        """The same each time, with a fresh source of randomness."""
        others: tuple[Endpoint, ...] = ()
        prefill = None
        if self.role is Role.DECODE:
            prefill = make_endpoint("chosen-prefill", Role.PREFILL)
            others = (prefill,)
        elif self.role is Role.PREFILL:
            others = (make_endpoint("some-decode", Role.DECODE),)
        return make_context(
            self.endpoints,
            self.role,
            snapshot=Snapshot(at_s=100.0, endpoints=(*self.endpoints, *others)),
            now_s=100.0,
            prefix=FakePrefix(self._cached),
            prefill=prefill,
            **self._fields,
        )

    def ask(self, call: Callable[[], T]) -> T:
        """What `call` returns, which is called again as long as it takes too long, up to the strikes."""
        if self._budget is None:
            return call()
        for _ in range(self._budget.strikes):
            began_s = self._clock()
            answer = call()
            took_s = self._clock() - began_s
            if took_s <= self._budget.call_s:
                return answer
        raise AssertionError(
            f"{self.name}: took {took_s * 1e3:.1f} ms, {self._budget.strikes} times in a row; "
            f"a call may take {self._budget.call_s * 1e3:.1f} ms"
        )


def _check_filter(policy: Filter, case: _Case) -> None:
    kept, again = (
        [e.id for e in case.ask(lambda: policy.filter(case.request, case.endpoints, case.context()))]
        for _ in range(2)
    )
    given = {e.id for e in case.endpoints}
    assert set(kept) <= given, f"{case.name}: kept {kept}, not all of which it was given"
    assert len(kept) == len(set(kept)), f"{case.name}: kept an endpoint twice: {kept}"
    assert kept == again, f"{case.name}: kept {kept}, and {again} when asked the same again"


def _check_scorer(policy: Scorer, case: _Case) -> None:
    assert policy.unit in ("share", "seconds"), f"unit is {policy.unit!r}, neither 'share' nor 'seconds'"
    scores, again = (
        list(case.ask(lambda: policy.score(case.request, case.endpoints, case.context()))) for _ in range(2)
    )
    n = len(case.endpoints)
    assert len(scores) == n, f"{case.name}: {len(scores)} scores for {n} candidates"
    assert all(math.isfinite(s) for s in scores), f"{case.name}: not all finite: {scores}"
    if policy.unit == "share":
        assert all(0.0 <= s <= 1.0 for s in scores), f"{case.name}: a share is not in 0..1: {scores}"
    assert scores == again, f"{case.name}: scored {scores}, and {again} when asked the same again"


def _check_order(policy: Order, case: _Case) -> None:
    keys, again = ([case.ask(partial(policy.key, w)) for w in case.queue] for _ in range(2))
    for key in keys:
        assert float(key) == key, f"{case.name}: a key is no number: {key}"
    assert keys == again, f"{case.name}: the keys are {keys}, and {again} when asked the same again"
    if not isinstance(policy, DeferringOrder):
        return
    queue = tuple(case.queue)
    deferred, other = ([id(w) for w in case.ask(lambda: policy.defer(queue, 100.0, 4.0))] for _ in range(2))
    assert set(deferred) <= set(map(id, queue)), f"{case.name}: put off what was not in the queue"
    assert len(deferred) == len(set(deferred)), f"{case.name}: put a request off twice"
    assert sorted(deferred) == sorted(other), f"{case.name}: puts off others when asked the same again"


def _check_picker(policy: Picker, case: _Case) -> None:
    rng = case.rng
    scored = [Scored(e.id, rng.choice([0.0, 0.5, rng.uniform(0, 10)])) for e in case.endpoints]
    picked = case.ask(lambda: policy.pick(case.request, scored, case.context()))
    assert picked in scored, f"{case.name}: picked {picked}, which it was not given"


def _random_endpoint(i: int, role: Role, rng: Random) -> Endpoint:
    load = None
    if rng.random() < 0.7:
        total = rng.choice([None, 1_000, 1_000_000])
        used = None if total is None else rng.randint(0, total)
        load = Load(90.0, rng.randint(0, 50), rng.randint(0, 50), used, total)
    return make_endpoint(
        f"e{i}",
        role,
        load=load,
        inflight=_random_inflight(rng),
        inflight_at_load=_random_inflight(rng),
        labels=rng.choice([{}, {"node": f"n{i % 2}", "rack": "r1"}]),
        facts=rng.choice([{}, {"transfer": "x", "chunk_tokens": 2048}]),
        incarnation=rng.choice(["", "1"]),
        ready_since_s=rng.choice([None, 0.0, 99.0, 100.0]),
    )


def _random_inflight(rng: Random) -> Inflight:
    if rng.random() < 0.3:
        return Inflight()
    return Inflight(rng.randint(0, 100), rng.randint(0, 200_000), rng.randint(0, 2_000_000))


def _random_request(rng: Random) -> RequestView:
    return make_request(
        path=rng.choice(list(PathKind)),
        prompt_tokens=rng.choice([0, 1, 1000, 200_000]),
        max_tokens=rng.choice([0, 1, 100_000]),
        n=rng.choice([1, 1, 4]),
        tenant=rng.choice([None, "t"]),
        slo_class=rng.choice([None, "interactive"]),
        deadline_s=rng.choice([None, 50.0, 200.0]),
        block_hashes=tuple(range(rng.choice([0, 1, 300]))),
        headers=rng.choice([{}, {"x-session-id": "s1"}]),
    )


def _random_waiting(i: int, rng: Random) -> Waiting:
    work_s = rng.choice([0.0, 0.01, rng.uniform(0, 10)])
    by_s = rng.choice([inf, 99.0, 100.0, rng.uniform(100, 120)])
    return make_waiting(
        make_request(id=f"{i:032x}"),
        arrived_s=rng.uniform(50, 100),
        work_s=work_s,
        first_token_by_s=by_s,
        latest_start_s=by_s - work_s,
    )


def _random_prediction(endpoints: Sequence[Endpoint], rng: Random) -> dict[str, Any]:
    """What a context has where there is a predictor, half of the time."""
    if rng.random() < 0.5:
        return {}
    speeds = {e.id: rng.choice([0.5, 1.0, 3.0]) for e in endpoints}
    waits = {e.id: rng.choice([0.0, 0.3, 20.0]) for e in endpoints}
    limits = {e.id: rng.choice([inf, 0.001, 0.05]) for e in endpoints}
    slo = SloClass(
        "interactive",
        ttft=Target(1.5, per_cold_prefill=rng.choice([0.0, 2.0])),
        tpot=rng.choice([None, Target(0.04)]),
        priority=rng.choice(list(Priority)),
        unattainable=rng.choice(list(Unattainable)),
    )
    return {
        "predictor": FakePredictor(speeds, tail=0.2),
        "slo": rng.choice([None, slo]),
        "first_token_by_s": rng.choice([inf, 99.0, 100.5, 200.0]),
        "wait_s": lambda endpoint_id: waits.get(endpoint_id, 0.0),
        "step_limit_s": lambda endpoint_id: limits.get(endpoint_id, inf),
    }
