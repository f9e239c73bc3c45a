"""The identity use cases over memory drivers, put together for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from iotsphere.adapters.tokens import JsonWebTokens
from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.documents import MemoryDocuments
from iotsphere.use_cases.access.authenticate import Authenticate
from iotsphere.use_cases.access.devices import Devices
from iotsphere.use_cases.access.revocations import Revocations
from iotsphere.use_cases.access.tokens import Tokens, operator
from tests.support import forgery


class Stopwatch:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class Identity:
    """One process; give two of them the same ``documents`` and they share a store."""

    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    clock: ManualClock = field(default_factory=ManualClock)
    watch: Stopwatch = field(default_factory=Stopwatch)

    def __post_init__(self) -> None:
        self.revocations = Revocations(self.documents, self.clock)
        self.formats = JsonWebTokens(forgery.SECRET, self.clock, forgery.trusted())
        self.devices = Devices(self.documents, self.revocations, self.clock, b"k" * 32)
        self.tokens = Tokens(self.formats, self.revocations, self.clock)
        self.authenticate = Authenticate(self.devices, self.formats, self.revocations, self.watch)
        self.operator = operator("iotsphere")
