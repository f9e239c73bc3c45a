"""The roster: the registered devices with their labels, in the database, where fleets are selected.

Credentials lie in the gateway's own documents. What is registered there and not on the roster yet is put there by
``run``, so a device that was registered from the command line can be selected within a minute. What is not registered any
more is marked as removed, so that nothing that it had still sent makes a shadow anew, and forgotten at once; and once
more when its connections have ended for sure. It leaves the roster when the log holds nothing of it any more.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import structlog

from ..entities.documents import at_schema, is_newer
from ..entities.errors import Conflict, DocumentNewer, NotFound, RequestInvalid
from .access.devices import Devices
from .fleet import DEVICES, GONE_AFTER_MS, is_leaving, is_present, removed_at
from .ports.clock import Clock
from .ports.database import Database, Stored, Write

MAX_LABELS: Final = 50
PAGE: Final = 500
KEEP_TRIES: Final = 10
EVERY_S: Final = 60.0
REMEMBERED_MS: Final = 31 * 24 * 3600 * 1000  # longer than a log keeps anything: see ``Retention.hard_age``
FORGOTTEN: Final = "forgottenAt"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_VALUE: Final = re.compile(r"[ -~]{0,128}\Z")

log = structlog.get_logger("iotsphere.fleet")

Forget = Callable[[str, str], Awaitable[None]]


class Roster:
    """Labels are texts by name; a label that becomes None is taken away.

    ``forget``: ends what is kept of a device (domain, id); repeating it is safe.
    """

    def __init__(
        self, database: Database, devices: Devices, domains: Sequence[str], clock: Clock, forget: Forget
    ) -> None:
        self._database = database
        self._devices = devices
        self._forget = forget
        self._domains = domains
        self._clock = clock

    async def keep(self, domain: str, device: str, labels: Mapping[str, str | None]) -> Mapping[str, str]:
        """Put a registered device on the roster, or change its labels; returns them all.

        Raises NotFound (not registered), RequestInvalid (a label out of bounds), DocumentNewer, Conflict and Unavailable.
        """
        check_labels(labels)
        if await self._devices.known(domain, device) is None:
            raise NotFound
        for _ in range(KEEP_TRIES):
            # ``run`` may just have put it on the roster, or somebody else labels it: both shall count.
            with suppress(Conflict):
                return await self._relabel(domain, device, labels)
        return await self._relabel(domain, device, labels)

    async def _relabel(self, domain: str, device: str, labels: Mapping[str, str | None]) -> Mapping[str, str]:
        key = f"{domain}/{device}"
        stored = await self._database.get(DEVICES.name, key)
        if stored is not None:
            at_schema(stored.body, f"the roster's row of {device!a}")
        known = {} if stored is None or is_leaving(stored.body) else labels_of(stored)
        known.update((name, value) for name, value in labels.items() if value is not None)
        for name in [name for name, value in labels.items() if value is None]:
            known.pop(name, None)
        if len(known) > MAX_LABELS:
            raise RequestInvalid(f"labels: a device has {MAX_LABELS} at most")
        await self._database.put(DEVICES.name, Write(key, stored, self._body(domain, device, known)))
        return known

    async def drop(self, domain: str, device: str) -> None:
        """A device was removed: forget it, and once more when its connections have ended.

        Repeating it is safe. Raises Conflict when its labels are being changed, and Unavailable; ``run`` repeats it.
        """
        key = f"{domain}/{device}"
        stored = await self._database.get(DEVICES.name, key)
        if stored is not None and is_newer(stored.body):
            log.warning("document_passed_over", document=key, code=DocumentNewer.code)
        elif stored is None or not is_leaving(stored.body):
            leaving = {**self._body(domain, device, {}), "removedAt": self._clock.now()}
            await self._database.put(DEVICES.name, Write(key, stored, leaving))
        # Only now, or what it sends at this moment would outlive what is forgotten.
        await self._forget(domain, device)

    async def labels(self, domain: str, devices: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """The labels of devices by id; those that are not on the roster are left out."""
        stored = await self._database.get_many(DEVICES.name, [f"{domain}/{device}" for device in devices])
        there = {key.partition("/")[2]: each for key, each in stored.items() if is_present(each)}
        return {device: labels_of(each) for device, each in there.items()}

    async def run(self) -> None:
        """Keep the roster as the register is, for ever. Raises Unavailable."""
        while True:
            for domain in self._domains:
                await self.catch_up(domain)
            await asyncio.sleep(EVERY_S)

    async def catch_up(self, domain: str) -> int:
        """Put on the roster what is registered, and take off what is not. Returns how many differed."""
        found = 0
        after = ""
        while page := await self._devices.list(domain, after, PAGE):
            ids = [device.device_id for device in page]
            known = await self._database.get_many(DEVICES.name, [f"{domain}/{device}" for device in ids])
            rows = {device: known.get(f"{domain}/{device}") for device in ids}
            writes = [
                Write(f"{domain}/{device}", row, self._body(domain, device, {}))
                for device, row in rows.items()
                if row is None or (is_leaving(row.body) and not is_newer(row.body))
            ]
            await self._database.write(DEVICES.name, writes)
            found += len(writes)
            after = ids[-1]
        after = f"{domain}/"
        while listed := await self._database.scan(DEVICES.name, f"{domain}/", after, PAGE):
            for stored in listed:
                if is_newer(stored.body) or (FORGOTTEN in stored.body and self._is_remembered(stored)):
                    continue
                if await self._devices.known(domain, stored.key.partition("/")[2]) is None:
                    try:
                        found += await self._let_go(domain, stored)
                    except Conflict:
                        continue  # it is being changed: the next round sees to it
            after = listed[-1].key
        return found

    async def _let_go(self, domain: str, stored: Stored) -> bool:
        device = stored.key.partition("/")[2]
        if not is_leaving(stored.body):
            await self.drop(domain, device)
        elif FORGOTTEN in stored.body:
            await self._database.put(DEVICES.name, Write(stored.key, stored, None))
        elif self._clock.now() - removed_at(stored.body) >= GONE_AFTER_MS:
            await self._forget(domain, device)
            forgotten = {**stored.body, FORGOTTEN: self._clock.now()}
            await self._database.put(DEVICES.name, Write(stored.key, stored, forgotten))
        else:
            return False
        return True

    def _is_remembered(self, stored: Stored) -> bool:
        return self._clock.now() - removed_at(stored.body) < REMEMBERED_MS

    def _body(self, domain: str, device: str, labels: Mapping[str, str]) -> dict[str, object]:
        return {"schema": 1, "domain": domain, "device": device, "labels": dict(labels), "at": self._clock.now()}


def labels_of(stored: Stored) -> dict[str, str]:
    """A device's labels; what people have written there and is none is left out."""
    labels = stored.body.get("labels")
    if type(labels) is not dict:
        return {}
    return {name: value for name, value in labels.items() if type(value) is str}


def check_labels(labels: Mapping[str, str | None]) -> None:
    """Raise RequestInvalid for names and values that are none."""
    for name, value in labels.items():
        if not _NAME.match(name):
            raise RequestInvalid(f"labels: {name[:40]!a} is no name; letters, digits, _ and - are, 64 at most")
        if value is not None and not _VALUE.match(value):
            raise RequestInvalid(f"labels: the value of {name} must be up to 128 printable ASCII characters")
