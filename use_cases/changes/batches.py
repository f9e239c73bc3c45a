"""Changes in batches that form by themselves: what arrives while one is carried out is the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from ..ports.database import Change

BATCH: Final = 500


async def batches_of(changes: AsyncGenerator[Change, None]) -> AsyncGenerator[Sequence[Change], None]:
    """Batches of up to BATCH changes, none of them empty. Raises what the changes raise."""
    waiting: asyncio.Queue[Change] = asyncio.Queue(BATCH)
    loop = asyncio.get_running_loop()

    async def pump() -> None:
        async for change in changes:
            await waiting.put(change)

    pumping = loop.create_task(pump())
    try:
        while True:
            getting = loop.create_task(waiting.get())
            try:
                await asyncio.wait((getting, pumping), return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    break
                batch = [getting.result()]
            finally:
                getting.cancel()
            while len(batch) < BATCH and not waiting.empty():
                batch.append(waiting.get_nowait())
            yield batch
        await pumping
    finally:
        pumping.cancel()
        await asyncio.wait((pumping,))
