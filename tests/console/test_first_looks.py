"""What the console shows at first sight: few points, what was found, what was refused, and where the past begins."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Page, Route, expect

from tests.console.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")
INKED = """() => {
    const canvas = document.querySelector("[data-metric=level] canvas");
    if (!canvas) return 0;
    const [r, g, b] = INK;
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let found = 0;
    for (let i = 0; i < data.length; i += 4)
        if (data[i + 3] > 250 && Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 12) found += 1;
    return found;
}"""


async def say(stage: Stage, device: str, value: float) -> None:
    """Register a device that measures its level once."""
    await stage.gateway.add_devices([device])
    topic = f"iotsphere/devices/{device}/telemetry/level"
    await stage.post("/api/v1/messages", {"topic": topic, "payload": {"value": value}})


async def ink(page: Page) -> str:
    """A function of the page that counts the pixels in the colour of the first series."""
    colour = await page.evaluate(
        """async () => (await import("./console/core/theme.js")).colour("--series-1").match(/\\d+/g).slice(0, 3).map(Number)"""
    )
    return INKED.replace("INK", str(colour))


async def test_a_single_point_is_a_dot_in_its_chart(stage: Stage) -> None:
    await say(stage, "lone-1", 7)
    page = await stage.sign_in("#/devices/lone-1")
    await page.wait_for_selector("[data-metric=level] canvas")
    await page.wait_for_function(f"() => ({await ink(page)})() >= 16")
    await expect(page.locator("[data-presence]")).to_have_text("never connected")  # and registered all the same


async def test_a_device_that_is_not_there_is_no_page_of_one(stage: Stage) -> None:
    page = await stage.sign_in("#/devices/nonesuch")
    card = page.locator("[data-unknown]")
    await expect(card.get_by_role("heading")).to_have_text("No such device")
    await expect(card).to_contain_text("iotsphere device add nonesuch")
    await expect(page.locator(".telemetry")).to_have_count(0)
    await card.get_by_role("link", name="Back to the fleet").click()
    await expect(page.locator("h1")).to_have_text("Fleet")


async def test_nothing_leaves_its_card_or_breaks_inside_a_value_on_a_phone(stage: Stage) -> None:
    await stage.gateway.add_devices(["silent-one-with-a-long-name"])
    page = await stage.sign_in("#/devices/silent-one-with-a-long-name")
    await page.set_viewport_size({"width": 390, "height": 844})
    hint = page.locator(".telemetry .empty")
    await expect(hint).to_contain_text("telemetry/temperature")
    assert await hint.evaluate("card => card.scrollWidth <= card.clientWidth")
    await page.evaluate("() => { location.hash = '#/devices/station-1'; }")
    value = page.locator("[data-key='/unit'] .reported")
    await expect(value).to_have_text('"Cel"')
    for key in ("firmware", "interval", "unit"):
        lines = await page.locator(f"[data-key='/{key}'] .reported").evaluate(
            """cell => {
                const range = document.createRange();
                range.selectNodeContents(cell);
                return new Set([...range.getClientRects()].map((box) => box.top)).size;
            }"""
        )
        assert lines == 1, key
    assert await page.evaluate(
        "document.querySelector('.leaves').scrollWidth <= document.querySelector('.shadow').clientWidth"
    )


async def test_only_points_that_no_line_touches_are_dots_among_many(stage: Stage) -> None:
    page = await stage.sign_in()
    found = await page.evaluate(
        """async () => {
            const { alone } = await import("./console/parts/chart.js");
            const line = Array.from({ length: 100 }, (_, second) => second);
            return [[...line, 500, 900, 901], line, [3]].map((times) => alone(times, 0, times.length - 1));
        }"""
    )
    assert found == [[100], None, [0]]


async def test_a_number_is_told_as_it_is_and_shortly_on_an_axis(stage: Stage) -> None:
    page = await stage.page()
    await page.goto(stage.gateway.http)
    told = await page.evaluate(
        """async () => {
            const { many, number, tick } = await import("./console/core/format.js");
            const values = [21.123456789, 1234567, 123456789012.5, 0.0000123, 1e-9, -98765.4321, 0];
            return [values.map(number), values.map(tick), [many(1, "letter"), many(2_000, "letter")]];
        }"""
    )
    assert told == [
        ["21.1235", "1,234,567", "123,456,789,012.5", "0.0000123", "1E-9", "-98,765.4", "0"],
        ["21.1235", "1.23457M", "123.457B", "1.23E-5", "1E-9", "-98,765.4", "0"],
        ["1 letter", "2,000 letters"],
    ]


async def test_the_keys_lead_from_the_search_into_what_it_found(stage: Stage) -> None:
    page = await stage.sign_in()
    await expect(page.locator(".device-line", has_text="station-1")).to_be_visible()
    await page.keyboard.press("/")
    await page.keyboard.type("station")
    await page.keyboard.press("ArrowDown")
    await expect(page.locator(".device-line:focus")).to_contain_text("station-1")
    await page.keyboard.press("/")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("station-1")


async def test_what_was_refused_is_counted_at_the_start(stage: Stage) -> None:
    topic = "iotsphere/devices/station-1/telemetry/temperature"
    await stage.post("/api/v1/messages", {"topic": topic, "payload": {"$where": 1}})
    page = await stage.sign_in()
    await expect(page.locator(".nav [href='#/letters'] .count")).to_have_text("1")


async def test_what_wants_attention_is_counted_while_it_happens(stage: Stage) -> None:
    page = await stage.sign_in()
    letters, alerts = (page.locator(f".nav [href='#/{name}'] .count") for name in ("letters", "alerts"))
    await expect(letters).to_have_text("1")
    await expect(alerts).to_have_count(0)
    topic = "iotsphere/devices/station-1/telemetry/temperature"
    await stage.post("/api/v1/messages", {"topic": topic, "payload": {"$where": 2}})
    await stage.post("/api/v1/messages", {"topic": "iotsphere/system/alerts", "payload": {"title": "hot"}})
    note = {"title": "Filter is due"}
    await stage.post("/api/v1/messages", {"topic": "iotsphere/users/operator/notifications", "payload": note})
    await expect(letters).to_have_text("2")
    await expect(alerts).to_have_text("2")
    await page.click("text=Alerts")
    await expect(page.locator(".note", has_text="Filter is due")).to_be_visible()
    await expect(alerts).to_have_text("1")  # the alert was looked at, the notification was not read
    await page.get_by_role("button", name="Mark as read").click()
    await expect(alerts).to_have_count(0)


async def test_health_says_when_its_charts_begin_and_keeps_them(stage: Stage) -> None:
    page = await stage.sign_in()
    told, goes_on = 0, asyncio.Event()

    async def hold(route: Route) -> None:
        nonlocal told
        told += 1
        if told > 1:
            await goes_on.wait()
        await route.continue_()

    await page.route("**/metrics", hold)
    await page.click("text=Health")
    await expect(page.locator(".collecting").first).to_contain_text("the first point comes in")
    goes_on.set()
    await page.wait_for_function("() => document.querySelector('[data-rate=accepted] .reading b').textContent > 0")
    await expect(page.locator(".collecting")).to_have_count(0)
    titles = await page.locator(".ledger thead th").all_inner_texts()
    assert [title.strip() for title in titles[2:]] == [
        "Imbalance", "Accepted", "What became of them", "Applied", "Superseded", "Expired", "Dead lettered", "Lost", "Pending",
    ]  # fmt: skip
    row = page.locator(".ledger tbody tr", has_text="last-values").first
    await expect(row.locator("td").nth(2)).to_have_text("0")
    await expect(row.locator("td")).to_have_count(len(titles))
    assert await row.locator(".zero").count() >= 4
    await page.click("text=Fleet")
    await page.wait_for_selector(".fleet")
    goes_on.clear()
    await page.click("text=Health")
    await page.wait_for_selector(".ledger")
    await expect(page.locator(".collecting")).to_have_count(0)  # what was seen before is there
    await page.unroute_all(behavior="ignoreErrors")
    goes_on.set()


async def test_a_desired_value_looks_like_what_can_be_changed_and_keys_reach_it(stage: Stage) -> None:
    page = await stage.sign_in("#/devices/station-1")
    cell = page.locator("[data-key='/interval'] button.cell")
    pencil = cell.locator(".icon")
    await expect(pencil).to_be_visible()
    assert await pencil.evaluate("icon => getComputedStyle(icon).opacity") == "1"
    await page.locator("button", has_text="Edit desired").focus()
    for _ in range(3):  # the keys stand in the order of the alphabet: firmware, then interval
        await page.keyboard.press("Tab")
        if await cell.evaluate("cell => cell === document.activeElement"):
            break
    await page.keyboard.press("Enter")
    await expect(page.locator("[data-key='/interval'] input")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(cell).to_be_visible()


async def test_a_rewind_begins_with_the_first_message_and_asks_for_no_shadow_that_was_not(stage: Stage) -> None:
    await say(stage, "lone-2", 1)
    page = await stage.sign_in("#/devices/lone-2")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.wait_for_selector("[data-metric=level] canvas")
    first = await page.evaluate("document.querySelector('[data-metric=level]').series.times[0] * 1000")
    await page.select_option("[aria-label=Speed]", "1")
    await page.get_by_role("button", name="Rewind").click()
    await expect(page.locator(".shadow .badge", has_text="as of")).to_be_visible()
    clock, now = await page.evaluate("[Date.parse(document.querySelector('[data-clock]').dataset.clock), Date.now()]")
    assert first <= clock < now, "not an hour ago, when there was nothing yet"
    assert any("/shadow/versions" in url for url in asked)
    assert not any("as_of" in url for url in asked)


async def test_nothing_is_cut_off_or_alone_on_a_line_at_the_width_of_a_laptop(stage: Stage) -> None:
    page = await stage.sign_in("#/explorer")
    await page.set_viewport_size({"width": 1280, "height": 800})
    field = page.locator(".explorer input[type=search]")
    await expect(field).to_have_value("iotsphere/devices/+/telemetry/#")
    assert await field.evaluate("field => field.scrollWidth <= field.clientWidth")
    for place in ("explorer", "devices/station-1"):
        await page.evaluate("place => { location.hash = `#/${place}`; }", place)
        bar = page.locator(".rewind")
        await expect(bar.get_by_role("button", name="Live")).to_be_disabled()
        tops = [
            await bar.get_by_role("button", name=name).evaluate("each => each.offsetTop") for name in ("Rewind", "Live")
        ]
        assert tops[0] == tops[1], place


async def test_health_at_the_width_of_a_laptop_shows_the_whole_ledger_and_leaves_no_card_alone(stage: Stage) -> None:
    page = await stage.sign_in("#/health")
    await page.set_viewport_size({"width": 1280, "height": 800})
    await expect(page.locator(".ledger tbody tr").first).to_contain_text("iotsphere/")
    assert await page.locator(".ledger").evaluate("table => table.offsetWidth <= table.parentElement.clientWidth")
    columns = """cards => {
        const rows = Object.values(Object.groupBy(cards, (card) => card.getBoundingClientRect().top));
        return rows.map((row) => row.length);
    }"""
    for width, tiles, charts in ((1280, [6], [3]), (1000, [3, 3], [1, 1, 1]), (390, [2, 2, 2], [1, 1, 1])):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.locator(".tile").evaluate_all(columns) == tiles, width
        assert await page.locator(".figure").evaluate_all(columns) == charts, width


async def test_who_sent_a_dead_letter_can_be_read_while_one_is_open(stage: Stage) -> None:
    (credential,) = await stage.gateway.add_devices(["weather-seattle-1"])
    await stage.publish_as(credential, "iotsphere/devices/weather-seattle-1/telemetry/level", b"2,5")
    page = await stage.sign_in("#/letters")
    await page.set_viewport_size({"width": 1280, "height": 800})
    line = page.locator("[data-letter]").first
    await line.click()
    await expect(page.locator("aside.detail h2 code")).to_have_text("payload_not_json")
    source = line.get_by_text("weather-seattle-1", exact=True)
    await expect(source).to_be_visible()
    assert await source.evaluate("text => text.scrollWidth <= text.clientWidth")
    inside = """line => [...line.children].filter((part) => part.offsetHeight).every((part) => {
        const [all, own] = [line.getBoundingClientRect(), part.getBoundingClientRect()];
        return own.top >= all.top && own.bottom <= all.bottom;
    })"""
    assert await line.evaluate(inside), "its two rows fit into the height of a line"


async def test_the_line_of_last_values_says_that_it_fills_while_one_watches(stage: Stage) -> None:
    await say(stage, "lone-3", 7)
    page = await stage.sign_in("#/fleet?q=lone-3")
    spark = page.locator(".list .spark")
    await expect(page.locator(".list .value b")).to_have_text("7")
    await expect(spark).to_have_text("")  # it is offline: nothing is going to come
    topic = "iotsphere/devices/lone-3/telemetry/level"
    await stage.post("/api/v1/messages", {"topic": topic, "payload": {"value": 8}})
    await expect(page.locator(".list .value b")).to_have_text("8")
    await expect(spark).to_have_text("fills while you watch")
    assert await spark.evaluate("text => text.scrollWidth <= 120")
    await stage.post("/api/v1/messages", {"topic": topic, "payload": {"value": 9}})
    await expect(page.locator(".list svg.spark polyline")).to_have_count(1)
    await expect(spark).to_have_text("")
