"""Spark's classes as the JVM takes them at once: a start that reads none of its jars takes half the time.

The JVM writes such an archive itself when a process ends (class data sharing); the first short run on a machine leaves
one, and later ones take it. It belongs to one build of Java and one installation of PySpark; the JVM passes over one that
does not fit.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

from .java import CACHE, described

# What the JVM says of classes that it leaves out is of no use to anybody.
_SILENT: Final = "-XX:+IgnoreUnrecognizedVMOptions -Xshare:auto -Xlog:cds*=off"
# The first bytes of a whole archive; they are written last.
_MAGIC: Final = bytes.fromhex("a8ab0bf0")
_ABANDONED_S: Final = 3_600.0
_LOG: Final = logging.getLogger(__name__)


def options(home: Path, *, may_write: bool, folder: Path | None = None) -> str:
    """What the JVM of a JAVA_HOME is told of the archive: to take it, or to write one when it ends if it may.

    ``folder``: where archives are kept, beside this Python's packages unless it is given. Empty where there can be none.
    """
    version, kept = described(home / "bin" / "java"), folder or _folder()
    if version is None or kept is None:
        return ""
    text = "\n".join((version, pyspark.__version__, pyspark.__file__))
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    _adopt(kept, key)
    archive = _whole(kept, f"spark-{key}")
    if archive is None and (not may_write or _is_written(kept, key)):
        return ""
    has_own = (home / "lib" / "server" / "classes.jsa").exists()
    base = None if has_own else _whole(kept, f"java-{key}") or _dump(home, kept, key)
    if not has_own and base is None:
        return ""
    if archive is not None:
        return _words(f"-XX:SharedArchiveFile={':'.join(str(path) for path in (base, archive) if path is not None)}")
    fresh = kept / f"spark-{key}.{os.getpid()}"
    fresh.touch()  # tells others that one is on its way
    return _words(f"-XX:ArchiveClassesAtExit={fresh}", *([f"-XX:SharedArchiveFile={base}"] if base else []))


def _folder() -> Path | None:
    for folder in (Path(sys.prefix) / "share" / "iotsphere", CACHE):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _LOG.debug("no archive of classes in %s: %s", folder, error)
            continue
        if os.access(folder, os.W_OK):
            return folder
    return None


def _adopt(kept: Path, key: str) -> None:
    """Put an archive that a process left when it ended into its place."""
    for fresh in kept.glob(f"spark-{key}.*"):
        with suppress(FileNotFoundError):  # somebody else was faster
            with fresh.open("rb") as file:
                whole = file.read(len(_MAGIC)) == _MAGIC
            if whole:
                fresh.replace(_sized(fresh, f"spark-{key}"))


def _sized(fresh: Path, name: str) -> Path:
    """The name of an archive says how long it is: the JVM does not survive one that was cut off since."""
    return fresh.with_name(f"{name}-{fresh.stat().st_size}.jsa")


def _whole(kept: Path, name: str) -> Path | None:
    """An archive that has the length of its name; others are removed."""
    for path in kept.glob(f"{name}-*.jsa"):
        with suppress(FileNotFoundError):  # as above
            if path == _sized(path, name):
                return path
            path.unlink()
    return None


def _is_written(kept: Path, key: str) -> bool:
    """Whether a process that runs will leave an archive; what one left that was killed is removed."""
    for fresh in kept.glob(f"spark-{key}.*"):
        with suppress(FileNotFoundError):  # as above
            if time.time() - fresh.stat().st_mtime < _ABANDONED_S:
                return True
            fresh.unlink()
    return False


def _dump(home: Path, kept: Path, key: str) -> Path | None:
    """Write Java's own classes, for a runtime that came without them; takes a second or two."""
    fresh = kept / f"java-{key}.{os.getpid()}"
    words = (str(home / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={fresh}")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        _LOG.warning("Spark starts slowly: this Java writes no archive of its classes: %s", done.stderr[-200:])
        return None
    return fresh.replace(_sized(fresh, f"java-{key}"))


def _words(*words: str) -> str:
    return " ".join((_SILENT, *(f'"{word}"' if " " in word else word for word in words)))
