"""Takes the pictures of the console for the documents: `python -m tests.console.pictures`, about three minutes.

Names of pictures may follow, such as `device health`; then only those are taken. A real gateway, the stations of the
demonstration, and a browser. Pictures stay below 200 kB each.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, cast

from PIL import Image
from playwright.async_api import Page

from iotsphere.drivers import simulated_devices as simulated
from tests.console.stage import Stage, open_stage

FOLDER: Final = Path(__file__).parents[2] / "docs" / "pictures"
RUN_S: Final = 100.0
ALERTS: Final = (
    {"severity": "critical", "title": "frost", "message": "2.1 °C below the limit of this site", "device": "weather-seattle-2"},
    {"severity": "warning", "title": "rate_of_change", "message": "temperature fell by 4.3 °C in a minute", "device": "weather-sf-1"},
    {"severity": "info", "title": "back_in_range", "message": "temperature is within its range again", "device": "weather-sf-3"},
)  # fmt: skip


async def nothing(_: Page) -> None:
    """The page as it comes."""


async def steer(page: Page) -> None:
    """A wish that waits, one that is refused, and a command with its life."""
    await page.click(".send button.primary")
    await page.wait_for_selector(".life[data-state=succeeded]")
    await page.locator("[data-key='/interval'] button.cell").click()
    await page.keyboard.type("900")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("[data-refused='1']")
    await page.mouse.move(0, 0)
    await page.evaluate("() => document.getElementById('toasts').replaceChildren()")


async def look_into(page: Page) -> None:
    """A message, or a letter, opened."""
    await page.locator(".list [role=listitem]").nth(2).click()
    await page.wait_for_selector("aside.detail")
    await page.wait_for_timeout(400)


async def follow(page: Page) -> None:
    """The journey of the message that came last."""
    await page.locator("a.reason").first.click()
    await page.wait_for_selector("[data-station=log]")
    await page.wait_for_timeout(2_500)


async def go_back(page: Page) -> None:
    """A rewind under way."""
    await page.select_option("[aria-label='Reach of the slider']", "15")
    await page.select_option("[aria-label=Speed]", "2")
    await page.locator("[aria-label=Time]").evaluate(
        "(slider) => { slider.value = -60; slider.dispatchEvent(new Event('change')); }"
    )
    await page.wait_for_timeout(9_000)


Do = Callable[[Page], Awaitable[None]]
# Name -> place, colours, what is done there, milliseconds before.
PICTURES: Final[dict[str, tuple[str, str, Do, int]]] = {
    "fleet": ("#/fleet", "light", nothing, 9_000),
    "device": ("#/devices/weather-sf-1", "light", steer, 2_000),
    "device-dark": ("#/devices/weather-seattle-1", "dark", nothing, 3_000),
    "rewind": ("#/devices/weather-seattle-1", "dark", go_back, 2_000),
    "explorer": ("#/explorer", "light", look_into, 3_000),
    "alerts": ("#/alerts", "light", nothing, 2_000),
    "dead-letters": ("#/letters", "light", look_into, 2_000),
    "health": ("#/health", "dark", nothing, 30_000),
    "journey": ("#/journey", "light", follow, 3_000),
}


async def stations(stage: Stage) -> None:
    """The demonstration's devices, with a pace at which a chart fills."""
    for device_id in simulated.station_ids():
        await stage.simulate(device_id, 0.5, simulated.readings_of(device_id))
        await stage.post(f"/api/v1/devices/{device_id}/labels", {"labels": {"city": device_id.split("-")[1]}})
    await stage.gateway.add_devices(["my-device"])
    for alert in ALERTS:
        await stage.post("/api/v1/messages", {"topic": "iotsphere/devices/batch/alerts", "payload": alert})
    note = {"title": "Filter of station 2 is due", "text": "Change it this week."}
    await stage.post("/api/v1/messages", {"topic": "iotsphere/users/operator/notifications", "payload": note})
    topic = "iotsphere/devices/my-device/telemetry"
    for payload in ({"$where": 1}, {"a": {"b": {"__proto__": 1}}}, {"": 2}):
        await stage.post("/api/v1/messages", {"topic": topic, "payload": payload})


def shrink(picture: Path) -> None:
    """Keep 256 colours: the commonest, and some far from each other, for the rare ones mean something here."""
    with Image.open(picture) as image:
        full = image.convert("RGB")
    counted = sorted(full.getcolors(full.width * full.height) or (), reverse=True)
    common = [part for _, colour in counted[:128] for part in cast("tuple[int, int, int]", colour)]
    rare = full.quantize(128, method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette(common + rare)
    full.quantize(palette=palette, dither=Image.Dither.NONE).save(picture, optimize=True)


async def main() -> None:
    """Take them all."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_stage(Path(folder)) as stage:
            await stations(stage)
            await asyncio.sleep(RUN_S)
            for name in sys.argv[1:] or PICTURES:
                place, colours, do, wait = PICTURES[name]
                page = await stage.sign_in(place, color_scheme=colours)
                await page.wait_for_timeout(wait)
                await do(page)
                picture = FOLDER / f"console-{name}.png"
                await page.screenshot(path=picture)
                shrink(picture)
                print(name, picture.stat().st_size // 1024, "KiB")
                await page.close()
            await stage.check()


if __name__ == "__main__":
    asyncio.run(main())
