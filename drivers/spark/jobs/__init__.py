"""What a job is: readings in, a frame out, and one way to keep it, the same in batch and in stream."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ....entities.errors import RequestInvalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..unread import Unread

# Module and caption, so that the list needs neither Spark nor what else a job imports.
JOBS: Final[Mapping[str, str]] = {
    "lake": "keep every reading in a Delta table that DuckDB, pandas and Spark open",
    "rollup": "count, extremes, mean, last and percentiles per minute, hour and day",
    "anomaly": "raise and clear alerts on devices/batch/alerts where a metric leaves its usual range",
    "health": "per device: last seen, gaps, uptime, battery trend and silence",
    "status": "tell the fleet's summary on devices/batch/status every few seconds",
    "quality": "gaps, duplicates, clock skew, values out of range and schema drift",
    "report": "one self-contained HTML page about the fleet",
}
Counts = Mapping[str, int]
Options = Mapping[str, Any]
# Epoch and offset of each partition, by its name.
Offsets = Mapping[str, Sequence[int]]


class Option(NamedTuple):
    """Something to be set with ``--set name=value``; its type is that of the default."""

    name: str
    default: str | int | float | bool
    meaning: str


class Announcement(NamedTuple):
    """A result to be published in the log.

    ``key``: what it is about and which version of it; the message id is made of the job's name and version, the topic
    and this, so that the same result told again is the same message. ``topic``: below ``devices/batch``, such as
    ``alerts``. ``at``: ms since 1970, the time that the message states.
    """

    key: str
    topic: str
    domain: str
    payload: Mapping[str, Any]
    at: int | None = None


def _tell_nobody(_: Iterable[Announcement]) -> int:
    raise RequestInvalid("this job publishes its results: say where with --gateway ws://HOST:PORT and a token")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, as the job sees it.

    ``options``: a value for each option of the job. ``application``: names the checkpoint; a new checkpoint has a new
    one, and each batch run too, so a sink that remembers (application, batch) skips nothing that it has not got.
    ``following``: in stream. ``output``: file or folder for results. ``database``: ``mongodb://…/NAME``, or the folder
    of the embedded one. ``announce``: publishes results, returns how many were new; raises Unavailable. ``borders``:
    where what a single pass reads begins and ends, None in a stream. ``since``: the time (ms) that the run was first asked
    to begin with, None for the log's beginning, for offsets, and where the job does not care.
    """

    options: Options
    application: str
    following: bool
    output: Path
    database: str
    announce: Callable[[Iterable[Announcement]], int] = _tell_nobody
    borders: tuple[Offsets, Offsets] | None = None
    since: int | None = None

    @property
    def publishing(self) -> bool:
        """Whether there is somebody to announce something to."""
        return self.announce is not _tell_nobody

    def part(self, domain: str, batch: int) -> str:
        """A name for what a batch holds of a domain: the same for the same readings, looked at with the same options.

        In a stream that is the batch of its checkpoint, in a single pass the range of the domain's partitions.
        """
        if self.borders is None:
            return f"{self.application}/{batch}"
        own = [{name: place for name, place in at.items() if name.startswith(f"{domain}/")} for at in self.borders]
        text = json.dumps([*own, dict(self.options)], sort_keys=True)
        return blake2b(text.encode(), digest_size=16).hexdigest()


def _no_counts(_: Run) -> Counts:
    return {}


def _no_rules(_: Options) -> object:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job. ``version`` grows when state or results of an older one can not be gone on with.

    ``transform(readings, run)`` is pure. ``write(result, run, batch)`` keeps the result and returns counts for the
    summary; it may be called again with the same batch number after a crash, and must then change nothing. Each use
    of the frame in ``write`` reads the log again: persist it where it is used twice.

    ``direct``: the same as ``write`` after ``transform``, of readings that are still to be read. ``rules``: what the job
    makes of its options; raises RequestInvalid.

    ``stateful`` False: both are called with each micro-batch by itself. True: the transform is applied to the stream
    itself and may use Spark's state; ``mode`` is its output mode. In a batch run both are called once, with batch 0.
    ``tick`` is called every few seconds in a stream, never at the same time as ``write``, also when nothing arrives.
    ``maintain`` is what ``--maintain`` runs, beside a running job. ``state_options``: the options that a checkpoint
    depends on. ``rewind_s``: how far a stateful job goes back where a checkpoint of another form is migrated: as long as
    anything stays open. ``whole_from(options, time)``: from when on (ms) it is to read for whole rows of a time.
    ``publishes``: it announces results, so it needs a gateway; ``alarms``: in a stream only, beside documents. ``topic``:
    below ``devices/batch``, where. ``output``: the default place of the results in the data folder. ``page``: the file in
    it that one opens. ``documents``: the collection of those that it keeps.
    """

    name: str
    version: int
    transform: Callable[[DataFrame, Run], DataFrame]
    write: Callable[[DataFrame, Run, int], Counts]
    direct: Callable[[Unread, Run, int], Counts] | None = None
    stateful: bool = False
    mode: str = "append"
    follows: bool = True
    options: tuple[Option, ...] = ()
    rules: Callable[[Options], object] = _no_rules
    state_options: tuple[str, ...] = ()
    rewind_s: float = 2 * 86_400
    whole_from: Callable[[Options, int], int] | None = None
    publishes: bool = False
    alarms: bool = False
    topic: str = ""
    output: str = ""
    page: str = ""
    documents: str = ""
    tick: Callable[[Run], Counts] = field(default=_no_counts)
    maintain: Callable[[Run], Counts] | None = None

    def settings(self, given: Mapping[str, str]) -> dict[str, Any]:
        """A value for each option. Raises RequestInvalid for an unknown name or a value that makes no sense."""
        known = {option.name: option for option in self.options}
        if unknown := sorted(given.keys() - known.keys()):
            raise RequestInvalid(f"{self.name} has no option {unknown[0]!a}; it has {', '.join(known) or 'none'}")
        values: dict[str, Any] = {option.name: option.default for option in self.options}
        values.update((name, _parsed(known[name], text)) for name, text in given.items())
        self.rules(values)
        return values


def _parsed(option: Option, text: str) -> str | int | float | bool:
    kind = type(option.default)
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        value = kind(text)
        if not isinstance(value, str) and not 0 <= value < math.inf:
            raise ValueError(text)
    except (KeyError, ValueError) as error:
        words = {bool: "true or false", int: "a whole number from 0 on", float: "a number from 0 on"}
        raise RequestInvalid(f"{option.name}={text!a} is not {words[kind]}") from error
    return value


def load(name: str) -> Job:
    """The job of a name. Raises RequestInvalid."""
    if name not in JOBS:
        raise RequestInvalid(f"there is no job {name!a}; there are {', '.join(JOBS)}")
    job = importlib.import_module(f"{__name__}.{name}").JOB
    assert isinstance(job, Job)
    return job
