"""Spark's errors in our own words: what a worker raised is found again under the traces of two languages."""

from __future__ import annotations

import logging
import re
import subprocess
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # it ships no types
from pyspark import SparkContext
from pyspark.accumulators import AccumulatorTCPServer, AccumulatorUnixServer

from ...entities.errors import IotSphereError, JobFailed, Unavailable, error_of

# How a traceback ends: the class with its module, then code and message as IotSphereError says them.
_OURS: Final = re.compile(r"\biotsphere\.entities\.errors\.\w+: ([a-z_]+): (.+)$", re.M)
_STATE: Final = re.compile(r"STATE_STORE_\w*(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|STREAMING_STATEFUL_OPERATOR_NOT_MATCH")
_BUSY: Final = "Python worker failed to connect back"
_FULL: Final = "No space left on device"
_NO_PACKAGE: Final = re.compile(r"ModuleNotFoundError: No module named '(iotsphere[\w.]*)'")
_PYTHON: Final = re.compile(r"^\s*([A-Za-z_][\w.]*(?:Error|Exception)): (.+)$", re.M)


def failure_of(error: BaseException) -> IotSphereError:
    """The error that is at the root of one that Spark raised."""
    if isinstance(error, IotSphereError):
        return error
    text = str(error)
    found = _OURS.findall(text)
    if found:
        return error_of(*found[-1])
    if is_busy(error):
        return Unavailable("this machine is so busy that Python did not start within 10 s: run it again")
    if _FULL in text:
        return Unavailable(
            "a disk is full: make room for the checkpoint, the results and Spark's work, and run it again"
        )
    if is_gone(error):
        return Unavailable(
            "Spark's own process has ended: it was killed, or the machine has no memory left; run it again, nothing is lost "
            "or done twice"
        )
    if missing := _NO_PACKAGE.search(text):
        return JobFailed(
            f"a worker does not have the package {missing[1]}: install iotsphere[spark] in the Python of every worker, "
            "and name it with PYSPARK_PYTHON"
        )
    if _STATE.search(text):
        return JobFailed(
            "the state in the checkpoint was made by another form of this job: raise the job's version, then run it with "
            "--migrate"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    cause = _PYTHON.findall(text)
    what = f"{cause[-1][0]}: {cause[-1][1]}" if cause else (lines[0] if lines else type(error).__name__)
    return JobFailed(f"{what[:400]} (run it with --debug to see everything)")


def is_busy(error: BaseException) -> bool:
    """Whether Spark gave up waiting for a Python process; it waits ten seconds, whatever is set."""
    return _BUSY in str(error)


def hush() -> None:
    """From now on, for a process that ends: no traces of connections to Spark that broke; who uses one raises it too."""
    logging.getLogger().addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    for server in (AccumulatorTCPServer, AccumulatorUnixServer):
        server.handle_error = lambda *_: None  # type: ignore[method-assign]


def is_gone(error: BaseException, within: float = 0.0) -> bool:
    """Whether Spark's own process does not answer any more, or has ended, or ends ``within`` so many seconds."""
    process = getattr(SparkContext._gateway, "proc", None)
    if isinstance(error, (ConnectionError, Py4JNetworkError)):
        return True
    try:
        return process is not None and process.wait(within) is not None
    except subprocess.TimeoutExpired:
        return False
