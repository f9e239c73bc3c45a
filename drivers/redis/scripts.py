"""The Lua scripts that append to a partition and read it.

Each touches the keys of one partition only, so one slot of a cluster. A script whose first line says nothing is
refused as a whole when the server is out of memory; ``allow-oom`` marks those that must work then, to make room.
Stream ids are ``epoch-offset``. The run is the server process's own id: when it changed, the server may have forgotten
the end of the log, so the next append begins a new epoch and the old one's end is kept in ``lineage``.
"""

from __future__ import annotations

from typing import Final

from .link import script

CALLS_KEPT: Final = 32
CALLS_KEPT_MS: Final = 15 * 60 * 1000
_MARK_ENTRIES: Final = 256
_MARK_BYTES: Final = 1 << 20

# begin() makes a partition's meta where it is missing, or gives it a new epoch where the run changed.
_BEGIN: Final = """
local function begin(log, meta, run, candidate)
  local known = redis.call('HMGET', meta, 'run', 'epoch', 'last', 'bytes', 'time', 'largest', 'marked', 'marked_bytes')
  if known[1] == run then return known end
  local epoch, last, lineage = tonumber(candidate), tonumber(known[3] or '0'), ''
  if known[2] then
    epoch = math.max(epoch, tonumber(known[2]) + 1)
    lineage = redis.call('HGET', meta, 'lineage')
    -- A thousand restarts are enough; the oldest epoch is forgotten.
    if #lineage > 24000 then lineage = string.gsub(lineage, '^%S+ ', '', 1) end
  else
    local ends = {redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1], redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]}
    if ends[1] then
      local first_epoch, first = string.match(ends[1][1], '(%d+)-(%d+)')
      local last_epoch, last_offset = string.match(ends[2][1], '(%d+)-(%d+)')
      epoch, last = math.max(epoch, tonumber(last_epoch) + 1), tonumber(last_offset)
      lineage = first_epoch .. ':' .. first .. ' '
    end
  end
  known[2], known[3] = tostring(epoch), tostring(last)
  redis.call('HSET', meta, 'run', run, 'epoch', epoch, 'last', last,
    'lineage', lineage .. epoch .. ':' .. (last + 1) .. ' ')
  return known
end
"""

# epoch_of() reads the lineage, "epoch:first epoch:first ...".
EPOCH_OF: Final = """
local function epoch_of(lineage, offset)
  local found
  for epoch, first in string.gmatch(lineage, '(%d+):(%d+)') do
    if not found or tonumber(first) <= offset then found = epoch end
  end
  return found
end
"""

# KEYS log meta call marks [ids newest, older, oldest]
# ARGV run, number, whether it follows the call before in one write, appended_at, epoch candidate, digests, records...
# Returns 'number epoch first count index=epoch-offset...' (the duplicates), or 'order' when the call before failed.
APPEND: Final = script(
    "#!lua\n"
    + _BEGIN
    + EPOCH_OF
    + f"""
local log, meta, call, marks = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local number, count, digests = tonumber(ARGV[2]), #ARGV - 6, ARGV[6]
local slot = 'r' .. number % {CALLS_KEPT}
local before = redis.call('HMGET', call, 'last', slot)
local latest = tonumber(before[1] or '0')
if number <= latest then
  if before[2] and string.match(before[2], '^%d+') == ARGV[2] then return before[2] end
  return 'order'
end
if ARGV[3] == '1' and number ~= latest + 1 then return 'order' end

local known = begin(log, meta, ARGV[1], ARGV[5])
local epoch, last, now = known[2], tonumber(known[3]), tonumber(ARGV[4])
local bytes, time, largest = tonumber(known[4] or '0'), tonumber(known[5] or '0'), tonumber(known[6] or '0')
local marked, marked_bytes = tonumber(known[7] or '-1'), tonumber(known[8] or '0')

local found, digest_of = {{}}, {{}}
if digests ~= '' then
  local fields, indexes, none = {{}}, {{}}, string.rep('\\0', 16)
  for index = 1, count do
    local digest = string.sub(digests, index * 16 - 15, index * 16)
    if digest ~= none then
      digest_of[index] = digest
      fields[#fields + 1] = digest
      indexes[#indexes + 1] = index
    end
  end
  for key = 5, #KEYS do
    local offsets = redis.call('HMGET', KEYS[key], unpack(fields))
    for place = 1, #fields do
      if offsets[place] then found[indexes[place]] = offsets[place] end
    end
  end
end

local first, fresh, prefix = last + 1, {{}}, epoch .. '-'
for index = 1, count do
  if not found[index] then
    local record = ARGV[index + 6]
    local offset = last + 1
    if marked < 0 or offset - marked >= {_MARK_ENTRIES} or bytes - marked_bytes >= {_MARK_BYTES} then
      redis.call('ZADD', marks, offset, prefix .. offset .. string.format(':%.0f:%.0f', bytes, time))
      marked, marked_bytes = offset, bytes
    end
    redis.call('XADD', log, prefix .. offset, 'r', record)
    if now > time then time = now end
    if #record > largest then largest = #record end
    bytes, last = bytes + #record, offset
    if digest_of[index] then
      fresh[#fresh + 1] = digest_of[index]
      fresh[#fresh + 1] = offset
    end
  end
end
if #fresh > 0 then
  redis.call('HSET', KEYS[5], unpack(fresh))
  redis.call('PEXPIRE', KEYS[5], {CALLS_KEPT_MS}, 'NX')
end

local result = {{ARGV[2], epoch, first, last - first + 1}}
if next(found) then
  local lineage = redis.call('HGET', meta, 'lineage')
  for index = 1, count do
    if found[index] then
      result[#result + 1] = (index - 1) .. '=' .. epoch_of(lineage, tonumber(found[index])) .. '-' .. found[index]
    end
  end
end
result = table.concat(result, ' ')
redis.call('HSET', call, 'last', number, slot, result)
redis.call('PEXPIRE', call, {CALLS_KEPT_MS})
redis.call('HSET', meta, 'last', last, 'bytes', string.format('%.0f', bytes), 'time', string.format('%.0f', time),
  'largest', largest, 'marked', marked, 'marked_bytes', string.format('%.0f', marked_bytes))
return result
"""
)

# KEYS call; ARGV from, to: the numbers of calls whose answer was lost.
# Returns the result of each, '' for one that was not run; from now on it is refused, should it still be under way.
SETTLE: Final = script(
    f"""#!lua flags=allow-oom
local results = {{}}
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local kept = redis.call('HGET', KEYS[1], 'r' .. number % {CALLS_KEPT})
  local mine = kept and tonumber(string.match(kept, '^%d+')) == number
  results[#results + 1] = mine and kept or ''
end
-- Always a write, so that a WAIT after it covers the calls that are asked about.
local latest = math.max(tonumber(redis.call('HGET', KEYS[1], 'last') or '0'), tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'last', latest)
redis.call('PEXPIRE', KEYS[1], {CALLS_KEPT_MS})
return results
"""
)

# KEYS log meta; ARGV run, epoch candidate. Makes the partition where it is missing.
BEGIN: Final = script(
    "#!lua\n" + _BEGIN + "if redis.call('EXISTS', KEYS[2]) == 0 then begin(KEYS[1], KEYS[2], ARGV[1], ARGV[2]) end\n"
)

# KEYS log meta; ARGV range start, limit, max_bytes.
# Returns {epoch, last, largest, lineage, first id or '', id, record, id, record...}, nil without a partition.
READ: Final = script(
    """#!lua flags=no-writes
local known = redis.call('HMGET', KEYS[2], 'epoch', 'last', 'largest', 'lineage')
if not known[1] then return nil end
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local answer = {known[1], known[2], known[3] or '0', known[4], first and first[1] or ''}
local from, left, room = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
while left > 0 and room > 0 do
  local wanted = math.min(left, 32)
  local part = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', wanted)
  for _, entry in ipairs(part) do
    local record = entry[2][2]
    answer[#answer + 1] = entry[1]
    answer[#answer + 1] = record
    room = room - #record
    if room <= 0 then break end
  end
  if #part < wanted then break end
  left, from = left - wanted, '(' .. part[wanted][1]
end
return answer
"""
)
