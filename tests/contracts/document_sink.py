"""The contract of ``DocumentSink``."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pytest

from iotsphere.drivers.spark.sinks.documents import open_sink
from iotsphere.drivers.spark.sinks.kept import Kept
from iotsphere.entities.errors import IotSphereError

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Place(Protocol):
    """Where a sink writes: ``database`` is its address, ``read`` asks with a client of the store's own kind."""

    database: str

    def read(self, collection: str) -> dict[str, dict[str, Any]]:
        """The documents by key, times as ISO texts."""
        ...


def kept(key: str = "iotsphere/d1/t", first: int = 1, last: int = 1, **body: Any) -> Kept:
    return Kept(key, body, first, last)


class DocumentSinkContract:
    """Needs the fixture ``place``."""

    def test_what_was_set_is_read_by_others(self, place: Place) -> None:
        body = {
            "text": "ä\0$.\U0001f511",
            "number": 0.1,
            "whole": 2**53,
            "yes": True,
            "at": NOON,
            "list": [1, {"a": "b"}],
        }
        with open_sink(place.database) as sink:
            assert sink.write("rollups", [kept("iotsphere/d1/t", 3, 9, **body)]) == 1
            assert place.read("rollups") == {  # while it is open
                "iotsphere/d1/t": {**body, "at": "2026-03-01T12:00:00Z", "firstOffset": 3, "lastOffset": 9, "schema": 1}
            }

    def test_those_in_a_state_are_found(self, place: Place) -> None:
        with open_sink(place.database) as sink:
            assert list(sink.find("alerts", "raised")) == []
            states = {"a": "raised", "b": "cleared", "c": "raised"}
            sink.write("alerts", [kept(key, 0, 0, state=state, at=NOON) for key, state in states.items()])
            sink.write("alerts", [kept("c", 0, 1, state="cleared", at=NOON)])
            sink.write("rollups", [kept("d", state="raised")])
            ((key, body),) = sink.find("alerts", "raised")
        assert (key, body["state"]) == ("a", "raised")
        assert body["at"] in (NOON, "2026-03-01T12:00:00Z")

    def test_collections_are_apart(self, place: Place) -> None:
        with open_sink(place.database) as sink:
            sink.write("rollups", [kept(n=1)])
            sink.write("health", [kept(n=2)])
        assert place.read("rollups")["iotsphere/d1/t"]["n"] == 1
        assert place.read("health")["iotsphere/d1/t"]["n"] == 2

    def test_nothing_is_no_request(self, place: Place) -> None:
        with open_sink(place.database) as sink:
            assert sink.write("rollups", []) == 0
        assert place.read("rollups") == {}

    def test_repeating_changes_nothing(self, place: Place) -> None:
        documents = [kept(f"k{number}", number, number, n=number) for number in range(2_500)]
        for _ in range(2):
            with open_sink(place.database) as sink:
                assert sink.write("rollups", documents) == 2_500
        assert {key: one["n"] for key, one in place.read("rollups").items()} == {f"k{n}": n for n in range(2_500)}

    @pytest.mark.parametrize(
        ("first", "last", "replaced"),
        [(5, 9, True), (5, 10, True), (4, 9, True), (4, 10, True), (6, 9, False), (5, 8, False), (6, 10, False)],
    )
    def test_one_that_knows_less_replaces_nothing(self, place: Place, first: int, last: int, replaced: bool) -> None:
        with open_sink(place.database) as sink:
            sink.write("rollups", [kept(first=5, last=9, old=1)])
            some = [kept("other"), kept(first=first, last=last, new=1), kept("another")]
            assert sink.write("rollups", some) == 2 + replaced
        found = place.read("rollups")
        assert ("new" in found["iotsphere/d1/t"], "old" in found["iotsphere/d1/t"]) == (replaced, not replaced)
        assert len(found) == 3

    def test_one_that_was_thought_to_be_new_is_held_to_the_same(self, place: Place) -> None:
        with open_sink(place.database) as sink:
            sink.write("rollups", [kept(key, 5, 9, old=1)._replace(new=True) for key in ("a", "b", "c")])
            again = [kept("a", 4, 9, n=1), kept("new", n=2), kept("b", 6, 9, n=3), kept("c", 5, 10, n=4)]
            assert sink.write("rollups", [each._replace(new=True) for each in again]) == 3
        found = place.read("rollups")
        assert {key: (one.get("old"), one.get("n")) for key, one in found.items()} == {
            "a": (None, 1), "b": (1, None), "c": (None, 4), "new": (None, 2),
        }  # fmt: skip

    def test_who_begins_anew_takes_no_row_back(self, place: Place) -> None:
        """A checkpoint was lost: the log is read from its start once more."""
        history = [kept(first=1, last=last, count=last) for last in range(1, 6)]
        seen = []
        with open_sink(place.database) as sink:
            for document in history + history:
                sink.write("rollups", [document])
                seen.append(place.read("rollups")["iotsphere/d1/t"]["count"])
        assert seen == [1, 2, 3, 4, 5, 5, 5, 5, 5, 5]

    def test_two_writers_at_once_leave_what_knows_most(self, place: Place) -> None:
        def write(numbers: range) -> None:
            with open_sink(place.database) as sink:
                for number in numbers:
                    sink.write("rollups", [kept(f"k{key}", 0, number, n=number) for key in range(50)])

        threads = [threading.Thread(target=write, args=(range(start, 20, 2),)) for start in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {one["n"] for one in place.read("rollups").values()} == {19}

    def test_a_document_may_say_when_it_may_go(self, place: Place) -> None:
        soon = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
        with open_sink(place.database) as sink:
            sink.write("rollups", [kept()._replace(expires=soon)])
        assert place.read("rollups")["iotsphere/d1/t"]["expires"] == soon.isoformat().replace("+00:00", "Z")

    def test_an_address_that_leads_nowhere_says_what_to_do(self, place: Place) -> None:
        broken = self.broken(place)
        with pytest.raises(IotSphereError, match=r"write mongodb://|check the disk"), open_sink(broken) as sink:
            sink.write("rollups", [kept()])

    def broken(self, place: Place) -> str:
        """An address of the same kind that cannot be used."""
        raise NotImplementedError
