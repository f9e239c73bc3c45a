"""What bridges remember: one mark for a log, one division for a bridge, one session for a client id."""

from __future__ import annotations

import asyncio

import pytest

from iotsphere.drivers.memory.documents import MemoryDocuments
from iotsphere.entities.errors import RequestInvalid
from iotsphere.use_cases.bridges import BridgeRegister, BrokerSession


async def test_all_bridges_of_a_domain_share_its_mark() -> None:
    documents = MemoryDocuments()
    marks = await asyncio.gather(*(BridgeRegister(documents, "iotsphere", name).origin() for name in "abc"))
    assert len(set(marks)) == 1
    assert await BridgeRegister(documents, "other", "a").origin() != marks[0]
    assert await BridgeRegister(MemoryDocuments(), "iotsphere", "a").origin() != marks[0]


async def test_a_division_is_for_ever() -> None:
    documents = MemoryDocuments()
    await BridgeRegister(documents, "iotsphere", "a").divide(2)
    await BridgeRegister(documents, "iotsphere", "a").divide(2)
    await BridgeRegister(documents, "iotsphere", "b").divide(3)
    with pytest.raises(RequestInvalid, match="into 2 slices, and now into 3"):
        await BridgeRegister(documents, "iotsphere", "a").divide(3)


async def test_a_session_is_found_again() -> None:
    register = BridgeRegister(MemoryDocuments(), "iotsphere", "a")
    assert await register.session("c") is None
    session = BrokerSession(("tele/#",), 1_000, "owner")
    await register.keep_session("c", session)
    assert await register.session("c") == session
    assert await register.session("d") is None
