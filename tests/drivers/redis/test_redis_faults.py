"""What breaks between the driver and its server: nothing acknowledged is lost, nothing is written twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import pytest
import redis

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.redis.log import RedisMessagingDriver
from iotsphere.drivers.redis.options import RedisOptions
from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import LogFull, LogUnavailable
from iotsphere.entities.message import Record
from iotsphere.entities.position import Gap, Position
from iotsphere.use_cases.ports.message_log import Appended, MessageLog, Tally
from tests.contracts.records import (
    BEGINNING,
    CHANNELS,
    DOMAIN,
    P0,
    P1,
    collect,
    ids,
    offsets,
    read_all,
    record,
    records,
)
from tests.contracts.times import take
from tests.support.fixtures import Starter
from tests.support.proxy import faulty_proxy
from tests.support.servers import Server, ask
from tests.support.waiting import until

from .patience import PATIENT

BRISK = RedisOptions(timeout=5)  # where the answer never comes


def driver(port: int, durability: str = "fsynced", options: RedisOptions = PATIENT) -> RedisMessagingDriver:
    return RedisMessagingDriver(f"redis://127.0.0.1:{port}", SystemClock(), durability, options)


async def persist(append: Callable[[], Awaitable[Appended]], seconds: float = 120.0) -> Appended:
    """Repeat an append as every caller does, until the log is back."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await append()
        except LogUnavailable:
            assert time.monotonic() < deadline, "the log did not come back"


def names(batch: Sequence[Record]) -> list[str]:
    return [one.message_id for one in batch]


@pytest.mark.parametrize("minted", [True, False])
async def test_an_append_whose_answer_was_lost_is_not_written_twice(redis_server: Server, minted: bool) -> None:
    async with faulty_proxy(redis_server.port) as proxy, driver(proxy.port) as log:
        await log.ensure(DOMAIN, CHANNELS)
        before = records(3, minted=minted)
        await log.append(before)
        batch = [*records(4, minted=minted), *records(2, P1, minted=minted)]
        proxy.swallow_answers = 1
        appended = await persist(lambda: log.append(batch))
        assert proxy.swallowed == 1
        assert offsets(appended.positions) == [4, 5, 6, 7, 1, 2]
        assert appended.duplicates == frozenset()
        assert ids(await read_all(log)) == names([*before, *batch[:4]])
        assert ids(await read_all(log, P1)) == names(batch[4:])


@pytest.mark.parametrize("minted", [True, False])
async def test_a_caller_may_repeat_an_append_in_doubt_among_others(redis_server: Server, minted: bool) -> None:
    """The retry of the driver fails as well, so the caller is told, and repeats with more messages around."""
    async with faulty_proxy(redis_server.port) as proxy, driver(proxy.port) as log:
        await log.ensure(DOMAIN, CHANNELS)
        batch = records(1_200, minted=minted)
        await log.append(records(1, P1))
        # The answer, then the handshakes of the next two connections.
        proxy.swallow_answers = 3
        with pytest.raises(LogUnavailable):
            await log.append(batch)
        late = records(2, minted=minted)
        appended = await persist(lambda: log.append([late[0], *batch, late[1]]))
        # How much of the first attempt got through is not known, so neither is where the first late one lies.
        found = ids(await read_all(log))
        assert len(found) == 1_202
        assert [one for one in found if one not in names(late)] == names(batch)
        assert [one for one in found if one in names(late)] == names(late)
        assert [found[position.offset - 1] for position in appended.positions] == names([late[0], *batch, late[1]])


async def test_a_call_that_arrives_late_is_shut_out(redis_server: Server) -> None:
    """What was sent before the connection broke reaches the server only after the driver asked what became of it."""
    async with faulty_proxy(redis_server.port) as proxy, driver(proxy.port, options=BRISK) as log:
        await log.ensure(DOMAIN, CHANNELS)
        first, batch = records(1, minted=True), records(3, minted=True)
        await persist(lambda: log.append(first))
        proxy.hold = True
        with pytest.raises(LogUnavailable):
            await log.append(batch)
        proxy.hold = False
        await persist(lambda: log.append(batch))
        proxy.release()
        more = records(1, minted=True)
        await persist(lambda: log.append(more))
        assert ids(await read_all(log)) == names([*first, *batch, *more])


async def test_a_frozen_server_is_survived(start_redis: Starter) -> None:
    server = start_redis()
    async with driver(server.port, options=BRISK) as log:
        await log.ensure(DOMAIN, CHANNELS)
        batch = records(5, minted=True)
        with server.pause(), pytest.raises(LogUnavailable):
            await log.append(batch)
        await persist(lambda: log.append(batch))
        assert ids(await read_all(log)) == names(batch)


async def test_connections_that_the_server_closes_are_replaced_unseen(redis_server: Server) -> None:
    async with driver(redis_server.port) as log:
        await log.ensure(DOMAIN, CHANNELS)
        batch = records(2)
        await log.append(batch)
        for _ in range(3):
            ask(redis_server.port, "CLIENT KILL TYPE normal SKIPME yes")
            more = records(2, minted=True)
            batch += more
            await log.append(more)
            assert ids(await read_all(log)) == names(batch)


async def test_cutting_connections_under_load_loses_repeats_and_reorders_nothing(redis_server: Server) -> None:
    async with faulty_proxy(redis_server.port) as proxy, driver(proxy.port) as log, driver(redis_server.port) as reader:
        await log.ensure(DOMAIN, CHANNELS)
        await reader.ensure(DOMAIN, CHANNELS)
        written: list[list[str]] = [[] for _ in range(4)]
        over = False

        async def write(name: int) -> None:
            while len(written[name]) < 300 or not over:
                batch = [record(message_id=f"{name}/{len(written[name]) + step}", minted=True) for step in range(5)]
                await persist(lambda batch=batch: log.append(batch))  # type: ignore[misc]
                written[name] += names(batch)

        async def cut() -> None:
            nonlocal over
            for turn in range(12):
                seen = len(written[0])
                await until(lambda seen=seen: len(written[0]) >= seen + 10, "the writers go on")  # type: ignore[misc]
                if turn % 2:
                    proxy.cut()
                else:
                    proxy.swallow_answers += 1
            over = True

        await asyncio.gather(cut(), *(write(name) for name in range(4)))
        found = ids(await read_all(reader))
        assert len(found) == len(set(found)) == sum(map(len, written))
        for name, mine in enumerate(written):
            assert [one for one in found if one.startswith(f"{name}/")] == mine


async def test_kill_9_loses_nothing_that_was_acknowledged_and_followers_go_on(start_redis: Starter) -> None:
    server = start_redis()
    async with driver(server.port) as log, driver(server.port) as other:
        await log.ensure(DOMAIN, CHANNELS)
        await other.ensure(DOMAIN, CHANNELS)
        acknowledged: list[str] = []
        positions: list[Position] = []
        epochs = 3

        async def write() -> None:
            while len({position.epoch for position in positions}) <= epochs or len(acknowledged) < 500:
                batch = records(10, minted=True)
                appended = await persist(lambda batch=batch: log.append(batch))  # type: ignore[misc]
                acknowledged.extend(names(batch))
                positions.extend(appended.positions)

        async def kill() -> None:
            for _ in range(epochs):
                seen = len(acknowledged)
                await until(lambda seen=seen: len(acknowledged) >= seen + 100, "the writer goes on")  # type: ignore[misc]
                server.kill()
                server.start()

        async with aclosing(log.follow({P0: BEGINNING})) as near, aclosing(other.follow({P0: BEGINNING})) as far:
            await asyncio.gather(write(), kill())
            for follower in (near, far):
                entries = await collect(follower, len(acknowledged))
                assert ids(entries) == acknowledged
                assert [entry.position for entry in entries] == positions
        assert offsets(positions) == list(range(1, len(positions) + 1))
        assert positions == sorted(positions)


async def test_a_lost_tail_is_never_confused_with_what_comes_after_it(start_redis: Starter) -> None:
    server = start_redis(appendfsync="everysec", aof_load_truncated="yes")
    async with driver(server.port, "logged") as log, driver(server.port, "logged") as other:
        await log.ensure(DOMAIN, CHANNELS)
        await other.ensure(DOMAIN, CHANNELS)
        kept = records(3)
        await log.append(kept)
        (aof,) = (server.folder / "appendonlydir").glob("*.incr.aof")
        await until(lambda: kept[-1].body in aof.read_bytes(), "the append-only file is written")
        size = aof.stat().st_size
        lost = records(4)
        last = (await log.append(lost)).positions[-1]
        async with aclosing(other.follow({P0: BEGINNING})) as follower:
            assert ids(await collect(follower, 7)) == names([*kept, *lost])
            server.kill()
            with aof.open("r+b") as file:
                file.truncate(size)
            server.start()
            fresh = records(6)
            appended = await persist(lambda: log.append(fresh))
            assert offsets(appended.positions) == [4, 5, 6, 7, 8, 9]
            assert appended.positions[0].epoch > last.epoch
            piece = await log.read(P0, last)
            assert piece.gap == Gap(P0, 4, 3, "rebuilt")
            assert ids(piece.entries) == names(fresh)
            piece = await take(follower)
            assert piece.gap == Gap(P0, 4, 3, "rebuilt")
            assert ids(piece.entries) == names(fresh)
            assert ids(await read_all(log)) == names([*kept, *fresh])


async def test_a_log_that_was_emptied_is_rebuilt_and_readers_are_told(redis_server: Server) -> None:
    async with driver(redis_server.port) as log, driver(redis_server.port) as fresh_process:
        await log.ensure(DOMAIN, CHANNELS)
        await fresh_process.ensure(DOMAIN, CHANNELS)
        old = (await log.append(records(5))).positions
        async with aclosing(log.follow({P0: old[-1]})) as follower:
            with redis.Redis(port=redis_server.port) as client:
                client.flushall()
            piece = await log.read(P0, old[2])
            assert piece.gap == Gap(P0, 1, 0, "rebuilt")
            batch = records(2)
            appended = await log.append(batch)
            assert offsets(appended.positions) == [1, 2]
            assert appended.positions[0].epoch > old[0].epoch
            piece = await log.read(P0, old[0])
            assert (piece.gap, ids(piece.entries)) == (Gap(P0, 1, 0, "rebuilt"), names(batch))
            piece = await take(follower)
            assert piece.gap == Gap(P0, 1, 0, "rebuilt")
            found = list(piece.entries) or await collect(follower, 2)
            assert ids(found)[-1] == batch[-1].message_id
        more = records(1)
        assert offsets((await fresh_process.append(more)).positions) == [3]
        async with driver(redis_server.port) as later:
            assert list(later.partitions(DOMAIN, "telemetry")) == [P0, P1]


async def test_scripts_that_the_server_forgot_are_given_again(redis_server: Server) -> None:
    async with driver(redis_server.port) as log:
        await log.ensure(DOMAIN, CHANNELS)
        batch = records(1_100)
        await log.append(batch[:1])
        ask(redis_server.port, "SCRIPT FLUSH")
        await log.append(batch[1:])
        ask(redis_server.port, "SCRIPT FLUSH")
        assert ids(await read_all(log)) == names(batch)


async def test_a_full_server_refuses_and_recovers_once_there_is_room(start_redis: Starter) -> None:
    server = start_redis(maxmemory="16mb")
    async with driver(server.port) as log:
        await log.ensure(DOMAIN, CHANNELS)
        await log.register("iotsphere/store", {P0: BEGINNING})
        accepted: list[str] = []

        async def fill() -> None:
            while True:
                batch = records(20, size=10_000, minted=True)
                await log.append(batch)
                accepted.extend(names(batch))

        with pytest.raises(LogFull, match="maxmemory"):
            await fill()
        ask(server.port, "CONFIG SET maxmemory 12mb")
        with pytest.raises(LogFull):
            await log.ready()
        entries = await read_all(log)
        assert ids(entries) == accepted
        await log.commit("iotsphere/store", {P0: (entries[-1].position, Tally(applied=len(entries)))})
        assert await log.retain(P0, Retention(max_bytes=1_000_000), 0) is None
        await log.ready()
        batch = records(20)
        await log.append(batch)
        assert ids(await read_all(log))[-20:] == names(batch)
        assert len(accepted) + 20 == (await log.bounds(P0)).last.offset


async def test_a_follower_waits_out_an_outage(start_redis: Starter) -> None:
    server = start_redis()
    async with driver(server.port) as log:
        await log.ensure(DOMAIN, CHANNELS)
        async with aclosing(log.follow({P0: BEGINNING, P1: BEGINNING})) as follower:
            before = records(2)
            await log.append(before)
            assert ids(await collect(follower, 2)) == names(before)
            waiting = asyncio.ensure_future(collect(follower, 2))
            server.kill()
            with pytest.raises(LogUnavailable):
                await log.ready()
            server.start()
            after = records(2, P1)
            await persist(lambda: log.append(after))
            assert ids(await waiting) == names(after)


async def test_a_neighbour_hears_at_once_and_without_news_within_a_second(redis_server: Server) -> None:
    async with driver(redis_server.port) as log, driver(redis_server.port) as other:
        await log.ensure(DOMAIN, CHANNELS)
        await other.ensure(DOMAIN, CHANNELS)
        async with aclosing(other.follow({P0: BEGINNING})) as follower:
            first = records(1)
            await log.append(first)
            assert ids(await collect(follower, 1)) == names(first)
            # Whoever writes without telling is found by the look at every second.
            ask(redis_server.port, "CLIENT KILL TYPE pubsub")
            second = records(1)
            await log.append(second)
            assert ids(await collect(follower, 1)) == names(second)


async def test_two_writers_keep_offsets_dense_and_their_own_order(redis_server: Server) -> None:
    async with driver(redis_server.port) as one, driver(redis_server.port) as two:
        logs: list[MessageLog] = [one, two]
        for log in logs:
            await log.ensure(DOMAIN, CHANNELS)
        async with aclosing(one.follow({P0: BEGINNING})) as follower:

            async def write(name: int) -> list[Position]:
                positions: list[Position] = []
                for turn in range(60):
                    batch = [record(message_id=f"{name}/{turn}/{step}", minted=bool(turn % 2)) for step in range(5)]
                    positions += (await logs[name].append(batch)).positions
                return positions

            first, second = await asyncio.gather(write(0), write(1))
            assert sorted(offsets([*first, *second])) == list(range(1, 601))
            followed = await collect(follower, 600)
        found = ids(followed)
        assert found == ids(await read_all(two))
        for name in range(2):
            assert [one for one in found if one.startswith(f"{name}/")] == [
                f"{name}/{turn}/{step}" for turn in range(60) for step in range(5)
            ]


async def test_a_message_is_known_to_both_writers(redis_server: Server) -> None:
    async with driver(redis_server.port) as one, driver(redis_server.port) as two:
        await one.ensure(DOMAIN, CHANNELS)
        await two.ensure(DOMAIN, CHANNELS)
        batch = records(3)
        first = await one.append(batch)
        again = await two.append([batch[1], *records(1)])
        assert again.positions[0] == first.positions[1]
        assert again.duplicates == {0}


async def test_without_enough_replicas_nothing_is_acknowledged_and_nothing_repeated(start_redis: Starter) -> None:
    primary, replica = start_redis(), start_redis()
    ask(replica.port, f"REPLICAOF 127.0.0.1 {primary.port}")
    with redis.Redis(port=primary.port) as client:
        deadline = time.monotonic() + 60
        while not client.wait(1, 100):
            assert time.monotonic() < deadline
    async with driver(primary.port, options=RedisOptions(timeout=10, replicas=1)) as log:
        await log.ensure(DOMAIN, CHANNELS)
        first, batch = records(1, minted=True), records(3, minted=True)
        await persist(lambda: log.append(first))
        with replica.pause(), pytest.raises(LogUnavailable, match="0 of 1 replicas"):
            await log.append(batch)
        appended = await persist(lambda: log.append(batch))
        assert offsets(appended.positions) == [2, 3, 4]
        assert ids(await read_all(log)) == names([*first, *batch])
    async with RedisMessagingDriver(f"redis://127.0.0.1:{replica.port}", SystemClock(), options=PATIENT) as copy:
        assert ids(await read_all(copy)) == names([*first, *batch])
        with pytest.raises(LogUnavailable, match="read only replica"):
            await copy.append(records(1))
