"""A guest of a playground: a Paho client of its own, and all that has come to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from .library import WITHIN_S

NO_EXPIRY = 99_999
Will = tuple[str, bytes, dict[str, Any]]


def properties(packet: int, **values: Any) -> Properties:
    """Properties of a packet, by Paho's names for them."""
    made = Properties(packet)  # type: ignore[no-untyped-call]  # paho's own lack
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Guest:
    """One connection. What came lies in ``messages``, ``subacks``, ``unsubacks``, ``acknowledged`` and ``goodbyes``.

    ``fields``: further properties of CONNECT. ``will``: topic, payload, and the will's properties.
    """

    def __init__(
        self,
        address: tuple[str, int],
        version: int,
        client_id: str = "guest",
        *,
        clean: bool = True,
        keep_alive: int = 60,
        will: Will | None = None,
        **fields: Any,
    ) -> None:
        self.version = version
        self.messages: list[paho.MQTTMessage] = []
        self.subacks: list[list[ReasonCode]] = []
        self.unsubacks: list[Any] = []
        self.acknowledged: list[ReasonCode] = []
        self.goodbyes: list[ReasonCode] = []
        self.connack: tuple[Any, ReasonCode, Any] | None = None
        self._moved = threading.Condition()
        self._address = address
        self._keep_alive = keep_alive
        self._running = False
        five = version == paho.MQTTv5
        self._more: dict[str, Any] = {}
        if five:
            fields = {"SessionExpiryInterval": 0 if clean else NO_EXPIRY, **fields}
            self._more = {"clean_start": clean, "properties": properties(PacketTypes.CONNECT, **fields)}
        self.client = client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            None if five else clean,
            protocol=MQTTProtocolVersion(version),
            reconnect_on_failure=False,
        )
        client.max_inflight_messages = 1_000
        if will is not None:
            topic, payload, given = will
            client.will_set(topic, payload, 2, False, properties(PacketTypes.WILLMESSAGE, **given) if five else None)
        client.on_connect = lambda _c, _u, flags, reason, props: self._welcome((flags, reason, props))
        client.on_message = lambda _c, _u, message: self._keep(self.messages, message)
        client.on_subscribe = lambda _c, _u, _m, reasons, _p: self._keep(self.subacks, reasons)
        client.on_unsubscribe = lambda _c, _u, _m, reasons, _p: self._keep(self.unsubacks, reasons)
        client.on_publish = lambda _c, _u, _m, reason, _p: self._keep(self.acknowledged, reason)
        client.on_disconnect = lambda _c, _u, _f, reason, _p: self._keep(self.goodbyes, reason)

    def _welcome(self, connack: tuple[Any, ReasonCode, Any]) -> None:
        with self._moved:
            self.connack = connack
            self._moved.notify_all()

    def _keep(self, where: list[Any], what: Any) -> None:
        with self._moved:
            where.append(what)
            self._moved.notify_all()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for the condition. Raises AssertionError with ``what`` when it does not come."""
        with self._moved:
            if not self._moved.wait_for(condition, WITHIN_S):
                raise AssertionError(f"not within {WITHIN_S:g} s: {what}; came: {self.payloads}, {self.goodbyes}")

    def __enter__(self) -> Self:
        self.client.connect(*self._address, self._keep_alive, **self._more)
        self.client.loop_start()
        self._running = True
        self.until(lambda: self.connack or self.goodbyes, "the CONNACK")
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self._stop()

    def _stop(self) -> None:
        if self._running:
            self._running = False
            self.client.loop_stop()

    def hang(self) -> None:
        """Fall silent: read nothing, say nothing, keep the socket open."""
        self._stop()

    def vanish(self) -> None:
        """Lose the connection without a goodbye."""
        plain = self.client.socket()
        assert isinstance(plain, socket.socket)
        plain.shutdown(socket.SHUT_RDWR)
        self._stop()

    # -- what it says and hears ---------------------------------------------------------------------------------------

    @property
    def present(self) -> bool:
        """Whether the gateway had a session for it."""
        assert self.connack is not None
        return bool(self.connack[0].session_present)

    @property
    def granted(self) -> Any:
        """The properties of the CONNACK."""
        assert self.connack is not None
        return self.connack[2]

    @property
    def payloads(self) -> list[bytes]:
        """The payloads that have come."""
        return [bytes(message.payload) for message in self.messages]

    def subscribe(self, *filters: str, qos: int = 2, identifier: int = 0, **options: Any) -> list[int]:
        """Subscribe with one set of options, and wait for the reasons."""
        count = len(self.subacks)
        if self.version == paho.MQTTv5:
            chosen = SubscribeOptions(qos, **options)
            block = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=identifier) if identifier else None
            self.client.subscribe([(each, chosen) for each in filters], properties=block)
        else:
            self.client.subscribe([(each, qos) for each in filters])
        self.until(lambda: len(self.subacks) > count, "the SUBACK")
        return [reason.value for reason in self.subacks[-1]]

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, **fields: Any) -> int:
        """Publish, and wait until it is acknowledged; returns the reason."""
        count = len(self.acknowledged)
        block = properties(PacketTypes.PUBLISH, **fields) if fields else None
        self.client.publish(topic, payload, qos, retain, block)
        self.until(lambda: len(self.acknowledged) > count, "the acknowledgement")
        return int(self.acknowledged[-1].value)

    def receives(self, count: int) -> list[paho.MQTTMessage]:
        """Wait for so many messages."""
        self.until(lambda: len(self.messages) >= count, f"{count} messages")
        return self.messages
