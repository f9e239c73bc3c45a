"""The console in a real browser with 200 devices that each say something every second: frames, long tasks, memory.

`python -m bench.console --minutes 10` prints one line a page and a minute. Frames are those that the page itself is given
to draw (60 a second at most here); a long task is one that holds the page up for more than 50 ms. Memory is what is left
after a collection, so that a leak shows as growth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from playwright.async_api import CDPSession, Page

from tests.console.stage import Stage, open_stage
from tests.support.device import Device

DEVICES = 200
PLACES = ("#/fleet", "#/explorer", "#/devices/bench-000")
MEASURE = """(seconds) => new Promise((done) => {
    let frames = 0, longest = 0, last = performance.now(), held = 0;
    const end = last + seconds * 1000;
    const tasks = new PerformanceObserver((list) => { for (const task of list.getEntries()) held += task.duration; });
    tasks.observe({ type: "longtask" });
    requestAnimationFrame(function frame(now) {
        frames += 1;
        longest = Math.max(longest, now - last);
        last = now;
        if (now < end) return requestAnimationFrame(frame);
        tasks.disconnect();
        done({ frames: frames / seconds, longest, held: held / seconds });
    });
})"""


@dataclass(frozen=True, slots=True)
class Figures:
    """One page over one stretch. ``longest``: between two frames, ms. ``held``: ms a second in long tasks."""

    place: str
    after_s: int
    frames: float
    longest: float
    held: float
    heap_mib: float
    nodes: int


async def measure(page: Page, devtools: CDPSession, place: str, seconds: float, began: float) -> Figures:
    """Look at the open page for a while."""
    told = await page.evaluate(MEASURE, seconds)
    await devtools.send("HeapProfiler.collectGarbage")
    found = await devtools.send("Performance.getMetrics")
    metrics = {metric["name"]: metric["value"] for metric in found["metrics"]}
    return Figures(
        place,
        round(time.monotonic() - began),
        round(told["frames"], 1),
        round(told["longest"]),
        round(told["held"]),
        round(metrics["JSHeapUsedSize"] / 2**20, 1),
        int(metrics["Nodes"]),
    )


async def speak(stage: Stage, seconds: float) -> list[asyncio.Task[None]]:
    """Let all devices say something every second, each at its own moment."""
    credentials = await stage.gateway.add_devices([f"bench-{number:03}" for number in range(DEVICES)])
    tasks = []
    for credential in credentials:
        device = Device(credential, lambda: stage.gateway.mqtt, count=int(seconds) + 600, pause=1.0, plain=True)
        tasks.append(asyncio.create_task(device.run()))
        await asyncio.sleep(1 / DEVICES)
    return tasks


async def run(minutes: float, stretch: float) -> None:
    """Measure each page in turn until the time is over."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_stage(Path(folder)) as stage:
            tasks = await speak(stage, minutes * 60)
            page = await stage.sign_in(PLACES[0])
            devtools = await page.context.new_cdp_session(page)
            await devtools.send("Performance.enable")
            began = time.monotonic()
            while time.monotonic() - began < minutes * 60:
                for place in PLACES:
                    await page.evaluate("place => { location.hash = place; }", place)
                    await page.wait_for_timeout(3_000)
                    print(json.dumps(asdict(await measure(page, devtools, place, stretch, began))), flush=True)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await stage.check()


def main() -> None:
    """Read how long to look."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=1.0)
    options.add_argument("--stretch", type=float, default=15.0, help="seconds for which each page is looked at")
    given = options.parse_args()
    asyncio.run(run(given.minutes, given.stretch))


if __name__ == "__main__":
    main()
