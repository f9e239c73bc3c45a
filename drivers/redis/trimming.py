"""The Lua scripts that find a time or size in a partition, and trim it.

They go by the marks that appending leaves every 256 entries or 1 MiB: how many bytes lie before an entry, and the
newest time before it, which makes times ascend even when the clocks of several writers differ. ``PLAN`` and ``AT`` only
look; ``TRIM`` works when the server is out of memory too, to make room.
"""

from __future__ import annotations

from typing import Final

from .link import script
from .scripts import EPOCH_OF

# upto_time(): the last offset before the first entry that was appended at or after a time.
# upto_bytes(): the last offset that lies beyond the newest ``size`` bytes.
_FIND: Final = """
local function first_mark(marks, wrong)
  -- The last mark for which wrong(bytes, time) holds; marks are ordered, so it holds for those before it too.
  local low, high, found = 0, redis.call('ZCARD', marks) - 1, nil
  while low <= high do
    local middle = math.floor((low + high) / 2)
    local mark = redis.call('ZRANGE', marks, middle, middle)[1]
    local id, bytes, time = string.match(mark, '(.-):(%d+):(%d+)')
    if wrong(tonumber(bytes), tonumber(time)) then
      found, low = {id, tonumber(bytes)}, middle + 1
    else
      high = middle - 1
    end
  end
  return found
end

local function scan(log, from, last, stop)
  -- The offset before the first entry for which stop(record) holds.
  local start = from
  while true do
    local part = redis.call('XRANGE', log, start, '+', 'COUNT', 64)
    for _, entry in ipairs(part) do
      if stop(entry[2][2]) then return tonumber(string.match(entry[1], '-(%d+)')) - 1 end
    end
    if #part < 64 then return last end
    start = '(' .. part[64][1]
  end
end

local function upto_time(log, marks, first, last, limit)
  local mark = first_mark(marks, function(_, time) return time < limit end)
  if not mark then return first - 1 end
  return scan(log, mark[1], last, function(record)
    return #record >= 14 and struct.unpack('<i8', record, 7) >= limit
  end)
end

local function upto_bytes(log, marks, first, last, total, size)
  local mark = first_mark(marks, function(bytes) return total - bytes > size end)
  if not mark then return first - 1 end
  local before = mark[2]
  return scan(log, mark[1], last, function(record)
    if total - before <= size then return true end
    before = before + #record
    return false
  end)
end
"""

# KEYS log meta marks; ARGV time. Returns the last offset before the first entry that was appended at or after it.
AT: Final = script(
    "#!lua flags=no-writes\n"
    + _FIND
    + """
local last = redis.call('HGET', KEYS[2], 'last')
if not last then return nil end
local head = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local first = head and tonumber(string.match(head[1], '-(%d+)')) or tonumber(last) + 1
return upto_time(KEYS[1], KEYS[3], first, tonumber(last), tonumber(ARGV[1]))
"""
)

# KEYS log meta marks; ARGV soft time, soft bytes, hard time, hard bytes.
# Returns {lineage, first, last, soft, hard, group, its next needed offset, group...}: up to where entries are due.
PLAN: Final = script(
    "#!lua flags=no-writes\n"
    + _FIND
    + """
local known = redis.call('HMGET', KEYS[2], 'lineage', 'last', 'bytes')
if not known[1] then return nil end
local head = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local last, total = tonumber(known[2]), tonumber(known[3] or '0')
local first = head and tonumber(string.match(head[1], '-(%d+)')) or last + 1
local answer = {known[1], first, last}
for place = 1, 3, 2 do
  answer[#answer + 1] = math.max(
    upto_time(KEYS[1], KEYS[3], first, last, tonumber(ARGV[place])),
    upto_bytes(KEYS[1], KEYS[3], first, last, total, tonumber(ARGV[place + 1])))
end
if redis.call('EXISTS', KEYS[1]) == 0 then return answer end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local facts = {}
  for place = 1, #group, 2 do facts[group[place]] = group[place + 1] end
  local id, next_one = facts['last-delivered-id'], 1
  if facts['pending'] > 0 then
    id, next_one = redis.call('XPENDING', KEYS[1], facts['name'])[2], 0
  end
  answer[#answer + 1] = facts['name']
  answer[#answer + 1] = tonumber(string.match(id, '-(%d+)')) + next_one
end
return answer
"""
)

# drop() acknowledges what a group still held of entries that are gone, and counts it as lost.
DROP: Final = """
local function drop(log, name, group, due, first_id)
  local lost = 0
  while true do
    local gone = redis.call('XPENDING', log, name, '-', first_id and '(' .. first_id or '+', 500)
    if #gone == 0 then break end
    for _, entry in ipairs(gone) do
      redis.call('XACK', log, name, entry[1])
      redis.call('ZREM', due, entry[1])
    end
    lost = lost + #gone
  end
  if lost > 0 then redis.call('HINCRBY', group, 'lost', lost) end
end
"""

# KEYS log meta marks [group, due]...; ARGV upto, group names... Removes everything up to an offset.
TRIM: Final = script(
    "#!lua flags=allow-oom\n"
    + EPOCH_OF
    + DROP
    + """
local log, meta, marks, upto = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])
local known = redis.call('HMGET', meta, 'lineage', 'last')
local id = epoch_of(known[1], upto + 1) .. '-' .. (upto + 1)
local kept = redis.call('ZREVRANGEBYSCORE', marks, upto + 1, '-inf', 'LIMIT', 0, 1)[1]
if tonumber(known[2]) <= upto then
  redis.call('DEL', marks)
  redis.call('HDEL', meta, 'marked', 'marked_bytes')
elseif kept then
  -- The first retained entry always carries a mark, so that bytes and times can be counted from it.
  local from, bytes, time = string.match(kept, '(.-):(%d+):(%d+)')
  bytes, time = tonumber(bytes), tonumber(time)
  while from ~= id do
    local part = redis.call('XRANGE', log, from, '(' .. id, 'COUNT', 64)
    for _, entry in ipairs(part) do
      local record = entry[2][2]
      bytes = bytes + #record
      if #record >= 14 then time = math.max(time, struct.unpack('<i8', record, 7)) end
    end
    if #part < 64 then break end
    from = '(' .. part[64][1]
  end
  redis.call('ZREMRANGEBYSCORE', marks, '-inf', upto + 1)
  redis.call('ZADD', marks, upto + 1, id .. string.format(':%.0f:%.0f', bytes, time))
end
redis.call('XTRIM', log, 'MINID', '=', id)
for place = 2, #ARGV do
  drop(log, ARGV[place], KEYS[place * 2], KEYS[place * 2 + 1], id)
end
"""
)
