"""How much an endpoint that has just become ready is given at once, until it has shown what it takes."""

from __future__ import annotations

RAMP_FROM = 32
"""Requests at once in its first second: a batch that any engine starts with."""

RAMP_S = 10.0
"""After so many seconds there is no bound: doubling each second it would be 32,768 by then."""


def allowance(ready_for_s: float, *, tried: bool = True) -> int | None:
    """The most requests that an endpoint may have which has been ready for `ready_for_s`; None: any number.

    `tried`: it is not being tried after failures; else one, whose end decides.
    """
    if not tried:
        return 1
    if ready_for_s >= RAMP_S:
        return None
    return int(RAMP_FROM * 2 ** max(0.0, ready_for_s))
