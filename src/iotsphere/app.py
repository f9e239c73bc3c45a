"""A running gateway: opens drivers first and doors last, watches its own tasks, and closes in the opposite order."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from ssl import SSLContext
from types import TracebackType
from typing import Final, Protocol, Self

import structlog

from .containers import Container, make_container
from .containers.tls import Listener, listeners_of
from .drivers.secrets import Secrets, load_or_create
from .endpoints import console_link, obstacle, parse_address, shown, write_endpoints
from .entities.errors import RequestInvalid, Unavailable
from .entities.principal import Principal
from .settings import ROLES, Settings
from .use_cases.access.tokens import operator

logger = structlog.get_logger("iotsphere.app")

REFRESH_EVERY_S: Final = 2.0
GC_THRESHOLDS: Final = (20_000, 20, 50)  # a batch of messages is many short-lived tuples, and no cycles
DOORS: Final = frozenset(("ingress", "websocket", "api"))
OPERATOR_TOKEN_S: Final = 30 * 24 * 3600


class Part(Protocol):
    """What every gateway can do."""

    async def drain(self, timeout: float) -> None:
        """Stop accepting, finish what is under way, tell the clients where to go on."""
        ...

    async def close(self) -> None:
        """Cut what is left."""
        ...


class Door(Part, Protocol):
    """A gateway that others connect to."""

    async def start(self, host: str, port: int, ssl: SSLContext | None = None) -> tuple[str, int]:
        """Listen; returns the address."""
        ...


class App:
    """One process with the doors of its roles. Use it as an async context manager, then wait for ``stopped``."""

    def __init__(self, settings: Settings, roles: tuple[str, ...] = ROLES, secrets: Secrets | None = None) -> None:
        self.settings = settings = _fitted(settings, roles)
        self.roles = roles
        self.container = make_container(settings, secrets or load_or_create(settings.secrets_file))
        self.endpoints: dict[str, str] = self.container.endpoints()
        self.stopped = asyncio.Event()
        self.failure: BaseException | None = None
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._doors: dict[str, Part] = {}

    @property
    def operator(self) -> Principal:
        """The principal of the first domain's operator."""
        return operator(self.settings.domains[0])

    def operator_token(self) -> str:
        """A fresh token of the operator, good for 30 days."""
        issuer = self.operator
        grants = [f"{grant.action}:{grant.filter.text}" for grant in issuer.grants]
        issued = self.container.tokens().issue(
            issuer, "service:operator", grants, sorted(issuer.roles), OPERATOR_TOKEN_S
        )
        return issued.token

    async def console_link(self) -> str | None:
        """An address of the console that signs the operator in, once; None where this process serves none."""
        if "http" not in self.endpoints or not self.settings.console:
            return None
        code = await self.container.sign_in().invite(self.settings.domains[0])
        return console_link(self.endpoints["http"], code)

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def _open(self) -> None:
        box = self.container
        await self.open_stores()
        await box.authenticate().refresh()
        await box.feed().start()
        self._watch("feed", box.feed().run)
        self._watch("last values", box.feed().keep_saving)
        self._watch("retention", box.retention().keep)
        self._watch("sharing", box.sharing().run)
        self._watch("revocations", self._keep_refreshing)
        watch = box.certificate_watch()
        if watch is not None:
            self._watch("certificates", watch.keep)
        for role in self.roles:
            await self._open_role(role)
        if self.roles:  # without doors it is a guest in somebody's process
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
            if self.endpoints:
                self._stack.callback(write_endpoints(self.settings.data, self.endpoints))

    async def open_stores(self) -> None:
        """Open the log, the queue and the documents, and make the domains; all that a command without doors needs."""
        box = self.container
        box.mapped()  # what is wrong with a file is said before anything is opened
        for driver in (box.log(), box.documents(), box.queue(), box.database()):
            if hasattr(driver, "__aenter__"):
                await self._stack.enter_async_context(driver)
        for domain in self.settings.domains:
            await box.log().ensure(domain, box.channels())
        await box.database().ensure(box.state().collections)

    async def _open_door(self, role: str) -> None:
        box = self.container
        listeners = listeners_of(self.settings, box.certificates(), role)
        doors = {"ingress": box.mqtt_gateway, "websocket": box.websocket_gateway, "api": box.http_gateway}
        door: Door = doors[role]()
        if role == "websocket" and "ingress" not in self.roles:  # it has MQTT clients as well
            mqtt = box.mqtt_gateway()
            self._keep("mqtt", mqtt)
            await mqtt.open()
        self._keep(role, door)
        for each in listeners:
            host, port = parse_address(each.address)
            try:
                bound = await door.start(host, port, each.tls)
            except OSError as error:
                raise self._unable(each, error) from error
            self.endpoints[each.name] = each.form.format(shown(bound))
            if each.name == "mqtt" and each.is_open_to_readers:
                logger.warning(
                    "mqtt_without_tls",
                    address=each.address,
                    message="passwords travel in clear between devices and this address",
                    remedy="set tls_certificate and let devices use mqtt_tls; keep this address on 127.0.0.1",
                )

    def _unable(self, failed: Listener, error: OSError) -> RequestInvalid:
        """The error for an address that cannot be listened on; it names all of them, so that one more start is enough."""
        to_come = (
            each
            for role in self.roles
            if role in DOORS
            for each in listeners_of(self.settings, self.container.certificates(), role)
            if each.name not in {failed.name, *self.endpoints}
        )
        known = obstacle(failed.address) or error.strerror
        found = [(failed, known), *((each, why) for each in to_come if (why := obstacle(each.address)))]
        return RequestInvalid(
            f"cannot listen on {', '.join(f'{each.address} for {each.name} ({why})' for each, why in found)}; "
            f"choose another with {' '.join(each.setting for each, _ in found)}"
        )

    async def _open_role(self, role: str) -> None:
        state = self.container.state()
        match role:
            case "bridge":
                await self._open_bridges()
            case "changes":
                self._watch("changes", state.listener.run)
                self.container.readiness().append(state.listener.ready)
            case "processors":
                if state.telemetry is not None:
                    await state.telemetry.ensure()
                for processor in state.processors:
                    self._watch(processor.name, processor)
                self._watch("timers", state.timers.run)
                self._watch("roster", state.roster.run)
            case _:
                await self._open_door(role)
        if role in ("ingress", "websocket") and "device care" not in {task.get_name() for task in self._tasks}:
            self._watch("device care", state.care.run)

    async def _open_bridges(self) -> None:
        """Bridges look for their brokers by themselves; only where there are no doors they decide whether we are ready."""
        box = self.container
        for bridge in box.bridges():
            self._keep(f"bridge {bridge.spec.name}", bridge)
            box.running_bridges().append(bridge)
            if "ingress" not in self.roles:
                box.readiness().append(bridge.ready)
            await bridge.start()

    def _keep(self, name: str, door: Part) -> None:
        self._doors[name] = door
        self._stack.push_async_callback(door.close)

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _watch(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._supervise(name, run), name=name))

    async def _supervise(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task for ever: again after something below was away, but any other failure stops the gateway."""
        delay = 0.1
        while True:
            try:
                await run()
            except Unavailable as error:
                logger.warning("task_waits", task=name, code=error.code, message=error.message)
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(delay * 2, 5.0)
            except Exception as error:
                logger.exception("task_failed", task=name)
                self.failure = error
                self.stopped.set()
                return
            else:
                delay = 0.1

    async def _keep_refreshing(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_EVERY_S)
            await self.container.authenticate().refresh()

    # -- the end ------------------------------------------------------------------------------------------------------

    def stop_on_signals(self) -> None:
        """Let SIGTERM and SIGINT end the gateway gracefully."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopped.set)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._drain()
        finally:
            await self._close()
            if self.roles:
                gc.unfreeze()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._stack.aclose()

    async def _drain(self) -> None:
        """Stop accepting, answer what was taken in, hand out cursors, save the view."""
        seconds = self.settings.drain_seconds
        box = self.container
        await asyncio.gather(*(door.drain(seconds) for door in self._doors.values()))
        await box.publish().close(seconds)
        try:
            async with asyncio.timeout(seconds):
                await box.sharing().close()
        except (Unavailable, TimeoutError) as error:
            logger.warning("shares_not_given_back", message=str(error), remedy="their leases lapse within a second")
        try:
            async with asyncio.timeout(seconds):
                await box.feed().save()
        except (Unavailable, TimeoutError) as error:
            logger.warning("last_values_not_saved", message=str(error), remedy="they are read again from the log")


def _fitted(settings: Settings, roles: tuple[str, ...]) -> Settings:
    """The settings of a process with these roles: no TLS without doors, and a node name of its own for each kind."""
    if not roles:
        return settings.model_copy(update={"tls_certificate": None})
    if "ingress" in roles or "websocket" not in roles:
        return settings
    return settings.model_copy(update={"node": f"{settings.node[:54]}.websocket"})


@asynccontextmanager
async def registers(settings: Settings) -> AsyncIterator[Container]:
    """The registers of devices and tokens, without a gateway: what the command line needs beside a running one."""
    if settings.log.startswith("memory"):
        raise RequestInvalid("a memory log keeps nothing for other processes; use the HTTP API of the running gateway")
    gateway = App(settings, ())
    box = gateway.container
    async with AsyncExitStack() as stack:
        shared = [box.documents()] if settings.log == "sqlite" else [box.log(), box.documents()]
        for driver in shared:
            if hasattr(driver, "__aenter__"):
                await stack.enter_async_context(driver)
        await box.authenticate().refresh()
        yield box
