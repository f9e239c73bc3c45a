"""Jobs over telemetry from the terminal: which there are, one run, or one that follows the log until it is stopped."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape

from ..drivers.spark.jobs import JOBS
from ..entities.errors import IotSphereError, JobFailed, MessagesMissed, RequestInvalid, Unavailable
from ..logs import harmless
from ..settings import Settings
from .console import AsJson, Data, LogUrl, Token, err, gateway_of, settings_of
from .spark_checks import check, check_folders
from .spark_start import ended_by_signals, held_back
from .spark_summary import say, summary

if TYPE_CHECKING:
    from ..containers.spark import Outlets
    from ..drivers.spark.jobs import Job
    from ..drivers.spark.runner import Plan

# From here on a range is worth compiling Spark well.
MANY: Final = 100_000
MISSED: Final = 3
FAILED: Final = 4
NOWHERE: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for, beside the settings."""

    start: str
    end: str
    follow: bool
    checkpoint: Path | None
    migrate: bool
    master: str
    domain: str
    database: str | None
    gateway: str | None
    token: str | None
    output: Path | None
    options: dict[str, str]
    conf: dict[str, str]
    source: dict[str, str]
    every: float
    maintain: bool
    debug: bool
    as_json: bool


def spark(
    job: Annotated[str | None, typer.Argument(help="Which job; --list shows them all")] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="earliest, latest, an ISO time or a time ago such as -2h (of reception), a cursor, or offsets",
        ),
    ] = "earliest",
    end: Annotated[str, typer.Option("--to", help="As --from; where a single pass ends")] = "latest",
    follow: Annotated[bool, typer.Option("--follow", help="Go on for ever with what comes in")] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help=r"Folder that remembers what was done \[default with --follow: spark/JOB in the data folder]"
        ),
    ] = None,
    migrate: Annotated[bool, typer.Option("--migrate", help="Go on from a checkpoint that no longer fits")] = False,
    master: Annotated[str, typer.Option(help="Where it runs: local[*], or spark://HOST:PORT")] = "local[*]",
    data: Data = None,
    log: LogUrl = None,
    domain: Annotated[str, typer.Option(help="Which tenants, with commas between; * for all")] = "iotsphere",
    database: Annotated[
        str | None, typer.Option(help=r"mongodb://HOST:PORT/NAME \[default: a file in the data folder]")
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(help=r"ws://HOST:PORT to publish results to, or none \[default: that on the data folder]"),
    ] = None,
    token: Token = None,
    output: Annotated[
        Path | None, typer.Option(help=r"File or folder of the results \[default: in the data folder]")
    ] = None,
    options: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE, an option of the job")] = None,
    conf: Annotated[list[str] | None, typer.Option("--conf", help="NAME=VALUE, a setting of Spark")] = None,
    source: Annotated[list[str] | None, typer.Option("--source", help="NAME=VALUE, an option of the source")] = None,
    every: Annotated[float, typer.Option(min=0, help="Seconds between the beginnings of two batches")] = 1.0,
    maintain: Annotated[bool, typer.Option("--maintain", help="Only tidy what the job keeps")] = False,
    lag: Annotated[bool, typer.Option("--lag", help="Only tell what waits for each job, and how long it can")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the jobs, or the options of one")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show everything about an error")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a job over the telemetry in the log: once over a range, over what is new, or following.

    Examples:  iotsphere spark rollup --from -2h   |   iotsphere spark lake --follow   |   iotsphere spark --list

    With --checkpoint but without --follow, it does what is new since the last time and ends. Ctrl-C stops between two
    batches, and a run without a checkpoint at once; nothing is lost or done twice.

    Exit codes: 0 done, or with a checkpoint stopped on request; 1 try again, also where a run without a checkpoint was
    stopped; 2 refused; 3 messages are gone, and the range is said; 4 the job failed; 5 with --lag: retention will soon
    pass what waits for a job.
    """
    asked = Asked(
        start=start, end=end, follow=follow, checkpoint=checkpoint, migrate=migrate, master=master, domain=domain,
        database=database, gateway=gateway, token=token, output=output, options=_pairs(options), conf=_pairs(conf), source=_pairs(source),
        every=every, maintain=maintain, debug=debug, as_json=as_json,
    )  # fmt: skip
    try:
        if lag:
            _load(job or "lake")  # says what is missing
            from .spark_lag import show

            raise typer.Exit(show(settings_of(log=log, data=data), job, checkpoint, as_json))
        if list_ or job is None:
            _list(job, as_json)
        else:
            with ExitStack() as starting:
                starting.enter_context(ended_by_signals(resumable=follow or checkpoint is not None))
                _run(_load(job), settings_of(log=log, database=database, data=data), asked, starting)
    except IotSphereError as error:
        if debug:
            raise
        err.print(f"[red]{escape(error.code)}[/]: {escape(harmless(error.message))}", soft_wrap=True)
        raise typer.Exit(code_of(error)) from error


def code_of(error: IotSphereError) -> int:
    """The exit code of an error."""
    if isinstance(error, MessagesMissed):
        return MISSED
    if isinstance(error, JobFailed):
        return FAILED
    return 1 if error.retry else 2


def _run(job: Job, settings: Settings, asked: Asked, starting: ExitStack) -> None:
    """``starting``: to be closed once the work begins."""
    from ..containers.spark import Outlets, database_of, log_of, runs_of, sink_of

    check_folders(asked)
    log = log_of(settings)
    folder = settings.data.resolve() / "spark"
    values = job.settings(asked.options)
    output = asked.output or settings.data.resolve() / (job.output or job.name)
    gateway = None if asked.maintain else _gateway(job, settings, asked)
    outlets = Outlets(output.absolute(), database_of(settings))
    checkpoint = asked.checkpoint or (folder / job.name if asked.follow else None)
    domains = () if asked.domain == "*" else tuple(asked.domain.split(","))
    with ExitStack() as stack:
        announce = None
        if gateway is not None:
            announce = stack.enter_context(sink_of(gateway, job, log, domains))
            if job.publishes or (job.alarms and checkpoint is not None):
                announce.ready()
        make_run = runs_of(values, outlets, announce)
        if asked.maintain:
            if job.maintain is None:
                raise RequestInvalid(f"{job.name} keeps nothing that needs upkeep: leave --maintain out")
            starting.close()
            say({"job": job.name, **job.maintain(make_run("", False))}, asked.as_json)
            return
        from ..drivers.spark.runner import Plan

        losses = {"lossesFolder": str((checkpoint or folder / f"{job.name}-once") / "losses")}
        plan = Plan(
            job=job,
            source={**losses, "from": asked.start, "to": asked.end, "domain": asked.domain, **asked.source, "log": log},
            make_run=make_run,
            checkpoint=checkpoint,
            follow=asked.follow,
            every=asked.every,
            migrate=asked.migrate,
        )
        ahead = check(plan, asked, outlets)
        lasting = plan.follow or ahead is None or ahead > MANY
        _go(plan, folder, outlets, asked, lasting=lasting, starting=starting)


def _go(plan: Plan, folder: Path, outlets: Outlets, asked: Asked, *, lasting: bool, starting: ExitStack) -> None:
    from ..drivers.spark.runner import Runner
    from ..drivers.spark.session import close_session, open_session
    from ..drivers.spark.source import read_options
    from ..drivers.spark.splits import noted, passed_over
    from ..spark import IotSphereSource
    from .spark_screen import Screen, stop_on_signals, told_where

    begun = time.monotonic()
    losses = read_options(plan.source).losses.folder
    before = noted(losses)
    said = None if asked.debug else folder / "work" / f"{plan.job.name}.log"
    with Screen(plan.job.name, quiet=asked.as_json) as screen, told_where(said):
        screen.say("starting Spark")
        with held_back() as came:
            spark = open_session(
                f"iotsphere {plan.job.name}", asked.master, asked.conf, folder / "work", lasting=lasting, said=said
            )
        try:
            if came:
                raise KeyboardInterrupt
            runner = Runner(spark, plan, IotSphereSource)
            starting.close()
            with stop_on_signals(runner):
                runner(screen.show)
        finally:
            close_session(spark)
    lost = passed_over(losses, before)
    say(summary(runner, plan, outlets, seconds=time.monotonic() - begun, lost=lost), asked.as_json)


def _list(job: str | None, as_json: bool) -> None:
    if job is None:
        rows: list[dict[str, Any]] = [{"name": name, "what": caption} for name, caption in JOBS.items()]
    else:
        rows = [{"name": one.name, "default": one.default, "what": one.meaning} for one in _load(job).options]
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        default = f" [{row['default']}]" if row.get("default") not in (None, "") else ""
        print(json.dumps(row) if as_json else f"{row['name']:<{width}}  {row['what']}{default}")


def _load(job: str) -> Job:
    from ..drivers.spark.jobs import load

    try:
        return load(job)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("iotsphere"):
            raise
        package = str(error.name).partition(".")[0]
        raise RequestInvalid(
            f"{package} is missing: pip install 'iotsphere[spark]', or '.[spark]' in a checkout"
        ) from error


def _gateway(job: Job, settings: Settings, asked: Asked) -> tuple[str, str] | None:
    """Where to publish; None for nowhere, which is to be asked for where alerts would be told."""
    if asked.gateway == NOWHERE:
        if job.publishes:
            raise RequestInvalid(f"{job.name} does nothing but publish: leave --gateway {NOWHERE} out")
        return None
    try:
        return gateway_of(settings.data, asked.gateway, asked.token, "websocket")
    except Unavailable as error:
        if job.publishes:
            raise
        if job.alarms and (asked.follow or asked.checkpoint):
            raise Unavailable(
                f"{error.message}; or add --gateway {NOWHERE}, and alerts are kept in the database but told nobody"
            ) from error
        return None


def _pairs(given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs
