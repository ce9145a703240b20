"""One policy at one rate on one trace: what a comparison is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from orchestrator.analysis.goodput import Curve, highest
from orchestrator.analysis.targets import Judge, attainment
from orchestrator.core.slo import SloClass
from orchestrator.errors import PolicyError
from orchestrator.sim.replay.driver import Progress, Replay
from orchestrator.sim.replay.fleet import Fleet
from orchestrator.sim.replay.life import Run
from orchestrator.sim.replay.requests import Requests
from orchestrator.sim.replay.schedulers import Recipe
from orchestrator.sim.timing import QWEN3_32B_TP2, Timing


@dataclass(slots=True)
class Trials:
    """Runs of one profile; each has a fresh scheduler and fresh engines, and the same random numbers.

    `targets` is what is measured, by class (None: of requests without one); whoever has no targets only needs
    its whole answer. `timing` is what promises are reckoned with. `curve` keeps what was found out by rate.
    """

    name: str
    recipe: Recipe
    requests: Requests
    fleet: Fleet
    targets: Mapping[str | None, SloClass]
    timing: Timing = QWEN3_32B_TP2
    seed: int = 0
    curve: Curve = field(default_factory=Curve)
    on_rate: Callable[[float, float], None] | None = None
    """Told, while goodput is searched, of the rate that is tried and the share of that run that is done."""

    def run(self, factor: float, *, share: float = 0.0, progress: Progress | None = None) -> Run:
        """Replay with time divided by `factor`; a run that cannot reach `share` any more is cut short."""
        failed: dict[str, tuple[int, str]] = {}

        def on_policy_error(name: str, error: PolicyError) -> None:
            failed[name] = (failed.get(name, (0, ""))[0] + 1, str(error))

        judge = Judge(self.targets, len(self.requests.trace.entries), share, self.timing) if share else None
        replay = Replay(
            self.requests,
            self.fleet,
            self.recipe.make(self.requests.block_tokens, on_policy_error),
            rate=factor,
            rng=Random(self.seed),
            judge=judge,
            progress=progress,
        )
        return replace(replay.run(), policy_errors=failed)

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
        on_rate, count = self.on_rate, max(1, len(self.requests.trace.entries))
        progress = None if on_rate is None else lambda arrived, _: on_rate(rate, arrived / count)
        run = self.run(rate / self.requests.trace.rate, share=share, progress=progress)
        if run.interrupted:
            raise KeyboardInterrupt
        if run.stopped:
            self.curve.missed(rate, share)
        else:
            self.curve.attained(rate, attainment(run.lives, run.offered, self.targets, self.timing))
