"""What is believed of an endpoint before anything was seen: its launch profile's figures, else generic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.core.frozen import frozen
from orchestrator.core.prediction import Curve
from orchestrator.core.types import Endpoint

SPEED_SD, SHAPE_SD = 0.3, 0.25
"""How far an engine is taken to be from its launch profile: in all, and in each coefficient (logarithms)."""

GENERIC_SPEED_SD, GENERIC_SHAPE_SD = 1.0, 0.7
"""The same where there is no profile: small models on large cards and the reverse are 100x apart."""

ABSENT_SD = 1.2
"""Of a coefficient that a profile leaves out or gives as zero, which then starts from the generic one: it may
be several times that, or nearly nothing."""

PREFILL = (0.002, 100e-6, 0.5e-9, 0.012)
"""Generic seconds: fixed, per token, per token squared, floor. An 8B model on one 80 GB card, roughly. The
floor is above the fixed part, or that would explain short prompts and longer ones never fit."""

GENERIC = Curve(PREFILL[1], PREFILL[2], PREFILL[0], PREFILL[3])

EXPOSED = (0.015, 2e-6)
"""Generic seconds of a hand-off: fixed, per token. Connection set-up, a first step, a 100 Gbit/s network."""

STEP = (0.012, 100e-6, 20e-9)
"""Generic seconds of a decode step: base, per sequence, per KV token."""

MOST_S = 1e6
"""A coefficient beyond this is a mistake, and as good as not given."""

_PREFILL = ("fixed_s", "token_s", "token2_s", "floor_s")
_EXPOSED = ("fixed_s", "token_s")
_STEP = ("base_s", "request_s", "token_s")


@frozen(frozen=True, slots=True)
class Belief:
    """Coefficients with the uncertainty of a common factor, and of each alone."""

    coefs: tuple[float, ...]
    speed_sd: float
    shape_sds: tuple[float, ...]


def prefill(endpoint: Endpoint) -> Belief:
    """Of the prefill curve: fixed, per token, per token squared, floor."""
    told = _part(endpoint, "prefill")
    belief = _belief(told, _PREFILL, PREFILL)
    if not _positive(told.get("token_s")):
        return belief
    # What a profile leaves out is measured by what it gives: attention is 1 % of the work at 10,000 tokens.
    coefs = list(belief.coefs)
    if not _positive(told.get("token2_s")):
        coefs[2] = 1e-6 * coefs[1]
    return Belief(tuple(coefs), belief.speed_sd, belief.shape_sds)


def exposed(prefill: Endpoint, decode: Endpoint) -> tuple[Belief, int | None]:
    """Of a pair's hand-off: fixed, per token; and the tokens beyond which it does not grow (None: none)."""
    told = _part(prefill, "exposed") or _part(decode, "exposed")
    cap = told.get("cap_tokens")
    return _belief(told, _EXPOSED, EXPOSED), cap if isinstance(cap, int) and cap > 0 else None


def step(endpoint: Endpoint) -> Belief:
    """Of the decode step: base, per sequence, per KV token."""
    return _belief(_part(endpoint, "step"), _STEP, STEP)


def reference(endpoint: Endpoint) -> Curve | None:
    """The launch profile's own prefill curve, if it has one."""
    told = _part(endpoint, "prefill")
    if not _positive(told.get("token_s")):
        return None
    fixed, token, token2, floor = (told[n] if _positive(told.get(n)) else 0.0 for n in _PREFILL)
    return Curve(token, token2, fixed, floor)


def _part(endpoint: Endpoint, name: str) -> Mapping[str, Any]:
    prior = endpoint.facts.get("prior")
    part = prior.get(name) if isinstance(prior, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < MOST_S


def _belief(told: Mapping[str, Any], names: tuple[str, ...], generic: tuple[float, ...]) -> Belief:
    given = [_positive(told.get(name)) for name in names]
    if not any(given):
        return Belief(generic, GENERIC_SPEED_SD, (GENERIC_SHAPE_SD,) * len(names))
    coefs = tuple(float(told[n]) if g else d for n, g, d in zip(names, given, generic, strict=True))
    return Belief(coefs, SPEED_SD, tuple(SHAPE_SD if g else ABSENT_SD for g in given))
