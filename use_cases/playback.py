"""Playing the past: the log at a multiple of its own speed, by the time of acceptance, up to the present.

A playback owns a reader until it has reached the present; the reader then catches up and joins the live feed as ever,
so nothing falls in between and nothing comes twice. Its clock never runs past a message that is due and not taken: a
slow client slows the playback down. Silence longer than a bound is left out, and the client is told how much.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ..entities.errors import Unavailable
from ..entities.message import Entry
from ..entities.position import Partition
from .feed import Batch
from .ports.clock import Clock
from .ports.message_log import MessageLog

if TYPE_CHECKING:
    from .reader import Reader

READ_ENTRIES: Final = 200
READ_AHEAD_BYTES: Final = 1024 * 1024  # over all partitions
TICK_S: Final = 0.05
TELL_EVERY_S: Final = 1.0
RETRY_S: Final = 0.25
PRESENT_MS: Final = 1_000


class PlaybackTime(NamedTuple):
    """Where a playback is. ``time``: ms since 1970; ``skipped``: ms of silence that were left out before it.

    ``state``: ``playing``, ``paused`` or, once it has reached the present, ``live``.
    """

    time: int
    speed: float
    state: str
    skipped: int


async def sleep(seconds: float, woken: asyncio.Event) -> None:
    """Wait until that time has passed or somebody calls."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await woken.wait()


@dataclass(frozen=True, slots=True)
class Timing:
    """How a playback measures and waits. Seconds. ``silence``: what is played of a longer one."""

    monotonic: Callable[[], float] = lambda: asyncio.get_running_loop().time()
    sleep: Callable[[float, asyncio.Event], Awaitable[None]] = sleep
    silence: float = 10.0


class _Lane:
    """One partition: what was read ahead. ``known``: there is nothing more of an earlier time (ms)."""

    __slots__ = ("ahead", "known", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.ahead: deque[Entry] = deque()
        self.known = 0

    @property
    def upcoming(self) -> int:
        return self.ahead[0].appended_at if self.ahead else self.known


class Playback:
    """Plays for one reader. ``start``: ms since 1970, None to begin with the first message; ``speed`` 0 stands still.

    ``told``: gets its time, when that changes and once a second.
    """

    def __init__(self, log: MessageLog, clock: Clock, timing: Timing, start: int | None, speed: float) -> None:
        self._log = log
        self._clock = clock
        self._timing = timing
        self._start = start
        self.speed = speed
        self.told: Callable[[PlaybackTime], None] | None = None
        self._at = 0.0
        self._anchor = 0.0
        self._quiet_since = 0.0
        self._told_at = 0.0
        self._woken = asyncio.Event()
        self._lanes: list[_Lane] = []

    def play(self, speed: float) -> None:
        """Go on at another speed."""
        self._stand(self._reached())
        self.speed = speed
        self._woken.set()
        self._tell()

    async def run(self, reader: Reader) -> None:
        """Play until the present is reached; the reader's positions are those of what was delivered."""
        await self._begin(reader)
        while True:
            if not self.speed:
                self._lanes = []  # who stands still for hours holds nothing
                await self._pause()
                continue
            began, now = self._timing.monotonic(), self._clock.now()
            time = self._reached()
            upcoming = await self._drain(reader, time)
            if upcoming is None:
                continue
            self._at, self._anchor = time, max(began, self._timing.monotonic() - TICK_S)
            if now - time < PRESENT_MS or not await self._wait(reader, (upcoming - time) / 1000):
                break
            self._tell_now_and_then()
        self._stand(self._clock.now())
        self._tell(state="live")

    async def _drain(self, reader: Reader, time: float) -> float | None:
        """Deliver all that is due, and tell when something may be due again. None: it was not taken, or not any more."""
        while self.speed:
            await self._fill(reader, time)
            if not await self._deliver(reader, time):
                return None
            upcoming = min((lane.upcoming for lane in self._lanes), default=time)
            if upcoming >= time:
                return upcoming
            self._stand(max(self._at, upcoming))  # meanwhile the clock waits for what is due
            self._tell_now_and_then()
            await asyncio.sleep(0)
        return None

    async def _begin(self, reader: Reader) -> None:
        self._at = self._clock.now() if self._start is None else self._start
        self._stand(self._at)
        if self._start is None:
            found = await self._first(reader)
            self._stand(self._clock.now() if found is None else found)
        self._tell()

    async def _first(self, reader: Reader) -> int | None:
        """When the next message of all was accepted; None when there is none."""
        await self._fill(reader, self._clock.now())
        return min((lane.ahead[0].appended_at for lane in self._lanes if lane.ahead), default=None)

    async def _pause(self) -> None:
        self._woken.clear()
        await self._woken.wait()
        self._stand(self._at)

    async def _wait(self, reader: Reader, ahead: float) -> bool:
        """Wait for what lies so many seconds ahead, as long as silence is played. False: nothing does up to now."""
        quiet = self._timing.silence - (self._timing.monotonic() - self._quiet_since)
        if quiet <= 0:
            found = await self._first(reader)
            if found is None:
                return False
            skipped = max(0, found - self._reached())
            self._stand(max(self._at, float(found)))
            self._tell(int(skipped))
            return True
        self._woken.clear()
        await self._timing.sleep(max(TICK_S, min(ahead / self.speed, quiet, TELL_EVERY_S)), self._woken)
        return True

    # -- the clock ----------------------------------------------------------------------------------------------------

    def _reached(self) -> float:
        passed = (self._timing.monotonic() - self._anchor) * 1000 * self.speed
        return max(self._at, min(self._at + passed, self._clock.now()))

    def _stand(self, time: float) -> None:
        """Stand at a time, and go on from there."""
        self._at = time
        self._anchor = self._quiet_since = self._timing.monotonic()

    def _tell_now_and_then(self) -> None:
        if self._timing.monotonic() - self._told_at >= TELL_EVERY_S:
            self._tell()

    def _tell(self, skipped: int = 0, state: str | None = None) -> None:
        self._told_at = self._timing.monotonic()
        if self.told is not None:
            self.told(
                PlaybackTime(int(self._at), self.speed, state or ("playing" if self.speed else "paused"), skipped)
            )

    # -- the log ------------------------------------------------------------------------------------------------------

    async def _fill(self, reader: Reader, until: float) -> None:
        """Read ahead, until each partition has a message ahead or nothing up to a time.

        Not beyond what the busiest one has ahead, or the quiet ones would be asked again at each step.
        """
        if not self._lanes:
            self._lanes = [_Lane(partition) for partition in reader.behind]
        until = min([until, *(lane.known for lane in self._lanes if lane.ahead)])
        for lane in sorted((lane for lane in self._lanes if not lane.ahead), key=lambda lane: lane.known):
            while not lane.ahead and lane.known < until:
                try:
                    await self._read(reader, lane)
                except Unavailable:
                    await asyncio.sleep(RETRY_S)  # the log is coming back; the publisher counts and reports its absence
            if lane.ahead:
                until = min(until, lane.known)

    async def _read(self, reader: Reader, lane: _Lane) -> None:
        after, now = reader.behind[lane.partition], self._clock.now()
        part = await self._log.read(lane.partition, after, READ_ENTRIES, READ_AHEAD_BYTES // len(self._lanes))
        if part.gap is not None:
            reader.sink.missed(reader, part.gap)
        entries = list(part.entries)
        lane.ahead.extend(reader.wanted(entries))
        # Times may step back where a clock was set back: the latest one is what is known.
        lane.known = max([lane.known, *(entry.appended_at for entry in entries)]) if entries else now
        reader.behind[lane.partition] = lane.ahead[0].position.before if lane.ahead else part.end

    async def _deliver(self, reader: Reader, time: float) -> bool:
        """Deliver what is due, in order up to where every partition is known. False: the client took not all of it."""
        limit = min(time, *(lane.known for lane in self._lanes)) if self._lanes else time
        for lane in self._lanes:
            due: list[Entry] = []
            while lane.ahead and lane.ahead[0].appended_at <= limit:
                due.append(lane.ahead.popleft())
            if not due:
                continue
            end = lane.ahead[0].position.before if lane.ahead else due[-1].position
            before, reader.behind[lane.partition] = reader.behind[lane.partition], end
            if not reader.offer(Batch(lane.partition, _newest(reader, due), end)):
                # What was read is read again later: a thousand stalled readers must not keep it.
                reader.behind[lane.partition] = before
                self._lanes = []
                await reader.until_room()
                self._stand(max(self._at, float(due[0].appended_at)))
                return False
            self._quiet_since = self._timing.monotonic()
        return True


def _newest(reader: Reader, entries: list[Entry]) -> list[Entry]:
    """With the policy ``latest``, the newest entry of each topic."""
    if reader.subscription.policy != "latest":
        return entries
    newest: dict[str, Entry] = {}
    for entry in entries:
        newest.pop(entry.record.topic, None)
        newest[entry.record.topic] = entry
    reader.supersede(len(entries) - len(newest))
    return list(newest.values())
