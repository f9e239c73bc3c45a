"""What bridges remember over restarts: the mark of their log, how a bridge is divided, and its sessions at brokers."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from typing import Final

from ..entities.errors import Conflict, RequestInvalid
from .ports.documents import Documents

COLLECTION: Final = "bridges"


@dataclass(frozen=True, slots=True)
class BrokerSession:
    """A session that a broker keeps for us.

    ``seen``: ms since 1970, when we last were connected to it. ``owner``: the run of a process that was.
    """

    filters: tuple[str, ...]
    seen: int
    owner: str


class BridgeRegister:
    """Keeps it in the documents. Errors of all methods: LogUnavailable."""

    def __init__(self, documents: Documents, domain: str, name: str) -> None:
        self._documents = documents
        self._domain = domain
        self._name = name

    async def origin(self) -> str:
        """The mark by which this log's messages are known when they come back; the same for all bridges of the domain."""
        found = await self._once(self._domain, {"origin": str(uuid.uuid4())})
        return str(found["origin"])

    async def divide(self, slices: int) -> None:
        """Remember over how many bridges the device ids are spread. Raises RequestInvalid when it was another number.

        What waits in the brokers' sessions was divided by the old number, and some of it would belong to nobody.
        """
        found = await self._once(f"{self._domain}/{self._name}", {"slices": slices})
        if found["slices"] != slices:
            raise RequestInvalid(
                f"the bridge {self._name!a} was divided into {found['slices']} slices, and now into {slices}: messages "
                "that wait at the broker would be left out; give the bridge a new name, run both until the old one has "
                "taken all, then stop the old one"
            )

    async def session(self, client_id: str) -> BrokerSession | None:
        """The session that the broker should have under this client id."""
        found = await self._documents.get(COLLECTION, self._key(client_id))
        if found is None:
            return None
        stored = json.loads(found.value)
        return BrokerSession(tuple(stored["filters"]), int(stored["seen"]), str(stored["owner"]))

    async def keep_session(self, client_id: str, session: BrokerSession) -> None:
        """Remember a session."""
        stored = json.dumps(asdict(session)).encode()
        await self._documents.put(COLLECTION, self._key(client_id), stored)

    def _key(self, client_id: str) -> str:
        return f"{self._domain}/{self._name}/{client_id}"

    async def _once(self, key: str, value: dict[str, object]) -> dict[str, object]:
        """Write a document unless it is there; returns what is there."""
        try:
            await self._documents.put(COLLECTION, key, json.dumps(value).encode(), expected=0)
        except Conflict:
            found = await self._documents.get(COLLECTION, key)
            if found is not None:
                stored: dict[str, object] = json.loads(found.value)
                return stored
        return value
