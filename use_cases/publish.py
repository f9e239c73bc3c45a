"""Publishing: whatever arrives while one append is under way becomes the next batch, and nobody is answered before it.

The batches clock themselves: at low load a message is appended at once, at high load the batches grow to what the log
can take. There is one append under way at a time, so the order of submission is the order in the log, also across
retries.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from ..entities.errors import IotSphereError, LogFull, ShuttingDown, Unavailable
from ..entities.message import Record
from .ports.message_log import Appended, MessageLog

Done = Callable[[Appended | IotSphereError], None]

BATCH_RECORDS: Final = 1_000
LOOKED_UP: Final = 250
LINGER_S: Final = 0.001
LINGER_BYTES: Final = 64 * 1024
RECORD_OVERHEAD_BYTES: Final = 300
FIRST_RETRY_S: Final = 0.05
LAST_RETRY_S: Final = 2.0
_RENAMED: Final = uuid.UUID("5f1c1e0a-6f0c-5b7e-9d55-0c8a1d0b7a55")
_body: Final = attrgetter("body")
_STOPPING: Final = "the gateway stopped before the log answered; send it again"


class Submission:
    """Records that wait for the log, and who is told. More may join them until they are ``taken`` into a batch."""

    __slots__ = ("done", "records", "size", "taken")

    def __init__(self, records: list[Record], done: Done) -> None:
        self.records = records
        self.done = done
        self.size = 0
        self.taken = False


class MessagePublishUseCase:
    """Append records durably and tell each submitter afterwards.

    A log that is unavailable is retried with back-off for as long as the product runs: the submitters wait, unanswered,
    and the doors stop reading. A log that is full answers LogFull to the submitters, who tell their clients.
    """

    def __init__(self, log: MessageLog, max_pending_bytes: int = 32 * 1024 * 1024) -> None:
        self._log = log
        self._max_pending = max_pending_bytes
        self._waiting: deque[Submission] = deque()
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._begun = 0.0
        self._monotonic = time.monotonic
        self.pending_bytes = 0
        self.accepted = 0
        self.duplicates = 0
        self.renamed = 0
        self.failures = 0
        self.batches = 0
        self.stalled: IotSphereError | None = None

    @property
    def congested(self) -> bool:
        """True while more bytes wait than the product wants to hold: doors should stop reading."""
        return self.pending_bytes > self._max_pending

    def submit(self, records: Sequence[Record], done: Done) -> bool:
        """Put records into the next batch; returns ``congested``.

        ``done`` is called once, in the event loop: with the positions once the records are durable, or with the error
        that ended the attempt. It must not raise.
        """
        begun = self.begin(records if isinstance(records, list) else list(records), done)
        return begun.taken or self.pending_bytes > self._max_pending

    def begin(self, records: list[Record], done: Done) -> Submission:
        """As ``submit``, but others may ``join`` what is returned: who does not own the list must not change it."""
        submission = Submission(records, done)
        if self._closing:
            submission.taken = True
            done(ShuttingDown(_STOPPING))
            return submission
        self._weigh(submission, records)
        self._waiting.append(submission)
        if self._task is None:
            self._idle.clear()
            self._task = asyncio.get_running_loop().create_task(self._work())
        return submission

    def join(self, submission: Submission, records: Sequence[Record]) -> None:
        """Put records behind those of a submission that is not taken yet; they are answered with it."""
        assert not submission.taken
        submission.records += records
        self._weigh(submission, records)

    def _weigh(self, submission: Submission, records: Sequence[Record]) -> None:
        size = sum(map(len, map(_body, records))) + RECORD_OVERHEAD_BYTES * len(records)
        submission.size += size
        self.pending_bytes += size

    async def __call__(self, records: Sequence[Record]) -> Appended:
        """Append records and wait until they are durable. Raises LogFull and ShuttingDown."""
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

        def done(result: Appended | IotSphereError) -> None:
            if future.done():
                return
            if isinstance(result, IotSphereError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.submit(records, done)
        return await future

    async def close(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds until everything submitted is answered; what is left gets ShuttingDown."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            self._closing = True
            task = self._task
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
            self._fail(self._waiting)
        self._closing = True

    def _fail(self, items: deque[Submission]) -> None:
        while items:
            item = items.popleft()
            item.taken = True
            self.pending_bytes -= item.size
            item.done(ShuttingDown(_STOPPING))

    async def _gather(self) -> None:
        """Wait a moment when the last append has only just begun and little has come since.

        An append costs about as much as thirty messages; without this, a middling load would be spent on appends.
        """
        now = self._monotonic()
        pause = self._begun + LINGER_S - now
        if pause > 0 and self.pending_bytes < LINGER_BYTES:
            await asyncio.sleep(pause)
            now = self._monotonic()
        self._begun = now

    def _next_batch(self) -> deque[Submission]:
        batch: deque[Submission] = deque()
        count = 0
        while self._waiting and count < BATCH_RECORDS:
            item = self._waiting.popleft()
            item.taken = True
            batch.append(item)
            count += len(item.records)
        return batch

    async def _work(self) -> None:
        batch: deque[Submission] = deque()
        try:
            while self._waiting:
                await self._gather()
                batch = self._next_batch()
                records = batch[0].records if len(batch) == 1 else [record for item in batch for record in item.records]
                self._answer(batch, await self._append(records))
        finally:
            self._task = None
            self._fail(batch)  # only when this task is cancelled, or the log fails in a way that it must not
            if self._waiting and not self._closing:
                self._task = asyncio.get_running_loop().create_task(self._work())
            else:
                self._idle.set()

    async def _append(self, records: Sequence[Record]) -> Appended | IotSphereError:
        delay = FIRST_RETRY_S
        while True:
            try:
                appended = await self._log.append(records)
                if appended.duplicates:
                    appended = await self._keep_strangers(records, appended)
            except LogFull as error:
                self.failures += 1
                self.stalled = error
                return error
            except Unavailable as error:
                self.failures += 1
                self.stalled = error
                if not error.retry:
                    return error
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(delay * 2, LAST_RETRY_S)
            except IotSphereError as error:
                return error
            else:
                self.stalled = None
                self.batches += 1
                self.accepted += len(records) - len(appended.duplicates)
                self.duplicates += len(appended.duplicates)
                return appended

    async def _keep_strangers(self, records: Sequence[Record], appended: Appended) -> Appended:
        """Append what only looks repeated: the log knows its message id, but from a message on another topic.

        Ids are the senders' own, and two of them may use the same one by mistake or by malice. Neither may cost the
        other a message, so the later one goes into the log under an id that follows from both its topic and its id.
        Raises as the log does; repeating it finds the same ids.
        """
        repeated = [index for index in sorted(appended.duplicates) if not records[index].minted]
        strangers: dict[int, Record] = {}
        for start in range(0, len(repeated), LOOKED_UP):
            some = repeated[start : start + LOOKED_UP]
            found = await self._log.entries([(records[index].partition, appended.positions[index]) for index in some])
            for index, first in zip(some, found, strict=True):
                if first is not None and first.record.topic != records[index].topic:
                    strangers[index] = renamed(records[index])
        if not strangers:
            return appended
        again = await self._log.append(list(strangers.values()))
        positions = list(appended.positions)
        for place, index in enumerate(strangers):
            positions[index] = again.positions[place]
        known = {index for place, index in enumerate(strangers) if place in again.duplicates}
        self.renamed += len(strangers) - len(known)
        return Appended(positions, appended.duplicates.difference(strangers) | known)

    def _answer(self, batch: deque[Submission], result: Appended | IotSphereError) -> None:
        start = 0
        alone = len(batch) == 1
        while batch:
            item = batch.popleft()
            self.pending_bytes -= item.size
            done = item.done
            end = start + len(item.records)
            if isinstance(result, IotSphereError) or alone:
                done(result)
            else:
                duplicates = result.duplicates
                if duplicates:
                    duplicates = frozenset(index - start for index in duplicates if start <= index < end)
                done(Appended(result.positions[start:end], duplicates))
            start = end


def renamed(record: Record) -> Record:
    """The record under the id that it gets where its own one is another topic's; always the same one."""
    message_id = str(uuid.uuid5(_RENAMED, f"{record.topic} {record.message_id}"))
    body = record.body.replace(record.message_id.encode(), message_id.encode(), 1)  # the envelope begins with it
    return record._replace(message_id=message_id, body=body)
