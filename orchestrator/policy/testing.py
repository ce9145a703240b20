"""The conformance kit: makers of endpoints and requests, and `check`, which tries a policy on odd fleets."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from orchestrator.core.contracts import Context, Filter, Picker, Scorer
from orchestrator.core.types import Endpoint, Inflight, Load, PathKind, RequestView, Role, Scored, Snapshot
from orchestrator.policy.build import make_policy

MODEL = "test-model"


class FakePrefix:
    """A prefix index that holds the given number of leading blocks for each endpoint id."""

    def __init__(self, cached: Mapping[str, int] | None = None) -> None:
        self._cached = dict(cached or {})

    def cached_blocks(self, endpoint_id: str, block_hashes: Sequence[int]) -> int:
        """The given number, at most the whole prompt."""
        return min(self._cached.get(endpoint_id, 0), len(block_hashes))


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
    """The context of a decision among `candidates` at time 0; `fields` replace any part."""
    usual: dict[str, Any] = {
        "snapshot": Snapshot(at_s=0.0, endpoints=tuple(candidates)),
        "role": role,
        "now_s": 0.0,
        "rng": Random(0),
        "prefix": FakePrefix(),
    }
    return Context(**{**usual, **fields})


def check(use: str, *, base_dir: str | os.PathLike[str] = ".", rounds: int = 200, **params: Any) -> None:
    """Load the policy that `use` names, as a topology would, and hold it to its contract.

    It is tried on `rounds` random fleets of one to eight endpoints in every role, among them ones that
    report nothing, are overcommitted, or have changed their mind since; the fleets are the same each time.
    Raises AssertionError, which says what it did wrong, and PluginError or ParamError as loading would.
    """
    check_policy(make_policy(use, params, base_dir), rounds=rounds)


def check_policy(policy: object, *, rounds: int = 200) -> None:
    """`check` for a policy that is there already."""
    fits = [kind for kind in (Filter, Scorer, Picker) if isinstance(policy, kind)]
    assert fits, f"{type(policy).__name__} has no method filter, score (with a class attribute unit) or pick"
    for seed in range(rounds):
        case = _Case(seed)
        if isinstance(policy, Filter):
            _check_filter(policy, case)
        if isinstance(policy, Scorer):
            _check_scorer(policy, case)
        if isinstance(policy, Picker):
            _check_picker(policy, case)


class _Case:
    """One random question, which can be asked twice."""

    def __init__(self, seed: int) -> None:
        self.name = f"round {seed}"
        self.rng = rng = Random(seed)
        self.role = rng.choice([Role.PREFILL, Role.DECODE, Role.UNIFIED])
        self.endpoints = [_random_endpoint(i, self.role, rng) for i in range(rng.randint(1, 8))]
        self.request = _random_request(rng)
        self._cached = {e.id: rng.randint(0, len(self.request.block_hashes)) for e in self.endpoints}

    def context(self) -> Context:
        prefill = make_endpoint("chosen-prefill", Role.PREFILL) if self.role is Role.DECODE else None
        return make_context(
            self.endpoints, self.role, now_s=100.0, prefix=FakePrefix(self._cached), prefill=prefill
        )


def _check_filter(policy: Filter, case: _Case) -> None:
    kept, again = (
        [e.id for e in policy.filter(case.request, case.endpoints, case.context())] for _ in range(2)
    )
    given = {e.id for e in case.endpoints}
    assert set(kept) <= given, f"{case.name}: kept {kept}, not all of which it was given"
    assert len(kept) == len(set(kept)), f"{case.name}: kept an endpoint twice: {kept}"
    assert kept == again, f"{case.name}: kept {kept}, and {again} when asked the same again"


def _check_scorer(policy: Scorer, case: _Case) -> None:
    assert policy.unit in ("share", "seconds"), f"unit is {policy.unit!r}, neither 'share' nor 'seconds'"
    scores, again = (list(policy.score(case.request, case.endpoints, case.context())) for _ in range(2))
    n = len(case.endpoints)
    assert len(scores) == n, f"{case.name}: {len(scores)} scores for {n} candidates"
    assert all(math.isfinite(s) for s in scores), f"{case.name}: not all finite: {scores}"
    if policy.unit == "share":
        assert all(0.0 <= s <= 1.0 for s in scores), f"{case.name}: a share is not in 0..1: {scores}"
    assert scores == again, f"{case.name}: scored {scores}, and {again} when asked the same again"


def _check_picker(policy: Picker, case: _Case) -> None:
    rng = case.rng
    scored = [Scored(e.id, rng.choice([0.0, 0.5, rng.uniform(0, 10)])) for e in case.endpoints]
    picked = policy.pick(case.request, scored, case.context())
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
        incarnation=rng.choice(["", "1"]),
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
