"""Figures of the fleet report as SVG whose colours are those of the page, so that they follow light, dark and print."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Final, ParamSpec

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .facts import Facts

P = ParamSpec("P")
# Farther out nobody sees more, and Matplotlib cannot count the ticks of an axis.
FARTHEST: Final = 1e100
DAY_S: Final = 86_400
TICKS_S: Final = (1, 5, 15, 60, 300, 900, 1_800, 3_600, 3 * 3_600, 6 * 3_600, 12 * 3_600, DAY_S, 2 * DAY_S, 7 * DAY_S)
# Colours that are drawn, and the variables of the page's style that take their place.
INKS: Final[Mapping[str, str]] = {
    "#010101": "--ink", "#020202": "--quiet", "#030303": "--line", "#040404": "--accent", "#050505": "--warn",
    "#060606": "--band",
}  # fmt: skip
INK, QUIET, LINE, ACCENT, WARN, BAND = INKS
SETTINGS: Final[Any] = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, "text.color": INK, "axes.edgecolor": LINE,
    "axes.labelcolor": QUIET, "xtick.color": LINE, "ytick.color": LINE, "xtick.labelcolor": QUIET,
    "ytick.labelcolor": QUIET, "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": LINE, "grid.linewidth": 0.6, "text.parse_math": False,
    "ytick.major.size": 0, "xtick.major.size": 3, "axes.axisbelow": True,
}  # fmt: skip
NO_METADATA: Final = {"Creator": None, "Date": None, "Format": None, "Type": None}


def styled(draw: Callable[P, str]) -> Callable[P, str]:
    """Draw with the settings of this module, whatever those of the process are."""

    @wraps(draw)
    def drawing(*args: P.args, **kwargs: P.kwargs) -> str:
        with mpl.rc_context(SETTINGS):
            return draw(*args, **kwargs)

    return drawing


@styled
def flow(facts: Facts) -> str:
    """Readings per bucket over time, those with a remark below, as one figure."""
    figure = _figure(9.6, 2.4)
    axes = figure.subplots()
    times = [_time(row["bucket"]) for row in facts.flow]
    width = facts.step_s / DAY_S * 0.86
    axes.bar(times, [row["readings"] for row in facts.flow], width, align="edge", color=ACCENT, label="readings")
    axes.bar(times, [row["flagged"] for row in facts.flow], width, align="edge", color=WARN, label="with a remark")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.16), ncols=2, frameon=False, handlelength=0.9, borderpad=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    _dates(axes, facts)
    return drawn(figure, "Readings over time")


@styled
def metric(row: Mapping[str, Any], facts: Facts) -> str:
    """The median of a metric over the fleet, with a band from its 5th to its 95th percentile."""
    figure = _figure(3.1, 1.25)
    axes = figure.subplots()
    buckets = sorted(row["band"])
    times = [_time(bucket) for bucket in buckets]
    bands = ([min(max(end, -FARTHEST), FARTHEST) for end in row["band"][bucket]] for bucket in buckets)
    low, middle, high = zip(*bands, strict=True)
    axes.fill_between(times, low, high, color=BAND, linewidth=0)
    axes.plot(times, middle, color=ACCENT, linewidth=1.4, solid_capstyle="round")
    if len(times) == 1:
        axes.plot(times, middle, "o", color=ACCENT, markersize=3)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    _dates(axes, facts, most=3)
    return drawn(figure, f"{row['metric']} over time")


def sparkline(counts: Mapping[int, int], facts: Facts) -> str:
    """A small bar for each bucket of time."""
    first = int(facts.since.timestamp()) // facts.step_s * facts.step_s
    last = int(facts.until.timestamp()) // facts.step_s * facts.step_s
    places = range(first, last + 1, facts.step_s)
    top = max(counts.values(), default=1)
    width = 120 / len(places)
    bars = "".join(
        f'<rect x="{index * width:.1f}" y="{20 - height:.1f}" width="{max(width * 0.8, 0.5):.1f}" height="{height:.1f}"/>'
        for index, place in enumerate(places)
        if (height := counts.get(place, 0) / top * 20)
    )
    return f'<svg class="spark" viewBox="0 0 120 20" role="img" aria-label="readings over time">{bars}</svg>'


def drawn(figure: Figure, title: str) -> str:
    """A figure as an SVG element for a page: its colours are variables, and its names are not those of another."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": title}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=NO_METADATA)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    head, _, rest = text.partition(">")
    size = re.search(r'viewBox="([^"]+)"', head)
    assert size is not None, "Matplotlib states the size of what it draws"
    for ink, variable in INKS.items():
        rest = rest.replace(ink, f"var({variable})")
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    prefix = re.sub(r"\W+", "-", title)
    rest = re.sub(r'\bid="', f'id="{prefix}-', rest)
    rest = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", rest)
    # The page says which font; a style inside a picture would hold for the whole page.
    rest = re.sub(r"font: [^;\"]+;?", "", rest)
    rest = re.sub(r"<style.*?</style>", "", rest, flags=re.DOTALL)
    head = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{size[1]}" role="img" aria-label="{label}">'
    return head + rest.strip()


def short(value: float) -> str:
    """A number as a person says it: 950, 2,500, 12k, 3.4M; 1e+20 beyond all that has a name."""
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(limit, 1e4):
            return f"{value / limit:.3g}{letter}"
    return f"{value:,.5g}"


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def _dates(axes: Axes, facts: Facts, most: int = 8) -> None:
    """A few round times below the axis, in UTC."""
    first, last = facts.since.timestamp(), facts.until.timestamp() + facts.step_s
    step = next(
        (step for step in TICKS_S if (last - first) / step <= most), -(-int(last - first) // (most * DAY_S)) * DAY_S
    )
    places = range(-(-int(first) // step) * step, int(last) + 1, step)
    axes.set_xticks([_time(place) for place in places], [told_time(place, step) for place in places])
    axes.set_xlim(first / DAY_S, last / DAY_S)
    axes.margins(y=0.08)


def told_time(second: int, step: int) -> str:
    """A time below an axis: the day where one begins, else the hour; seconds only where they differ."""
    time = datetime.fromtimestamp(second, UTC)
    if second % DAY_S == 0:
        return f"{time:%b} {time.day}"
    return f"{time:%H:%M:%S}" if step < 60 else f"{time:%H:%M}"


def _time(bucket: int) -> float:
    """As Matplotlib counts: days since 1970."""
    return bucket / DAY_S
