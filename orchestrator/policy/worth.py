"""A scorer in the unit of the other mode, at the rate that its step names as `worth`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from orchestrator.core.contracts import Context, Scorer
from orchestrator.core.types import Endpoint, RequestView
from orchestrator.policy.shares import share_of_least


class InSeconds:
    """A scorer of shares as one of seconds: a share of 1 costs nothing, a share of 0 costs `worth_s`."""

    unit: ClassVar[str] = "seconds"

    def __init__(self, scorer: Scorer, worth_s: float) -> None:
        self.scorer = scorer
        self._worth_s = worth_s
        _keep_traits(self, scorer)

    def score(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[float]:
        """One cost per candidate. Raises ValueError for a score that is no share."""
        shares = self.scorer.score(request, candidates, context)
        if not all(0.0 <= share <= 1.0 for share in shares):
            raise ValueError("a score is not a number in 0..1")
        worth_s = self._worth_s
        return [(1.0 - share) * worth_s for share in shares]


class AsShare:
    """A scorer of seconds as one of shares: 1 for the cheapest, 0 from `worth_s` above it."""

    unit: ClassVar[str] = "share"

    def __init__(self, scorer: Scorer, worth_s: float) -> None:
        self.scorer = scorer
        self._worth_s = worth_s
        _keep_traits(self, scorer)

    def score(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[float]:
        """One share per candidate."""
        return share_of_least(self.scorer.score(request, candidates, context), self._worth_s)


def _keep_traits(wrapper: InSeconds | AsShare, scorer: Scorer) -> None:
    for trait in ("needs_load", "measures_load", "headers"):
        if hasattr(scorer, trait):
            setattr(wrapper, trait, getattr(scorer, trait))
