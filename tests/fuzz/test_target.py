"""Sound conversations and mutated ones against the parser and the session, and what the target itself would notice."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.codec import Fault
from iotsphere.adapters.mqtt.encode import encode
from iotsphere.adapters.mqtt.session import Session
from tests.adapters.mqtt.packet_strategies import packets
from tests.support.examples import tried

from .seeds import conversations
from .target import ANSWER_BYTES, Visit, drive, parsed

CONNECT = {version: encode(p.Connect(version, "c", True, 30), version) for version in (4, 5)}
NOISE = (b"\xff\xff\xff\x7f", b"\x00\x00", b"\x80\x80\x80\x80\x01", b"\xc0\x00" * 9, b"\x00\x04MQTT", b"\xed\xa0\x80")


def mutated(stream: bytes, choose: random.Random) -> bytes:
    """The stream with one to four small faults in it."""
    data = bytearray(stream)
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(len(data) + 1)
        match choose.randrange(6):
            case 0:
                data[at : at + 1] = bytes((choose.randrange(256),))
            case 1:
                del data[at : at + choose.randint(1, 8)]
            case 2:
                data[at:at] = choose.choice(NOISE)
            case 3:
                data[at:at] = data[at // 2 : at]
            case 4 if at < len(data):
                data[at] ^= 1 << choose.randrange(8)
            case _:
                del data[max(at, 2) :]
    return bytes(data)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Sound packets in any order behind a CONNECT, most of them with a few faults."""
    version = draw(st.sampled_from((4, 5)))
    following = draw(st.lists(packets(version), max_size=6))
    stream = CONNECT[version] + b"".join(encode(packet, version) for packet in following)
    if draw(st.integers(0, 3)):
        stream = mutated(stream, draw(st.randoms(use_true_random=False)))
    return bytes((draw(st.integers(0, 255)),)) + stream


@tried(100)
@given(streams())
@example(b"\x01\x10")
@example(b"\x03" + CONNECT[5] + b"\x62\x02\x00\x01" * 40)
def test_any_stream_is_taken_apart_and_answered_in_bounds(data: bytes) -> None:
    drive(data)


@pytest.mark.parametrize("number", range(len(conversations())))
def test_a_sound_conversation_has_no_fault(number: int) -> None:
    seed = conversations()[number]
    assert not [item for item in parsed(seed[1:], 0, 3) if isinstance(item, Fault)]
    visit = Visit()
    visit.drive(seed[1:], len(seed))
    assert visit.said > 20


def test_three_thousand_broken_conversations_leave_no_memory_behind() -> None:
    choose = random.Random(7)
    seeds = conversations()

    def round_of(count: int) -> None:
        for _ in range(count):
            drive(mutated(choose.choice(seeds), choose))

    round_of(500)  # caches fill first
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        round_of(2_500)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 256 * 1024


def test_the_target_notices_a_session_that_says_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    visit = Visit()
    take = Session.take
    monkeypatch.setattr(Session, "take", lambda session: take(session) + bytes(64 * ANSWER_BYTES))
    with pytest.raises(AssertionError, match=r"speaks|more is said"):
        visit.drive(CONNECT[5], 100)
