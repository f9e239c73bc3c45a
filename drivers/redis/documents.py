"""Documents in Redis hashes, with optimistic locking in the server and a sorted index of the keys."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final

from ...entities.errors import Conflict
from ...use_cases.ports.documents import Document
from .link import script
from .log import RedisMessagingDriver

# A document is stored as 'version:token:value'; a key whose document was deleted keeps its version in the graves.
_SPLIT: Final = """
local function split(stored)
  local version, token, start = string.match(stored, '^(%d+):([^:]*):()')
  return tonumber(version), token, start
end
"""

# put() writes one document; KEYS values graves keys.
_PUT: Final = """
local function put(key, version, token, value)
  redis.call('HSET', KEYS[1], key, version .. ':' .. token .. ':' .. value)
  redis.call('HDEL', KEYS[2], key)
  redis.call('ZADD', KEYS[3], 0, key)
end

local function bury(key)
  local stored = redis.call('HGET', KEYS[1], key)
  if not stored then return 0 end
  redis.call('HSET', KEYS[2], key, (split(stored)))
  redis.call('HDEL', KEYS[1], key)
  redis.call('ZREM', KEYS[3], key)
  return 1
end

local function next_version(key)
  local stored = redis.call('HGET', KEYS[1], key)
  if stored then return split(stored) + 1 end
  return tonumber(redis.call('HGET', KEYS[2], key) or '0') + 1
end
"""

# ARGV key, token, value, expected or ''. Returns {1, new version} or {0, present version}.
_PUT_ONE: Final = script(
    "#!lua\n"
    + _SPLIT
    + _PUT
    + """
local stored, present, token = redis.call('HGET', KEYS[1], ARGV[1]), 0, nil
if stored then present, token = split(stored) end
-- The same call again, after its answer was lost.
if token == ARGV[2] then return {1, present} end
if ARGV[4] ~= '' and tonumber(ARGV[4]) ~= present then return {0, present} end
local version = next_version(ARGV[1])
put(ARGV[1], version, ARGV[2], ARGV[3])
return {1, version}
"""
)

# ARGV token, count of deletions, key..., (key, value)...
_PUT_MANY: Final = script(
    "#!lua\n"
    + _SPLIT
    + _PUT
    + """
local start = 3 + tonumber(ARGV[2])
for place = 3, start - 1 do bury(ARGV[place]) end
for place = start, #ARGV, 2 do put(ARGV[place], next_version(ARGV[place]), ARGV[1], ARGV[place + 1]) end
"""
)

# ARGV key. Returns whether it was there.
_DELETE: Final = script("#!lua flags=allow-oom\n" + _SPLIT + _PUT + "return bury(ARGV[1])\n")

# KEYS values keys; ARGV lower end, upper end, limit. Returns key, stored, key, stored...
_SCAN: Final = script(
    """#!lua flags=no-writes
local answer = {}
for _, key in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
  answer[#answer + 1] = key
  answer[#answer + 1] = redis.call('HGET', KEYS[1], key)
end
return answer
"""
)


class RedisDocuments:
    """A ``Documents`` beside the log of a ``RedisMessagingDriver``, whose connections it uses."""

    def __init__(self, log: RedisMessagingDriver) -> None:
        self._links = log.links
        self._keys = log.keys
        self._writer = secrets.token_hex(8)
        self._number = count(1)

    def _token(self) -> str:
        return f"{self._writer}{next(self._number)}"

    async def get(self, collection: str, key: str) -> Document | None:
        """The document, or None."""
        values, _, _ = self._keys.documents(collection)
        (stored,) = await self._links.call(("HGET", values, key))
        return None if stored is None else _document(key, stored)

    async def put(self, collection: str, key: str, value: bytes, expected: int | None = None) -> int:
        """Write one document. Raises Conflict."""
        wanted = "" if expected is None else expected
        command = _PUT_ONE(self._keys.documents(collection), key, self._token(), value, wanted)
        ((written, version),) = await self._links.write(command)
        if not written:
            raise Conflict(
                f"{collection}/{key} is at version {version}, not {expected}: read it again and retry",
                version=version,
                expected=expected,
            )
        return int(version)

    async def put_many(self, collection: str, values: Mapping[str, bytes | None]) -> None:
        """Write or delete several documents, all or nothing."""
        gone = [key for key, value in values.items() if value is None]
        kept = [word for key, value in values.items() if value is not None for word in (key, value)]
        if values:
            command = _PUT_MANY(self._keys.documents(collection), self._token(), len(gone), *gone, *kept)
            await self._links.write(command)

    async def delete(self, collection: str, key: str) -> bool:
        """Remove one document."""
        (found,) = await self._links.write(_DELETE(self._keys.documents(collection), key))
        return bool(found)

    async def scan(self, collection: str, prefix: str = "", after: str = "", limit: int = 1_000) -> Sequence[Document]:
        """Documents in key order."""
        values, _, keys = self._keys.documents(collection)
        low = b"[" + prefix.encode() if prefix > after else b"(" + after.encode() if after else b"-"
        # No UTF-8 text holds the byte 0xFF, so it comes after every key with this prefix.
        high = b"(" + prefix.encode() + b"\xff" if prefix else b"+"
        (answer,) = await self._links.call(_SCAN((values, keys), low, high, limit))
        return [_document(key.decode(), stored) for key, stored in zip(answer[::2], answer[1::2], strict=True)]


def _document(key: str, stored: bytes) -> Document:
    version, _, value = stored.split(b":", 2)
    return Document(key, value, int(version))
