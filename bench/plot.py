"""Small line charts as SVG, several side by side, legible on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 270, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 28, 36
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#444}.title{font-weight:600;fill:#222}"
    ".axis{stroke:#999;fill:none}.grid{stroke:#ddd}.line{stroke:#0b6bcb;stroke-width:2;fill:none}.dot{fill:#0b6bcb}"
    "@media(prefers-color-scheme:dark){text{fill:#bbb}.title{fill:#eee}.axis{stroke:#777}.grid{stroke:#333}"
    ".line{stroke:#6db3f8}.dot{fill:#6db3f8}}"
)


@dataclass(frozen=True, slots=True)
class Chart:
    """``points``: (x, y), x ascending; x is drawn by the logarithm where its values span more than a factor of 20."""

    title: str
    label: str
    points: tuple[tuple[float, float], ...]


def svg(charts: Sequence[Chart], description: str, columns: int = 3) -> str:
    """One picture of all charts; their y axes are the same and begin at 0, so that flat looks flat."""
    top = nice(max((y for chart in charts for _, y in chart.points), default=1))
    rows = math.ceil(len(charts) / columns)
    width, height = WIDTH * min(columns, len(charts)), HEIGHT * rows
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(description)}</title><desc>{escape(in_words(charts))}</desc><style>{STYLE}</style>",
    ]
    for number, chart in enumerate(charts):
        x, y = number % columns * WIDTH, number // columns * HEIGHT
        parts.append(f'<g transform="translate({x} {y})">{_chart(chart, top)}</g>')
    return "\n".join([*parts, "</svg>", ""])


def in_words(charts: Sequence[Chart]) -> str:
    """The first and the last point of each chart, for who cannot see it."""
    ends = [(chart.title, chart.points[0], chart.points[-1]) for chart in charts if chart.points]
    return "; ".join(
        f"{title}: {_said(y)} at {x:,.0f}, {_said(last_y)} at {last_x:,.0f}" for title, (x, y), (last_x, last_y) in ends
    )


def _said(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:.1f}"


def _chart(chart: Chart, top: float) -> str:
    places = _places([x for x, _ in chart.points])
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT

    def height(value: float) -> float:
        return bottom - value / top * (bottom - TOP)

    parts = [f'<text class="title" x="{LEFT}" y="16">{escape(chart.title)}</text>']
    for step in (0.0, 0.5, 1.0):
        y = height(step * top)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{brief(step * top)}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
    dots = [(place, height(y)) for place, (_, y) in zip(places, chart.points, strict=True)]
    parts.append(f'<path class="line" d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in dots)}"/>')
    free = -math.inf
    for (x, y), (value, _) in zip(dots, chart.points, strict=True):
        parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        if x - free >= 30:  # a label that fits beside the one before
            parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{brief(value)}</text>')
            free = x
    middle = (LEFT + right) / 2
    parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - 5}" text-anchor="middle">{escape(chart.label)}</text>')
    return "".join(parts)


def _places(values: Sequence[float]) -> list[float]:
    positive = [value for value in values if value > 0]
    zero = min(positive, default=1) / 10  # the place of 0 where the logarithm has none
    wide = bool(positive) and max(positive) > 20 * max(1.0, min(values))
    scaled = [math.log10(value or zero) if wide else value for value in values]
    low, span = min(scaled, default=0), (max(scaled, default=1) - min(scaled, default=0)) or 1
    return [LEFT + 14 + (value - low) / span * (WIDTH - RIGHT - LEFT - 28) for value in scaled]


def nice(value: float) -> float:
    """The next round number, at which an axis may end."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value)


def brief(value: float) -> str:
    """A number for an axis: 20k, 1.5M."""
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"
