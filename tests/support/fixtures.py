"""Fixtures that give tests real servers: shared ones that are emptied for each test, and ones to be broken at will."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from . import gateway as gateways
from . import mongo, servers
from .servers import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Starter = Callable[..., Server]


@pytest.fixture(scope="session", autouse=True)
def mothers() -> Iterator[None]:
    """Gateways are started by a process that has loaded the product already."""
    gateways.mothers = {}
    yield
    for mother in gateways.mothers.values():
        mother.close()
    gateways.mothers = None


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One Redis for the whole run. Take ``redis_server`` to get it empty."""
    with servers.redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def shared_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One Valkey for the whole run. Take ``valkey_server`` to get it empty."""
    with servers.redis(tmp_path_factory.mktemp("valkey"), servers.valkey_binary()) as server:
        yield server


@pytest.fixture(scope="session")
def shared_redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One Redis in cluster mode for the whole run. Take ``redis_cluster_server`` to get it empty."""
    with servers.redis_cluster(tmp_path_factory.mktemp("redis-cluster")) as server:
        yield server


@pytest.fixture
def redis_server(shared_redis: Server) -> Server:
    """A Redis without data that fsyncs every write; not to be stopped."""
    servers.empty(shared_redis)
    return shared_redis


@pytest.fixture
def valkey_server(shared_valkey: Server) -> Server:
    """A Valkey without data that fsyncs every write; not to be stopped."""
    servers.empty(shared_valkey)
    return shared_valkey


@pytest.fixture
def redis_cluster_server(shared_redis_cluster: Server) -> Server:
    """A one-node Redis cluster without data that fsyncs every write; not to be stopped."""
    servers.empty(shared_redis_cluster)
    return shared_redis_cluster


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[Starter]:
    """``start_redis(**settings)`` starts a Redis of this test alone, to be killed, frozen or starved.

    Settings are those of redis.conf with ``_`` for ``-``: ``start_redis(maxmemory="8mb")``.
    """
    with ExitStack() as stack:

        def start(**settings: str) -> Server:
            options = {name.replace("_", "-"): value for name, value in settings.items()}
            folder = tmp_path / f"redis-{len(list(tmp_path.glob('redis-*')))}"
            return stack.enter_context(servers.redis(folder, options=options))

        yield start


@pytest.fixture
def mosquitto_server(tmp_path: Path) -> Iterator[Server]:
    """A Mosquitto broker of this test alone that lets anybody in."""
    with servers.mosquitto(tmp_path / "mosquitto") as server:
        yield server


@pytest.fixture(scope="session")
def shared_mongo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One MongoDB, a replica set of one member, for the whole run. Take ``mongo_url`` to get an empty database."""
    with mongo.single(tmp_path_factory.mktemp("mongo")) as server:
        yield server


@pytest.fixture
def mongo_url(shared_mongo: Server) -> Iterator[str]:
    """The address of a database of this test alone, in the MongoDB that all share."""
    name = f"test_{secrets.token_hex(4)}"
    yield f"mongodb://127.0.0.1:{shared_mongo.port}/{name}?replicaSet={mongo.NAME}"
    with mongo.direct(shared_mongo.port) as client:
        client.drop_database(name)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests of a process, on two cores: starting one takes seconds."""
    from iotsphere.drivers.spark.session import open_session  # what it imports is large

    # Queries over a few rows, most of which run once, so that compiling them takes longer than they do. What is run as
    # users run it, from the command line and on the cluster, is compiled.
    brief = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    session = open_session("tests", "local[2]", brief, tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)
