"""One run of a job: once over a range, once over what is new since the last time, or for ever after the log."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ...adapters.timestamps import iso
from ...entities.errors import IotSphereError, RequestInvalid, Unavailable
from . import checkpoints, places
from .checkpoints import Checkpoint, Identity, opened
from .failures import failure_of, is_busy, is_gone
from .jobs import Counts, Job, Run
from .places import Offsets
from .progress import Progress, distance
from .source import LogSource, Wanted, borders, read_options
from .stages import Stages
from .unread import Reading, Unread, reading

POLL_S: Final = 1
TICK_S: Final = 5.0
STARTS: Final = 6
ENDING_S: Final = 20.0
CLOCK_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
MakeRun = Callable[[str, bool], Run]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. ``source``: options of the data source; ``make_run(application, following)`` says where results go.

    ``checkpoint``: None for one pass over the range. With one, what is new since the last time; ``follow``: for ever.
    ``every``: seconds between the beginnings of two batches, 0 for as soon as possible.
    """

    job: Job
    source: Mapping[str, str]
    make_run: MakeRun
    checkpoint: Path | None = None
    follow: bool = False
    every: float = 0.0
    migrate: bool = False


class StoppedAtBorder(Exception):
    """Ends a stream before it writes anything of a new batch, since it was asked to stop."""


class Runner:
    """Runs a plan in the calling thread. ``stop`` may come from any thread or signal handler."""

    def __init__(self, spark: SparkSession, plan: Plan, kind: type[LogSource]) -> None:
        self.progress = Progress()
        self._spark = spark
        self._plan = plan
        self._kind = kind
        self._gate = threading.Lock()
        self._stopping = threading.Event()
        self._at_border = threading.Event()
        self._failure: BaseException | None = None
        self._seen = ""
        self._counted: dict[int, int | None] = {}
        self._first: Offsets | None = None
        self._reading: Reading | None = None
        self._ticked = time.monotonic()
        spark.dataSource.register(kind)

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping.is_set()

    @property
    def in_batches(self) -> bool:
        """Whether a checkpoint remembers what was done, so that it can stop between two batches."""
        return self._plan.checkpoint is not None

    def stop(self) -> None:
        """End after the batch that is being written; a single pass over a range ends at once, with Unavailable."""
        self._stopping.set()

    def __call__(self, watch: Callable[[Progress], None] = lambda _: None) -> Progress:
        """Run to the end, and tell ``watch`` about twice a second how it gets on.

        Raises RequestInvalid, Conflict (a checkpoint that does not fit), MessagesMissed, Unavailable, JobFailed.
        """
        try:
            if self._plan.checkpoint is None:
                stages = Stages(self._spark)
                with self._watched(stages, watch):
                    self._once(stages)
            else:
                self._stream(self._plan.checkpoint, watch)
        except IotSphereError:
            raise
        except Exception as error:
            if self.stopped and self._plan.checkpoint is None:
                raise Unavailable(
                    "it was stopped before it was done: run it again, nothing is counted twice"
                ) from error
            # What stops a service stops all of its processes at once. What was under way is begun again next time.
            if not (self.stopped and is_gone(error, ENDING_S)):
                raise failure_of(self._failure or error) from error
        watch(self.progress)
        return self.progress

    @contextmanager
    def _watched(self, stages: Stages, watch: Callable[[Progress], None]) -> Iterator[None]:
        """Tell ``watch`` of a single pass from another thread: what Spark says of its work."""
        done = threading.Event()

        def look() -> None:
            while not done.wait(POLL_S):
                if self.stopped:  # again and again, as a job of the product has several of Spark's
                    self._spark.sparkContext.cancelAllJobs()
                stages.look(self.progress, rows=self._reading is None)
                watch(self.progress)

        thread = threading.Thread(target=look, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _once(self, stages: Stages) -> None:
        """Read the range, which is settled first, and write what comes out."""
        job = self._plan.job
        wanted, since = self._begins(following=False)
        start, end = map(places.offsets, borders(self._kind.opening, wanted))
        self.progress.range = distance(start, end)
        settled = {**self._plan.source, "from": json.dumps(start), "to": json.dumps(end)}
        readings = self._spark.read.format("iotsphere").options(**self._shape(settled, wanted)).load()
        run = replace(self._plan.make_run(f"{job.name}-{uuid4()}", False), borders=(start, end), since=since)
        begun = time.monotonic()
        counts = self._keep(readings, run, 0)
        done = self.progress
        done.seconds = time.monotonic() - begun
        done.counts.update(counts)
        done.batches, done.messages, done.lag, done.place = 1, distance(start, end), 0, end
        # Where workers read by themselves, Spark sees the names of splits, and no rows.
        done.rows = counts.get("rows", 0 if self._reading else stages.rows(whole=True))

    def _stream(self, folder: Path, watch: Callable[[Progress], None]) -> None:
        job = self._plan.job
        if not job.follows:
            raise RequestInvalid(f"{job.name} looks at a whole range at once: leave --follow and --checkpoint out")
        wanted, since = self._begins(following=True)
        with self._opened(folder, wanted, since) as checkpoint:
            run = replace(self._plan.make_run(checkpoint.application, True), since=checkpoint.since)
            source = {**self._plan.source, "from": wanted.start}
            if checkpoint.start is not None:
                source["from"] = json.dumps(checkpoint.start)
            source.pop("to", None)
            if not checkpoint.begun:
                self._first = checkpoint.start or places.offsets(borders(self._kind.opening, wanted)[0])
                self.progress.place = self._first
            readings = self._spark.readStream.format("iotsphere").options(**self._shape(source, wanted)).load()
            for patience in reversed(range(STARTS)):
                try:
                    self._watch(self._start(readings, run, checkpoint), run, watch)
                except PySparkException as error:
                    # It goes on where it was, so trying again on a busy machine costs nothing.
                    if not patience or not is_busy(error):
                        raise
                else:
                    return

    def _begins(self, *, following: bool) -> tuple[Wanted, int | None]:
        """What to read, from early enough for whole rows where the job has such, and the time (ms) that was asked for."""
        wanted, job, now = read_options(self._plan.source), self._plan.job, time.time_ns() // 1_000_000
        since = now if following and wanted.start == "latest" else places.time_of(wanted.start, now)
        if job.whole_from is None or since is None:
            return wanted, None
        options = self._plan.make_run("", following).options
        return replace(wanted, start=iso(job.whole_from(options, since))), since

    def _shape(self, source: Mapping[str, str], wanted: Wanted) -> Mapping[str, str]:
        """The options of the source: where the job reads by itself, it is only told what to read."""
        if self._plan.job.direct is None or wanted.form.name != "readings":
            return source
        self._reading = reading(self._kind.opening, wanted.log, wanted.losses)
        return {**source, "rows": "splits"}

    def _keep(self, part: DataFrame, run: Run, number: int, *, done: bool = False) -> Counts:
        """Have the job write what it makes of a batch; ``done``: it was made already."""
        job = self._plan.job
        if job.direct is not None and self._reading is not None:
            return job.direct(Unread(part, self._reading), run, number)
        return job.write(part if done else job.transform(part, run), run, number)

    def _opened(self, folder: Path, wanted: Wanted, since: int | None) -> AbstractContextManager[Checkpoint]:
        job = self._plan.job
        run = self._plan.make_run("", True)
        identity = Identity(
            job.name,
            job.version,
            {name: run.options[name] for name in job.state_options},
            {"channel": wanted.channel, "domain": ",".join(wanted.domains) or "*", "rows": wanted.form.name},
        )

        def migrate(location: Path) -> places.Offsets:
            with self._kind.opening(wanted.log) as ranges:
                found = checkpoints.recorded(location)
                if found is None:
                    return places.offsets(borders(self._kind.opening, wanted)[0])
                return checkpoints.rewound(ranges, found, job.rewind_s) if job.stateful else found

        return opened(folder, identity, migrate if self._plan.migrate else None, since)

    def _start(self, readings: DataFrame, run: Run, checkpoint: Checkpoint) -> StreamingQuery:
        job = self._plan.job
        frame = job.transform(readings, run) if job.stateful else readings

        def write(part: DataFrame, number: int) -> None:
            # The batch before is committed by now, so this is the border.
            if self._stopping.is_set():
                self._at_border.set()
                raise StoppedAtBorder
            if not self.progress.batches:
                self.progress.range = self._ahead(checkpoint, number)
            with self._gate:
                try:
                    counts = self._keep(part, run, number, done=job.stateful)
                    self.progress.counts.update(counts)
                    self._counted[number] = counts.get("rows")
                except BaseException as error:
                    self._failure = error
                    raise

        writer = frame.writeStream.queryName(job.name).foreachBatch(write).outputMode(job.mode)
        writer = writer.option("checkpointLocation", str(checkpoint.location))
        every = {"processingTime": f"{self._plan.every} seconds"} if self._plan.follow else {"availableNow": True}
        # A job that wakes by the clock asks for one more batch for ever, and what is to end would never do so. A query
        # takes a copy of the settings when it starts; the session itself is not this run's alone.
        before = str(self._spark.conf.get(CLOCK_BATCHES))
        self._spark.conf.set(CLOCK_BATCHES, str(self._plan.follow).lower())
        try:
            return writer.trigger(**every).start()
        finally:
            self._spark.conf.set(CLOCK_BATCHES, before)

    def _ahead(self, checkpoint: Checkpoint, number: int) -> int | None:
        """How many messages a batch reads; None where that is not known, and for a batch by the clock alone."""
        start = checkpoints.planned(checkpoint.location, number - 1) or self._first
        end = checkpoints.planned(checkpoint.location, number)
        return (distance(start, end) or None) if start is not None and end is not None else None

    def _watch(self, query: StreamingQuery, run: Run, watch: Callable[[Progress], None]) -> None:
        try:
            stages = Stages(self._spark)
            while not query.awaitTermination(POLL_S):
                self._look(query)
                self.progress.busy = bool(query.status["isDataAvailable"])
                if not self.progress.batches:
                    stages.look(self.progress, rows=False)
                watch(self.progress)
                if self._stopping.is_set():
                    self._spark.sparkContext.setLogLevel("OFF")  # Spark would tell of the end as of a failure
                    if self._at_border.is_set() or not query.status["isTriggerActive"]:
                        break
                elif self._plan.follow:
                    self._tick(run)
        except PySparkException:
            if not self._at_border.is_set():
                raise
        finally:
            query.stop()
            self._look(query)
            self._spark.sparkContext.setLogLevel("ERROR")

    def _look(self, query: StreamingQuery) -> None:
        """Take note of what was done since the last look. Times tell: idle triggers have the next batch's number."""
        for told in query.recentProgress:
            if told.timestamp > self._seen and told.sources:
                self._seen = told.timestamp
                self.progress.batch(json.loads(told.json), self._counted.pop(told.batchId, None))

    def _tick(self, run: Run) -> None:
        """Let the job do what is due, when no batch is being written."""
        if time.monotonic() - self._ticked < TICK_S or not self._gate.acquire(blocking=False):
            return
        try:
            self.progress.counts.update(self._plan.job.tick(run))
        finally:
            self._ticked = time.monotonic()
            self._gate.release()
