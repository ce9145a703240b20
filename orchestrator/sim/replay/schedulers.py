"""Scheduling profiles as ready schedulers, built as the router builds its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from orchestrator.core.prediction import Predictor
from orchestrator.core.slo import SloClass
from orchestrator.core.types import Endpoint, PathKind
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.errors import AccountingError, PolicyError
from orchestrator.policy.build import build
from orchestrator.sim.replay.told import Erring, Told
from orchestrator.topology.plan import RouterPlan
from orchestrator.topology.scheduler import AnyScheduler, make_predictor, make_scheduler

TOLD = "told"
"""The predictor that knows the simulated engines as well as their launch profile does, and learns nothing."""


def bare_router(classes: Sequence[SloClass] = ()) -> RouterPlan:
    """A router's plan with nothing in it but SLO classes."""
    probes = Probes((), HttpCall("GET", "/health"))
    plan = RouterPlan("pdctl", "", 0, "", 0, "", "", (), {}, probes)
    return replace(plan, slo_classes={slo.name: class_data(slo) for slo in classes})


def class_data(slo: SloClass) -> Mapping[str, Any]:
    """A class as a plan holds it."""
    targets = {"ttft": slo.ttft, "itl": slo.itl, "tpot": slo.tpot, "e2e": slo.e2e}
    return {
        **{name: None if target is None else asdict(target) for name, target in targets.items()},
        "priority": slo.priority.name.lower(),
        "unattainable": slo.unattainable.value,
        "pools": None if slo.pools is None else sorted(slo.pools),
        "reserve": slo.reserve,
        "max_wait_s": slo.max_wait_s,
        **({} if slo.slices_s is None else {"slices_s": slo.slices_s}),
    }


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a scheduler is made of; `make` gives a fresh one each time.

    `profile` is a shipped name or a profile written out. `predictor` is `told`, or what a plan names with its
    parameters. `error` is the sigma of a log-normal error of each request's predicted prefill.
    """

    profile: str | Mapping[str, Any]
    router: RouterPlan = field(default_factory=bare_router)
    predictor: Mapping[str, Any] = field(default_factory=lambda: {"use": TOLD})
    error: float = 0.0
    seed: int = 0
    base_dir: str | os.PathLike[str] = "."

    def make(
        self, block_tokens: int, on_policy_error: Callable[[str, PolicyError], None] | None = None
    ) -> AnyScheduler:
        """A scheduler whose block hashes stand for `block_tokens` each. Raises TopologyError."""
        return make_scheduler(
            self.router,
            build(self.profile, self.base_dir),
            self._predictor(),
            rng=Random(self.seed),
            serves=_serves_all,
            on_policy_error=on_policy_error or _ignore,
            on_accounting_error=_raise,
            block_tokens=block_tokens,
        )

    def _predictor(self) -> Predictor:
        own = self.predictor["use"] == TOLD
        made: Predictor = Told() if own else make_predictor(self.predictor, str(self.base_dir))
        return Erring(made, self.error, self.seed) if self.error else made


def _serves_all(kind: PathKind, endpoint: Endpoint) -> bool:
    return True


def _ignore(name: str, error: PolicyError) -> None:
    """`Choice.fallbacks` names it all the same."""


def _raise(error: AccountingError) -> None:
    raise error
