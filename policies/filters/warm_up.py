"""warm-up: gives an endpoint that has just become ready a share of its requests that grows."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.policy import Context, Duration, Endpoint, Field, Params, RequestView, hashed


class WarmUpParams(Params):
    """How fast."""

    over: Duration = 30.0
    """From becoming ready to its full share."""

    least: float = Field(default=0.1, gt=0, le=1)
    """The share it begins with."""


class WarmUp:
    """Leaves an endpoint out of some decisions while it is new: after it became ready, or was restarted.

    First requests compile kernels and find an empty cache; all of a burst at once on a new endpoint would
    wait for them. An endpoint is kept for its share of the requests, drawn by their ids so that asking again
    changes nothing, and compared with the warmest: a fleet that started together is warm as a whole. One that
    tells no time is warm.
    """

    def __init__(self, params: WarmUpParams) -> None:
        self._params = params

    def filter(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[Endpoint]:
        """The candidates but for new ones that are not drawn; all, if that would leave none."""
        over_s, now_s = self._params.over, context.now_s
        new_from_s = now_s - over_s
        if all(e.ready_since_s is None or e.ready_since_s <= new_from_s for e in candidates):
            return candidates
        shares = [
            1.0 if e.ready_since_s is None else max(self._params.least, (now_s - e.ready_since_s) / over_s)
            for e in candidates
        ]
        warmest = min(1.0, max(shares))
        kept = [
            e
            for e, share in zip(candidates, shares, strict=True)
            if share >= warmest or hashed(request.id + e.id) < share / warmest * 2**64
        ]
        return kept or candidates
