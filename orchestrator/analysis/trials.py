"""One policy at one rate on one trace: what a comparison is made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from orchestrator.analysis.goodput import Curve, highest
from orchestrator.analysis.targets import Judge, attainment
from orchestrator.core.prediction import Predictor
from orchestrator.core.slo import Classes, SloClass
from orchestrator.sim.replay.driver import Progress, Replay, Requests
from orchestrator.sim.replay.fleet import Fleet
from orchestrator.sim.replay.life import Run
from orchestrator.sim.replay.schedulers import make
from orchestrator.sim.replay.told import Erring, Told


@dataclass(slots=True)
class Trials:
    """Runs of one profile; each has a fresh scheduler and fresh engines, and the same random numbers.

    `slo` is what is measured, and the class of requests that name none, so that a policy is told what is
    expected of it. `error` is the sigma of a log-normal error of each request's predicted prefill. `full` keeps the
    attainment of each rate that was run to its end.
    """

    requests: Requests
    fleet: Fleet
    profile: str | Mapping[str, Any]
    slo: SloClass
    classes: Classes = field(default_factory=dict)
    seed: int = 0
    error: float = 0.0
    base_dir: str | os.PathLike[str] = "."
    predictor: Callable[[], Predictor] = Told
    curve: Curve = field(default_factory=Curve)

    def run(self, factor: float, *, share: float = 0.0, progress: Progress | None = None) -> Run:
        """Replay with time divided by `factor`; a run that cannot reach `share` any more is cut short."""
        scheduler = make(
            self.profile,
            seed=self.seed,
            block_tokens=self.requests.block_tokens,
            classes={self.slo.name: self.slo, **self.classes},
            predictor=self._predictor,
            base_dir=self.base_dir,
        )
        stop = Judge(self.slo, len(self.requests.trace.entries), share) if share else None
        replay = Replay(
            self.requests,
            self.fleet,
            scheduler,
            rate=factor,
            rng=Random(self.seed),
            stop=stop,
            progress=progress,
        )
        return replay.run()

    def attainment(self, rate: float) -> float:
        """The share kept at `rate` requests a second."""
        if rate not in self.curve.kept:
            self._measure(rate, 0.0)
        return self.curve.kept[rate]

    def attains(self, rate: float, share: float) -> bool:
        """Whether `rate` keeps `share`, by a run that is cut short where it does not."""
        known = self.curve.answer(rate, share)
        if known is None:
            self._measure(rate, share)
            known = self.curve.answer(rate, share)
        assert known is not None
        return known

    def goodput(self, share: float, start: float) -> float:
        """The highest rate that keeps `share`, in requests a second."""
        return highest(self.attains, share, start)

    def _measure(self, rate: float, share: float) -> None:
        run = self.run(rate / self.requests.trace.rate, share=share)
        if run.stopped:
            self.curve.missed(rate, share)
        else:
            self.curve.attained(rate, attainment(run.lives, run.offered, self.slo))

    def _predictor(self) -> Predictor:
        inner = self.predictor()
        return Erring(inner, self.error, self.seed) if self.error else inner
