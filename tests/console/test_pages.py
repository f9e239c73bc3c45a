"""What people do with the console: sign in, watch, desire, command, look into refusals, follow a message, rewind."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from iotsphere.entities.merge_patch import merge, same
from tests.console.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOPIC = "iotsphere/devices/station-1/telemetry/temperature"


async def reading(page: Page) -> float:
    """What the temperature's chart shows as its present value; 0 before there is one."""
    text = await page.inner_text("[data-metric=temperature] .reading b")
    return float(text.replace(",", "")) if text != "–" else 0


async def test_a_link_signs_in_once_and_leaves_nothing_in_the_address(stage: Stage) -> None:
    link = stage.gateway.endpoints["console"]
    code = link.rpartition("/")[2]
    page = await stage.page()
    await page.goto(link)
    await expect(page.get_by_text("You opened a sign-in link")).to_be_visible()
    assert code not in page.url
    await page.click("text=Sign in")
    await expect(page.locator(".who")).to_have_text("operator")
    await expect(page.locator("[data-state=open]")).to_be_visible()
    stored = await page.evaluate("JSON.stringify([localStorage, document.cookie, location.href, history.length])")
    token = await page.evaluate("sessionStorage.getItem('iotsphere.token')")
    assert token
    assert token not in stored
    assert code not in stored

    again = await stage.page()
    await again.goto(link)
    await again.click("text=Sign in")
    await expect(again.get_by_role("alert")).to_contain_text("used already")

    await page.click("text=Sign out")
    await expect(page.locator("textarea[name=token]")).to_be_visible()
    assert await page.evaluate("sessionStorage.length") == 0
    async with stage.gateway.api() as api:
        answer = await api.get("/api/v1/session", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 401, "signing out ends the token, not only the page's memory of it"


async def test_a_device_is_found_and_its_value_changes(stage: Stage) -> None:
    await stage.post("/api/v1/devices/station-1/labels", {"labels": {"city": "sf"}})
    page = await stage.sign_in()
    line = page.locator(".line.device-line", has_text="station-1")
    await expect(line.locator(".state")).to_have_text("online")
    await expect(line).to_contain_text("city sf")
    await page.keyboard.press("/")
    await page.keyboard.type("city:nowhere")
    await expect(page.get_by_text("No device matches.")).to_be_visible()
    await page.keyboard.press("ControlOrMeta+a")
    await page.keyboard.type("CITY:sf station")
    await expect(line).to_be_visible()
    first = await line.locator(".value b").inner_text()
    await expect(line.locator(".value b")).not_to_have_text(first)
    await line.focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("station-1")
    await expect(page.locator("[data-presence=online]")).to_be_visible()
    await page.wait_for_selector("[data-metric=temperature] canvas")
    was = await reading(page)
    await page.wait_for_function(
        "was => Number(document.querySelector('[data-metric=temperature] .reading b').textContent.replace(',','')) > was + 3",
        arg=was,
    )


async def test_what_is_desired_is_edited_in_place_and_the_delta_closes(stage: Stage) -> None:
    page = await stage.sign_in("#/devices/station-1")
    row = page.locator("[data-key='/interval']")
    await expect(row.locator(".reported")).to_have_text("0.1")
    focused = await row.locator("button.cell").evaluate("cell => (cell.click(), document.activeElement.ariaLabel)")
    assert focused == "Desired interval", "what is typed before the next frame is not lost"
    await page.keyboard.type("0.2")
    await page.keyboard.press("Enter")
    await expect(row.locator(".desired")).to_contain_text("0.2")
    await expect(row.locator(".reported")).to_have_text("0.2")
    await expect(page.locator("[data-delta='0']")).to_be_visible()

    await row.locator("button.cell").click()
    await page.keyboard.type("1000")
    await page.keyboard.press("Enter")
    await expect(row.locator(".badge")).to_have_text("refused")
    await expect(row).to_contain_text("a weather station takes")
    await expect(page.locator("[data-refused='1']")).to_be_visible()
    await expect(page.locator("[data-delta]")).to_have_text("differs")
    await page.click("text=Edit desired")
    await page.fill(".whole textarea", '{"interval": 0.1')
    await page.click(".whole button.primary")
    await expect(page.locator(".whole .problem")).to_contain_text("no JSON")
    await page.fill(".whole textarea", '{"interval": 0.1}')
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("[data-delta='0']")).to_be_visible()
    await expect(row.locator(".reported")).to_have_text("0.1")


async def test_who_was_slower_sees_theirs_and_yours_and_decides(stage: Stage) -> None:
    page = await stage.sign_in("#/devices/station-1")
    row = page.locator("[data-key='/unit']")
    await expect(row).to_be_visible()
    await row.locator("button.cell").click()
    await stage.post("/api/v1/devices/station-1/shadow", {"desired": {"unit": "[degF]"}})
    await expect(row.locator(".reported")).to_have_text('"[degF]"')
    await page.fill(".leaves input", "Cel")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator(".theirs", has_text="degF")).to_be_visible()
    await expect(dialog.locator(".yours", has_text="Cel")).to_be_visible()
    await page.click("text=Put mine on top")
    await expect(row.locator(".reported")).to_have_text('"Cel"')
    await expect(page.locator("[data-delta='0']")).to_be_visible()


async def test_a_command_is_sent_and_its_life_is_seen(stage: Stage) -> None:
    page = await stage.sign_in("#/devices/station-1")
    await page.wait_for_selector("[data-presence=online]")
    await page.click(".send button.primary")
    life = page.locator(".life").first
    await expect(life).to_have_attribute("data-state", "succeeded")
    steps = await life.locator(".steps li .pin + .small").all_inner_texts()
    assert steps[0] == "Accepted"
    assert "Running" in steps
    assert steps[-1] == "Succeeded"
    await page.set_viewport_size({"width": 1400, "height": 900})
    tops = await life.locator(".steps li").evaluate_all("steps => steps.map((step) => step.offsetTop)")
    assert len(set(tops)) == 1, "in one row"
    assert await life.evaluate("card => card.scrollWidth <= card.clientWidth")
    await life.locator("button.head").click()
    await expect(life).to_contain_text('"restarted":true')
    await page.fill(".send textarea", '{"action": "fly"}')
    await page.click(".send button.primary")
    await expect(page.locator(".life").first).to_have_attribute("data-state", "rejected")
    await page.reload()
    await expect(page.locator(".life")).to_have_count(2)


async def test_a_dead_letter_is_found_by_its_reason_and_redriven(stage: Stage) -> None:
    (credential,) = await stage.gateway.add_devices(["meddler"])
    await stage.publish_as(credential, "iotsphere/devices/station-1/telemetry/level", b'{"value":21.5}')
    page = await stage.sign_in("#/letters")
    await page.click("[data-reason=acl_denied]")
    line = page.locator("[data-letter]").first
    await expect(line).to_contain_text("ACL denied")
    await line.focus()
    await page.keyboard.press("Enter")
    detail = page.locator("aside.detail")
    await expect(detail.locator(".why")).to_contain_text("meddler")
    await expect(detail.locator("h2 code")).to_have_text("acl_denied")
    await expect(detail.locator(".raw")).to_contain_text('{"value":21.5}')
    await detail.get_by_role("button", name="Redrive").click()
    await expect(detail.locator("[data-letter-state=redriven]")).to_be_visible()
    await detail.get_by_text("Where it went").click()
    await expect(page.locator("[data-station=log]")).to_contain_text("telemetry/")
    await expect(page.locator(".json")).to_contain_text("21.5")
    latest = await page.evaluate("location.hash")
    assert latest.startswith("#/journey/")


async def test_letters_that_are_refused_again_stay_open(stage: Stage) -> None:
    await stage.post("/api/v1/messages", {"topic": TOPIC, "payload": {"$where": 1}})
    page = await stage.sign_in("#/letters?reason=key_not_allowed")
    await page.locator("[data-letter]").first.click()
    await page.locator("aside.detail").get_by_role("button", name="Redrive").click()
    await expect(page.locator(".toast.bad")).to_contain_text("$where")
    await expect(page.locator("[data-letter-state=open]")).to_be_visible()


async def test_the_explorer_listens_holds_still_and_publishes(stage: Stage) -> None:
    page = await stage.sign_in("#/explorer?filter=iotsphere/devices/quiet-one/%23")
    await expect(page.get_by_text("Nothing came yet.")).to_be_visible()
    await page.click("text=Publish")
    await page.fill("dialog input[name=topic]", "iotsphere/devices/quiet-one/telemetry/level")
    await page.fill("dialog textarea", '{"value": 7, "deep": {"a": [1, true, null]}}')
    await page.click("dialog button.primary")
    line = page.locator(".message-line")
    await expect(line).to_have_count(1)
    await page.click("button:has-text('Pause')")
    await stage.post("/api/v1/messages", {"topic": "iotsphere/devices/quiet-one/telemetry/level", "payload": 8})
    await expect(page.get_by_text("standing still, 1 came since")).to_be_visible()
    await expect(line).to_have_count(1)
    await page.click("button:has-text('Go on')")
    await expect(line).to_have_count(2)
    await line.nth(1).click()
    await expect(page.locator("aside .json").first).to_contain_text('"deep"')
    await page.locator("aside").get_by_text("Its journey").click()
    await expect(page.locator("[data-station=log]")).to_be_visible()


async def test_alerts_and_notifications_come_and_are_read(stage: Stage) -> None:
    page = await stage.sign_in("#/alerts")
    alert = {"severity": "critical", "title": "Tank overflows", "message": "level 98 %", "device": "station-1"}
    await stage.post("/api/v1/messages", {"topic": "iotsphere/devices/batch/alerts", "payload": alert})
    card = page.locator(".alert", has_text="Tank overflows")
    await expect(card.locator(".badge")).to_have_text("critical")
    await expect(card.get_by_role("link", name="station-1")).to_have_attribute("href", "#/devices/station-1")
    note = {"title": "Filter is due", "text": "Change it this week"}
    await stage.post("/api/v1/messages", {"topic": "iotsphere/users/operator/notifications", "payload": note})
    told = page.locator(".note", has_text="Filter is due")
    await expect(told).to_be_visible()
    await expect(page.locator(".nav [href='#/alerts'] .count")).to_have_text("1")
    await told.get_by_role("button", name="Mark as read").click()
    await expect(told).to_have_count(0)
    await expect(page.locator(".nav [href='#/alerts'] .count")).to_have_count(0)


async def test_health_shows_that_the_ledger_balances(stage: Stage) -> None:
    page = await stage.sign_in("#/health")
    await expect(page.locator("[data-tile=imbalance] b")).to_have_text("Balanced")
    await expect(page.locator(".ledger tbody tr").first).to_contain_text("iotsphere/")
    await page.wait_for_function("() => document.querySelector('[data-rate=accepted] .reading b').textContent > 0")


async def test_the_past_is_played_and_leads_back_to_the_present(stage: Stage) -> None:
    page = await stage.sign_in("#/devices/station-1")
    await page.wait_for_function("() => document.querySelector('[data-metric=temperature]')?.series.values.length > 80")
    await page.select_option("[aria-label=Speed]", "1")
    await page.locator("[aria-label=Time]").evaluate(
        "(slider) => { slider.value = -10; slider.dispatchEvent(new Event('change')); }"
    )
    clock = page.locator("[data-clock]")
    await expect(page.locator(".rewind.past")).to_be_visible()
    await expect(page.locator(".shadow .badge", has_text="as of")).to_be_visible()
    await expect(page.get_by_role("button", name="Pause")).to_be_visible()
    await page.select_option("[aria-label=Speed]", "5")
    await expect(clock).to_have_attribute("data-clock", "live")  # it has caught up by itself
    await expect(page.locator(".rewind.past")).to_have_count(0)
    series = "document.querySelector('[data-metric=temperature]').series.values"
    await page.wait_for_function(f"() => {series}.length > 50")
    values = await page.evaluate(series)
    assert values == [values[0] + step for step in range(len(values))], (
        "each message once, also where past meets present"
    )


async def test_a_rewind_shows_one_moment_everywhere_and_sends_nothing(stage: Stage) -> None:
    page = await stage.sign_in("#/devices/station-1")
    await page.wait_for_function(
        "() => document.querySelector('[data-metric=temperature]')?.series.values.length > 150"
    )
    sent_at = await page.evaluate("Date.now()")
    await page.click(".send button.primary")
    await expect(page.locator(".life").first).to_have_attribute("data-state", "succeeded")
    sent = await page.locator(".life").count()
    await page.select_option("[aria-label=Speed]", "1")
    await page.locator("[aria-label=Time]").evaluate(
        """(slider, sent) => {
            slider.value = Math.floor((sent - Date.now()) / 1000) - 10; // so long before it was sent
            slider.dispatchEvent(new Event("change"));
        }""",
        sent_at,
    )
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator(".shadow .badge", has_text="as of")).to_be_visible()
    await expect(page.locator(".send button.primary")).to_be_disabled()
    await expect(page.locator(".send .hint")).to_contain_text("press Live")
    await expect(page.locator(".life")).to_have_count(sent - 1)  # it was sent later than that
    await expect(page.locator("[data-presence]")).to_have_text("online now")
    await page.get_by_role("button", name="Play").click()
    seen = await page.evaluate(
        """async () => {
            const text = (where) => document.querySelector(where)?.innerText ?? "";
            const seen = [];
            while (seen.length < 60) {
                await new Promise((resolve) => setTimeout(resolve, 23));
                const chart = document.querySelector("[data-metric=temperature]");
                const clock = document.querySelector("[data-clock]");
                if (clock.dataset.clock === "live") break;
                if (!chart?.querySelector(".plot[data-until]")) continue;
                const { times, values } = chart.series;
                const until = Number(chart.querySelector(".plot").dataset.until);
                seen.push({
                    ahead: until - Date.parse(clock.dataset.clock),
                    told: [clock.innerText.split(" ×")[0], text(".shadow .badge.accent"), text(".commands header .badge.accent")],
                    value: Number(text("[data-metric=temperature] .reading b").replace(",", "")),
                    drawn: values[times.findLastIndex((time) => time * 1000 <= until)],
                    clock: clock.dataset.clock,
                });
            }
            return seen;
        }"""
    )
    for one in seen:
        assert one["ahead"] == 0, one
        clock, shadow, commands = one["told"]
        assert shadow == commands == f"as of {clock}", one
        assert 0 <= one["drawn"] - one["value"] <= 1, one  # a measurement may be taken a moment after its own time
    clocks = [one["clock"] for one in seen]
    assert clocks == sorted(clocks)
    assert len(set(clocks)) >= 4, "it moves on between what the gateway tells once a second"
    await page.get_by_role("button", name="Live").click()
    await expect(page.locator(".life")).to_have_count(sent)
    await expect(page.locator(".send button.primary")).to_be_enabled()
    await expect(page.locator(".link-state")).to_have_text("Connected")


async def test_what_the_page_reads_has_names_for_those_who_cannot_see_it(stage: Stage) -> None:
    page = await stage.sign_in()
    for place in ("fleet", "explorer", "alerts", "letters", "health", "journey", "devices/station-1"):
        await page.evaluate("place => { location.hash = `#/${place}`; }", place)
        await page.wait_for_timeout(300)
        nameless = await page.evaluate(
            """[...document.querySelectorAll("button, input, select, textarea, a")].filter((each) => !(
                each.innerText?.trim() || each.ariaLabel || each.labels?.length || each.title
                || each.querySelector("[aria-label]:not([aria-label=''])"))).map((each) => each.outerHTML.slice(0, 120))"""
        )
        assert nameless == [], place


async def test_ten_thousand_devices_are_a_few_lines_of_the_page(stage: Stage) -> None:
    devices = [
        {"device_id": f"d-{n:05}", "registered_at": "2026-01-01T00:00:00Z", "labels": {"row": str(n % 100)},
         "presence": None, "newest": None}
        for n in range(10_000)
    ]  # fmt: skip
    page = await stage.page()
    await page.route("**/api/v1/fleet?*", lambda route: route.fulfill(json={"devices": devices, "after": None}))
    await page.goto(stage.gateway.http)
    await page.fill("textarea[name=token]", stage.gateway.token)
    await page.click("button.primary")
    await expect(page.locator(".seg button").first).to_have_text(re.compile("All 10,00[01]"))
    lines = page.locator(".line.device-line")
    assert await lines.count() < 60
    await lines.first.focus()
    await page.keyboard.press("End")
    await expect(page.locator(".line.device-line:focus")).to_contain_text("station-1")
    await page.keyboard.press("ArrowUp")
    await expect(page.locator(".line.device-line:focus")).to_contain_text("d-09999")
    assert await lines.count() < 60
    await page.fill("input[type=search]", "row:42 d-0")
    await expect(page.locator(".list .line").first).to_contain_text("d-00042")
    assert await page.locator(".list .line").first.get_attribute("aria-setsize") == "100"


def document(dice: random.Random, depth: int = 0) -> dict[str, Any]:
    """Any document without nulls, which merge patches cannot hold."""
    found: dict[str, Any] = {}
    for key in dice.sample(("a", "b", "c/d", "e~f", "constructor"), dice.randrange(4)):
        nested = depth < 3 and dice.random() < 0.4
        found[key] = document(dice, depth + 1) if nested else dice.choice((0, 1, 2, "x", "y", [0], [1], True))
    return found


async def test_the_patch_of_an_edited_document_leads_exactly_there(stage: Stage) -> None:
    dice = random.Random(7)
    pairs = [[document(dice), document(dice)] for _ in range(400)]
    pairs += [[one, one] for one, _ in pairs[:20]]
    page = await stage.sign_in()
    patches = await page.evaluate(
        """async (pairs) => {
            const { difference } = await import("./console/core/patch.js");
            return pairs.map(([from, to]) => difference(from, to) ?? "equal");
        }""",
        pairs,
    )
    for (old, new), patch in zip(pairs, patches, strict=True):
        assert (patch == "equal") is same(old, new)
        assert patch == "equal" or same(merge(old, patch), new)
