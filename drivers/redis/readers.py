"""Registered readers: their progress, leases and announced losses, and retention, which waits for them.

A reader's progress lies in the slot of its domain, so that a commit over several partitions is all or nothing; each
partition knows the names of its readers, so that retention finds those of every domain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from ...entities.channel import Retention
from ...entities.errors import Fenced, LeaseHeld, RequestInvalid
from ...entities.position import Gap, Partition, Position
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.message_log import Lease, Progress, Tally
from .keys import Keys, domain_of, parse_partition
from .link import Links, script
from .shelves import Shelves, State
from .trimming import PLAN, TRIM

KEPT_LOSSES: Final = 1_000
TRIM_STEP: Final = 20_000

# KEYS readers, reader; ARGV name, (partition, progress)...
_REGISTER: Final = script(
    """#!lua
redis.call('SADD', KEYS[1], ARGV[1])
for place = 2, #ARGV, 2 do redis.call('HSETNX', KEYS[2], ARGV[place], ARGV[place + 1]) end
"""
)

# KEYS reader, leases; ARGV count of fences, (partition, fence)..., (partition, epoch, offset, five tallies)...
# Returns {'ok'}, {'unregistered', partition} or {'fenced', partition}.
_COMMIT: Final = script(
    """#!lua flags=allow-oom
local start = 2 + 2 * tonumber(ARGV[1])
for place = start, #ARGV, 8 do
  if redis.call('HEXISTS', KEYS[1], ARGV[place]) == 0 then return {'unregistered', ARGV[place]} end
end
for place = 2, start - 1, 2 do
  local lease = redis.call('HGET', KEYS[2], ARGV[place])
  if lease and tonumber(string.match(lease, '%d+')) > tonumber(ARGV[place + 1]) then return {'fenced', ARGV[place]} end
end
for place = start, #ARGV, 8 do
  local facts = {}
  for word in string.gmatch(redis.call('HGET', KEYS[1], ARGV[place]), '%d+') do facts[#facts + 1] = word end
  local old_epoch, epoch = tonumber(facts[3]), tonumber(ARGV[place + 1])
  local old_offset, offset = tonumber(facts[4]), tonumber(ARGV[place + 2])
  if epoch > old_epoch or (epoch == old_epoch and offset > old_offset) then
    facts[3], facts[4] = ARGV[place + 1], ARGV[place + 2]
    for index = 5, 9 do
      facts[index] = string.format('%.0f', tonumber(facts[index]) + tonumber(ARGV[place + index - 2]))
    end
    redis.call('HSET', KEYS[1], ARGV[place], table.concat(facts, ' '))
  end
end
return {'ok'}
"""
)

# KEYS leases; ARGV partition, owner, now, until. Returns {'ok', fence} or {'held', fence, owner}.
_LEASE: Final = script(
    """#!lua flags=allow-oom
local fence, until_time, owner = 0, 0, ''
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held then
  fence, until_time, owner = string.match(held, '^(%d+) (%d+) (.*)$')
  fence, until_time = tonumber(fence), tonumber(until_time)
  if owner ~= '' and owner ~= ARGV[2] and until_time > tonumber(ARGV[3]) then return {'held', fence, owner} end
end
if owner ~= ARGV[2] then fence = fence + 1 end
redis.call('HSET', KEYS[1], ARGV[1], fence .. ' ' .. ARGV[4] .. ' ' .. ARGV[2])
return {'ok', fence}
"""
)

# KEYS leases; ARGV partition, owner, fence. The fence is remembered.
_RELEASE: Final = script(
    """#!lua flags=allow-oom
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held then
  local fence, owner = string.match(held, '^(%d+) %d+ (.*)$')
  if fence == ARGV[3] and owner == ARGV[2] then redis.call('HSET', KEYS[1], ARGV[1], fence .. ' 0 ') end
end
"""
)

# KEYS losses, lost; ARGV partition, upto, kept, (name, first needed offset)... A loss is announced once.
_ANNOUNCE: Final = script(
    """#!lua flags=allow-oom
local upto = tonumber(ARGV[2])
for place = 4, #ARGV, 2 do
  local field = ARGV[place] .. ' ' .. ARGV[1]
  local first = math.max(tonumber(ARGV[place + 1]), tonumber(redis.call('HGET', KEYS[2], field) or '0') + 1)
  if first <= upto then
    redis.call('RPUSH', KEYS[1], cjson.encode({ARGV[place], ARGV[1], first, upto}))
    redis.call('HSET', KEYS[2], field, upto)
  end
end
redis.call('LTRIM', KEYS[1], -tonumber(ARGV[3]), -1)
"""
)


class Readers:
    """Progress, leases and retention."""

    def __init__(self, links: Links, keys: Keys, clock: Clock, shelves: Shelves) -> None:
        self._links = links
        self._keys = keys
        self._clock = clock
        self._shelves = shelves

    async def register(self, reader: str, positions: Mapping[Partition, Position]) -> None:
        """Make a reader known from what the positions mean now."""
        words: list[str] = []
        for partition, position in positions.items():
            state = await self._shelves.state(partition)
            offset, gap = state.lineage.locate(partition, position, state.first, state.last)
            kept = gap is not None and gap.reason == "retention"
            start = position if kept else state.lineage.position(offset)
            words += [str(partition), " ".join(map(str, (*start, *start, *Tally())))]
        # The partitions first: retention asks whom it finds there.
        indexes = [("SADD", self._shelves[partition].keys.readers, reader) for partition in positions]
        if indexes:
            await self._links.write(*indexes)
        names = (self._keys.readers(domain_of(reader)), self._keys.reader(reader))
        await self._links.write(_REGISTER(names, reader, *words))

    async def commit(
        self, reader: str, progress: Mapping[Partition, tuple[Position, Tally]], fences: Mapping[Partition, int]
    ) -> None:
        """Move a reader on. Raises Fenced, RequestInvalid."""
        words: list[str | int] = [len(fences)]
        for partition, fence in fences.items():
            words += [str(partition), fence]
        for partition, (position, tally) in progress.items():
            words += [str(partition), *position, *tally]
        names = (self._keys.reader(reader), self._keys.leases(reader))
        ((outcome, *rest),) = await self._links.write(_COMMIT(names, *words))
        if outcome == b"unregistered":
            raise RequestInvalid(f"{reader!a} does not read {rest[0].decode()}: register it first")
        if outcome == b"fenced":
            raise Fenced(f"{reader!a} lost {rest[0].decode()}: a newer owner has it; stop and take the lease again")

    async def committed(self, reader: str) -> Mapping[Partition, Progress]:
        """The reader's progress."""
        (answer,) = await self._links.call(("HGETALL", self._keys.reader(reader)))
        return {
            parse_partition(name.decode()): _progress(stored)
            for name, stored in zip(answer[::2], answer[1::2], strict=True)
        }

    async def names(self, domain: str) -> Sequence[str]:
        """The domain's readers, sorted."""
        (names,) = await self._links.call(("SMEMBERS", self._keys.readers(domain)))
        return sorted(name.decode() for name in names)

    async def forget(self, reader: str) -> None:
        """Remove a reader."""
        partitions = await self.committed(reader)
        await self._links.write(
            ("SREM", self._keys.readers(domain_of(reader)), reader), ("DEL", self._keys.reader(reader))
        )
        if partitions:
            await self._links.write(
                *(("SREM", self._keys.partition(partition).readers, reader) for partition in partitions)
            )

    async def lease(self, reader: str, partition: Partition, owner: str, ttl: int) -> Lease:
        """Take or renew a lease. Raises LeaseHeld."""
        now = self._clock.now()
        command = _LEASE((self._keys.leases(reader),), str(partition), owner, now, now + ttl)
        ((outcome, fence, *holder),) = await self._links.write(command)
        if outcome == b"held":
            name = holder[0].decode()
            raise LeaseHeld(f"{partition} is read for {reader!a} by {name!a}: retry later", owner=name)
        return Lease(reader, partition, owner, fence, now + ttl)

    async def release(self, lease: Lease) -> None:
        """Give a lease back; its fence is remembered."""
        names = (self._keys.leases(lease.reader),)
        await self._links.write(_RELEASE(names, str(lease.partition), lease.owner, lease.fence))

    async def retain(self, partition: Partition, retention: Retention, now: int) -> Gap | None:
        """Trim, and announce before that what readers or work queues lose."""
        keys = self._shelves[partition].keys
        await self._shelves.state(partition)
        limits = (now - retention.max_age, retention.max_bytes, now - retention.hard_age, retention.hard_bytes)
        plan, names = await self._links.call(PLAN(keys[1:4], *limits), ("SMEMBERS", keys.readers))
        lineage, first, last, soft, hard, *groups = plan
        needs = {group.decode(): need for group, need in zip(groups[::2], groups[1::2], strict=True)}
        queues = list(needs)
        needs.update(await self._needs(partition, State(lineage, first, last), [name.decode() for name in names]))
        upto = max(min(soft, min(needs.values(), default=soft + 1) - 1), hard)
        if upto < first:
            return None
        lost = {name: max(need, first) for name, need in sorted(needs.items()) if need <= upto}
        if lost:
            domain = partition.domain
            words = [word for pair in lost.items() for word in pair]
            names = (self._keys.losses(domain), self._keys.lost(domain))
            await self._links.write(_ANNOUNCE(names, str(partition), upto, KEPT_LOSSES, *words))
        pairs = [name for queue in queues for name in (keys.group(queue), keys.due(queue))]
        # In steps, since the server does nothing else meanwhile.
        for step in (*range(first + TRIM_STEP, upto, TRIM_STEP), upto):
            await self._links.write(TRIM((*keys[1:4], *pairs), step, *queues))
        return Gap(partition, min(lost.values()), upto, "retention") if lost else None

    async def _needs(self, partition: Partition, state: State, readers: Sequence[str]) -> Mapping[str, int]:
        """The next offset that each reader needs."""
        if not readers:
            return {}
        answers = await self._links.call(*(("HGET", self._keys.reader(name), str(partition)) for name in readers))
        return {
            name: state.lineage.locate(partition, _progress(stored).position, state.first, state.last)[0] + 1
            for name, stored in zip(readers, answers, strict=True)
            if stored is not None
        }

    async def losses(self, domain: str) -> Sequence[tuple[str, Gap]]:
        """The announced losses of the domain, oldest first."""
        (stored,) = await self._links.call(("LRANGE", self._keys.losses(domain), 0, -1))
        found = (json.loads(loss) for loss in stored)
        return [(name, Gap(parse_partition(text), first, last, "retention")) for name, text, first, last in found]


def _progress(stored: bytes) -> Progress:
    numbers = [int(word) for word in stored.split()]
    return Progress(Position(*numbers[:2]), Position(*numbers[2:4]), Tally(*numbers[4:9]))
