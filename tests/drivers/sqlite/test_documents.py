"""The SQLite documents keep the contract, for several processes at once."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from iotsphere.drivers.sqlite.documents import SqliteDocuments
from iotsphere.entities.errors import LogUnavailable
from iotsphere.use_cases.ports.documents import Document, Documents
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


async def test_a_folder_that_takes_no_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "documents.db"
    path.symlink_to(tmp_path / "gone" / "documents.db")
    with pytest.raises(LogUnavailable, match=r"cannot be made \(No such file or directory\): check the disk"):
        await SqliteDocuments(path).__aenter__()


async def test_documents_are_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "documents.db"
    async with SqliteDocuments(path) as documents:
        await documents.put("devices", "d1", b"one")
        await documents.put("devices", "d2", b"two")
        await documents.delete("devices", "d2")
    async with SqliteDocuments(path) as documents:
        assert list(await documents.scan("devices")) == [Document("d1", b"one", 1)]
        assert await documents.put("devices", "d2", b"three", expected=0) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_other_processes_write_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "documents.db"
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from iotsphere.drivers.sqlite.documents import SqliteDocuments\n"
        "async def main(path, name):\n"
        "    async with SqliteDocuments(path) as documents:\n"
        "        for number in range(100):\n"
        "            await documents.put('devices', f'{name}-{number}', b'x')\n"
        "            await documents.put('shared', 'counter', b'x')\n"
        "asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    async with SqliteDocuments(path) as documents:
        writers = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(path), name, env=environment)
            for name in ("one", "two", "three")
        ]
        async with asyncio.timeout(300):
            for number in range(100):
                await documents.put("shared", "counter", b"%d" % number)
            assert [await writer.wait() for writer in writers] == [0, 0, 0]
        assert len(await documents.scan("devices")) == 300
        counter = await documents.get("shared", "counter")
        assert counter is not None
        assert counter.version == 400


async def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "documents.db"
    path.write_bytes(b"no database " * 1_000)
    with pytest.raises(LogUnavailable, match="is damaged"):
        await SqliteDocuments(path).__aenter__()
    assert path.read_bytes() == b"no database " * 1_000


async def test_it_must_be_open(tmp_path: Path) -> None:
    documents = SqliteDocuments(tmp_path / "documents.db")
    with pytest.raises(LogUnavailable, match="not open"):
        await documents.get("devices", "d1")
    async with documents:
        await documents.put("devices", "d1", b"one")
    with pytest.raises(LogUnavailable, match="not open"):
        await documents.put("devices", "d1", b"two")
