"""The fleet report as one HTML page: no script, nothing from elsewhere, and every name escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from html import escape
from importlib import resources
from typing import Any, Final

from . import figures
from .facts import Facts
from .figures import short

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
# What a kind of finding means to the one who reads of it, and what its value is.
KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "gap": ("Silent for longer than usual", "{value:,.0f} s"),
    "hole": ("Offsets of the log without a reading", ""),
    "duplicate": ("Messages that came more than once", "{value:,.0f} messages"),
    "late": ("Messages that came late", "{value:.1%} of its messages"),
    "clock_untrusted": ("Times that are not believed", "{value:.1%} of its messages"),
    "clock_skew": ("A clock that is wrong", "{value:+,.0f} ms"),
    "delayed": ("Messages that wait in the device", "{value:,.0f} ms"),
    "clock_drift": ("A clock that runs fast or slow", "{value:+,.0f} ppm"),
    "out_of_range": ("Values out of range", "as far as {value:,.6g}"),
    "type_change": ("A metric changed its type", ""),
    "unit_change": ("A metric changed its unit", ""),
    "new_metric": ("A metric that is new", ""),
}
# Units (UCUM) as they are usually written: the names that the console has.
UNITS: Final = {"Cel": "°C", "[degF]": "°F"}
REFUSED: Final = (
    "<p>Messages that the gateway refused are not in the log, and not counted here: "
    "<code>iotsphere dead-letters list</code> shows them.</p>\n"
)
ALERTS: Final = {"level": "out of its usual range", "jump": "jumped", "stuck": "stands still"}


def page(facts: Facts | None, made_at: datetime, title: str = "Fleet report") -> str:
    """The whole page. ``made_at``: in UTC. None for the facts says that there was nothing to report."""
    body = "".join(_body(facts, made_at, title))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style()}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def _body(facts: Facts | None, made_at: datetime, title: str) -> Iterable[str]:
    if facts is None:
        yield f"<header><h1>{escape(title)}</h1><p>made {_time(made_at)}</p></header>\n"
        yield '<p class="nothing">No reading was received in this range.</p>\n'
        return
    yield f"<header><h1>{escape(title)}</h1><p>{_time(facts.since)} to {_time(facts.until)}, UTC</p></header>\n"
    yield _tiles(facts)
    yield f"<h2>Readings over time</h2>\n<p>Each bar is {span(facts.step_s)}.</p>\n"
    yield f'<figure class="card broad" tabindex="0">{figures.flow(facts)}</figure>\n'
    yield _alerts(facts)
    yield '<div class="pair"><section><h2>Most talkative devices</h2>\n'
    yield _table(("Device", "Readings", "Share", "Over time"), map(_noisy(facts), facts.noisy), numbers=(1, 2))
    yield "</section><section><h2>Silent for longest</h2>\n"
    yield _table(("Device", "Last heard", "Silent for", "Over time"), map(_silent(facts), facts.silent), numbers=(2,))
    yield "</section></div>\n"
    yield _metrics(facts)
    yield _quality(facts)
    yield f"<footer>Made {_time(made_at)} UTC. Times of readings are those of their reception.</footer>\n"


def _tiles(facts: Facts) -> str:
    totals = facts.totals
    share = totals["flagged"] / totals["readings"]
    tiles = (
        (f"{totals['devices']:,}", "devices", ""),
        (short(totals["readings"]), "readings", ""),
        (short(totals["messages"]), "messages", ""),
        (f"{totals['metrics']:,}", "metrics", ""),
        (f"{share:.1%}", "of readings with a remark", "warn" if share > 0.01 else ""),
        (f"{facts.open_alerts:,}", "alerts open", "bad" if facts.open_alerts else "good"),
    )
    inner = "".join(
        f'<div class="card tile {kind}"><b>{value}</b><span>{name}</span></div>' for value, name, kind in tiles
    )
    return f'<div class="tiles">{inner}</div>\n'


def _alerts(facts: Facts) -> str:
    rows = (
        (
            '<span class="mark over">over</span>' if alert["over"] else '<span class="mark open">open</span>',
            _name(alert["device_id"], alert["domain"], facts),
            f'<span class="name">{escape(str(alert["metric"]))}</span>',
            escape(ALERTS.get(alert["kind"], alert["kind"].replace("_", " "))),
            _value(alert["value"]),
            _value(alert["median"]),
            f'<span class="time">{_time(alert["raised_at"])}</span>',
        )
        for alert in facts.alerts
    )
    heads = ("", "Device", "Metric", "What", "Value", "Usual", "Since")
    more = facts.open_alerts - sum(not alert["over"] for alert in facts.alerts)
    about = f"<p>The newest; {more:,} more are open.</p>" if more else ""
    return f"<h2>Alerts</h2>\n{about}" + _table(heads, rows, numbers=(4, 5), nothing="No metric left its usual range.")


def _metrics(facts: Facts) -> str:
    cards = "".join(
        f'<figure class="card"><h3>{escape(str(row["metric"]))} '
        f"<small>{_unit(row['unit'])} · {row['devices']:,} device{'s' * (row['devices'] != 1)}</small></h3>"
        f"{figures.metric(row, facts)}</figure>"
        for row in facts.metrics
    )
    about = f"<p>Median over the fleet in each {span(facts.step_s)}; the band holds nine of ten values.</p>"
    return f'<h2>Metrics</h2>\n{about}<div class="metrics">{cards}</div>\n' if cards else ""


def _quality(facts: Facts) -> str:
    kinds = (
        (
            escape(KINDS.get(row["kind"], (row["kind"], ""))[0]),
            f"{row['findings']:,}",
            f"{row['count']:,}",
            f"{row['devices']:,}" if row["devices"] else "",
        )
        for row in facts.found
    )
    examples = (
        (
            escape(KINDS.get(row["kind"], (row["kind"], ""))[0]),
            _name(row["device_id"], row["domain"], facts) if row["device_id"] else "",
            f'<span class="name">{escape(str(row["metric"] or ""))}</span>',
            f"{row['count']:,}",
            escape(_measure(row)),
            f'<span class="time">{_time(row["at"]) if row["at"] else ""}</span>',
        )
        for row in facts.examples
    )
    head = f"<h2>Quality</h2>\n{REFUSED}"
    if not facts.found:
        return f'{head}<div class="card"><p class="nothing">Nothing is wrong with these readings.</p></div>\n'
    summary = _table(("Kind", "Findings", "Readings or messages", "Devices"), kinds, numbers=(1, 2, 3))
    heaviest = _table(("Kind", "Device", "Metric", "Count", "", "From"), examples, numbers=(3,))
    return f"{head}{summary}<h2>Heaviest of each kind</h2>\n{heaviest}"


def _measure(row: Mapping[str, Any]) -> str:
    form = KINDS.get(row["kind"], ("", ""))[1]
    if form and row["value"] is not None:
        return form.format(value=row["value"])
    return str(row["detail"])


def _noisy(facts: Facts) -> Any:
    def row(device: Mapping[str, Any]) -> Sequence[str]:
        share = device["readings"] / facts.totals["readings"]
        name = _name(device["device_id"], device["domain"], facts)
        return name, short(device["readings"]), f"{share:.1%}", figures.sparkline(device["flow"], facts)

    return row


def _silent(facts: Facts) -> Any:
    def row(device: Mapping[str, Any]) -> Sequence[str]:
        last = f'<span class="time">{_time(device["last"])}</span>'
        name = _name(device["device_id"], device["domain"], facts)
        return name, last, span(device["quiet_s"]), figures.sparkline(device["flow"], facts)

    return row


def _table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), nothing: str = "Nothing."
) -> str:
    """A table of cells that are HTML already."""
    kinds = ['class="number"' if index in numbers else "" for index in range(len(heads))]
    body = "".join(
        "<tr>" + "".join(f"<td {kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    if not body:
        return f'<div class="card"><p class="nothing">{nothing}</p></div>\n'
    head = "".join(f"<th {kind}>{escape(text)}</th>" for kind, text in zip(kinds, heads, strict=True))
    return f'<div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\n'


def _name(device: str, domain: str, facts: Facts) -> str:
    text = device if facts.totals["domains"] == 1 else f"{domain}/{device}"
    return f'<span class="name">{escape(text)}</span>'


def _unit(code: str | None) -> str:
    return escape(UNITS.get(code, code)) if code else ""


def _value(value: float | None) -> str:
    return "" if value is None else f"{value:,.6g}"


def _time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"


def span(seconds: float) -> str:
    """A time in the largest two units that are there: 2 d 5 h."""
    rest = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if rest >= size or (unit == "s" and not parts):
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return " ".join(parts[:2])


@cache
def style() -> str:
    """The style sheet, which becomes part of the page."""
    return resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
