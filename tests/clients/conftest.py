"""One running gateway, or one playground, for each module of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.support.gateway import Gateway
from tests.support.playground import open_playground


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with Gateway(tmp_path_factory.mktemp("clients") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The address of a playground process."""
    with open_playground(tmp_path_factory.mktemp("playground")) as opened:
        yield opened.address
