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
    base, archive = kept / f"java-{key}.jsa", kept / f"spark-{key}.jsa"
    _adopt(archive)
    if not archive.exists() and (not may_write or _is_written(archive)):
        return ""
    has_own = (home / "lib" / "server" / "classes.jsa").exists()
    if not has_own and not base.exists() and not _dump(home, base):
        return ""
    below = "" if has_own else str(base)
    if archive.exists():
        return _words(f"-XX:SharedArchiveFile={':'.join(filter(None, (below, str(archive))))}")
    fresh = archive.with_name(f"{archive.name}.{os.getpid()}")
    fresh.touch()  # tells others that one is on its way
    return _words(f"-XX:ArchiveClassesAtExit={fresh}", *([f"-XX:SharedArchiveFile={below}"] if below else []))


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


def _adopt(archive: Path) -> None:
    """Put an archive that a process left when it ended into its place."""
    for fresh in archive.parent.glob(f"{archive.name}.*"):
        with suppress(FileNotFoundError):  # somebody else was faster
            with fresh.open("rb") as file:
                whole = file.read(len(_MAGIC)) == _MAGIC
            if whole:
                fresh.replace(archive)


def _is_written(archive: Path) -> bool:
    """Whether a process that runs will leave an archive; what one left that was killed is removed."""
    for fresh in archive.parent.glob(f"{archive.name}.*"):
        with suppress(FileNotFoundError):  # as above
            if time.time() - fresh.stat().st_mtime < _ABANDONED_S:
                return True
            fresh.unlink()
    return False


def _dump(home: Path, base: Path) -> bool:
    """Write Java's own classes, for a runtime that came without them; takes a second or two."""
    fresh = base.with_name(f"{base.name}.{os.getpid()}")
    words = (str(home / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={fresh}")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        _LOG.warning("Spark starts slowly: this Java writes no archive of its classes: %s", done.stderr[-200:])
        return False
    fresh.replace(base)
    return True


def _words(*words: str) -> str:
    return " ".join((_SILENT, *(f'"{word}"' if " " in word else word for word in words)))
