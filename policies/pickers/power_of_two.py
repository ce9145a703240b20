"""power-of-two: draws a few candidates and takes the best of them."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.policy import Context, Field, Params, RequestView, Scored


class PowerOfTwoParams(Params):
    """How many are drawn."""

    choices: int = Field(default=2, ge=1)
    """Candidates drawn, each at most once; with 1 every one is equally likely."""


class PowerOfTwo:
    """The best of two candidates drawn at random, the first drawn if they tie.

    Nearly as even as taking the best of all, without the herd: several routers, or one with old figures, do
    not all take the same one. The worst is never taken while there are others.
    """

    def __init__(self, params: PowerOfTwoParams) -> None:
        self._choices = params.choices

    def pick(self, request: RequestView, scored: Sequence[Scored], context: Context) -> Scored:
        """One of `scored`."""
        drawn = context.rng.sample(scored, min(self._choices, len(scored)))
        best = drawn[0]
        for one in drawn[1:]:
            if one.total > best.total:
                best = one
        return best
