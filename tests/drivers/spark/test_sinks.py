"""Stores of results: the contract, on MongoDB and on the embedded file; and what each of them adds."""

from __future__ import annotations

import sqlite3
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from iotsphere.drivers.spark.sinks.documents import open_sink
from iotsphere.drivers.spark.sinks.embedded import EmbeddedSink
from iotsphere.drivers.spark.sinks.mongo import MongoSink
from iotsphere.entities.errors import DatabaseUnavailable, RequestInvalid
from tests.contracts.document_sink import DocumentSinkContract, Place, kept

from .stores import Embedded, Mongo

pytestmark = pytest.mark.timeout(600)


class TestMongo(DocumentSinkContract):
    @pytest.fixture
    def place(self, mongo_url: str) -> Mongo:
        return Mongo(mongo_url)

    def broken(self, place: Place) -> str:
        return place.database.replace("?", "/a.b?")

    def test_what_may_go_goes(self, place: Mongo) -> None:
        past = datetime.now(UTC) - timedelta(days=1)
        with open_sink(place.database) as sink:
            sink.write("rollups", [kept("old")._replace(expires=past), kept("new")])
        deadline = time.monotonic() + 300  # the server looks once a second, or once a minute when it is busy
        while "old" in place.read("rollups"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert set(place.read("rollups")) == {"new"}

    def test_one_that_was_there_a_moment_earlier_and_knows_less_is_replaced(
        self, place: Mongo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of two that upsert at once both find nothing, and one of them then finds the key taken."""
        with open_sink(place.database) as sink, open_sink(place.database) as other:
            ask = MongoSink._ask

            def beaten(*_: object) -> list[int]:
                monkeypatch.setattr(MongoSink, "_ask", ask)
                assert other.write("rollups", [kept(last=1, n=1)]) == 1
                return [0]

            monkeypatch.setattr(MongoSink, "_ask", beaten)
            assert sink.write("rollups", [kept(last=2, n=2)]) == 1
        assert place.read("rollups")["iotsphere/d1/t"]["n"] == 2

    def test_a_server_that_is_away_is_no_crash(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("iotsphere.drivers.spark.sinks.mongo.TIMEOUT_MS", 200)
        url = "mongodb://someone:secret@127.0.0.1:1/none?replicaSet=rs0"
        with pytest.raises(DatabaseUnavailable, match="run the job again") as caught, MongoSink(url) as sink:
            sink.write("rollups", [kept()])
        assert "secret" not in str(caught.value)


class TestEmbedded(DocumentSinkContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Embedded:
        return Embedded(str(tmp_path / "data"))

    def broken(self, place: Place) -> str:
        Path(place.database).write_text("no folder")
        return place.database

    def test_what_may_go_goes(self, place: Embedded) -> None:
        past = datetime.now(UTC) - timedelta(days=1)
        with open_sink(place.database) as sink:
            sink.write("rollups", [kept("old")._replace(expires=past), kept("new")])
        assert set(place.read("rollups")) == {"new"}

    def test_a_reader_is_in_nobodys_way(self, place: Embedded) -> None:
        with open_sink(place.database) as sink:
            sink.write("rollups", [kept(first=1, n=1)])
            reader = sqlite3.connect(Path(place.database) / "analytics.db")
            try:
                reader.execute("BEGIN")
                ask = "SELECT body ->> '$.n' FROM documents"
                assert reader.execute(ask).fetchall() == [(1,)]
                sink.write("rollups", [kept(first=1, n=2)])
                assert reader.execute(ask).fetchall() == [(1,)]
                reader.execute("COMMIT")
                assert reader.execute(ask).fetchall() == [(2,)]
            finally:
                reader.close()

    def test_two_that_begin_at_once_wait_for_each_other(self, place: Embedded) -> None:
        """A new file is switched to its journal by the first, who is at it meanwhile."""
        Path(place.database).mkdir()
        first = sqlite3.connect(Path(place.database) / "analytics.db", isolation_level=None, check_same_thread=False)
        first.execute("BEGIN IMMEDIATE")
        ending = threading.Timer(0.2, first.execute, ("COMMIT",))
        ending.start()
        try:
            with open_sink(place.database) as sink:
                assert sink.write("rollups", [kept()]) == 1
        finally:
            ending.join()
            first.close()

    def test_the_file_is_for_its_owner(self, place: Embedded) -> None:
        with open_sink(place.database):
            assert (Path(place.database) / "analytics.db").stat().st_mode & 0o777 == 0o600

    def test_a_closed_one_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(DatabaseUnavailable, match="open it first"):
            EmbeddedSink(tmp_path / "x.db").write("rollups", [kept()])


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(RequestInvalid, match="or in a folder"):
        open_sink("postgres://127.0.0.1/x")
