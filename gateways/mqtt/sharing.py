"""A client's shared subscriptions: its part of each group's messages, sent within its window and settled as it answers.

They are granted at QoS 1 at most. At QoS 2 a message would have to wait for the client that it was begun with, for as
long as that one's session lives (MQTT 5 section 4.8.2); at QoS 1 it goes to another member as soon as this one is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...adapters.mqtt import packets as p
from ...adapters.mqtt.life import Tag
from ...adapters.mqtt.reasons import Reason
from ...adapters.mqtt.session import Session
from ...entities.errors import TooManyGroups
from ...entities.principal import Principal
from ...entities.share import Share
from ...use_cases.session.state import Wanted
from ...use_cases.sharing.crew import Handout
from ...use_cases.sharing.sharing import ShareMember
from .door import MqttDoor
from .standing import NOTHING

if TYPE_CHECKING:
    from .outbox import MqttOutbox


class MqttShares:
    """One connection's memberships. ``wanted``: what it shares, by the text that it subscribed with."""

    __slots__ = (
        "_door", "_ended", "_left", "_members", "_outbox", "_principal", "_ready", "_session", "wanted",
    )  # fmt: skip

    def __init__(self, door: MqttDoor, session: Session, principal: Principal, outbox: MqttOutbox) -> None:
        self.wanted: dict[str, Wanted] = NOTHING
        self._door = door
        self._session = session
        self._principal = principal
        self._outbox = outbox
        self._members: dict[str, ShareMember] = NOTHING
        self._left: tuple[ShareMember, ...] = ()
        self._ready: dict[str, None] = NOTHING
        self._ended = False

    async def subscribe(self, wanted: Wanted) -> tuple[Reason, str]:
        """Take part in a group, or change how. Raises LogUnavailable."""
        share = Share(wanted.share, wanted.filter)
        sharing = self._door.use.sharing
        if sharing is None:
            return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, "shared subscriptions are not spoken here"
        if self._members is NOTHING:
            self.wanted, self._members, self._ready = {}, {}, {}
        if share.text not in self._members:
            name = f"{self._principal.identity}/{self._session.client_id}"
            try:
                member = await sharing.join(self._principal, share, name, partial(self._on_ready, share.text))
            except TooManyGroups as error:
                return Reason.QUOTA_EXCEEDED, error.message
            if self._ended:
                member.end()
            self._members[share.text] = member
            self._ready[share.text] = None
        self.wanted[share.text] = wanted
        return Reason(wanted.qos), ""

    def unsubscribe(self, text: str) -> bool:
        """Take no more of a group; what is under way may still be acknowledged. False: there was no such membership."""
        member = self._members.pop(text, None)
        if member is None:
            return False
        del self.wanted[text]
        self._ready.pop(text, None)
        member.leave()
        self._left = tuple(former for former in (*self._left, member) if former.under_way)
        return True

    def end(self) -> None:
        """The connection is over: what it did not acknowledge goes to others at once."""
        self._ended = True
        self._ready = NOTHING
        for member in (*self._members.values(), *self._left):
            member.end()

    @property
    def lingers(self) -> bool:
        """Whether former memberships may still have something under way."""
        return bool(self._left)

    # -- sending ------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether there may be something to send."""
        return bool(self._ready)

    def _on_ready(self, text: str) -> None:
        if text in self._members and not self._ended:
            self._ready[text] = None
            self._outbox.pump()

    def send(self) -> int:
        """Send one message, of each group in turn; returns its size, 0 when none was sent, -1 when the window is full."""
        text = next(iter(self._ready))
        wanted, member = self.wanted[text], self._members[text]
        if wanted.qos and self._session.outgoing.window.free <= 0:
            return -1
        del self._ready[text]
        item = member.pull(self._door.use.clock.now())
        if item is None:
            return 0
        self._ready[text] = None
        handout, entry = item
        record = entry.record
        qos = min(wanted.qos, record.qos)
        flags = qos << 1 | (p.RETAIN if wanted.retain_as_published and record.retain else 0)
        size = self._outbox.send_shared(record, flags, (wanted.identifier,) if wanted.identifier else (), handout)
        if not qos or not size:  # nobody will answer it
            ShareMember.settle(handout)
        return size

    @staticmethod
    def settled(tags: Sequence[Tag]) -> None:
        """The client has answered these."""
        for tag in tags:
            if isinstance(tag, Handout):
                ShareMember.settle(tag)
