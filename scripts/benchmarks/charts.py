"""Pictures of results as SVG files: bars with their spread, and curves with a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.figures import Spread, digits
from orchestrator.analysis import svg

STYLE = (
    "<style>svg{background:#fff}text{font:11px system-ui,sans-serif;fill:#333}.grid{stroke:#ddd}"
    ".mark{stroke:#888;stroke-dasharray:4 3}.line{fill:none;stroke-width:2}.whisker{stroke:#333}</style>"
)
NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
WIDTH, NAME_WIDTH, VALUE_WIDTH, ROW = 640, 190, 130, 22


def bars(title: str, rows: Mapping[str, Spread], unit: str) -> str:
    """One bar for each row to its median, a thin line from the least to the most; in the order given."""
    top, room = 30, WIDTH - NAME_WIDTH - VALUE_WIDTH
    most = max((spread.high for spread in rows.values()), default=0.0) or 1.0
    parts = [f'<text x="8" y="18" font-weight="bold">{escape(title)} ({escape(unit)})</text>']
    for index, (name, spread) in enumerate(rows.items()):
        y = top + index * ROW
        low, middle, high = (NAME_WIDTH + room * v / most for v in (spread.low, spread.median, spread.high))
        parts += [
            f'<text x="{NAME_WIDTH - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{NAME_WIDTH}" y="{y + 3}" width="{middle - NAME_WIDTH:.1f}" height="{ROW - 8}" '
            f'fill="{svg.colour(0 if name.startswith("pdctl") else 7)}"/>',
            f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{y + 10}" y2="{y + 10}"/>',
            f'<text x="{high + 6:.1f}" y="{y + 14}">{digits(spread.median)}</text>',
        ]
    return _file(WIDTH, top + len(rows) * ROW + 6, title, parts)


def curves(title: str, lines: Sequence[svg.Line], x: svg.Axis, y: svg.Axis, marks: Sequence[float]) -> str:
    """Lines over an axis with a legend below."""
    drawn = svg.plot(title, lines, x, y, marks).replace("<svg ", f'<svg {NAMESPACE} width="{svg.WIDTH}" ', 1)
    legend = []
    for index, line in enumerate(lines):
        at_x, at_y = 16 + (index % 2) * (svg.WIDTH // 2), svg.HEIGHT + 16 + (index // 2) * 16
        legend.append(
            f'<rect x="{at_x}" y="{at_y - 8}" width="12" height="8" fill="{svg.colour(index)}"/>'
            f'<text x="{at_x + 18}" y="{at_y}">{escape(line.name)}</text>'
        )
    height = svg.HEIGHT + 20 + (len(lines) + 1) // 2 * 16
    return _file(svg.WIDTH, height, title, [drawn, *legend])


def _file(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    head = f'<svg {NAMESPACE} viewBox="0 0 {width} {height}" width="{width}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", STYLE, *parts, "</svg>", ""])
