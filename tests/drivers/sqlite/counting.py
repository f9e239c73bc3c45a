"""A process to kill: several tasks count up in documents of their own and in a shared one, and print what was written."""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import count
from pathlib import Path

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.sqlite.database import SqliteDatabase
from iotsphere.use_cases.ports.database import Collection, Database, Write

COUNTERS = Collection("counters", watched=True)
SHARED = "d/shared"
TASKS = 6


async def count_up(database: Database, key: str) -> None:
    """Add one, in a document of one's own and then in the one that all share, for ever or up to a number."""
    most = int(sys.argv[3])
    for _ in range(most) if most else count():
        for name in (key, SHARED):
            stands = await database.get(COUNTERS.name, name)
            while True:
                body = {"n": 1 if stands is None else stands.body["n"] + 1}
                ((done, stands),) = await database.write(COUNTERS.name, [Write(name, stands, body)])
                if done:
                    break
            os.write(sys.stdout.fileno(), f"{name} {body['n']}\n".encode())


async def main() -> None:
    path, name = Path(sys.argv[1]), sys.argv[2]
    async with SqliteDatabase(path, SystemClock()) as database:
        await database.ensure([COUNTERS])
        async with asyncio.TaskGroup() as group:
            for task in range(TASKS):
                group.create_task(count_up(database, f"d/{name}-{task}"))


if __name__ == "__main__":
    asyncio.run(main())
