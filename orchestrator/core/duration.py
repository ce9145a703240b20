"""Durations as a configuration writes them: numbers with units, such as `40ms` or `1h30m`."""

from __future__ import annotations

import re
from decimal import Decimal

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$"

_UNIT_S = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}


def parse_duration(value: object) -> float:
    """`1.5s`, `40ms`, `2.9ns`, `1h30m` as seconds, rounded once. Raises ValueError."""
    if not isinstance(value, str) or not re.fullmatch(DURATION_PATTERN, value):
        raise ValueError(f"{value!r} is not a duration; write a number with its unit, such as 40ms or 1.5s")
    parts = re.findall(r"([0-9.]+)(ns|us|ms|s|m|h)", value)
    return float(sum(Decimal(number) * _UNIT_S[unit] for number, unit in parts))


def show_duration(seconds: float) -> str:
    """Seconds as a configuration would write them, in the one unit that reads best: `250ms`, `1.5s`."""
    if seconds == 0:
        return "0s"
    if seconds < 1:
        small = next(unit for unit in ("ms", "us", "ns") if unit == "ns" or seconds >= float(_UNIT_S[unit]))
        return f"{seconds / float(_UNIT_S[small]):.6g}{small}"
    large = next(unit for unit in ("h", "m", "s") if seconds % float(_UNIT_S[unit]) == 0 or unit == "s")
    return f"{seconds / float(_UNIT_S[large]):.6g}{large}"
