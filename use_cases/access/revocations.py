"""Revocations: which tokens and which earlier credentials no longer count, known without asking the store.

They lie in the documents, so every process sees them, and in memory, so that a door can ask for each message.
"""

from __future__ import annotations

import json
from typing import Final

from ...entities.errors import Conflict
from ...entities.principal import Principal
from ..ports.clock import Clock
from ..ports.documents import Documents

COLLECTION: Final = "revocations"
KEPT_MS: Final = 401 * 24 * 3600 * 1000  # a day longer than our longest token
PAGE: Final = 1_000


class Revocations:
    """Revoked token ids, and per subject the moment before which its credentials no longer count.

    Keys: ``{domain}/token/{token_id}`` and ``{domain}/subject/{kind}/{name}``, so one domain never touches another.
    Those made through this object act at once; others after the next ``refresh``.
    """

    def __init__(self, documents: Documents, clock: Clock) -> None:
        self._documents = documents
        self._clock = clock
        self._known: dict[str, tuple[int, int]] = {}  # key -> (document version, the moment it counts from)

    def allows(self, principal: Principal) -> bool:
        """Tell whether the principal's credential still counts: not expired and not revoked."""
        if 0 < principal.expires_at <= self._clock.now():
            return False
        if not self._known:
            return True
        if principal.token_id and f"{principal.domain}/token/{principal.token_id}" in self._known:
            return False
        return principal.since >= self.earliest(principal.domain, principal.kind, principal.name)

    def earliest(self, domain: str, kind: str, name: str) -> int:
        """The least ``since`` (ms) that a credential of this subject must have; 0 when none was revoked."""
        known = self._known.get(f"{domain}/subject/{kind}/{name}")
        return known[1] if known is not None else 0

    async def revoke_token(self, domain: str, token_id: str) -> None:
        """Let one token count no longer."""
        key = f"{domain}/token/{token_id}"
        moment = self._clock.now()
        self._known[key] = (await self._documents.put(COLLECTION, key, _write(moment)), moment)

    async def revoke_subject(self, domain: str, kind: str, name: str, at_least: int = 0) -> int:
        """Let no credential count that this subject has by now; returns the new ``earliest``, which never goes back.

        ``at_least``: later than this, too, for a credential that is dated ahead of the clock.
        """
        key = f"{domain}/subject/{kind}/{name}"
        while True:
            stored, version = await self._stored(key)
            before = max(self._clock.now(), stored, at_least) + 1
            try:
                version = await self._documents.put(COLLECTION, key, _write(before), expected=version)
            except Conflict:
                continue  # another process revoked it in this moment
            self._known[key] = (version, before)
            return before

    async def stored_earliest(self, domain: str, kind: str, name: str) -> int:
        """As ``earliest``, with what other processes did a moment ago."""
        return (await self._stored(f"{domain}/subject/{kind}/{name}"))[0]

    async def _stored(self, key: str) -> tuple[int, int]:
        """The moment and the version of a revocation in the store; 0, 0 when there is none."""
        document = await self._documents.get(COLLECTION, key)
        return (_read(document.value), document.version) if document is not None else (0, 0)

    async def refresh(self) -> None:
        """Learn what other processes revoked, and remove what no living token can match any more."""
        over = self._clock.now() - KEPT_MS
        found: dict[str, tuple[int, int]] = {}
        stale: dict[str, bytes | None] = {}
        after = ""
        while page := await self._documents.scan(COLLECTION, after=after, limit=PAGE):
            for document in page:
                known = self._known.get(document.key)
                if known is None or known[0] != document.version:
                    known = (document.version, _read(document.value))
                if known[1] < over:
                    stale[document.key] = None
                else:
                    found[document.key] = known
            after = page[-1].key
        for key, known in self._known.items():  # some were made here while the scan was under way
            if key not in stale and known[1] >= max(over, found.get(key, (0, 0))[1]):
                found[key] = known
        self._known = found
        if stale:
            await self._documents.put_many(COLLECTION, stale)


def _write(moment: int) -> bytes:
    return json.dumps({"from": moment}).encode()


def _read(value: bytes) -> int:
    return int(json.loads(value)["from"])
