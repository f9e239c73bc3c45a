"""Changes of shadows in self-clocked batches: what comes in while one write is under way goes into the next one.

Each shadow has one write under way at a time in this process, and all changes that wait for it become one write, each
with a version of its own. Writers of other processes are found out by the database's lock; the changes are then made
anew on what stands there. So a hot shadow costs one write per round, however many write to it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ...entities.errors import DatabaseUnavailable, DocumentNewer, IotSphereError, RateLimited, RequestInvalid
from ...entities.shadow import Answer, Shadow, ShadowKey, json_size
from ..ports.clock import Clock
from ..ports.database import Body, Collection, Database, Index, Outcome, Stored, Write

SHADOWS: Final = Collection("shadows", (Index("due", ("due",)),), watched=True)

MAX_WAITING: Final = 20_000
BATCH_SHADOWS: Final = 256
MAX_STEPS: Final = 64
MAX_STEP_BYTES: Final = 96 * 1024
MAX_TRIES: Final = 60
UNFAIR_TRIES: Final = (
    24  # who has lost that often pauses no more: writing on what a conflict told, it is ahead of readers
)
FIRST_PAUSE_S: Final = 0.002
LAST_PAUSE_S: Final = 0.1

Change = Callable[[Shadow, int], tuple[Shadow, Answer]]


class ShadowFormat(Protocol):
    """A shadow as a document's body, and back.

    ``step``: the merge patch from one body to the next as readers are told of them. A body that holds several versions
    has the steps to all but the last, so that whoever reads the change can tell each of them.
    """

    def read(self, key: ShadowKey, body: Body | None) -> Shadow:
        """The shadow of a body, whatever people may have written there; None: a shadow of version 0.

        Raises DocumentNewer for one in a schema that is not known here.
        """
        ...

    def write(self, shadow: Shadow, steps: Sequence[Mapping[str, Any]] = ()) -> Body:
        """The body of a shadow."""
        ...

    def step(self, earlier: Shadow, later: Shadow) -> Mapping[str, Any]:
        """What makes the later one's body of the earlier one's."""
        ...


class _Job(NamedTuple):
    change: Change
    done: asyncio.Future[Answer]


class _Plan(NamedTuple):
    key: ShadowKey
    write: Write | None
    jobs: list[tuple[_Job, Answer | Exception]]


class _Line:
    """What waits for one shadow. ``stands``: the document, where a conflict has just told it. ``pausing``: after one."""

    __slots__ = ("jobs", "pausing", "stands", "tries")

    def __init__(self) -> None:
        self.jobs: deque[_Job] = deque()
        self.pausing = False
        self.tries = 0
        self.stands: Stored | None = None


class ShadowWriter:
    """Carries out changes, each exactly on the shadow that the change before it has left."""

    def __init__(self, database: Database, form: ShadowFormat, clock: Clock) -> None:
        self._database = database
        self._form = form
        self._clock = clock
        self._lines: dict[ShadowKey, _Line] = {}
        self._ready: dict[ShadowKey, None] = {}
        self._task: asyncio.Task[None] | None = None
        self.waiting = 0
        self.writes = 0
        self.conflicts = 0

    async def __call__(self, key: ShadowKey, change: Change) -> Answer:
        """Carry out one change.

        Raises what the change raises, RateLimited when too many wait, and Unavailable: then it may or may not have
        happened.
        """
        if self.waiting >= MAX_WAITING:
            raise RateLimited("more changes of shadows wait than the database takes: send them again later, and slower")
        (job,) = self._submit(((key, change),))
        return await job.done

    async def many(self, changes: Sequence[tuple[ShadowKey, Change]]) -> list[Answer | IotSphereError]:
        """Carry out changes, those of one shadow in their order. Returns for each its answer, or what it raised.

        For readers of the log and timers, which wait for one such call before they make the next.
        """
        answers = await asyncio.gather(*(job.done for job in self._submit(changes)), return_exceptions=True)
        found: list[Answer | IotSphereError] = []
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, IotSphereError):
                raise answer
            found.append(answer)
        return found

    def _submit(self, changes: Iterable[tuple[ShadowKey, Change]]) -> list[_Job]:
        loop = asyncio.get_running_loop()
        jobs: list[_Job] = []
        for key, change in changes:
            job = _Job(change, loop.create_future())
            jobs.append(job)
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = _Line()
                self._ready[key] = None
            line.jobs.append(job)
        self.waiting += len(jobs)
        self._start()
        return jobs

    def _start(self) -> None:
        if self._task is None and self._ready:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._ready:
                keys = list(self._ready)[:BATCH_SHADOWS]
                for key in keys:
                    del self._ready[key]
                plans: dict[ShadowKey, _Plan] = {}
                try:
                    found = await self._read(keys)
                    for key in keys:
                        plans[key] = _Plan(key, None, [])
                        try:
                            plans[key] = self._filled(plans[key], found.get(key.text))
                        except DocumentNewer as error:  # the others of the round are none of its business
                            self._fail(key, plans.pop(key), error)
                    await self._carry_out(list(plans.values()))
                except BaseException as error:  # everybody who waits is told, whatever it was
                    for key in keys:
                        if self._is_open(key):
                            self._fail(key, plans.get(key), error)
                    if not isinstance(error, Exception):
                        raise
        finally:
            self._task = None
            self._start()

    async def _read(self, keys: Sequence[ShadowKey]) -> dict[str, Stored]:
        """The documents; those that a conflict has just told need not be read again."""
        known = {key.text: stands for key in keys if (stands := self._lines[key].stands) is not None}
        unknown = [key.text for key in keys if key.text not in known]
        return {**known, **await self._database.get_many(SHADOWS.name, unknown)} if unknown else known

    def _filled(self, plan: _Plan, stored: Stored | None) -> _Plan:
        """Make as many of the waiting changes as one write may hold."""
        key, _, jobs = plan
        line = self._lines[key]
        first = shadow = self._form.read(key, None if stored is None else stored.body)
        steps: list[Mapping[str, Any]] = []
        told = first
        size = 0
        at = self._clock.now()
        while line.jobs and len(steps) < MAX_STEPS and size < MAX_STEP_BYTES:
            job = line.jobs.popleft()
            if job.done.done():  # whoever asked has gone
                self.waiting -= 1
                continue
            try:
                after, answer = job.change(shadow, at)
            except Exception as error:  # it goes to whoever asked for the change
                jobs.append((job, error))
                continue
            jobs.append((job, answer))
            if shadow.version not in (after.version, first.version):
                steps.append(self._form.step(told, shadow))
                size += json_size(steps[-1])
                told = shadow
            shadow = after
        write = None if shadow is first else Write(key.text, stored, self._form.write(shadow, steps))
        return plan._replace(write=write)

    async def _carry_out(self, plans: Sequence[_Plan]) -> None:
        writing = [(plan, plan.write) for plan in plans if plan.write is not None]
        for plan in plans:
            if plan.write is None:
                self._answer(plan)
        if not writing:
            return
        try:
            outcomes = await self._database.write(SHADOWS.name, [write for _, write in writing])
        except RequestInvalid:
            # One of them cannot be stored, and only its own senders are to hear of it.
            for plan, write in writing:
                try:
                    (outcome,) = await self._database.write(SHADOWS.name, [write])
                except IotSphereError as error:
                    self._answer(plan, error)
                else:
                    self._conclude(plan, outcome)
        except IotSphereError as error:
            for plan, _ in writing:
                self._answer(plan, error)
        else:
            for (plan, _), outcome in zip(writing, outcomes, strict=True):
                self._conclude(plan, outcome)

    def _conclude(self, plan: _Plan, outcome: Outcome) -> None:
        if outcome.done:
            self.writes += 1
            self._answer(plan)
            return
        self.conflicts += 1
        line = self._lines[plan.key]
        line.tries += 1
        if line.tries > MAX_TRIES:
            self._answer(
                plan, DatabaseUnavailable(f"others keep changing the shadow {plan.key.text!a}: send it again later")
            )
            return
        line.stands = outcome.stands
        line.jobs.extendleft(job for job, _ in reversed(plan.jobs))
        plan.jobs.clear()
        if line.tries == 1 or line.tries >= UNFAIR_TRIES:
            self._ready[plan.key] = None
        else:
            pause = min(FIRST_PAUSE_S * 2.0**line.tries, LAST_PAUSE_S) * random.random()
            line.pausing, line.stands = True, None  # what stands there will be something else by then
            asyncio.get_running_loop().call_later(pause, self._wake, plan.key)

    def _wake(self, key: ShadowKey) -> None:
        self._lines[key].pausing = False
        self._ready[key] = None
        self._start()

    def _answer(self, plan: _Plan, error: IotSphereError | None = None) -> None:
        """Tell everybody what became of their changes; ``error``: nothing was written."""
        self.waiting -= len(plan.jobs)
        for job, answer in plan.jobs:
            _tell(job, answer if error is None else error)
        plan.jobs.clear()
        line = self._lines[plan.key]
        line.tries, line.stands = 0, None
        if line.jobs:
            self._ready[plan.key] = None
        else:
            del self._lines[plan.key]

    def _is_open(self, key: ShadowKey) -> bool:
        """Tell whether the present round has not come to an end with this shadow."""
        return key in self._lines and key not in self._ready and not self._lines[key].pausing

    def _fail(self, key: ShadowKey, plan: _Plan | None, error: BaseException) -> None:
        """Tell everybody who waits for this shadow of an error that nobody has foreseen, or of a read that failed."""
        jobs = [*(job for job, _ in (plan.jobs if plan is not None else ())), *self._lines.pop(key).jobs]
        self.waiting -= len(jobs)
        for job in jobs:
            _tell(job, error)


def _tell(job: _Job, answer: Answer | BaseException) -> None:
    if job.done.done():
        return
    if isinstance(answer, asyncio.CancelledError):
        job.done.cancel()
    elif isinstance(answer, BaseException):
        job.done.set_exception(answer)
    else:
        job.done.set_result(answer)
