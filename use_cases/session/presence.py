"""Presence: whether a device is online, as a retained message that a late goodbye of an old connection cannot spoil.

Each connection of a device gets the next session epoch from a document that is written with its version checked. A
device is online while any of its connections is; a goodbye counts only for the newest epoch. Whoever appended reads
the document once more afterwards and appends again if it differs, so the last message always tells the stored state,
also when several gateways speak at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final, NamedTuple

from ...entities.errors import Conflict
from ...entities.message import Record
from ..ports.clock import Clock
from ..ports.documents import Document, Documents
from ..publish import MessagePublishUseCase

COLLECTION: Final = "presence"
ONLINE: Final = "online"
OFFLINE: Final = "offline"
PAGE: Final = 500
NO_EPOCH: Final = 0


class State(NamedTuple):
    """A device's presence. ``since``: ms. ``epoch`` grows with each connection. ``node``: the process that has it."""

    state: str
    since: int
    epoch: int
    reason: str
    node: str


Compose = Callable[[str, str, State, int], Record]


class _Device:
    """The connections of one device in this process."""

    __slots__ = ("epochs", "lock", "users")

    def __init__(self) -> None:
        self.lock: asyncio.Lock | None = None  # as long as it has users
        self.epochs: tuple[int, ...] = ()
        self.users = 0


class Presence:
    """Keeps and publishes presence. ``compose`` (domain, device id, state, now) makes the retained record.

    Methods raise LogUnavailable and LogFull; repeating them is safe.
    """

    def __init__(
        self,
        documents: Documents,
        publish: MessagePublishUseCase,
        compose: Compose,
        clock: Clock,
        node: str = "gateway",
    ) -> None:
        self._documents = documents
        self._publish = publish
        self._compose = compose
        self._clock = clock
        self._node = node
        self._devices: dict[tuple[str, str], _Device] = {}

    async def online(self, domain: str, device_id: str) -> int:
        """A connection of the device began; returns its session epoch."""
        device, lock = self._enter(domain, device_id)
        try:
            async with lock:
                while True:
                    document, state = await self._load(domain, device_id)
                    epoch = state.epoch + 1
                    since = state.since if device.epochs and state.state == ONLINE else self._clock.now()
                    new = State(ONLINE, since, epoch, "connected", self._node)
                    if await self._store(domain, device_id, new, document):
                        break
                device.epochs += (epoch,)
                await self._say(domain, device_id, new)
                return epoch
        finally:
            self._exit(domain, device_id, device)

    async def offline(self, domain: str, device_id: str, epoch: int, reason: str) -> bool:
        """A connection ended. Tells whether the device is offline now: not while a newer one, or another, lives."""
        device, lock = self._enter(domain, device_id)
        try:
            async with lock:
                newest = max(device.epochs, default=epoch)
                device.epochs = tuple(each for each in device.epochs if each != epoch)
                if device.epochs:
                    return False
                while True:
                    document, state = await self._load(domain, device_id)
                    if state.state != ONLINE or (state.epoch > newest and state.node != self._node):
                        return False
                    new = State(OFFLINE, self._clock.now(), state.epoch, reason, self._node)
                    if await self._store(domain, device_id, new, document):
                        break
                await self._say(domain, device_id, new)
                return True
        finally:
            self._exit(domain, device_id, device)

    async def recover(self) -> int:
        """After a crash: let the devices that this process had be offline. Returns how many."""
        found = 0
        after = ""
        while page := await self._documents.scan(COLLECTION, after=after, limit=PAGE):
            for document in page:
                state = _read(document)
                domain, _, device_id = document.key.partition("/")
                if state.state == ONLINE and state.node == self._node:
                    # Doors are open meanwhile: a device that came since has an epoch here, and ends none by this.
                    found += await self.offline(domain, device_id, NO_EPOCH, "gateway_restarted")
            after = page[-1].key
        return found

    def _enter(self, domain: str, device_id: str) -> tuple[_Device, asyncio.Lock]:
        device = self._devices.get((domain, device_id))
        if device is None:
            device = self._devices[domain, device_id] = _Device()
        device.users += 1
        device.lock = lock = device.lock or asyncio.Lock()
        return device, lock

    def _exit(self, domain: str, device_id: str, device: _Device) -> None:
        device.users -= 1
        if not device.users:
            device.lock = None
            if not device.epochs:
                self._devices.pop((domain, device_id), None)

    async def _load(self, domain: str, device_id: str) -> tuple[Document | None, State]:
        document = await self._documents.get(COLLECTION, f"{domain}/{device_id}")
        return document, _read(document) if document is not None else State(OFFLINE, 0, 0, "", "")

    async def _store(self, domain: str, device_id: str, state: State, before: Document | None) -> bool:
        value = json.dumps(state._asdict()).encode()
        try:
            await self._documents.put(COLLECTION, f"{domain}/{device_id}", value, before.version if before else 0)
        except Conflict:
            return False  # another process was quicker: look at what it wrote
        return True

    async def _say(self, domain: str, device_id: str, state: State) -> None:
        while True:
            await self._publish([self._compose(domain, device_id, state, self._clock.now())])
            _, stored = await self._load(domain, device_id)
            if stored == state:
                return
            state = stored


def _read(document: Document) -> State:
    return State(**json.loads(document.value))
