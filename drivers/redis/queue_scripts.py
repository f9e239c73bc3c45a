"""The Lua scripts of a work-queue group in one partition.

The server's consumer group keeps what was handed out to whom and how often. When an entry comes back is kept beside
it, in a sorted set by time (ms), since one group may hand out with different visibilities. Scripts that give or take
back work when the server is out of memory.

Every script answers nil when the group is not there (the server was emptied); nothing loops on NOGROUP.
"""

from __future__ import annotations

from typing import Final

from .link import script
from .trimming import DROP

# settle() brings a group up to what retention, or anyone's XTRIM, took: entries that are gone are lost, once.
_SETTLE: Final = (
    DROP
    + """
local function settle(log, meta, name, group, due)
  local delivered = redis.call('HGET', group, 'delivered')
  if not delivered or redis.call('EXISTS', log) == 0 then return nil end
  local summary = redis.pcall('XPENDING', log, name)
  if summary.err then return nil end
  local head = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
  local first = head and tonumber(string.match(head[1], '-(%d+)'))
    or tonumber(redis.call('HGET', meta, 'last') or '0') + 1
  if summary[1] > 0 and (not head or summary[2] ~= head[1]) then drop(log, name, group, due, head and head[1]) end
  delivered = tonumber(delivered)
  if delivered < first - 1 then
    redis.call('HINCRBY', group, 'lost', first - 1 - delivered)
    redis.call('HSET', group, 'delivered', first - 1)
    delivered = first - 1
  end
  return delivered
end
"""
)

# KEYS log group due; ARGV name, stream id to begin after, its offset. A group that is there stays as it is.
CREATE: Final = script(
    """#!lua
local groups = redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}
for _, group in ipairs(groups) do
  local facts = {}
  for place = 1, #group, 2 do facts[group[place]] = group[place + 1] end
  if facts['name'] == ARGV[1] then
    local delivered = string.match(facts['last-delivered-id'], '-(%d+)')
    if redis.call('HSETNX', KEYS[2], 'delivered', delivered) == 1 then
      redis.call('HSET', KEYS[2], 'start', delivered)
    end
    return
  end
end
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'MKSTREAM')
redis.call('HSET', KEYS[2], 'delivered', ARGV[3], 'start', ARGV[3])
redis.call('DEL', KEYS[3])
"""
)

# KEYS log meta group due; ARGV name, consumer, limit, now, until, whether new entries are wanted too, the attempt from
# which an entry comes alone, how many were taken elsewhere before.
# Returns {id, attempt, record, ...}: what came back, else what is new.
TAKE: Final = script(
    "#!lua flags=allow-oom\n"
    + _SETTLE
    + """
local log, group, due, name, consumer = KEYS[1], KEYS[3], KEYS[4], ARGV[1], ARGV[2]
local delivered = settle(log, KEYS[2], name, group, due)
if not delivered then return nil end
local answer, left = {}, tonumber(ARGV[3])
if ARGV[6] == '0' then
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', ARGV[4], 'LIMIT', 0, left)) do
    local held = redis.call('XPENDING', log, name, id, id, 1)[1]
    local lone = held and held[4] + 1 >= tonumber(ARGV[7])
    if lone and (#answer > 0 or ARGV[8] ~= '0') then break end
    local entry = held and redis.call('XCLAIM', log, name, consumer, 0, id)[1]
    if entry then
      redis.call('ZADD', due, ARGV[5], id)
      answer[#answer + 1] = id
      answer[#answer + 1] = held[4] + 1
      answer[#answer + 1] = entry[2][2]
      if lone then break end
    else
      if held then
        redis.call('XACK', log, name, id)
        redis.call('HINCRBY', group, 'lost', 1)
      end
      redis.call('ZREM', due, id)
    end
  end
  return answer
end
local streams = redis.call('XREADGROUP', 'GROUP', name, consumer, 'COUNT', left, 'STREAMS', log, '>')
local entries = streams and streams[1] and streams[1][2] or {}
for _, entry in ipairs(entries) do
  redis.call('ZADD', due, ARGV[5], entry[1])
  answer[#answer + 1] = entry[1]
  answer[#answer + 1] = 1
  answer[#answer + 1] = entry[2][2]
end
if #entries > 0 then
  local last = tonumber(string.match(entries[#entries][1], '-(%d+)'))
  -- Offsets are dense, so what is missing between them was removed by hand.
  if last - delivered > #entries then redis.call('HINCRBY', group, 'lost', last - delivered - #entries) end
  redis.call('HSET', group, 'delivered', last)
end
return answer
"""
)

# KEYS log group due; ARGV name, ids... Returns how many were pending.
ACK: Final = script(
    """#!lua flags=allow-oom
if redis.call('EXISTS', KEYS[2]) == 0 then return nil end
local ids = {unpack(ARGV, 2)}
local done = redis.call('XACK', KEYS[1], ARGV[1], unpack(ids))
redis.call('ZREM', KEYS[3], unpack(ids))
if done > 0 then redis.call('HINCRBY', KEYS[2], 'acknowledged', done) end
return done
"""
)

# KEYS log group due; ARGV name, id, when it comes back, whether the attempt counts. From now on nobody holds it.
NACK: Final = script(
    """#!lua flags=allow-oom
if redis.call('EXISTS', KEYS[2]) == 0 then return nil end
local before = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1)
if before.err then return nil end
if not before[1] then return 0 end
local attempts = before[1][4]
if ARGV[4] == '0' and before[1][2] ~= '-' then attempts = math.max(0, attempts - 1) end
local held = redis.call('XCLAIM', KEYS[1], ARGV[1], '-', 0, ARGV[2], 'RETRYCOUNT', attempts, 'JUSTID')
if #held > 0 then redis.call('ZADD', KEYS[3], ARGV[3], ARGV[2]) end
return #held
"""
)

# KEYS log group due; ARGV name, id, consumer, when it comes back. Returns 1 when the consumer still held it.
EXTEND: Final = script(
    """#!lua flags=allow-oom
if redis.call('EXISTS', KEYS[2]) == 0 then return nil end
local held = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1)
if held.err then return nil end
if not held[1] or held[1][2] ~= ARGV[3] then return 0 end
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2])
return 1
"""
)

# KEYS log meta group due; ARGV name. Returns {waiting, pending, acknowledged, lost, where it began}.
BACKLOG: Final = script(
    "#!lua flags=allow-oom\n"
    + _SETTLE
    + """
local delivered = settle(KEYS[1], KEYS[2], ARGV[1], KEYS[3], KEYS[4])
if not delivered then return nil end
-- Consumers that went away for good would pile up; without pending entries nothing is lost with them.
for _, facts in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  if facts[4] == 0 and facts[6] > 3600000 then redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], facts[2]) end
end
local counts = redis.call('HMGET', KEYS[3], 'acknowledged', 'lost', 'start')
return {math.max(0, tonumber(redis.call('HGET', KEYS[2], 'last') or '0') - delivered),
  redis.call('XPENDING', KEYS[1], ARGV[1])[1], tonumber(counts[1] or '0'), tonumber(counts[2] or '0'), tonumber(counts[3] or '0')}
"""
)

# KEYS log group due; ARGV name.
DELETE: Final = script(
    """#!lua flags=allow-oom
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1]) end
redis.call('DEL', KEYS[2], KEYS[3])
"""
)
