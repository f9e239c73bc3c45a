"""One partition of a processor: entries go to the handler slice by slice, and the place moves on behind their effects.

A handler that is unavailable halts the lane. An entry that it chokes on, or asks to get again later, waits with those of
its own key; the others go on, up to a bound. The place is committed up to the first entry whose fate is open, so a crash
repeats at most what was handled since then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, TypeVar

import structlog

from ...entities.errors import Fenced, IotSphereError, Unavailable
from ...entities.message import Entry
from ...entities.position import Position
from ...entities.topic import key_of
from ..ports.facts import APPLIED, EXPIRED, SUPERSEDED, FactHandler
from ..ports.message_log import Slice, Tally
from .fates import Fate, Fates, Item, Parking, Queue
from .tools import Claim, LaneTools

T = TypeVar("T")
Results = Sequence[str | IotSphereError]
SLICE_ENTRIES: Final = 500
DEAD_LETTERED: Final = "dead_lettered"
TALLIES: Final = {APPLIED: Tally(applied=1), SUPERSEDED: Tally(superseded=1), EXPIRED: Tally(expired=1)}

logger = structlog.get_logger("iotsphere.processor")


class FactLane:
    """Reads a partition on for a claim. ``halted``: the error whose end it waits for."""

    def __init__(self, claim: Claim, handler: FactHandler, tools: LaneTools) -> None:
        self.claim = claim
        self.halted: IotSphereError | None = None
        self.outcomes: Counter[str] = Counter()
        self.parking = Parking()
        self._handler = handler
        self._tools = tools
        self._settings = tools.settings
        self._fates = Fates()

    async def __call__(self) -> None:
        """Go on for ever. Raises Fenced when another process has the lease."""
        partition, log = self.claim.partition, self._tools.log
        progress = await self._patiently(lambda: log.committed(self.claim.reader))
        place = progress[partition].position
        places = self._tools.places
        if places is not None:
            await self._patiently(partial(places.catch_up, self.claim, place, self._handler))
        failures = 0
        while True:
            try:
                async with aclosing(log.follow({partition: place})) as slices:
                    reading: asyncio.Future[Slice] | None = None
                    try:
                        while True:
                            if reading is None and self._has_room():
                                reading = asyncio.ensure_future(anext(slices))
                            if await self._wait(reading) and reading is not None:
                                part, reading = reading.result(), None
                                place, failures = part.end, 0
                                await self._take(part)
                            await self._retry()
                            await self.commit()
                    finally:
                        if reading is not None:
                            reading.cancel()
                            await asyncio.gather(reading, return_exceptions=True)
            except Fenced:
                raise
            except Unavailable as error:  # the log went away while it was read; all that was read is handled
                failures += 1
                await self._halt(error, failures)

    async def _wait(self, reading: asyncio.Future[Slice] | None) -> bool:
        """Wait for the next slice, or until something is to be tried again; True: there is a slice."""
        due = self.parking.due()
        wait = None if due is None else max(0.0, due - asyncio.get_running_loop().time())
        if reading is None:
            await asyncio.sleep(wait or 0.0)
            return False
        await asyncio.wait((reading,), timeout=wait)
        return reading.done()

    def _has_room(self) -> bool:
        return len(self._fates) < self._settings.ahead and self.parking.size < self._settings.parked_bytes

    # -- handling -----------------------------------------------------------------------------------------------------

    async def _take(self, part: Slice) -> None:
        gap, entries = part.gap, part.entries
        if gap is not None:
            first = entries[0].position if entries else None
            before = part.end if first is None else Position(first.epoch, first.offset - 1)
            self._fates.add(before, Tally(lost=gap.missing))
            logger.error("facts_lost", reader=self.claim.reader, partition=str(gap.partition), missing=gap.missing)
        for start in range(0, len(entries), SLICE_ENTRIES):
            batch = [item for item in map(self._sort, entries[start : start + SLICE_ENTRIES]) if item is not None]
            if batch:
                await self._handle(batch)
            await self.commit()
        self._fates.pass_to(part.end)

    def _sort(self, entry: Entry) -> Item | None:
        """An entry for the handler, or None: it is none of its business, has expired, or waits behind its key."""
        record = entry.record
        fate = self._fates.add(entry.position)
        if not record.body or not self._handler.handles(record.topic):
            fate.tally = TALLIES[APPLIED]
        elif 0 < record.expires_at <= self._tools.clock.now():
            self._settle(fate, EXPIRED)
        elif self.parking.queues and (queue := self.parking.queues.get(key_of(record.topic))) is not None:
            self.parking.park(queue, (entry, fate))
        else:
            return entry, fate
        return None

    async def _handle(self, batch: Sequence[Item]) -> None:
        """Hand a batch over: whole if that goes well, else key by key, else one by one."""
        if await self._try(batch):
            return
        keys: dict[str, list[Item]] = {}
        for item in batch:
            keys.setdefault(key_of(item[0].record.topic), []).append(item)
        for key, items in keys.items():
            if len(keys) > 1 and await self._try(items):
                continue
            queue = self.parking.queue(key)
            for item in items:
                self.parking.park(queue, item)
            await self._work_off(key, queue)

    async def _try(self, items: Sequence[Item]) -> bool:
        """Hand entries over, and note what became of them; False: the handler failed, so nothing is known."""
        if len(items) == 1:
            return False  # who is alone is tried where its failures are counted
        results = await self._call([entry for entry, _ in items])
        if isinstance(results, Exception):
            return False
        for (entry, fate), result in zip(items, results, strict=True):
            again = isinstance(result, IotSphereError) and result.retry
            key = key_of(entry.record.topic) if again or self.parking.queues else ""
            if again and key not in self.parking.queues:
                self._put_off(self.parking.queue(key))
            if (queue := self.parking.queues.get(key)) is not None:  # also what comes behind it, to keep the order
                self.parking.park(queue, (entry, fate))
            else:
                await self._conclude(entry, fate, result, 1)
        return True

    async def _call(self, entries: Sequence[Entry]) -> Results | Exception:
        """What the handler says; waits as long as it is unavailable. Raises Fenced."""

        async def handle() -> Results:
            self.claim.check()
            return await self._handler(entries)

        try:
            results = await self._patiently(handle)
            if len(results) != len(entries):
                raise ValueError(f"the handler has {len(results)} answers to {len(entries)} entries")
            if unknown := [answer for answer in results if isinstance(answer, str) and answer not in TALLIES]:
                raise ValueError(f"the handler says {unknown[0]!a}, which no entry can become")
        except Fenced:
            raise
        except Exception as error:  # whatever it is: the entry is tried again, and buried in the end
            logger.warning("handler_failed", reader=self.claim.reader, entries=len(entries), error=repr(error))
            return error
        return results

    # -- what waits ---------------------------------------------------------------------------------------------------

    async def _retry(self) -> None:
        now = asyncio.get_running_loop().time()
        for key, queue in list(self.parking.queues.items()):
            if queue.due <= now:
                await self._work_off(key, queue)

    async def _work_off(self, key: str, queue: Queue) -> None:
        """Hand over the entries of a key one by one, until one has to wait."""
        while queue.items:
            entry, fate = queue.items[0]
            results = await self._call([entry])
            if isinstance(results, Exception):
                queue.blames += 1
                if queue.blames < self._settings.attempts:
                    break
                logger.error("fact_is_poison", reader=self.claim.reader, exc_info=results)
                await self._conclude(entry, fate, None, queue.blames)
            else:
                if isinstance(results[0], IotSphereError) and results[0].retry:
                    break
                await self._conclude(entry, fate, results[0], queue.blames + 1)
            self.parking.leave(queue)
        if queue.items:
            self._put_off(queue)
        else:
            del self.parking.queues[key]

    def _put_off(self, queue: Queue) -> None:
        queue.waits += 1
        queue.due = asyncio.get_running_loop().time() + self._settings.wait(queue.waits)

    # -- what became of them ------------------------------------------------------------------------------------------

    async def _conclude(self, entry: Entry, fate: Fate, result: str | IotSphereError | None, attempts: int) -> None:
        """Note an entry's fate; None: it is poison. A dead letter is in the log first, so that no crash loses it."""
        if isinstance(result, str):
            self._settle(fate, result)
            return
        letter = self._tools.bury(self.claim.reader, entry, result, attempts)
        await self._patiently(lambda: self._tools.publish([letter]))
        fate.tally = Tally(dead_lettered=1)
        self.outcomes[DEAD_LETTERED] += 1

    def _settle(self, fate: Fate, outcome: str) -> None:
        fate.tally = TALLIES[outcome]
        self.outcomes[outcome] += 1

    async def commit(self) -> None:
        """Commit the place up to the first entry whose fate is open. Raises Fenced."""
        while (done := self._fates.next_commit()) is not None:
            await self._patiently(partial(self._commit, *done))
            self._fates.committed()
            if self._tools.places is not None:
                await self._patiently(partial(self._tools.places.passed, self.claim, done[0]))

    async def _commit(self, place: Position, tally: Tally) -> None:
        reader, partition = self.claim.reader, self.claim.partition
        await self._tools.log.commit(reader, {partition: (place, tally)}, {partition: self.claim.fence})

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again, with back-off, as long as something is unavailable. Raises Fenced, and what else ``ask`` raises."""
        failures = 0
        while True:
            try:
                answer = await ask()
            except Fenced:
                raise
            except Unavailable as error:
                failures += 1
                await self._halt(error, failures)
            else:
                self.halted = None
                return answer

    async def _halt(self, error: IotSphereError, failures: int) -> None:
        if self.halted is None:
            logger.warning(
                "processor_halted", reader=self.claim.reader, partition=str(self.claim.partition), error=error
            )
        self.halted = error
        await asyncio.sleep(self._settings.wait(failures))
        self.claim.check()
