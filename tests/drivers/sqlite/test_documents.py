"""The SQLite documents keep the contract, for several processes at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from iotsphere.drivers.sqlite.documents import SqliteDocuments
from iotsphere.use_cases.ports.documents import Documents
from tests.contracts.documents import DocumentsContract, SharedDocumentsContract


class TestSqliteDocuments(DocumentsContract, SharedDocumentsContract):
    @pytest.fixture
    async def documents(self, tmp_path: Path) -> AsyncIterator[Documents]:
        async with SqliteDocuments(tmp_path / "data" / "documents.db") as documents:
            yield documents

    @pytest.fixture
    async def neighbour(self, documents: Documents, tmp_path: Path) -> AsyncIterator[Documents]:
        assert await documents.get("made", "first") is None
        async with SqliteDocuments(tmp_path / "data" / "documents.db") as neighbour:
            yield neighbour
