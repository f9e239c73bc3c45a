"""Where the JavaScript client runs in tests: a Node.js process, or a page in Chromium. Both run what they are sent."""

from __future__ import annotations

import asyncio
import http
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol, Self

from playwright.async_api import Browser, Page, async_playwright
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from tests.support.gateway import ROOT
from tests.support.processes import die_with_parent
from tests.support.servers import binary, environment, missing

HARNESS: Final = Path(__file__).with_name("harness.mjs")
LIBRARY: Final = ROOT / "clients/js/lib/iotsphere.min.js"
WITHIN_S: Final = 180.0
NODE_OPTIONS: Final = ("--experimental-websocket", "--no-warnings")
CHROMIUM_OPTIONS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PAGE: Final = b"""<!doctype html><meta charset=utf-8><title>harness</title><link rel=icon href=data:,><script type=module>
import * as lib from "/iotsphere.min.js";
import { run } from "/harness.mjs";
globalThis.harness = ({ code, given }) => run(lib, code, given);
</script>"""


class Failed(AssertionError):
    """What was sent threw an error; carries its stack."""


class Engine(Protocol):
    """Runs bodies of async functions; what they return comes back as JSON."""

    name: str

    async def run(self, code: str, **given: object) -> Any:
        """Run a body of an async function of ``lib``, ``g`` and ``given``. Raises Failed."""
        ...


class Node:
    """A Node.js process."""

    name = "node"

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def start(cls) -> Self:
        """Start one; skips where there is no Node.js that has WebSockets."""
        node, pipe = binary("node"), asyncio.subprocess.PIPE
        asked = await asyncio.create_subprocess_exec(node, "--version", stdout=pipe)
        version = re.match(rb"v(\d+)", (await asked.communicate())[0])
        if version is None or int(version[1]) < 20:
            missing("the JavaScript client needs Node.js 20 or later")
        process = await asyncio.create_subprocess_exec(
            *(node, *NODE_OPTIONS, str(HARNESS), str(LIBRARY)),
            stdin=pipe,
            stdout=pipe,
            limit=8 * 1024 * 1024,
            env=environment(),
            preexec_fn=die_with_parent,
        )
        return cls(process)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told = json.loads(line)
            self._waiting.pop(told["id"]).set_result(told)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Failed("the Node.js process has ended"))

    async def run(self, code: str, **given: object) -> Any:
        """Run it."""
        assert self._process.stdin is not None
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps({"id": number, "code": code, "given": given}).encode() + b"\n")
        told = await asyncio.wait_for(future, WITHIN_S)
        if "error" in told:
            raise Failed(told["error"])
        return told["ok"]

    async def close(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading


class Chromium:
    """A page in Chromium. ``errors``: what the page wrote to its console as errors, and what nothing caught."""

    name = "chromium"

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.errors: list[str] = []
        self._address = address
        page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    async def load(self) -> None:
        """Load the page, or load it anew."""
        await self.page.goto(self._address)
        await self.page.wait_for_function("globalThis.harness !== undefined")

    async def run(self, code: str, **given: object) -> Any:
        """Run it."""
        try:
            return await self.page.evaluate("call => harness(call)", {"code": code, "given": given})
        except Exception as error:
            raise Failed(str(error)) from error

    async def close(self) -> None:
        """Close the page."""
        await self.page.close()


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A headless Chromium with an empty profile."""
    path = binary("chromium")
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_OPTIONS))
        try:
            yield running
        finally:
            await running.close()


@asynccontextmanager
async def page_server() -> AsyncIterator[str]:
    """Serves the harness page and the client's module; yields the address of the page."""
    files = {
        "/": (PAGE, "text/html"),
        "/harness.mjs": (HARNESS.read_bytes(), "text/javascript"),
        "/iotsphere.min.js": (LIBRARY.read_bytes(), "text/javascript"),
    }

    def answer(_: ServerConnection, request: Request) -> Response:
        body, kind = files.get(request.path, (b"", "text/plain"))
        status = http.HTTPStatus.OK if request.path in files else http.HTTPStatus.NOT_FOUND
        headers = Headers({"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"})
        return Response(status.value, status.phrase, headers, body)

    async def nobody(_: ServerConnection) -> None:
        return

    async with serve(nobody, "127.0.0.1", 0, process_request=answer) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"http://127.0.0.1:{port}/"
