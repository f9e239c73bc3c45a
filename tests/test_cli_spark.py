"""`iotsphere spark` as analysts meet it: the list, refusals, and a job that tells browsers about the fleet."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import iotsphere
from iotsphere.cli.spark import code_of
from iotsphere.cli.spark_screen import line_of
from iotsphere.drivers.spark.jobs import JOBS
from iotsphere.drivers.spark.progress import Progress
from iotsphere.entities.errors import JobFailed, LogUnavailable, MessagesMissed, RequestInvalid, Unavailable

from .support.command_line import iotsphere_command, running
from .support.gateway import ROOT, Gateway
from .support.telemetry import fill_sqlite


async def test_jobs_and_their_options_are_listed() -> None:
    told = await iotsphere_command("spark", "--list")
    assert [line.split()[0] for line in told.splitlines()] == list(JOBS)
    options = [json.loads(line) for line in (await iotsphere_command("spark", "lake", "--list", "--json")).splitlines()]
    assert "keep_days" in [option["name"] for option in options]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("dance",), "request_invalid: there is no job 'dance'; there are lake, "),
        (("lake", "--set", "keep_dys=1"), "request_invalid: lake has no option 'keep_dys'"),
        (("lake", "--set", "keep_days=long"), "request_invalid: keep_days='long' is not a whole number"),
        (("lake", "--set", "keep_days=-1"), "request_invalid: keep_days='-1' is not a whole number from 0 on"),
        (("quality", "--set", "days=nan"), "request_invalid: days='nan' is not a number from 0 on"),
        (("quality", "--set", "ranges=a"), "request_invalid: 'a' is no range: write METRIC=LOW..HIGH"),
        (("report", "--follow", "--set", "ranges=a"), "request_invalid: 'a' is no range"),
        (("rollup", "--set", "counters=:5"), "request_invalid: ':5' is no counter"),
        (("rollup", "--set", "zones=Europe/Nowhere"), "request_invalid: 'Europe/Nowhere' is no time zone"),
        (("health", "--set", "silent=1"), "request_invalid: the options make no sense"),
        (("lake", "--from", "yesterday"), "request_invalid: 'yesterday' is no place in the log"),
        (("lake", "--follow", "--from", "yesterday"), "request_invalid: 'yesterday' is no place in the log"),
        (("lake", "--from", "2999-01-01"), "request_invalid: from='2999-01-01' lies in the future"),
        (("lake", "--to", "{}"), "request_invalid: '{}' says nothing of iotsphere/telemetry/0"),
        (("lake", "--master", "here"), "request_invalid: --master 'here' is none of Spark's"),
        (("lake", "--log", "memory"), "request_invalid: a log in memory is read by its gateway alone"),
        (("lake", "--from", "-1h", "--to", "-1d"), "request_invalid: from='-1h' lies behind to='-1d': exchange them"),
        (("lake", "--output", "/proc/x"), "request_invalid: nothing can be written in /proc/x"),
        (("lake", "--output", "s3://b/lake"), "request_invalid: --output s3://b/lake is an address, and results are"),
        (("lake", "--maintain", "--output", "abfss://c@a/lake"), "request_invalid: --output abfss://c@a/lake is an"),
        (("lake", "--checkpoint", "hdfs://h:1/c"), "request_invalid: --checkpoint hdfs://h:1/c is an address"),
        (("lake", "--checkpoint", "/etc/hostname"), "request_invalid: nothing can be written in /etc/hostname"),
        (("lake", "--source", "rows=messages"), "request_invalid: a job takes readings, not messages"),
        (("lake", "--conf", "spark.master=foo"), "request_invalid: spark.master is no setting for --conf"),
        (("lake", "--log", "sqlite:/nowhere"), "there is no log at /nowhere"),
        (("lake", "--follow", "--to", "-1h"), "request_invalid: --to says where a single pass ends"),
        (("report", "--migrate"), "request_invalid: --migrate is about a checkpoint"),
        (("rollup", "--database", "foo"), "request_invalid: 'foo' is no database: write mongodb://"),
        (("report", "--database", "mongodb://h/x"), "request_invalid: report keeps no documents: leave --database out"),
        (("rollup", "--output", "x"), "request_invalid: rollup writes no files: leave --output out"),
        (("health", "--database", "mongodb://127.0.0.1:9/x"), "database_unavailable: MongoDB does not answer"),
        (
            ("status", "--gateway", "http://h:1", "--token", "x"),
            "request_invalid: 'http://h:1' is no WebSocket address",
        ),
        (("report", "--lag"), "request_invalid: there is no checkpoint of report in "),
        (("status",), "no running gateway uses"),
        (
            ("health", "--follow", "--gateway", "ws://127.0.0.1:1", "--token", "x"),
            "unavailable: no gateway answers at ws://127.0.0.1:1",
        ),
        (("status", "--gateway", "none"), "request_invalid: status does nothing but publish"),
        (("anomaly", "--follow"), "or add --gateway none, and alerts are kept in the database but told nobody"),
        (("health", "--checkpoint", "c"), "or add --gateway none"),
    ],
)
async def test_refusals_say_what_to_do(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    """Before Spark takes its time to start."""
    await asyncio.to_thread(fill_sqlite, tmp_path, 1)
    again = ("gateway uses", "no gateway answers", "--gateway none", "no log at", "does not answer")
    expected = 1 if any(text in why for text in again) else 2
    assert why in await iotsphere_command("spark", *words, "--data", str(tmp_path), expect=expected)


@pytest.mark.parametrize("words", [["spark", "lake"], ["spark", "--list"]])
def test_without_the_extra_it_says_what_to_install(words: list[str]) -> None:
    program = "import sys; sys.modules['pyspark'] = None; from iotsphere.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=environment, capture_output=True, text=True, check=False
    )
    if "--list" in words:  # which needs nothing
        assert (done.returncode, len(done.stdout.splitlines())) == (0, len(JOBS))
    else:
        assert (done.returncode, done.stderr) == (
            2,
            "request_invalid: pyspark is missing: pip install 'iotsphere[spark]', or '.[spark]' in a checkout\n",
        )


def test_exit_codes() -> None:
    errors = (LogUnavailable("x"), RequestInvalid("x"), MessagesMissed("x"), JobFailed("x"))
    assert [code_of(error) for error in errors] == [1, 2, 3, 4]


async def test_the_help_says_with_which_code_a_run_that_was_stopped_ends() -> None:
    """A stream goes on where it was; a single pass did not do its work, and ends with Unavailable."""
    told = " ".join((await iotsphere_command("spark", "--help")).split())
    assert "0 done, or with a checkpoint stopped on request; 1 try again, also where a run without a checkpoint" in told
    assert code_of(Unavailable("it was stopped before it was done: run it again")) == 1


def test_progress_is_one_line() -> None:
    progress = Progress()
    assert line_of(progress, 1) == "waiting for messages"
    progress.busy = True
    assert line_of(progress, 12.4) == "first batch: under way, 12 s"
    progress.range = 1_891
    assert line_of(progress, 20) == "first batch: reading 1,891 messages, 20 s"
    progress.busy = False
    assert line_of(progress, 20) == "reading 1,891 messages, 20 s"
    progress.step, progress.tasks = 3, (20, 28)
    assert line_of(progress, 45) == "reading 1,891 messages, step 3, 20 of 28 tasks, 45 s"
    progress.rows = 4_000
    whole = "reading 1,891 messages, step 3, 20 of 28 tasks, 46 s, 4,000 rows read"
    assert line_of(progress, 46) == line_of(progress, 46, len(whole)) == whole
    assert line_of(progress, 46, len(whole) - 1) == "reading 1,891 messages, step 3, 20 of 28 tasks, 46 s"
    assert line_of(progress, 46, 1) == "reading 1,891 messages"


def test_progress_of_a_stream_is_one_line_too() -> None:
    progress = Progress()
    source = {"startOffset": '{"a":[1,0]}', "endOffset": '{"a":[1,1500]}', "latestOffset": '{"a":[1,2000]}'}
    progress.batch({"sources": [source], "numInputRows": 3000, "durationMs": {"triggerExecution": 2000}})
    assert line_of(progress, 60) == "batch 1, 500 waiting, in all 1,500 messages, 750 messages a second, 3,000 rows"
    progress.batch({"sources": [source], "numInputRows": 0, "durationMs": {"triggerExecution": 1000}})
    assert line_of(progress, 60, 60) == "batch 2, 500 waiting, in all 3,000 messages"
    assert progress.pace == 1_000, "of all batches, as in the summary"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_browser_sees_the_fleets_summary_and_the_job_stops_when_told(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    topic = "iotsphere/devices/batch/status"
    async with Gateway(tmp_path / "data") as gateway:
        issued = json.loads(
            await iotsphere_command("token", "service:spark", "--grant", f"publish:{topic}", "--data", data, "--json")
        )
        words = (
            "spark",
            "status",
            "--follow",
            "--data",
            data,
            "--gateway",
            gateway.websocket,
            "--token",
            issued["token"],
        )
        async with (
            running(*words, "--every", "0.2", "--conf", "spark.sql.shuffle.partitions=1", "--json") as job,
            iotsphere.connect(gateway.websocket, token=gateway.token) as browser,
            asyncio.timeout(240),
        ):
            summaries = browser.subscribe(topic)
            told = asyncio.ensure_future(anext(summaries))
            for device in range(3):
                await browser.publish(
                    f"iotsphere/devices/d{device}/telemetry", {"temperature": 20 + device, "on": True}
                )
            messages = [await told]
            while sum(message.json()["readings"] for message in messages) < 6:
                messages.append(await anext(summaries))
            assert {metric["metric"] for message in messages for metric in message.json()["metrics"]} == {
                "temperature",
                "on",
            }
            assert max(message.json()["devices"] for message in messages) <= 3
            job.send_signal(signal.SIGTERM)
            out, err = await job.communicate()
        assert job.returncode == 0, err.decode()
        summary = json.loads(out)
        assert (summary["job"], summary["ended"], summary["messages"]) == ("status", "stopped on request", 3)
        assert summary["summaries"] == len(messages)
        assert summary["topic"] == topic
        assert isinstance(summary["rate"], int), "few messages may be none a second"
