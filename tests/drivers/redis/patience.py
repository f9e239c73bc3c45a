"""How long tests wait for Redis: it fsyncs every write, which takes seconds while the machine is busy."""

from __future__ import annotations

from typing import Final

from iotsphere.drivers.redis.options import RedisOptions

PATIENT: Final = RedisOptions(timeout=30)
