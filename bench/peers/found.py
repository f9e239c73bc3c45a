"""What a peer needs of this machine, or the reason why the peer is left out."""

from __future__ import annotations

import os
import shutil

from tests.support.servers import UNPACKED

from ..programs import BenchFailed


def first_of(folder: str, name: str) -> str:
    """The path of a program in a folder, or else on PATH. Raises BenchFailed when it is in neither."""
    return shutil.which(name, path=folder) or program(name)


def program(name: str) -> str:
    """The path of a program. Raises BenchFailed when it is not there."""
    folders = [os.environ.get("PATH", ""), "/usr/sbin", str(UNPACKED / "usr/bin"), str(UNPACKED / "usr/sbin")]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise BenchFailed(f"{name} is not installed: run `python tests/support/provision.py --peers`")
    return found
