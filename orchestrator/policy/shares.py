"""How a load becomes a share: the arithmetic that load scorers have in common."""

from __future__ import annotations

from collections.abc import Sequence


def share_of_least(values: Sequence[float], scale: float) -> list[float]:
    """1 for the least of `values`, less by 1/`scale` for each unit above it, never below 0.

    Relative to the least, since a load that all candidates carry alike must not weigh against what
    tells them apart. With it, one unit costs a candidate weight/scale: scorers whose weight/scale are
    equal trade their units one for one. Raises ValueError for a scale that is not positive.
    """
    if scale <= 0:
        raise ValueError(f"a scale is positive, not {scale}")
    least = min(values, default=0.0)
    end = least + scale
    return [1.0 - (value - least) / scale if value < end else 0.0 for value in values]
