"""The messages at QoS 2 that a client has sent and not released yet (MQTT 5 section 4.3.3, the receiver's side).

Each gets a message id that follows from its session, a generation and its packet id. The generation changes whenever a
packet id becomes free, before the client can know of it, so no two messages ever share an id; and a message that is
sent again after a crash gets the id that it had, however little of it was on record, so the log finds the repetition.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final
from zlib import crc32

from ...use_cases.session.state import Inbound, Received
from ..message_id import dated
from .packets import DUP, Oversized, Publish

SETTLED_AT_MOST: Final = 1_024
# The steps of a packet id: of an earlier connection, waiting for its PUBREC, then for its PUBREL. A fresh one was never
# sent before.
EARLIER, PENDING, FRESH, HELD, FRESH_HELD = range(5)


class Inflow:
    """``salt``: of the session, random; without one nothing is remembered. All ids here are packet ids.

    ``unsure``: messages under way that may be in the log already, under the message ids of these generations; of none: they
    are. ``held``: how many of this connection have their PUBREC. ``changed``: an id became free since the last snapshot.
    """

    __slots__ = (
        "_before", "_received", "_salt", "_settled", "_steps", "changed", "generation", "held", "repeated", "unsure",
    )  # fmt: skip

    def __init__(self, salt: str = "", inbound: Inbound | None = None) -> None:
        state = inbound or Inbound()
        self.generation = state.generation
        self.repeated = 0
        self.held = 0
        self.unsure: dict[int, tuple[int, ...]] = {}
        self.changed = False
        self._salt = salt.encode()
        self._before = state.before
        self._settled = dict(state.settled)
        self._received = {each.packet_id: each for each in state.received}
        self._steps = dict.fromkeys(self._received, EARLIER)

    def take(self, packet: Publish | Oversized) -> bool | None:
        """Take a PUBLISH: True when it is to be appended, unless ``unsure``; False when it was; None while it is."""
        packet_id = packet.packet_id
        step = self._steps.get(packet_id)
        if step in (PENDING, FRESH):
            self.repeated += 1
            return None
        known = self._received.get(packet_id)
        mark = _mark(packet)
        if known is not None and step == EARLIER:
            if mark != known.mark:
                known = None  # the client has lost its memory and begins anew: it must not lose a message as well
            elif not known.done:
                self._steps[packet_id] = PENDING
                self.unsure[packet_id] = (known.generation,)
                return True
        if known is not None:
            self.repeated += 1
            self._hold(packet_id)
            return False
        again = bool(packet.flags & DUP)
        settled = self._settled.get(packet_id, 0)
        before = tuple(each for each in self._before if each > settled) if again else ()
        generation = before[-1] if before else self.generation
        self._received[packet_id] = Received(packet_id, generation, False, mark)
        self._steps[packet_id] = PENDING if again else FRESH
        if before:
            self.unsure[packet_id] = before
        return True

    def repeat(self, packet_id: int) -> None:
        """Let a message that is in the log be answered once more, in its turn."""
        self.held -= 1
        self._steps[packet_id] = PENDING
        self.unsure[packet_id] = ()

    def message_id(self, packet_id: int, generation: int = 0) -> str | None:
        """The id of the message under way with this packet id; None: nobody will ever ask for it."""
        known = self._received.get(packet_id)
        if not self._salt or known is None:
            return None
        generation = generation or known.generation
        facts = b"%b %d" % (self._salt, generation)
        return dated(generation, sha256(facts).digest()[:8] + packet_id.to_bytes(2, "big"))

    def message_ids(self, packet_id: int) -> set[str]:
        """The ids under which a message that is ``unsure`` may be in the log."""
        ids = (self.message_id(packet_id, generation) for generation in self.unsure.get(packet_id, ()))
        return {each for each in ids if each is not None}

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._received

    def is_pending(self, packet_id: int) -> bool:
        """Whether it is a message at QoS 2 that waits for its first answer."""
        return self._steps.get(packet_id) in (PENDING, FRESH)

    def done(self, packet_id: int) -> None:
        """It is in the log, or is known to have been already."""
        self.unsure.pop(packet_id, None)
        self._received[packet_id] = self._received[packet_id]._replace(done=True)
        self._hold(packet_id)

    def _hold(self, packet_id: int) -> None:
        step = self._steps.get(packet_id)
        if step not in (HELD, FRESH_HELD):
            self.held += 1
            self._steps[packet_id] = FRESH_HELD if step == FRESH else HELD

    def free(self, packet_id: int) -> bool:
        """The client may use the id again soon. Tells whether that has to be on record first."""
        known = self._received.pop(packet_id, None)
        self.unsure.pop(packet_id, None)
        step = self._steps.pop(packet_id, None)
        if step in (HELD, FRESH_HELD):
            self.held -= 1
        if self._before:
            self._settled[packet_id] = self.generation
            # What is sent again comes before anything new (MQTT 5 section 4.4), so all of that has come by now.
            fresh = step in (FRESH, FRESH_HELD) and not self.unsure
            if fresh or len(self._settled) > SETTLED_AT_MOST:
                self._before, self._settled = (), {}
        elif known is None:
            return False
        self.changed = True
        return True

    def snapshot(self, now: int) -> Inbound:
        """What has to be on record before what was promised may leave. ``now``: ms."""
        if self.changed:
            self.changed = False
            self.generation = max(self.generation + 1, now)
        return self.state()

    def state(self) -> Inbound:
        """What is known. A message that may have any of several ids is left out: it is found by what was ``before``."""
        unsure = {packet_id for packet_id, generations in self.unsure.items() if len(generations) > 1}
        received = tuple(each for each in self._received.values() if each.packet_id not in unsure)
        return Inbound(self.generation, self._before, tuple(self._settled.items()), received)


def _mark(packet: Publish | Oversized) -> int:
    """A hash that tells two different messages apart."""
    content = packet.sha256.encode() if isinstance(packet, Oversized) else packet.payload
    return crc32(content, crc32(packet.topic))
