"""Plots as SVG text: lines over an axis, and bars; no scripts, readable in light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
"""Okabe and Ito's palette, which people who see colours differently can tell apart."""

WIDTH, HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 12, 44


@dataclass(frozen=True, slots=True)
class Line:
    """A named line through points (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows. `log`: equal ratios are equal distances. `form` writes a value."""

    title: str
    low: float
    high: float
    log: bool = False
    form: Callable[[float], str] = "{:g}".format

    def place(self, value: float) -> float:
        """Where `value` is between `low` (0) and `high` (1)."""
        if self.log:
            value, low, high = (math.log(max(v, 1e-9)) for v in (value, self.low, self.high))
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5

    def ticks(self) -> list[float]:
        """Round values, about six of them."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 3) if last - first <= 3 else (1,)
            every = [m * 10.0**e for e in range(first, last + 1) for m in steps]
        else:
            rough = (self.high - self.low) / 5 or 1.0
            unit = 10 ** math.floor(math.log10(rough))
            step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= rough * 0.999)
            every = [
                step * i for i in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1)
            ]
        return [t for t in every if self.low * 0.999 <= t <= self.high * 1.001]


def colour(index: int) -> str:
    """The colour of the line of that number."""
    return COLOURS[index % len(COLOURS)]


def plot(title: str, lines: Sequence[Line], x: Axis, y: Axis, marks: Sequence[float] = ()) -> str:
    """Lines in their order's colours; `marks` are values of y to draw a dashed line at."""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for tick in x.ticks():
        at = _x(x, tick)
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
        parts.append(_text(at, HEIGHT - _BOTTOM + 16, x.form(tick), "middle"))
    for tick in y.ticks():
        at = _y(y, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(_text(_LEFT - 6, at + 4, y.form(tick), "end"))
    for mark in marks:
        at = _y(y, mark)
        parts.append(f'<line class="mark" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
    for index, line in enumerate(lines):
        where = " ".join(f"{_x(x, a)},{_y(y, b)}" for a, b in line.points)
        tip = f"<title>{escape(line.name)}</title>"
        parts.append(f'<polyline class="line" stroke="{colour(index)}" points="{where}">{tip}</polyline>')
        if len(line.points) <= 20:
            for a, b in line.points:
                tip = f"<title>{escape(f'{line.name}: {x.form(a)}, {y.form(b)}')}</title>"
                parts.append(
                    f'<circle cx="{_x(x, a)}" cy="{_y(y, b)}" r="3" fill="{colour(index)}">{tip}</circle>'
                )
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, x.title, "middle"))
    parts.append(
        f'<text transform="translate(14 {(_TOP + HEIGHT - _BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.title)}</text></svg>"
    )
    return "".join(parts)


def bar(share: float, index: int, label: str) -> str:
    """A bar from 0 to 1, as wide as its cell."""
    width = round(100 * min(1.0, max(0.0, share)), 1)
    said = escape(label)
    return (
        f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{said}">'
        f'<title>{said}</title><rect class="back" width="100" height="10"/>'
        f'<rect width="{width}" height="10" fill="{colour(index)}"/></svg>'
    )


def _x(axis: Axis, value: float) -> float:
    return round(_LEFT + axis.place(value) * (WIDTH - _LEFT - _RIGHT), 1)


def _y(axis: Axis, value: float) -> float:
    return round(HEIGHT - _BOTTOM - axis.place(value) * (HEIGHT - _TOP - _BOTTOM), 1)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{round(x, 1)}" y="{round(y, 1)}" text-anchor="{anchor}">{escape(text)}</text>'
