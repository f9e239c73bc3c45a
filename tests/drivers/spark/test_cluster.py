"""A real cluster on loopback, a master and two workers from PySpark's own wheel, runs a job over Redis Streams."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from iotsphere.drivers.spark.java import java_home
from tests.support.gateway import ROOT
from tests.support.processes import die_with_parent
from tests.support.servers import Server
from tests.support.telemetry import fill_redis

HOME = Path(pyspark.__file__).parent
WORKERS = 2
DEPLOY = "org.apache.spark.deploy"
MESSAGES = 1_000
ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
# What lives for half a minute is not worth compiling well.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextmanager
def started(folder: Path, *words: str) -> Iterator[Path]:
    """A process of the cluster, killed at the end; yields what it logs to."""
    folder.mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
        "JAVA_HOME": str(java_home(os.environ, folder)),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        "PYTHONPATH": str(ROOT / "src"),
    }
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *words], stdout=file, stderr=file, env=environment, cwd=folder,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - nothing else ties its life to ours
        )  # fmt: skip
    try:
        yield log
    finally:
        process.terminate()
        process.wait(120)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with ExitStack() as stack:
        at = ("--host", "127.0.0.1", "--webui-port", "0")
        log = stack.enter_context(started(tmp_path / "master", f"{DEPLOY}.master.Master", *at, "--port", "0"))
        address = wait_for(lambda: ADDRESS.search(log.read_text()), log)[1]
        for number in range(WORKERS):
            size = ("--cores", "1", "--memory", "700m", "--work-dir", str(tmp_path / f"work-{number}"))
            join = (f"{DEPLOY}.worker.Worker", *at, *size, address)
            stack.enter_context(started(tmp_path / f"worker-{number}", *join))
        wait_for(lambda: log.read_text().count("Registering worker") == WORKERS, log)
        yield address


def wait_for(condition: Callable[[], Any], log: Path) -> Any:
    """What the condition gives as soon as it is something."""
    for _ in range(1_200):
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_rolls_up_what_lies_in_redis_streams(master: str, redis_server: Server, tmp_path: Path) -> None:
    log = fill_redis(redis_server.port, MESSAGES)
    data = tmp_path / "data"
    command = [
        sys.executable, "-m", "iotsphere", "spark", "rollup", "--master", master, "--log", log, "--data", str(data),
        "--conf", "spark.executor.memory=500m", "--conf", "spark.cores.max=2", "--conf", "spark.executor.cores=1",
        "--conf", f"spark.executor.extraJavaOptions={SHORT_LIVED}", "--conf", "spark.sql.shuffle.partitions=2",
        "--source", f"splitMessages={MESSAGES // 4}", "--json",
    ]  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("IOTSPHERE_", "PYSPARK_"))}
    done = subprocess.run(
        command, env={**kept, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=550, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["messages"] == MESSAGES
    with closing(sqlite3.connect(data / "analytics.db")) as database:
        found = [
            json.loads(body) for (body,) in database.execute("SELECT body FROM documents WHERE collection = 'rollups'")
        ]
    days = [row for row in found if row["resolution"] == "1d"]
    assert len({row["device"] for row in days}) == 10
    assert sum(row["count"] for row in days) == MESSAGES
    assert sum(row["sum"] for row in days) == sum(range(MESSAGES))
    executors = [path for number in range(WORKERS) for path in (tmp_path / f"work-{number}").glob("app-*/*/stderr")]
    assert len(executors) == WORKERS
