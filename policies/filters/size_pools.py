"""size-pools: keeps the endpoints that are set aside for prompts of the request's size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf
from typing import Self

from pydantic import model_validator

from orchestrator.policy import Context, Endpoint, Field, Params, RequestView


class SizePoolsParams(Params):
    """Which sizes, and who serves them."""

    bounds: list[int] = Field(default=[8192], min_length=1)
    """Most prompt tokens of each size but the last, ascending."""

    shares: list[float] = Field(default=[])
    """Share of the endpoints for each size, the smallest first; none: equal ones."""

    spill: bool = False
    """Whether a prompt may also use the endpoints of larger sizes: short ones then have some that long ones
    never fill, and none stand idle for want of long ones."""

    label: str | None = None
    """Instead of the two: the label that holds the most prompt tokens an endpoint serves. One without it
    serves any size."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if sorted(set(self.bounds)) != self.bounds or self.bounds[0] < 1:
            raise ValueError("`bounds` must be positive and ascending")
        if self.shares and (len(self.shares) != len(self.bounds) + 1 or min(self.shares) <= 0):
            raise ValueError(f"`shares` must be {len(self.bounds) + 1} positive numbers, one for each size")
        return self


class SizePools:
    """Keeps short prompts from waiting behind long ones by giving each size its own endpoints.

    The endpoints, sorted by id, are divided in the proportion of `shares`, each size getting at least one as
    long as there are enough; with fewer endpoints than sizes the larger sizes share. Whoever joins or
    leaves may move the borders by one. With `label` they are where the operator puts them.
    """

    def __init__(self, params: SizePoolsParams) -> None:
        self._bounds, self._label, self._spill = params.bounds, params.label, params.spill
        self._shares = params.shares or [1.0] * (len(params.bounds) + 1)

    def filter(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[Endpoint]:
        """The candidates of the request's size."""
        if self._label is not None:
            return _by_label(self._label, request.prompt_tokens, candidates, self._spill)
        size = bisect_left(self._bounds, request.prompt_tokens)
        ordered = sorted(candidates, key=lambda e: e.id)
        first, end = self._borders(len(ordered), size)
        return ordered[first:] if self._spill else ordered[first:end]

    def _borders(self, n: int, size: int) -> tuple[int, int]:
        """Where in `n` endpoints those of `size` begin and end."""
        sizes = min(len(self._shares), n)
        shares = [*self._shares[: sizes - 1], sum(self._shares[sizes - 1 :])]
        total, below, borders = sum(shares), 0.0, [0]
        for i, share in enumerate(shares):
            below += share
            left = sizes - 1 - i
            borders.append(min(max(round(n * below / total), borders[-1] + 1), n - left))
        at = min(size, sizes - 1)
        return borders[at], borders[at + 1]


def _by_label(label: str, tokens: int, candidates: Sequence[Endpoint], spill: bool) -> Sequence[Endpoint]:
    """Those with the least bound that is not below `tokens`, or with `spill` any such; the largest bound
    where all are below."""
    bounds = [_bound(e.labels.get(label)) for e in candidates]
    enough = [b for b in bounds if b >= tokens]
    bound = min(enough) if enough else max(bounds)
    return [e for e, b in zip(candidates, bounds, strict=True) if b == bound or (spill and b > bound)]


def _bound(text: str | None) -> float:
    return float(text) if text is not None and text.isdigit() else inf
