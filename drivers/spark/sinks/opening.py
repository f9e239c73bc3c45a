"""Opening a Delta table: one of another tool is refused before anything is written to it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from deltalake.schema import PrimitiveType

from ....entities.errors import RequestInvalid
from .parquet import DATE

# What tells a row's place in the log, and the sample in its message.
PLACE: Final = ("domain", "partition", "offset", "message_id", "metric", "sample")


def opened(folder: Path) -> DeltaTable:
    """The table in a folder. Raises RequestInvalid for one that readings cannot be added to, and DeltaError."""
    table = DeltaTable(str(folder))
    if why := _foreign(table):
        raise RequestInvalid(f"{folder} holds a Delta table of another tool ({why}): name another folder with --output")
    return table


def _foreign(table: DeltaTable) -> str:
    """Why a table cannot be one of readings; empty where it can."""
    types = {field.name: field.type for field in table.schema().fields}
    if (by := table.metadata().partition_columns) != [DATE]:
        return f"it is partitioned by {', '.join(by) or 'nothing'}, not by {DATE}"
    if types[DATE] != PrimitiveType("date"):
        return f"its column {DATE} holds no dates"
    return next((f"it has no column {name}" for name in PLACE if name not in types), "")
