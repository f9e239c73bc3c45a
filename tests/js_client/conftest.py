"""One gateway and one browser for all of these tests; a process or a page for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.js_client.engines import WITHIN_S, Chromium, Engine, Node, browser, page_server
from tests.support.gateway import Gateway


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with Gateway(tmp_path_factory.mktemp("js-client") / "data") as running:
        await running.add_devices(["d1", "d2"])
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def page_address() -> AsyncIterator[str]:
    async with page_server() as address:
        yield address


@pytest_asyncio.fixture(loop_scope="session")
async def node() -> AsyncIterator[Node]:
    engine = await Node.start()
    yield engine
    await engine.close()


@asynccontextmanager
async def opened_page(chromium: Browser, address: str) -> AsyncIterator[Chromium]:
    context = await chromium.new_context()
    context.set_default_timeout(WITHIN_S * 1_000)
    engine = Chromium(await context.new_page(), address)
    await engine.load()
    yield engine
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(chromium: Browser, page_address: str) -> AsyncIterator[Chromium]:
    async with opened_page(chromium, page_address) as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="session", params=["node", "chromium"])
async def engine(request: pytest.FixtureRequest, chromium: Browser, page_address: str) -> AsyncIterator[Engine]:
    """Each of both."""
    if request.param == "chromium":
        async with opened_page(chromium, page_address) as page:
            yield page
    else:
        node = await Node.start()
        yield node
        await node.close()
