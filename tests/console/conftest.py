"""One gateway and one browser for each module of these tests; after each test the pages are asked for faults."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.console.stage import Stage, open_stage


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with open_stage(tmp_path_factory.mktemp("console"), outbox_bytes=64 * 1024) as opened:
        await opened.simulate("station-1")
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def stage(shared_stage: Stage) -> AsyncIterator[Stage]:
    yield shared_stage
    await shared_stage.check()
