"""The fleet report: right figures, escaped names, nothing from elsewhere, and how a browser shows it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import pytest
from playwright.async_api import Page, async_playwright
from pyspark.sql import SparkSession

from iotsphere.drivers.spark.jobs import Run
from iotsphere.drivers.spark.jobs.report import JOB
from iotsphere.drivers.spark.report.facts import STEPS_S, Facts, alerts_of, step_of
from iotsphere.drivers.spark.report.figures import flow, metric, short, sparkline, told_time
from iotsphere.drivers.spark.report.page import UNITS, page, span
from tests.support.readings import Plan, make

from .lakes import frame

SINCE = datetime(2026, 3, 1, tzinfo=UTC)
BUCKETS = [int(SINCE.timestamp()) + 900 * number for number in range(4)]
HOSTILE = '"><img src=x onerror=alert(1)>$\\frac$'
CHROMIUM = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def device(name: str) -> dict[str, Any]:
    counts = dict.fromkeys(BUCKETS, 5)
    return {
        "domain": "iotsphere", "device_id": name, "readings": 20, "metrics": 1, "last": SINCE + timedelta(minutes=50),
        "quiet_s": 600.0, "flow": counts,
    }  # fmt: skip


def facts(name: str = "meter-1") -> Facts:
    finding = {"domain": "iotsphere", "device_id": name, "at": SINCE, "until": None, "count": 3}
    return Facts(
        since=SINCE,
        until=SINCE + timedelta(hours=1) - timedelta(seconds=1),
        step_s=900,
        totals={"readings": 40, "messages": 20, "devices": 2, "metrics": 1, "flagged": 4, "domains": 1},
        flow=[{"bucket": bucket, "readings": 10, "flagged": 1, "devices": 2} for bucket in BUCKETS],
        noisy=[device(name)],
        silent=[device(name)],
        metrics=[
            {"metric": name, "unit": name, "readings": 9, "devices": 2, "band": dict.fromkeys(BUCKETS, (1.0, 2.0, 3.0))}
        ],
        found=[{"kind": "gap", "findings": 1, "count": 3, "devices": 1}, {"kind": name, "findings": 1, "count": 1, "devices": 0}],
        examples=[
            {**finding, "kind": "gap", "metric": name, "value": 2_520.0, "detail": ""},
            {**finding, "kind": "unit_change", "metric": None, "value": None, "detail": name},
        ],
        alerts=[
            {**finding, "metric": name, "kind": "level", "raised_at": SINCE, "value": 61.5, "median": 20.5, "over": False}
        ],
        open_alerts=1_234,
    )  # fmt: skip


class Elements(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def test_names_of_devices_and_metrics_are_text_and_nothing_else() -> None:
    hostile, tame = (Elements(page(facts(name), SINCE, name)) for name in (HOSTILE, "meter-1"))
    assert [tag for tag, _ in hostile.found] == [tag for tag, _ in tame.found]
    assert not any(name.startswith("on") for _, attributes in hostile.found for name in attributes)
    assert hostile.words.count(HOSTILE) == tame.words.count("meter-1") >= 8


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    text = page(facts(), SINCE)
    elements = Elements(text)
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(tag for tag, _ in elements.found)
    for _, attributes in elements.found:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert "@import" not in text
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {f"#{name}" for name in re.findall(r'id="([^"]+)"', text)}
    policy = next(a["content"] for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    names = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(names) == len(set(names)), "two pictures share a name"


def test_pictures_are_drawn_in_the_colours_of_the_page() -> None:
    for picture in (flow(facts()), metric(facts().metrics[0], facts()), sparkline(dict.fromkeys(BUCKETS, 2), facts())):
        drawing = ET.fromstring(picture.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1))
        assert drawing.get("role") == "img"
        assert drawing.get("aria-label")
        assert not re.search(r"#0[1-6]0[1-6]0[1-6]\b", picture)
    assert "var(--accent)" in flow(facts())
    assert sparkline({}, facts()).count("<rect") == 0
    assert sparkline(dict.fromkeys(BUCKETS, 2), facts()).count("<rect") == 4


def test_figures_say_what_the_facts_say() -> None:
    words = Elements(page(facts(), SINCE + timedelta(days=1))).words
    for told in (
        "Fleet report",
        "2026-03-01 00:00 to 2026-03-01 00:59, UTC",
        "10.0%",
        "2,520 s",
        "10 min",
        "61.5",
        "1,234",
        "The newest; 1,233 more are open.",
        "Each bar is 15 min.",
        "Median over the fleet in each 15 min; the band holds nine of ten values.",
    ):
        assert told in words, told
    assert "No reading was received in this range." in Elements(page(None, SINCE)).words
    calm = replace(facts(), alerts=(), open_alerts=0, found=(), examples=())
    quiet = Elements(page(calm, SINCE)).words
    assert {"No metric left its usual range.", "Nothing is wrong with these readings."} <= set(quiet)
    for found in (words, quiet):
        where = found.index("iotsphere dead-letters list")
        assert found[where - 1] == "Messages that the gateway refused are not in the log, and not counted here:"


def test_units_have_the_names_that_the_console_gives_them() -> None:
    source = (Path(__file__).parents[3] / "gateways/http/console/core/format.js").read_text(encoding="utf-8")
    table = re.search(r"const UNITS = \{(.*?)\};", source, re.DOTALL)
    assert table is not None
    names = re.findall(r'"?([^\s",:]+)"?: "([^"]+)"', table[1])
    assert dict(names) == UNITS == {"Cel": "°C", "[degF]": "°F"}
    for unit, told in (("Cel", "°C"), ("hPa", "hPa"), (None, "")):
        (row,) = facts().metrics
        assert (
            f"{told} · 2 devices".strip()
            in Elements(page(replace(facts(), metrics=[{**row, "unit": unit}]), SINCE)).words
        )


def test_a_value_beyond_all_reason_spoils_no_picture() -> None:
    band = {BUCKETS[0]: (-1.7e308, 0.0, 1e308), BUCKETS[1]: (1.0, 2.0, 3.0)}
    shown = metric({"metric": "m", "unit": None, "readings": 2, "devices": 1, "band": band}, facts())
    assert shown.startswith("<svg")
    assert "m over time" in shown


def test_numbers_and_times_are_short() -> None:
    assert [short(value) for value in (0, 950, 2_500, 12_000, 3_400_000, 21.55, -1e100)] == [
        "0", "950", "2,500", "12k", "3.4M", "21.55", "-1e+100",
    ]  # fmt: skip
    assert [span(seconds) for seconds in (0, 59.9, 61, 7_200, 200_000)] == [
        "0 s", "59 s", "1 min 1 s", "2 h", "2 d 7 h",
    ]  # fmt: skip
    assert [step_of(seconds) for seconds in (0, 96, 97, 86_400, 1e9)] == [1, 1, 5, 900, 10_416_667]
    assert told_time(1_772_323_200, 3_600) == "Mar 1"
    assert (told_time(1_772_326_800, 3_600), told_time(1_772_323_205, 5)) == ("01:00", "00:00:05")
    assert list(STEPS_S) == sorted(STEPS_S)


@pytest.mark.timeout(600)
def test_all_open_alerts_are_counted_and_the_newest_listed(spark: SparkSession) -> None:
    raised = [(f"d{number:02}", SINCE + timedelta(minutes=number), "raised", 9.0) for number in range(40)]
    cleared = [(f"d{number:02}", SINCE + timedelta(minutes=number), "cleared", 1.0) for number in range(10)]
    columns = "device_id string, raised_at timestamp, change string, value double"
    told = spark.createDataFrame([*raised, *cleared], columns).selectExpr(
        "*", "'d' AS domain", "'t' AS metric", "'level' AS kind", "1.0D AS median"
    )
    listed, open_alerts = alerts_of(told)
    assert open_alerts == 30
    assert [alert["device_id"] for alert in listed] == [f"d{number}" for number in range(39, 24, -1)]
    assert {(alert["over"], alert["value"]) for alert in listed} == {(False, 9.0)}
    assert alerts_of(told.where("false")) == ([], 0)


@pytest.mark.timeout(600)
def test_a_report_of_readings_says_what_duckdb_counts(spark: SparkSession, tmp_path: Path) -> None:
    fleet = make(Plan(readings=6_000, devices=12, metrics=("temperature", "online"), seed=8))
    options = {option.name: option.default for option in JOB.options} | {"title": "Plant <1>"}
    run = Run(options, "app", False, tmp_path / "report", database="")
    rows = frame(spark, fleet, tmp_path / "log")
    assert JOB.write(JOB.transform(rows, run), run, 0) == {"readings": len(fleet.rows), "pages": 1}
    words = Elements((tmp_path / "report" / "index.html").read_text(encoding="utf-8")).words
    assert words.count("Plant <1>") == 2
    with duckdb.connect() as connection:
        connection.register("rows", fleet.rows)
        talkative = connection.execute(
            "SELECT device_id, count(*) FROM rows GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 8"
        ).fetchall()
        silent = connection.execute(
            "SELECT device_id FROM rows GROUP BY 1 ORDER BY max(received_time), 1 LIMIT 8"
        ).fetchall()
    start = words.index("Most talkative devices")
    told = [(word, words[start + index + 1]) for index, word in enumerate(words[start:]) if word.startswith("meter-")]
    assert [name for name, _ in told[:8]] == [name for name, _ in talkative]
    assert words[words.index(told[0][0], start) + 1 :][:3].count(short(talkative[0][1])) >= 1
    assert [name for name, _ in told[8:16]] == [name for (name,) in silent]
    assert {"Silent for longer than usual", "Messages that came more than once", "Times that are not believed"} <= set(
        words
    )


@asynccontextmanager
async def opened(url: str, told: list[str]) -> AsyncIterator[Page]:
    """A page in a browser as wide as a phone. ``told``: takes what it says and asks for."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=list(CHROMIUM), timeout=120_000
        )
        tab = await browser.new_page(viewport={"width": 390, "height": 800})
        tab.set_default_timeout(120_000)
        tab.on("console", lambda message: told.append(message.text))
        tab.on("request", lambda request: told.append(request.url))
        await tab.goto(url)
        yield tab
        await browser.close()


async def test_a_browser_shows_it_without_a_complaint_or_a_request(tmp_path: Path) -> None:
    path, told = tmp_path / "index.html", list[str]()
    path.write_text(page(facts(HOSTILE), SINCE), encoding="utf-8")
    async with opened(path.as_uri(), told) as tab:
        assert told == [path.as_uri()]
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert await tab.locator("svg[role=img]").count() == 4


async def test_what_stands_in_pictures_can_be_read_on_a_phone_and_names_are_in_one_line(tmp_path: Path) -> None:
    shown = replace(facts("weather-seattle-1"), silent=[device("weather-seattle-1")] * 2)
    letters = """texts => texts.map((text) => text.getScreenCTM().a * parseFloat(getComputedStyle(text).fontSize))"""
    path = tmp_path / "index.html"
    path.write_text(page(shown, SINCE), encoding="utf-8")
    async with opened(path.as_uri(), []) as tab:
        heights = await tab.locator("svg text").evaluate_all(letters)
        assert len(heights) > 10
        assert min(heights) >= 10
        for width in (390, 768, 1200):
            await tab.set_viewport_size({"width": width, "height": 800})
            names = await tab.locator("td .name", has_text="weather-seattle-1").evaluate_all(
                "names => names.map((name) => name.offsetHeight / parseFloat(getComputedStyle(name).lineHeight))"
            )
            assert len(names) >= 5
            assert max(names) < 1.5, width
        tables = tab.locator(".pair .scroll")
        assert await tables.count() == 2
        assert await tables.evaluate_all("all => all.every((one) => one.scrollWidth <= one.clientWidth)")
