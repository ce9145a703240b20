"""max-score: takes the best candidate."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.policy import Context, Field, Params, RequestView, Scored


class MaxScoreParams(Params):
    """What counts as a tie."""

    tolerance: float = Field(default=0.0, ge=0)
    """Candidates whose total is at most this far below the best tie with it. Where several routers share
    the endpoints, a little of it keeps them from all choosing the same one."""


class MaxScore:
    """The candidate with the highest total, drawn among those that tie; without scorers all do."""

    def __init__(self, params: MaxScoreParams) -> None:
        self._tolerance = params.tolerance

    def pick(self, request: RequestView, scored: Sequence[Scored], context: Context) -> Scored:
        """One of the best."""
        best = max([s.total for s in scored]) - self._tolerance
        ties = [s for s in scored if s.total >= best]
        return ties[0] if len(ties) == 1 else context.rng.choice(ties)
