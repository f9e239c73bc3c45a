"""The console in a real browser with 200 devices that each say something every second: frames, memory, and a return.

`python -m bench.console` takes ten minutes and ends with a verdict (exit code 1 when a limit is missed). For half of the
time it walks through all pages again and again; for the other half it stays on the explorer, which keeps most. Frames are
those that the page itself is given to draw (60 a second at most here). Memory is what is left after a collection, so that
a leak shows as growth.

`python -m bench.console --hidden 60` hides each page so long, shows it again, and tells for how long its main thread
was blocked (case B11): the sum of tasks of more than 50 ms in the two seconds after, less what they are in two seconds
of the same page before; and what the thread computed in both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from playwright.async_api import CDPSession, Page
from rich.console import Console
from rich.table import Table

from tests.console.stage import Stage, open_stage
from tests.support.device import Device

DEVICES: Final = 200
PLACES: Final = ("#/fleet", "#/explorer", "#/devices/bench-000", "#/alerts", "#/letters", "#/health")
STAYS_ON: Final = "#/explorer"
SETTLE_S: Final = 2.0
LEAST_FRAMES: Final = 50.0
MOST_GROWTH: Final = 1.15  # of heap and nodes, from the second to the last look at the same page …
SLACK_MIB: Final = 1.0  # … or so little that it does not matter
SLACK_NODES: Final = 1_500  # V8 keeps one chart that was taken away, with its page, by the shape of its objects: once
MOST_BLOCKED_MS: Final = 200.0
RETURN_S: Final = 2.0
WATCH: Final = """(seconds) => new Promise((done) => {
    let frames = 0, longest = 0, held = 0, last = performance.now();
    const begun = last, end = last + seconds * 1000;
    const tasks = new PerformanceObserver((list) => {
        for (const task of list.getEntries()) if (task.startTime >= begun) held += task.duration;
    });
    tasks.observe({ type: "longtask" });
    globalThis.atOnce?.();
    requestAnimationFrame(function frame() {
        const now = performance.now();
        frames += 1;
        longest = Math.max(longest, now - last);
        last = now;
        if (now < end) return requestAnimationFrame(frame);
        setTimeout(() => {
            tasks.disconnect();
            done({ frames: frames / ((last - begun) / 1000), longest, held });
        });
    });
})"""
# A headless browser never hides a page, so the page is made to believe it; it is shown again within what is measured.
HIDE: Final = """() => {
    const turn = (state) => {
        Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    };
    turn("hidden");
    globalThis.atOnce = () => { delete globalThis.atOnce; turn("visible"); };
}"""
Verdict = tuple[str, str, bool]  # what, the figure beside its limit, whether it is kept


@dataclass(frozen=True, slots=True)
class Figures:
    """One page over one stretch. ``longest``: between two frames, ms. ``held``: ms a second in tasks of over 50 ms."""

    place: str
    after_s: int
    frames: float
    longest: float
    held: float
    heap_mib: float
    nodes: int


@dataclass(frozen=True, slots=True)
class Return:
    """What it costs to show a page again, and beside it what it does usually, in ms within two seconds.

    ``blocked``: in tasks of over 50 ms. ``computed``: of the main thread's processor time. ``longest``: between two frames.
    """

    place: str
    hidden_s: float
    blocked: float
    usually_blocked: float
    computed: float
    usually_computed: float
    longest: float


class Screen:
    """The page that is looked at, with what the browser's tools say of it."""

    def __init__(self, page: Page, devtools: CDPSession) -> None:
        self._page = page
        self._devtools = devtools
        self._began = time.monotonic()

    async def go(self, place: str) -> None:
        """Show a page of the console."""
        await self._page.evaluate("place => { location.hash = place; }", place)
        await self._page.wait_for_timeout(SETTLE_S * 1000)

    async def measure(self, place: str, seconds: float) -> Figures:
        """Look at the open page for a while."""
        told = await self._page.evaluate(WATCH, seconds)
        await self._devtools.send("HeapProfiler.collectGarbage")
        metrics = await self._metrics()
        return Figures(
            place,
            round(time.monotonic() - self._began),
            round(told["frames"], 1),
            round(told["longest"]),
            round(told["held"] / seconds),
            round(metrics["JSHeapUsedSize"] / 2**20, 2),
            int(metrics["Nodes"]),
        )

    async def come_back(self, place: str, hidden_s: float) -> Return:
        """Look at the page as it usually is, hide it, and look again while it is shown."""
        usual, usual_computed = await self._watch()
        await self._page.evaluate(HIDE)
        await self._page.wait_for_timeout(hidden_s * 1000)
        told, computed = await self._watch()
        held = (round(told["held"]), round(usual["held"]))
        return Return(place, hidden_s, *held, round(computed), round(usual_computed), round(told["longest"]))

    async def _watch(self) -> tuple[dict[str, float], float]:
        """What the page tells of the time of a return, and the ms that its main thread computed in it."""
        before = await self._metrics()
        told = await self._page.evaluate(WATCH, RETURN_S)
        return told, ((await self._metrics())["TaskDuration"] - before["TaskDuration"]) * 1000

    async def _metrics(self) -> dict[str, float]:
        found = await self._devtools.send("Performance.getMetrics")
        return {metric["name"]: metric["value"] for metric in found["metrics"]}


@asynccontextmanager
async def screen(seconds: float) -> AsyncIterator[Screen]:
    """A gateway with all devices speaking, each at its own moment of the second, and the console signed in."""
    tasks: list[asyncio.Task[None]] = []
    with tempfile.TemporaryDirectory() as folder:
        async with open_stage(Path(folder)) as stage:
            try:
                await speak(stage, seconds, tasks)
                page = await stage.sign_in(PLACES[0])
                devtools = await page.context.new_cdp_session(page)
                await devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
                yield Screen(page, devtools)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            await stage.check()


async def speak(stage: Stage, seconds: float, tasks: list[asyncio.Task[None]]) -> None:
    """Let all devices say something every second."""
    for credential in await stage.gateway.add_devices([f"bench-{number:03}" for number in range(DEVICES)]):
        device = Device(credential, lambda: stage.gateway.mqtt, count=int(seconds) + 600, pause=1.0, plain=True)
        tasks.append(asyncio.create_task(device.run()))
        await asyncio.sleep(1 / DEVICES)


async def look(minutes: float, stretch: float, places: Sequence[str]) -> list[Figures]:
    """Half of the time walk through the pages, half of it stay on one; prints each stretch as a line of JSON."""
    found: list[Figures] = []

    async def one(place: str) -> None:
        found.append(await shown.measure(place, stretch))
        print(json.dumps(asdict(found[-1])), flush=True)

    async with screen(minutes * 60) as shown:
        half = time.monotonic() + minutes * 30
        while time.monotonic() < half:
            for place in places:
                await shown.go(place)
                await one(place)
        await shown.go(STAYS_ON)
        while time.monotonic() < half + minutes * 30:
            await one(f"{STAYS_ON}, staying")
    return found


async def come_back(seconds: float, places: Sequence[str]) -> list[Return]:
    """Hide each page and show it again; prints each return as a line of JSON."""
    found: list[Return] = []
    async with screen(seconds * len(places)) as shown:
        for place in places:
            await shown.go(place)
            found.append(await shown.come_back(place, seconds))
            print(json.dumps(asdict(found[-1])), flush=True)
    return found


def judge_returns(found: Sequence[Return]) -> Iterator[Verdict]:
    """Whether a return blocks the page for less than the case allows, beyond what is usual on this machine."""
    for each in found:
        more = max(0.0, each.blocked - each.usually_blocked)
        figure = (
            f"{more:.0f} ms blocked (< {MOST_BLOCKED_MS:.0f}) beyond {each.usually_blocked:.0f} ms, "
            f"{each.computed:.0f} ms computed (usually {each.usually_computed:.0f}), gap {each.longest:.0f} ms"
        )
        yield f"{each.place} after {each.hidden_s:.0f} s", figure, more < MOST_BLOCKED_MS


def judge(found: Sequence[Figures]) -> Iterator[Verdict]:
    """Frames at their least, and how heap and nodes grow between two looks at the same page."""
    for place in dict.fromkeys(each.place for each in found):
        looks = [each for each in found if each.place == place]
        frames = min(each.frames for each in looks)
        yield place, f"{frames:.1f} frames/s at least (> {LEAST_FRAMES:.0f})", frames > LEAST_FRAMES
        if len(looks) < 2:
            continue
        # What is made once (code, templates, caches) is there after the first look, where there are more than two.
        first, last = looks[len(looks) > 2], looks[-1]
        kept = last.heap_mib <= max(first.heap_mib * MOST_GROWTH, first.heap_mib + SLACK_MIB)
        yield place, f"heap {first.heap_mib:.2f} → {last.heap_mib:.2f} MiB in {last.after_s - first.after_s} s", kept
        kept = last.nodes <= max(first.nodes * MOST_GROWTH, first.nodes + SLACK_NODES)
        yield place, f"nodes {first.nodes} → {last.nodes}", kept


def tell(verdicts: Sequence[Verdict]) -> bool:
    """Print the verdict; returns whether every limit is kept."""
    table = Table("page", "figure", "verdict", box=None, pad_edge=False)
    for what, figure, kept in verdicts:
        table.add_row(what, figure, "[green]kept" if kept else "[red]missed")
    good = all(kept for _, _, kept in verdicts)
    console = Console() if Console().is_terminal else Console(width=130)
    console.print(table)
    console.print("[green]Every limit is kept." if good else "[red]A limit is missed.")
    return good


def main() -> None:
    """Read how long to look, and at what."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--stretch", type=float, default=10.0, help="seconds for which each page is looked at")
    options.add_argument("--place", action="append", help="only this page, such as '#/fleet'; may be repeated")
    options.add_argument("--hidden", type=float, help="instead: hide each page for so many seconds, and show it again")
    given = options.parse_args()
    places = tuple(given.place or PLACES)
    if given.hidden is not None:
        verdicts = list(judge_returns(asyncio.run(come_back(given.hidden, places))))
    else:
        verdicts = list(judge(asyncio.run(look(given.minutes, given.stretch, places))))
    sys.exit(0 if tell(verdicts) else 1)


if __name__ == "__main__":
    main()
