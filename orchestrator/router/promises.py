"""Whether one request's SLO was kept, from how it ended and what its class promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from orchestrator.core.slo import SloClass
from orchestrator.core.types import End, Outcome

KEPT = "kept"
UNJUDGED = "unjudged"


class Kept(NamedTuple):
    """How a promise was kept: `kept`, `unjudged`, a bound that was `missed-...`, or an end that keeps none.

    Bounds in seconds, None where there is none or it could not be judged; `tpot_s` is what was measured.
    """

    verdict: str
    quantile: float
    ttft_bound_s: float | None
    tpot_bound_s: float | None
    e2e_bound_s: float | None
    tpot_s: float | None

    @property
    def missed(self) -> bool:
        """Whether a bound was missed by a request that was served."""
        return self.verdict.startswith("missed-")

    def fields(self) -> Mapping[str, Any]:
        """As plain data."""
        return self._asdict()


def kept(slo: SloClass, outcome: Outcome, due_s: float | None, n: int = 1) -> Kept | None:
    """How `slo` was kept; None where the client left, whose fault that may be, or nothing is promised.

    `due_s` is how long after its arrival the first token was due, as the scheduler had it; without one, the
    part of the promise that does not grow with the prompt. A whole answer has no first token to be judged,
    nor has one of several choices (`n`) a gap of its own: where no bound at all could be judged, the promise
    is `unjudged`. The bound on each gap is held against the mean gap.
    """
    if outcome.end is End.CANCELLED or not any((slo.ttft, slo.itl, slo.tpot, slo.e2e)):
        return None
    if due_s is None and slo.ttft is not None and not slo.ttft.per_cold_prefill:
        due_s = slo.ttft.seconds
    step_s = slo.step_s if slo.itl is not None or slo.tpot is not None else None
    whole_s = slo.e2e.seconds if slo.e2e is not None and not slo.e2e.per_cold_prefill else None
    ttft_s, e2e_s = outcome.ttft_s, outcome.e2e_s
    tpot_s = outcome.tpot_s if n == 1 else None
    verdict = KEPT
    if outcome.end is not End.COMPLETED:
        verdict = str(outcome.end)
    elif _over(ttft_s, due_s) and slo.ttft is not None:
        verdict = "missed-ttft"
    elif _over(tpot_s, step_s):
        verdict = "missed-tpot"
    elif _over(e2e_s, whole_s):
        verdict = "missed-e2e"
    elif not any(_judged(*pair) for pair in ((ttft_s, due_s), (tpot_s, step_s), (e2e_s, whole_s))):
        verdict = UNJUDGED
    return Kept(verdict, slo.quantile, due_s, step_s, whole_s, tpot_s)


def _judged(seconds: float | None, bound_s: float | None) -> bool:
    return seconds is not None and bound_s is not None


def _over(seconds: float | None, bound_s: float | None) -> bool:
    return seconds is not None and bound_s is not None and seconds > bound_s
