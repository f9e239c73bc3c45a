"""Golden files: what is written today must be what was written before, byte for byte.

Run the tests with IOTSPHERE_GOLDEN=write to write them anew, and read the difference before it is committed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "golden"


def check(name: str, written: bytes) -> None:
    """Compare with the golden file of this name."""
    path = FOLDER / name
    if os.environ.get("IOTSPHERE_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(written + b"\n")
    assert path.read_bytes() == written + b"\n"
