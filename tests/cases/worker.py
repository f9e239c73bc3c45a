"""A consumer in a process of its own, member of a group, that dies when the test wants it to.

    python -m tests.cases.worker URL FILTER GROUP SINK [DIE_AFTER]

It writes each message into SINK, a SQLite file keyed by message id, and acknowledges it. A payload with the key
``poison`` ends the process at once; ``DIE_AFTER``: kill -9 after so many writes, right before the acknowledgement.
The token is in the environment.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys

import orjson

import iotsphere


async def work(url: str, wanted: str, group: str, sink: sqlite3.Connection, die_after: int) -> None:
    written = 0
    async with (
        iotsphere.connect(url, token=os.environ["TOKEN"]) as broker,
        broker.subscribe(wanted, group=group, from_="earliest") as deliveries,
    ):
        async for delivery in deliveries:
            payload = orjson.loads(delivery.message.payload)
            if "poison" in payload:
                os._exit(1)  # no exception, no clean-up: as when the kernel runs out of memory
            try:
                with sink:
                    facts = (delivery.message.metadata.message_id, payload["value"])
                    sink.execute("INSERT INTO readings VALUES (?, ?)", facts)
            except sqlite3.IntegrityError:
                with sink:  # it was written before, and only its acknowledgement was lost
                    sink.execute("INSERT INTO duplicates VALUES (?)", (delivery.message.metadata.message_id,))
            written += 1
            if written == die_after:
                os.kill(os.getpid(), signal.SIGKILL)
            await delivery.ack()


def open_sink(path: str) -> sqlite3.Connection:
    sink = sqlite3.connect(path, timeout=30)
    with sink:
        sink.execute("CREATE TABLE IF NOT EXISTS readings(message_id TEXT PRIMARY KEY, value INTEGER)")
        sink.execute("CREATE TABLE IF NOT EXISTS duplicates(message_id TEXT)")
    return sink


if __name__ == "__main__":
    url, wanted, group, path, *rest = sys.argv[1:]
    asyncio.run(work(url, wanted, group, open_sink(path), int(rest[0]) if rest else 0))
