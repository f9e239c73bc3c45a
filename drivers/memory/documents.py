"""Documents in this process's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...entities.errors import Conflict
from ...use_cases.ports.documents import Document


class MemoryDocuments:
    """A ``Documents`` of dicts. A deleted key keeps its last version, so that it is never given again."""

    def __init__(self) -> None:
        self._collections: dict[str, dict[str, tuple[bytes | None, int]]] = {}

    def _get(self, collection: str, key: str) -> tuple[bytes | None, int]:
        return self._collections.get(collection, {}).get(key, (None, 0))

    async def get(self, collection: str, key: str) -> Document | None:
        """The document, or None."""
        value, version = self._get(collection, key)
        return None if value is None else Document(key, value, version)

    async def put(self, collection: str, key: str, value: bytes, expected: int | None = None) -> int:
        """Write one document. Raises Conflict."""
        before, version = self._get(collection, key)
        current = 0 if before is None else version
        if expected is not None and expected != current:
            raise Conflict(
                f"{collection}/{key} is at version {current}, not {expected}: read it again and retry",
                version=current,
                expected=expected,
            )
        self._collections.setdefault(collection, {})[key] = (value, version + 1)
        return version + 1

    async def put_many(self, collection: str, values: Mapping[str, bytes | None]) -> None:
        """Write or delete several documents."""
        for key, value in values.items():
            version = self._get(collection, key)[1]
            if value is not None:
                self._collections.setdefault(collection, {})[key] = (value, version + 1)
            elif version:
                self._collections[collection][key] = (None, version)

    async def delete(self, collection: str, key: str) -> bool:
        """Remove one document."""
        value, version = self._get(collection, key)
        if value is None:
            return False
        self._collections[collection][key] = (None, version)
        return True

    async def scan(self, collection: str, prefix: str = "", after: str = "", limit: int = 1_000) -> Sequence[Document]:
        """Documents in key order."""
        return [
            Document(key, value, version)
            for key, (value, version) in sorted(self._collections.get(collection, {}).items())
            if value is not None and key > after and key.startswith(prefix)
        ][:limit]
