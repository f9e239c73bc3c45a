"""A process to kill: appends for ever with several tasks, and prints each position once its append returned.

A third argument says how many batches each task appends before it only waits to be killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import count
from pathlib import Path

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.channel import ChannelSpec
from iotsphere.entities.message import Record
from iotsphere.entities.position import Partition

DOMAIN = "iotsphere"
PARTITIONS = (Partition(DOMAIN, "telemetry", 0), Partition(DOMAIN, "telemetry", 1))
TASKS = 8


async def append(log: SqliteLog, run: str, task: int, most: int) -> None:
    """Each task is a device that sends one batch after the other; its sequence numbers are in the message ids."""
    serial = count(1)
    for turn in range(most) if most else count():
        batch = [
            Record(
                PARTITIONS[task % 2],
                f"{DOMAIN}/devices/d{task}/telemetry",
                f"run{run}-task{task}-{next(serial):08d}",
                b'{"payload":"%s"}' % (b"x" * (turn % 300)),
                0,
                minted=task % 4 > 1,
            )
            for _ in range(1 + turn % 25)
        ]
        appended = await log.append(batch)
        lines = (
            f"{record.partition.number} {position.epoch} {position.offset} {record.message_id}\n"
            for record, position in zip(batch, appended.positions, strict=True)
        )
        os.write(sys.stdout.fileno(), "".join(lines).encode())


async def main() -> None:
    directory, run = Path(sys.argv[1]), sys.argv[2]
    most = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    async with SqliteLog(directory, SystemClock()) as log:
        await log.ensure(DOMAIN, {"telemetry": ChannelSpec(len(PARTITIONS))})
        async with asyncio.TaskGroup() as group:
            for task in range(TASKS):
                group.create_task(append(log, run, task, most))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
