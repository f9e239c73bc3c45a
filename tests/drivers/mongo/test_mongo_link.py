"""Reaching a MongoDB: addresses, servers that cannot do what is needed, refusals, and what their errors say."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pymongo
import pytest
from bson.errors import InvalidDocument
from pymongo.errors import (
    AutoReconnect,
    CursorNotFound,
    DocumentTooLarge,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
)

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.mongo.database import MongoDatabase
from iotsphere.drivers.mongo.failures import is_lost, is_passing, is_too_large, translate
from iotsphere.drivers.mongo.options import MongoOptions
from iotsphere.entities.errors import DatabaseUnavailable, RequestInvalid
from iotsphere.use_cases.ports.database import Stored, Write
from tests.contracts.database import COLLECTIONS, insert
from tests.contracts.database_changes import up_to_now
from tests.support import mongo
from tests.support.proxy import faulty_proxy
from tests.support.servers import Server, answers
from tests.support.waiting import until

BRISK = MongoOptions(timeout=2)  # for what cannot be done
PATIENT = MongoOptions(timeout=30, quiet=0.2)


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://ana:secret@127.0.0.1",
        "mongodb://ana:secret@127.0.0.1/",
        "mongodb://ana:secret@127.0.0.1:99999999/x",
        "mongodb://ana:sec/ret@127.0.0.1/x",
        "mongodb:///x",
        "mongodb+srv://ana:secret@cluster.invalid",
        "redis://ana:secret@127.0.0.1/x",
    ],
)
def test_an_address_that_cannot_be_right_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(RequestInvalid, match=r"mongodb://HOST:PORT/NAME") as caught:
        MongoDatabase(url, SystemClock())
    assert "sec" not in str(caught.value)
    assert "secret" not in repr(caught.value.__cause__)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestInvalid, match="cannot be used: The tlscafile"):
        MongoDatabase(f"mongodb://127.0.0.1/x?tlsCAFile={tmp_path}/ca.pem", SystemClock(), BRISK)


async def test_a_server_that_is_away_is_unavailable_within_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # so that no other process begins to answer there
        port = silent.getsockname()[1]
        database = MongoDatabase(f"mongodb://ana:secret@127.0.0.1:{port}/x?replicaSet=rs0", SystemClock(), BRISK)
        async with asyncio.timeout(60):
            with pytest.raises(DatabaseUnavailable) as caught:
                await database.__aenter__()
    assert caught.value.retry
    assert str(port) in caught.value.message
    assert "secret" not in str(caught.value)
    with pytest.raises(DatabaseUnavailable, match="closed"):
        await database.ready()


async def test_a_server_that_is_no_replica_set_is_refused(tmp_path: Path) -> None:
    server = mongo.mongod(tmp_path / "mongo")
    command = server.command
    server.command = lambda port, home: [word for word in command(port, home) if word not in ("--replSet", mongo.NAME)]
    with server:
        database = MongoDatabase(f"mongodb://127.0.0.1:{server.port}/x", SystemClock(), PATIENT)
        with pytest.raises(RequestInvalid, match="--replSet"):
            await database.__aenter__()


async def test_a_user_that_is_not_known_is_told_what_to_check(shared_mongo: Server) -> None:
    url = f"mongodb://ana:secret@127.0.0.1:{shared_mongo.port}/x?replicaSet={mongo.NAME}"
    with pytest.raises(DatabaseUnavailable, match="authSource") as caught:
        await MongoDatabase(url, SystemClock(), PATIENT).__aenter__()
    assert "secret" not in str(caught.value)


async def test_an_index_that_takes_longer_than_a_request_is_waited_for(tmp_path: Path) -> None:
    server = mongo.single(tmp_path / "mongo", parameters={"enableTestCommands": "1"})
    with server, mongo.direct(server.port) as shell:
        shell["x"]["things"].insert_one({"_id": "d/a", "label": "red"})
        point = {"configureFailPoint": "hangAfterStartingIndexBuild"}
        shell.admin.command({**point, "mode": "alwaysOn"})
        url = f"mongodb://127.0.0.1:{server.port}/x?replicaSet={mongo.NAME}"
        async with MongoDatabase(url, SystemClock(), MongoOptions(timeout=8)) as database:
            ensuring = asyncio.create_task(database.ensure(COLLECTIONS))
            await asyncio.sleep(10)
            assert not ensuring.done()
            shell.admin.command({**point, "mode": "off"})
            async with asyncio.timeout(60):
                await ensuring
            assert [one.key for one in await database.find("things", "label", ["red"])] == ["d/a"]


async def test_the_role_read_write_is_enough(tmp_path: Path) -> None:
    """But not to take over a collection that was there before, whose pre-images have to be switched on."""
    key = tmp_path / "key"
    key.write_text("c2VjcmV0" * 10)
    key.chmod(0o400)
    server = mongo.single(tmp_path / "mongo", {"keyFile": str(key)})
    server.probe = answers
    with server:
        with mongo.direct(server.port) as local:  # until there is a user, whoever is on this machine may make one
            mongo.initiate(local, [server.port])
            await until(lambda: local.admin.command("hello")["isWritablePrimary"], "the member is primary")
            local.admin.command("createUser", "root", pwd="root", roles=["root"])
        root = pymongo.MongoClient[dict[str, Any]](
            f"mongodb://root:root@127.0.0.1:{server.port}/?directConnection=true"
        )
        with root:
            for name, role in (("writer", "readWrite"), ("reader", "read")):
                root.x.command("createUser", name, pwd="p", roles=[role])
            root.x.notes.insert_one({"_id": "d/old"})
        url = f"127.0.0.1:{server.port}/x?replicaSet={mongo.NAME}"
        async with MongoDatabase(f"mongodb://writer:p@{url}", SystemClock(), PATIENT) as database:
            await database.ensure(COLLECTIONS)
            token = await database.now()
            await insert(database, "visits", {"d/a": {"until": 4_000_000_000_000}})
            assert [change.key for change in await up_to_now(database, token)] == ["d/a"]
            await database.ready()
            notes = next(one for one in COLLECTIONS if one.name == "notes")
            with pytest.raises(DatabaseUnavailable, match="dbAdmin"):
                await database.ensure([notes._replace(watched=True)])
        async with MongoDatabase(f"mongodb://reader:p@{url}", SystemClock(), PATIENT) as database:
            with pytest.raises(DatabaseUnavailable, match="readWrite"):
                await database.ensure(COLLECTIONS)


async def test_a_write_whose_answer_was_lost_is_done_once(mongo_url: str, shared_mongo: Server) -> None:
    """The library sends it again under the same number, and the server answers what it did the first time."""
    async with faulty_proxy(shared_mongo.port) as proxy:
        url = mongo_url.replace(str(shared_mongo.port), str(proxy.port)).partition("?")[0]
        async with MongoDatabase(f"{url}?directConnection=true", SystemClock(), PATIENT) as database:
            await database.ensure(COLLECTIONS)
            made = await database.put("things", Write("d/a", None, {"n": 1}))
            proxy.swallow_answers = 1
            changed = await database.put("things", Write("d/a", made, {"n": 2}))
            assert proxy.swallowed == 1
            assert changed == Stored("d/a", 2, {"n": 2})
            assert await database.get("things", "d/a") == changed


async def test_b21_no_update_of_fifty_writers_of_one_document_is_lost(mongo_url: str) -> None:
    async with MongoDatabase(mongo_url, SystemClock(), PATIENT) as database:
        await database.ensure(COLLECTIONS)
        await database.put("things", Write("d/hot", None, {"n": 0}))

        async def count() -> None:
            stands = await database.get("things", "d/hot")
            for _ in range(20):
                done = False
                while not done:
                    assert stands is not None
                    write = Write("d/hot", stands, {"n": stands.body["n"] + 1})
                    ((done, stands),) = await database.write("things", [write])

        async with asyncio.timeout(300):
            await asyncio.gather(*(count() for _ in range(50)))
        assert await database.get("things", "d/hot") == Stored("d/hot", 1_001, {"n": 1_000})


async def test_b21_a_transaction_in_the_way_is_waited_for_or_reported(mongo_url: str) -> None:
    """A person's open transaction holds the document: the write gets through once that ends, else it is unavailable."""
    async with (
        MongoDatabase(mongo_url, SystemClock(), PATIENT) as database,
        MongoDatabase(mongo_url, SystemClock(), MongoOptions(timeout=8)) as hasty,
    ):
        await database.ensure(COLLECTIONS)
        await hasty.ensure(COLLECTIONS)
        made = await database.put("things", Write("d/a", None, {"n": 1}))
        with pymongo.MongoClient[dict[str, int]](mongo_url) as client, client.start_session() as session:
            things = client.get_default_database().things
            session.start_transaction()
            things.update_one({"_id": "d/a"}, {"$set": {"n": 5}}, session=session)
            with pytest.raises(DatabaseUnavailable):
                await hasty.put("things", Write("d/a", made, {"n": 2}))
            writing = asyncio.create_task(database.put("things", Write("d/a", made, {"n": 2})))
            await asyncio.sleep(0.1)
            session.abort_transaction()
            assert await writing == Stored("d/a", 2, {"n": 2})


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ServerSelectionTimeoutError("secret"), "database_unavailable", "ServerSelectionTimeoutError"),
        (AutoReconnect("secret"), "database_unavailable", "try again"),
        (OSError("secret"), "database_unavailable", "try again"),
        (NotPrimaryError("secret"), "database_unavailable", "NotPrimaryError"),
        (
            OperationFailure("secret", 11600, {"codeName": "InterruptedAtShutdown"}),
            "database_unavailable",
            "Interrupted",
        ),
        (OperationFailure("secret", 13), "database_unavailable", "readWrite"),
        (OperationFailure("secret", 121), "request_invalid", "validation rule"),
        (InvalidDocument("secret"), "request_invalid", "InvalidDocument"),
        (DocumentTooLarge("secret"), "request_invalid", "DocumentTooLarge"),
    ],
)
def test_errors_are_told_in_the_gateways_words(error: Exception, code: str, text: str) -> None:
    told = translate(error, "db:27017")  # type: ignore[arg-type] # the union of the library's classes
    assert told.code == code
    assert text in told.message
    assert "secret" not in str(told)


def test_what_a_change_stream_can_go_on_after() -> None:
    lost = [OperationFailure("", code) for code in (136, 260, 280, 286)]
    labelled = OperationFailure("", 1, {"errorLabels": ["NonResumableChangeStreamError"]})
    large = OperationFailure("", 10334, {"errorLabels": ["NonResumableChangeStreamError"]})
    resumable = OperationFailure("", 1, {"errorLabels": ["ResumableChangeStreamError"]})
    passing = [AutoReconnect(""), CursorNotFound("", 43), NotPrimaryError(""), resumable]
    assert [is_lost(error) for error in (*lost, labelled, large, *passing)] == [True] * 5 + [False] * 5
    assert [is_passing(error) for error in (*lost, labelled, large, *passing)] == [False] * 6 + [True] * 4
    assert [is_too_large(error) for error in (*lost, labelled, large, *passing)] == [False] * 5 + [True] + [False] * 4
