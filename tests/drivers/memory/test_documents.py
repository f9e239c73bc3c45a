"""The memory documents keep the contract."""

from __future__ import annotations

import pytest

from iotsphere.drivers.memory.documents import MemoryDocuments
from iotsphere.use_cases.ports.documents import Documents
from tests.contracts.documents import DocumentsContract


class TestMemoryDocuments(DocumentsContract):
    @pytest.fixture
    def documents(self) -> Documents:
        return MemoryDocuments()
