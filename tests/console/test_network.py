"""The console when the network is lost, slow, or the gateway restarts: nothing is missing, and it says what is."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from playwright.async_api import expect

from tests.console.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERIES = "document.querySelector('[data-metric=temperature]').series"
AWAY_S = 4.0  # by hand, with 20: the same


async def values(stage: Stage) -> list[float]:
    """What the chart of the open page holds."""
    page = stage.open_pages()[-1]
    found: list[float] = await page.evaluate(f"{SERIES}.values")
    return found


async def test_b10_a_lost_network_leaves_no_gap_in_the_chart(stage: Stage) -> None:
    page = await stage.sign_in("#/devices/station-1")
    await page.wait_for_function(f"() => {SERIES.replace('.series', '?.series')}?.values.length > 20")
    before = len(await values(stage))
    await stage.link.lose()
    await expect(page.locator(".link-state")).to_have_attribute("data-state", "waiting")
    await asyncio.sleep(AWAY_S)
    during = len(await values(stage))
    await stage.link.restore()
    await expect(page.locator("[data-state=open]")).to_be_visible()
    await page.wait_for_function(f"least => {SERIES}.values.length > least", arg=during + AWAY_S * 10)
    found = await values(stage)
    assert before < len(found)
    assert found == [found[0] + step for step in range(len(found))], "each message once, in order"
    assert await page.locator(".notice").count() == 0, "nothing was lost, so nothing is told"
    stage.forgive("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "WebSocket connection")


async def test_a_slow_browser_is_told_that_it_gets_newest_values_only_and_why(stage: Stage) -> None:
    page = await stage.sign_in("#/explorer?filter=iotsphere/devices/flood/%23")
    await expect(page.get_by_text("Nothing came yet.")).to_be_visible()
    await page.select_option("[aria-label='When this page is slow']", "latest")
    marker = {"topic": "iotsphere/devices/flood/telemetry/level", "payload": {"value": -1}}
    while not await page.locator(".message-line").count():  # until the new subscription stands
        await stage.post("/api/v1/messages", marker)
        await asyncio.sleep(1)
    stage.link.carries.clear()  # the browser takes nothing any more
    padding = "x" * 30_000
    async with stage.gateway.api() as api:
        for batch in range(20):
            messages = [
                {"topic": "iotsphere/devices/flood/telemetry/level", "payload": {"value": batch * 30 + n, "padding": padding}}
                for n in range(30)
            ]  # fmt: skip
            assert (await api.post("/api/v1/messages", json={"messages": messages})).status_code == 200
    stage.link.carries.set()
    notice = page.locator(".notice.warn")
    await expect(notice).to_contain_text("was moved to latest-value delivery")
    await expect(notice).to_contain_text("only the newest of each topic is sent")
    await expect(page.locator(".message-line").first).to_contain_text('"value":599')
    await expect(notice).to_contain_text("It has caught up.")
    await notice.get_by_role("button", name="Dismiss").click()
    await expect(notice).to_have_count(0)


async def test_a_gateway_that_restarts_is_met_again_without_a_gap(stage: Stage) -> None:
    page = await stage.sign_in("#/devices/station-1")
    await page.wait_for_function(f"() => {SERIES.replace('.series', '?.series')}?.values.length > 20")
    await stage.gateway.terminate()
    await expect(page.locator("[data-state=waiting], [data-state=connecting]")).to_be_visible()
    await stage.gateway.start()
    await expect(page.locator("[data-state=open]")).to_be_visible(timeout=60_000)
    was = len(await values(stage))
    await page.wait_for_function(f"least => {SERIES}.values.length > least", arg=was + 10, timeout=60_000)
    found = await values(stage)
    steps = [after - before for before, after in pairwise(found)]
    # The station measures on without a gateway and throws that away; what it was told is taken is all here, once.
    assert all(step >= 1 for step in steps)
    assert sum(step > 1 for step in steps) <= 1
    stage.forgive("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "WebSocket connection")
