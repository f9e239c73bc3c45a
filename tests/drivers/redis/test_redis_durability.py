"""A server that keeps less than was promised is refused, with the settings to change."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest
import redis

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.redis.durability import check_version
from iotsphere.drivers.redis.log import RedisMessagingDriver
from iotsphere.drivers.redis.options import RedisOptions
from iotsphere.entities.errors import DurabilityTooWeak, LogUnavailable, RequestInvalid
from tests.contracts.records import CHANNELS, DOMAIN, records
from tests.support.fixtures import Starter
from tests.support.servers import Server, ask

from .patience import PATIENT


def driver(port: int, durability: str, options: RedisOptions, user: str = "") -> RedisMessagingDriver:
    return RedisMessagingDriver(f"redis://{user}127.0.0.1:{port}", SystemClock(), durability, options)


async def refusal(server: Server, durability: str, user: str = "") -> str:
    with pytest.raises(DurabilityTooWeak) as caught:
        async with driver(server.port, durability, PATIENT, user):
            pass
    assert caught.value.retry is False
    return str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("appendonly", "no", "appendonly yes (it is no)"),
        ("appendfsync", "everysec", "appendfsync always (it is everysec)"),
        ("appendfsync", "no", "appendfsync always (it is no)"),
        ("aof-load-truncated", "yes", "aof-load-truncated no (it is yes)"),
        ("no-appendfsync-on-rewrite", "yes", "no-appendfsync-on-rewrite no (it is yes)"),
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy noeviction (it is allkeys-lru)"),
    ],
)
async def test_fsynced_asks_for_each_setting(start_redis: Starter, setting: str, value: str, remedy: str) -> None:
    server = start_redis(**{setting: value})
    told = await refusal(server, "fsynced")
    assert remedy in told
    assert f"127.0.0.1:{server.port}" in told


async def test_everything_that_is_wrong_is_said_at_once(start_redis: Starter) -> None:
    server = start_redis(appendonly="no", appendfsync="everysec")
    told = await refusal(server, "fsynced")
    assert "appendonly yes (it is no), appendfsync always (it is everysec)" in told


async def test_logged_accepts_everysec_and_no_less(start_redis: Starter) -> None:
    server = start_redis(appendfsync="everysec", aof_load_truncated="yes")
    async with driver(server.port, "logged", PATIENT) as log:
        assert log.durability == "logged"
        await log.ensure(DOMAIN, CHANNELS)
        await log.append(records(1))
    ask(server.port, "CONFIG SET appendfsync no")
    assert "appendfsync everysec (it is no)" in await refusal(server, "logged")


async def test_memory_accepts_any_server(start_redis: Starter) -> None:
    server = start_redis(appendonly="no", maxmemory_policy="allkeys-lru")
    async with driver(server.port, "memory", PATIENT) as log:
        await log.ensure(DOMAIN, CHANNELS)
        assert len((await log.append(records(2))).positions) == 2


async def test_a_server_that_forbids_the_look_must_be_trusted_by_setting(start_redis: Starter) -> None:
    server = start_redis()
    with redis.Redis(port=server.port) as client:
        client.execute_command("ACL", "SETUSER", "gateway", "on", ">secret", "~iot:*", "&iot:*", "+@all", "-config")
    told = await refusal(server, "fsynced", "gateway:secret@")
    assert "trust_server" in told
    assert "secret" not in told
    async with driver(server.port, "fsynced", replace(PATIENT, trust_server=True), "gateway:secret@") as log:
        await log.ensure(DOMAIN, CHANNELS)
        assert len((await log.append(records(2))).positions) == 2


async def test_a_server_that_comes_back_weaker_is_refused(start_redis: Starter) -> None:
    server = start_redis()
    async with driver(server.port, "fsynced", PATIENT) as log:
        await log.ensure(DOMAIN, CHANNELS)
        await log.append(records(1))
        ask(server.port, "CONFIG SET appendfsync everysec")
        ask(server.port, "CLIENT KILL TYPE normal SKIPME yes")
        with pytest.raises(DurabilityTooWeak):
            await log.append(records(1))
        ask(server.port, "CONFIG SET appendfsync always")
        assert [position.offset for position in (await log.append(records(1))).positions] == [2]


async def test_without_a_server_the_log_is_unavailable() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # so that no other process begins to answer there
        with pytest.raises(LogUnavailable, match="not available"):
            async with driver(silent.getsockname()[1], "fsynced", PATIENT):
                pass


async def test_a_wrong_password_is_said_without_showing_it(start_redis: Starter) -> None:
    server = start_redis(requirepass="right")
    with pytest.raises(LogUnavailable) as caught:
        async with driver(server.port, "fsynced", PATIENT, ":wrong@"):
            pass
    assert "wrong" not in str(caught.value).replace("WRONGPASS", "")
    async with driver(server.port, "fsynced", PATIENT, ":right@") as log:
        await log.ready()


def test_an_unknown_durability_is_refused() -> None:
    with pytest.raises(RequestInvalid, match="fsynced"):
        RedisMessagingDriver("redis://127.0.0.1", SystemClock(), "durable")


@pytest.mark.parametrize("version", ["6.2.14", "5.0.7"])
def test_old_servers_are_refused(version: str) -> None:
    with pytest.raises(DurabilityTooWeak, match=r"7\.0 or later"):
        check_version(version, "here")
    for newer in ("7.0.15", "7.2.4", "10.1.0"):
        check_version(newer, "here")
