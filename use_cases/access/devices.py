"""Devices: registering, listing, removing, and giving a new secret. A secret is shown once and kept as a keyed hash."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ...entities.errors import Conflict, NotFound, RequestInvalid
from ...entities.principal import Principal, device
from ...entities.topic import DEFAULT_DOMAIN, is_device_id, is_domain
from ..ports.clock import Clock
from ..ports.documents import Document, Documents
from .revocations import Revocations

COLLECTION: Final = "devices"
NAMES: Final = "device-names"
SECRET_BYTES: Final = 32
NOBODY: Final = json.dumps({"digest": "0" * 64, "since": 0})


@dataclass(frozen=True, slots=True)
class Device:
    """A registered device. ``registered_at``: ms. ``since``: ms; when its present secret was made."""

    domain: str
    device_id: str
    registered_at: int
    since: int


class Credential(NamedTuple):
    """What a device logs in with; the password is 256 random bits as text, and not stored."""

    device_id: str
    username: str
    password: str


def username_of(domain: str, device_id: str) -> str:
    """The user name of a device: its id, and its domain before it unless that is the default one."""
    return device_id if domain == DEFAULT_DOMAIN else f"{domain}/{device_id}"


def split_username(username: str) -> tuple[str, str]:
    """Domain and device id of a user name; both forms are understood for the default domain."""
    domain, slash, device_id = username.rpartition("/")
    return (domain, device_id) if slash else (DEFAULT_DOMAIN, username)


class Devices:
    """The register of devices, kept in the documents. ``key``: 32 secret bytes for the hashes.

    Two ids of a domain that differ in upper and lower case only are not both admitted: people mistake them.
    """

    def __init__(self, documents: Documents, revocations: Revocations, clock: Clock, key: bytes) -> None:
        self._documents = documents
        self._revocations = revocations
        self._clock = clock
        self._key = key

    async def register(self, domain: str, device_id: str) -> Credential:
        """Admit a device. Raises RequestInvalid for an id outside the grammar and Conflict when it or a twin exists."""
        if not is_domain(domain):
            raise RequestInvalid(f"{domain[:80]!a} is no domain: it must match [A-Za-z0-9][A-Za-z0-9_-]{{0,63}}")
        if not is_device_id(device_id):
            raise RequestInvalid(
                f"{device_id[:80]!a} is no device id: it must match [A-Za-z0-9][A-Za-z0-9_.:-]{{0,63}} and not be batch"
            )
        await self._claim(domain, device_id)
        since = max(self._clock.now(), await self._revocations.stored_earliest(domain, "device", device_id))
        secret, value = self._new_secret(domain, device_id, since, since)
        try:
            await self._documents.put(COLLECTION, f"{domain}/{device_id}", value, expected=0)
        except Conflict as error:
            raise _exists(device_id, device_id) from error
        return Credential(device_id, username_of(domain, device_id), secret)

    async def list(self, domain: str, after: str = "", limit: int = 100) -> Sequence[Device]:
        """Devices of a domain with an id beyond ``after``, in code point order."""
        found = await self._documents.scan(COLLECTION, f"{domain}/", f"{domain}/{after}" if after else "", limit)
        return [_device(domain, document) for document in found]

    async def get(self, domain: str, device_id: str) -> Device:
        """One device. Raises NotFound."""
        return _device(domain, await self._stored(domain, device_id))

    async def rotate(self, domain: str, device_id: str) -> Credential:
        """Give a device a new secret; the old one, and all its tokens, end at once. Raises NotFound and Conflict."""
        document = await self._stored(domain, device_id)
        known = _device(domain, document)
        since = await self._revocations.revoke_subject(domain, "device", device_id, known.since)
        secret, value = self._new_secret(domain, device_id, known.registered_at, since)
        await self._documents.put(COLLECTION, document.key, value, expected=document.version)
        return Credential(device_id, username_of(domain, device_id), secret)

    async def remove(self, domain: str, device_id: str) -> None:
        """Remove a device; its connections end, and its id can be registered anew. Raises NotFound."""
        known = _device(domain, await self._stored(domain, device_id))
        await self._revocations.revoke_subject(domain, "device", device_id, known.since)
        await self._documents.delete(COLLECTION, f"{domain}/{device_id}")
        await self._documents.delete(NAMES, f"{domain}/{device_id.lower()}")

    async def known(self, domain: str, device_id: str) -> Principal | None:
        """The principal of a registered device, for whoever has proven by other means to be it."""
        document = await self._documents.get(COLLECTION, f"{domain}/{device_id}")
        if document is None:
            return None
        return replace(device(domain, device_id), since=int(json.loads(document.value)["since"]))

    async def verify(self, username: str, secret: str) -> Principal | None:
        """The device that this user name and secret belong to. Unknown devices take as long as wrong secrets."""
        domain, device_id = split_username(username)
        if not is_domain(domain) or not is_device_id(device_id):
            return None
        document = await self._documents.get(COLLECTION, f"{domain}/{device_id}")
        stored = json.loads(document.value if document is not None else NOBODY)
        right = hmac.compare_digest(self._digest(domain, device_id, secret), str(stored["digest"]))
        if document is None or not right:
            return None
        return replace(device(domain, device_id), since=int(stored["since"]))

    async def _claim(self, domain: str, device_id: str) -> None:
        """Take the name without regard to case. A claim without its device is left from a crash and is taken over."""
        key = f"{domain}/{device_id.lower()}"
        claim = await self._documents.get(NAMES, key)
        if claim is not None:
            holder = claim.value.decode()
            if await self._documents.get(COLLECTION, f"{domain}/{holder}") is not None:
                raise _exists(device_id, holder)
        try:
            await self._documents.put(NAMES, key, device_id.encode(), expected=claim.version if claim else 0)
        except Conflict as error:
            raise _exists(device_id, device_id) from error

    async def _stored(self, domain: str, device_id: str) -> Document:
        document = await self._documents.get(COLLECTION, f"{domain}/{device_id}")
        if document is None:
            raise NotFound
        return document

    def _new_secret(self, domain: str, device_id: str, registered_at: int, since: int) -> tuple[str, bytes]:
        secret = secrets.token_urlsafe(SECRET_BYTES)
        while secret.startswith("-"):  # command lines would take it for an option
            secret = secrets.token_urlsafe(SECRET_BYTES)
        value = {"registeredAt": registered_at, "since": since, "digest": self._digest(domain, device_id, secret)}
        return secret, json.dumps(value).encode()

    def _digest(self, domain: str, device_id: str, secret: str) -> str:
        # The secret is random, not chosen by a person, so a fast keyed hash is as good as a slow one.
        text = f"{domain}\0{device_id}\0{secret}".encode("utf-8", "surrogatepass")
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()


def _device(domain: str, document: Document) -> Device:
    value = json.loads(document.value)
    return Device(domain, document.key.partition("/")[2], value["registeredAt"], value["since"])


def _exists(device_id: str, holder: str) -> Conflict:
    if device_id == holder:
        return Conflict(
            f"{device_id} is registered already; for a new password: iotsphere device rotate {device_id}, "
            f"or to make it anew, first: iotsphere device remove {device_id}"
        )
    return Conflict(f"{device_id} differs from the registered {holder} in upper and lower case only; choose another id")
