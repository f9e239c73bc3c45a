"""The contract of ``Documents``."""

from __future__ import annotations

import asyncio

import pytest

from iotsphere.entities.errors import Conflict
from iotsphere.use_cases.ports.documents import Document, Documents

DEVICES = "iotsphere/devices"


class DocumentsContract:
    """Needs the fixture ``documents``: an open, empty store."""

    async def test_what_was_put_is_got(self, documents: Documents) -> None:
        assert await documents.get(DEVICES, "d1") is None
        assert await documents.put(DEVICES, "d1", b'{"a":1}') == 1
        assert await documents.put(DEVICES, "ключ \U0001f511 '%_\"", bytes(range(256))) == 1
        assert await documents.get(DEVICES, "d1") == Document("d1", b'{"a":1}', 1)
        assert await documents.get(DEVICES, "ключ \U0001f511 '%_\"") == ("ключ \U0001f511 '%_\"", bytes(range(256)), 1)
        assert await documents.get(DEVICES, "D1") is None

    async def test_an_empty_value_is_a_value(self, documents: Documents) -> None:
        await documents.put(DEVICES, "d1", b"")
        assert await documents.get(DEVICES, "d1") == Document("d1", b"", 1)
        assert len(await documents.scan(DEVICES)) == 1

    async def test_versions_grow_by_one(self, documents: Documents) -> None:
        assert [await documents.put(DEVICES, "d1", b"%d" % number) for number in range(4)] == [1, 2, 3, 4]
        await documents.put_many(DEVICES, {"d1": b"x"})
        assert await documents.get(DEVICES, "d1") == Document("d1", b"x", 5)

    async def test_collections_are_apart(self, documents: Documents) -> None:
        await documents.put(DEVICES, "d1", b"here")
        await documents.put("acme/devices", "d1", b"there")
        assert (await documents.get(DEVICES, "d1") or Document("", b"", 0)).value == b"here"
        assert [document.value for document in await documents.scan("acme/devices")] == [b"there"]
        assert await documents.delete("elsewhere", "d1") is False

    async def test_an_expected_version_must_match(self, documents: Documents) -> None:
        assert await documents.put(DEVICES, "d1", b"one", expected=0) == 1
        assert await documents.put(DEVICES, "d1", b"two", expected=1) == 2
        for wrong in (0, 1, 3):
            with pytest.raises(Conflict):
                await documents.put(DEVICES, "d1", b"three", expected=wrong)
        with pytest.raises(Conflict):
            await documents.put(DEVICES, "d2", b"one", expected=1)
        assert await documents.get(DEVICES, "d1") == Document("d1", b"two", 2)
        assert await documents.get(DEVICES, "d2") is None

    async def test_a_conflict_tells_the_version_that_is_there(self, documents: Documents) -> None:
        await documents.put(DEVICES, "d1", b"one")
        with pytest.raises(Conflict) as caught:
            await documents.put(DEVICES, "d1", b"two", expected=7)
        assert caught.value.facts == {"version": 1, "expected": 7}
        assert caught.value.retry is False

    async def test_of_concurrent_writers_one_wins(self, documents: Documents) -> None:
        await documents.put(DEVICES, "d1", b"start")
        outcomes = await asyncio.gather(
            *(documents.put(DEVICES, "d1", b"%d" % number, expected=1) for number in range(10)), return_exceptions=True
        )
        assert [outcome for outcome in outcomes if not isinstance(outcome, Conflict)] == [2]

    async def test_a_deleted_document_is_absent_and_its_versions_are_never_reused(self, documents: Documents) -> None:
        await documents.put(DEVICES, "d1", b"one")
        await documents.put(DEVICES, "d1", b"two")
        assert await documents.delete(DEVICES, "d1") is True
        assert await documents.delete(DEVICES, "d1") is False
        assert await documents.get(DEVICES, "d1") is None
        assert list(await documents.scan(DEVICES)) == []
        with pytest.raises(Conflict):
            await documents.put(DEVICES, "d1", b"three", expected=2)
        third = await documents.put(DEVICES, "d1", b"three", expected=0)
        assert third > 2
        await documents.put_many(DEVICES, {"d1": None})
        await documents.put_many(DEVICES, {"d1": b"four"})
        assert (await documents.get(DEVICES, "d1") or Document("", b"", 0)).version > third

    async def test_put_many_writes_and_deletes(self, documents: Documents) -> None:
        await documents.put(DEVICES, "gone", b"x")
        await documents.put_many(DEVICES, {"a": b"1", "b": b"2", "gone": None, "never": None})
        await documents.put_many(DEVICES, {})
        assert list(await documents.scan(DEVICES)) == [Document("a", b"1", 1), Document("b", b"2", 1)]
        assert await documents.get(DEVICES, "never") is None
        assert await documents.put(DEVICES, "never", b"now", expected=0) >= 1

    async def test_put_many_is_seen_whole(self, documents: Documents) -> None:
        keys = [f"k{number:03}" for number in range(50)]

        async def write() -> None:
            for turn in range(20):
                await documents.put_many(DEVICES, dict.fromkeys(keys, b"%d" % turn))
                await documents.put_many(DEVICES, dict.fromkeys(keys))

        writing = asyncio.create_task(write())
        seen = 0
        while not writing.done():
            found = await documents.scan(DEVICES)
            assert len(found) in (0, 50)
            assert len({document.value for document in found}) <= 1
            seen += 1
            await asyncio.sleep(0)
        await writing
        assert seen > 0
        assert list(await documents.scan(DEVICES)) == []

    async def test_scans_sort_by_code_point(self, documents: Documents) -> None:
        keys = [
            "",
            " ",
            "a",
            "a/",
            "a/1",
            "a0",
            "b",
            "Z",
            "é",
            "z\u0301",
            "\ud7ff",
            "\uffff",
            "\U00010000",
            "\U0010ffff",
        ]
        await documents.put_many(DEVICES, {key: b"x" for key in reversed(keys) if key})
        assert [document.key for document in await documents.scan(DEVICES)] == sorted(keys)[1:]

    async def test_scans_by_prefix_in_pages(self, documents: Documents) -> None:
        keys = [f"d{number}" for number in range(30)] + ["e", "d%", "d_", "c\U0010ffff"]
        await documents.put_many(DEVICES, dict.fromkeys(keys, b"x"))
        wanted = sorted(key for key in keys if key.startswith("d"))
        found: list[str] = []
        while page := await documents.scan(DEVICES, prefix="d", after=found[-1] if found else "", limit=7):
            assert len(page) <= 7
            found += [document.key for document in page]
        assert found == wanted
        assert [document.key for document in await documents.scan(DEVICES, prefix="d%")] == ["d%"]
        assert [document.key for document in await documents.scan(DEVICES, prefix="c\U0010ffff")] == ["c\U0010ffff"]
        assert [document.key for document in await documents.scan(DEVICES, after="d9")] == ["d_", "e"]
        assert list(await documents.scan(DEVICES, prefix="x")) == []


class SharedDocumentsContract:
    """For stores that several processes share. Needs ``documents``, and ``neighbour`` on the same store."""

    async def test_a_write_is_seen_by_the_neighbour_at_once(self, documents: Documents, neighbour: Documents) -> None:
        for number in range(1, 6):
            version = await documents.put(DEVICES, "d1", b"%d" % number)
            assert await neighbour.get(DEVICES, "d1") == Document("d1", b"%d" % number, version)
        await neighbour.delete(DEVICES, "d1")
        assert await documents.get(DEVICES, "d1") is None

    async def test_locks_count_across_neighbours(self, documents: Documents, neighbour: Documents) -> None:
        await documents.put(DEVICES, "counter", b"0")

        async def count_up(store: Documents) -> None:
            done = 0
            while done < 25:
                document = await store.get(DEVICES, "counter")
                assert document is not None
                try:
                    await store.put(DEVICES, "counter", b"%d" % (int(document.value) + 1), expected=document.version)
                except Conflict:
                    continue
                done += 1

        async with asyncio.timeout(300):
            await asyncio.gather(count_up(documents), count_up(neighbour))
        assert await documents.get(DEVICES, "counter") == Document("counter", b"50", 51)
