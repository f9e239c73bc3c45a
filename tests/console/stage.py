"""A gateway with simulated devices, a browser, and what people do with the two."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiomqtt
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, async_playwright, expect

from iotsphere.drivers.simulated_devices import Station, Weather
from tests.console.network import Network, network
from tests.support.gateway import Credential, Gateway
from tests.support.servers import binary

ARGUMENTS: Final = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
# Told by the page itself: what its policy forbids, whatever tried it.
WATCH: Final = """
window.faults = [];
addEventListener("securitypolicyviolation", (event) => window.faults.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
COUNTED: Final = [(str(number), float(number)) for number in range(100_000)]
WITHIN_MS: Final = 60_000
expect.set_options(timeout=WITHIN_MS)


class Stage:
    """What a module of tests shares. ``faults``: what no page may ever say: errors, violations, foreign requests."""

    def __init__(self, gateway: Gateway, browser: Browser, link: Network) -> None:
        self.gateway = gateway
        self.browser = browser
        self.link = link
        self.faults: list[str] = []
        self._contexts: list[BrowserContext] = []
        self._devices: dict[str, asyncio.Task[None]] = {}

    async def simulate(
        self, device_id: str, interval: float = 0.1, readings: Sequence[tuple[str, float]] = COUNTED
    ) -> None:
        """A station with a measurement every ``interval`` seconds; counted ones, so that a hole shows, unless given."""
        (credential,) = await self.gateway.add_devices([device_id])
        station = Weather(Station(*credential, readings=readings), "iotsphere")
        if readings is COUNTED:
            station._index = 0
        station._state["interval"] = interval
        self._devices[device_id] = asyncio.create_task(station.run(*self.gateway.mqtt))

    async def page(self, **options: Any) -> Page:
        """A page in a context of its own, watched."""
        context = await self.browser.new_context(viewport={"width": 1440, "height": 900}, **options)
        context.set_default_timeout(WITHIN_MS)
        await context.add_init_script(WATCH)
        self._contexts.append(context)
        page = await context.new_page()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.faults.append(f"{error}"))
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        page.on("request", self._seen)
        return page

    def _said(self, said: ConsoleMessage) -> None:
        # The browser itself notes each answer that is a refusal; the page is to show those, which tests look for.
        if said.type == "error" and not re.search(r"status of 4(01|22)", said.text):
            self.faults.append(f"{said.type}: {said.text}")

    def _seen(self, request: Request) -> None:
        if not request.url.startswith((self.gateway.http, "data:")):
            self.faults.append(f"foreign request: {request.url}")

    async def sign_in(self, place: str = "#/fleet", token: str | None = None, **options: Any) -> Page:
        """A page with the operator signed in (or whoever has the token), at a place."""
        page = await self.page(**options)
        await page.goto(self.gateway.http + "/" + place)
        await self.sign_in_on(page, token or self.gateway.token)
        return page

    async def sign_in_on(self, page: Page, token: str) -> None:
        """Sign in on a page that a test has prepared."""
        await page.fill("textarea[name=token]", token)
        await page.click("button.primary")
        await page.wait_for_selector(".shell [data-state=open]")

    async def publish_as(self, credential: Credential, topic: str, payload: bytes) -> None:
        """Publish one message over MQTT 5, whether it is taken or refused."""
        host, port = self.gateway.mqtt
        name, secret = credential.username, credential.password
        version = aiomqtt.ProtocolVersion.V5
        async with aiomqtt.Client(host, port, username=name, password=secret, protocol=version, timeout=60) as client:
            await client.publish(topic, payload, qos=1)

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the HTTP API as the operator."""
        async with self.gateway.api() as api:
            answer = await api.request("PATCH" if path.endswith(("/shadow", "/labels")) else "POST", path, json=body)
        facts: dict[str, Any] = answer.json()
        return facts

    def open_pages(self) -> list[Page]:
        """The pages of the running test, in the order of their opening."""
        return [page for context in self._contexts for page in context.pages]

    def forgive(self, *parts: str) -> None:
        """Take back what a test has provoked: faults that hold one of these texts."""
        self.faults = [fault for fault in self.faults if not any(part in fault for part in parts)]

    async def check(self) -> None:
        """No page said anything that none may say; then they are closed."""
        for context in self._contexts:
            for page in context.pages:
                if page.url.startswith(self.gateway.http):
                    self.faults += await page.evaluate("window.faults")
            await context.close()
        self._contexts.clear()
        found, self.faults = self.faults, []
        assert not found, "\n".join(found)

    async def close(self) -> None:
        """Let the devices go."""
        left = set(self._devices.values())
        while left:  # again, since before Python 3.12 `wait_for` forgets a cancellation that meets its answer
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=1)
        await asyncio.gather(*self._devices.values(), return_exceptions=True)


@asynccontextmanager
async def open_stage(folder: Path, **settings: Any) -> AsyncIterator[Stage]:
    """A gateway whose WebSocket door the browser reaches through a network that tests break."""
    async with network() as link, async_playwright() as playwright:
        url = f"ws://127.0.0.1:{link.port}"
        async with Gateway(folder / "data", settings={"websocket_url": url, **settings}) as gateway:
            link.target = int(gateway.websocket.rpartition(":")[2].strip("/"))
            browser = await playwright.chromium.launch(executable_path=binary("chromium"), args=ARGUMENTS)
            stage = Stage(gateway, browser, link)
            try:
                yield stage
            finally:
                await stage.close()
                await browser.close()
