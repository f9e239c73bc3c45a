"""One running gateway for each module of cases; a module's ``SETTINGS`` are its gateway's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.gateway import Gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    settings = getattr(request.module, "SETTINGS", {})
    async with Gateway(tmp_path_factory.mktemp("cases") / "data", settings=settings) as running:
        yield running
