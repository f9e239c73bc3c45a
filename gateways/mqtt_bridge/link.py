"""One connection to an external broker, through aiomqtt: made anew for each attempt, and never used again.

aiomqtt 2.5.1 has no manual acknowledgement and drops what its queue cannot hold, so its callbacks are replaced by our own
on the client inside it. Everything that reaches in there is in this module, and a test pins the version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import aiomqtt
from paho.mqtt.client import Client as Paho
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.subscribeoptions import SubscribeOptions

from ...adapters.bridge_file import BrokerSpec
from ...adapters.bridge_messages import Arrival, Outgoing, user_properties
from ...adapters.mqtt.properties import NONE
from ...entities.errors import BrokerUnavailable
from .options import MAX_PACKET_BYTES, BridgeOptions
from .reading import Context, code_of, context_of, password_of, properties_of

NO_ANSWER: Final = -1
SESSION_TAKEN_OVER: Final = 0x8E
PROPERTY_BYTES: Final = 512
REASON_S: Final = 0.2
_BAD_LOGIN: Final = frozenset((0x86, 0x87, 4, 5))


class Lost(NamedTuple):
    """Why a connection ended. ``code``: the broker's reason code, None when it said nothing."""

    why: str
    code: int | None = None


class BrokerLink:
    """A connection of ``client_id``. ``receive`` is called in the loop with each message, as soon as it came.

    ``opened`` may be set; it is called before the first message, with whether the broker still had our session. ``lost``
    is done when the connection has ended.
    """

    def __init__(
        self,
        broker: BrokerSpec,
        client_id: str,
        options: BridgeOptions,
        receive: Callable[[Arrival], None],
    ) -> None:
        self._broker = broker
        self._client_id = client_id
        self._options = options
        self._receive = receive
        self.opened: Callable[[bool], None] = lambda _: None
        self._client: aiomqtt.Client | None = None
        self._context: Context | None = None
        self._entered = False
        self._answers: dict[int, asyncio.Future[int]] = {}
        self.lost: asyncio.Future[Lost] = asyncio.get_running_loop().create_future()
        self.window = options.window
        self.max_packet = 0

    # -- its life -----------------------------------------------------------------------------------------------------

    async def open(self, filters: Sequence[str], stale: Sequence[str], shared: bool) -> None:
        """Connect, give up ``stale`` filters and subscribe to the others. Raises BrokerUnavailable."""
        try:
            client = self._client = self._make()
            await self._enter(client)
            if self._inner(client).socket() is None:
                raise BrokerUnavailable("the broker closed the connection at once")
            self._entered = True
            client._disconnected.add_done_callback(self._ended)
            await self._unless_lost(self._choose(client, filters, stale, shared))
        except aiomqtt.MqttError as error:
            raise self._unavailable(error) from error
        except (OSError, ValueError) as error:
            raise BrokerUnavailable(f"cannot connect to {self._place}: {error}") from error

    async def _enter(self, client: aiomqtt.Client) -> None:
        """Connect. aiomqtt does so in a thread, which a cancellation would leave behind with an open socket."""
        entering = asyncio.ensure_future(client.__aenter__())
        try:
            await asyncio.wait((entering, self.lost), return_when=asyncio.FIRST_COMPLETED)
            if not entering.done():
                await asyncio.wait((entering,), timeout=REASON_S)
            if not entering.done():
                entering.cancel()
                await asyncio.gather(entering, return_exceptions=True)
                raise BrokerUnavailable(f"{self._place} closed the connection without an answer")
            entering.result()
        except asyncio.CancelledError:
            if self._inner(client).socket() is None:
                await asyncio.wait((entering,), timeout=self._options.connect)
            entering.cancel()
            await asyncio.gather(entering, return_exceptions=True)
            raise

    async def _unless_lost(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work, but not longer than the connection stands: aiomqtt would wait for answers that cannot come."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self.lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            raise BrokerUnavailable(f"{self._place} ended the connection: {self.lost.result().why}")
        task.result()

    async def _choose(self, client: aiomqtt.Client, filters: Sequence[str], stale: Sequence[str], shared: bool) -> None:
        if stale:
            await client.unsubscribe(list(stale))
        if not filters:
            return
        # Retained As Published stays off, so that RETAIN says one thing only: this is a replay. Shared subscriptions
        # know no No Local (MQTT 5 section 3.8.3.1).
        once = SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
        wanted = [
            (text, SubscribeOptions(qos=1, noLocal=not shared, retainAsPublished=False, retainHandling=once))
            for text in filters
        ]
        for text, reason in zip(filters, await client.subscribe(wanted), strict=True):
            code = code_of(reason)
            if code != 1:
                why = "grants QoS 0 only" if code == 0 else f"refuses (0x{code or 0:02X})"
                raise BrokerUnavailable(
                    f"{self._place} {why} for {text[:80]!a}: allow {self._client_id!a} to subscribe to it at QoS 1"
                )

    def drop(self, why: str) -> None:
        """End the connection at once, without a goodbye."""
        self._end(Lost(why))
        # Not from within a callback of paho, which holds a lock that closing takes as well.
        asyncio.get_running_loop().call_soon(self._cut)

    async def close(self) -> None:
        """Say goodbye where the broker still listens; the session stays. Then cut what is left."""
        client = self._client
        if client is not None and self._entered and not self.lost.done():
            with suppress(aiomqtt.MqttError):
                await client.__aexit__(None, None, None)
        self._end(Lost("closed"))
        self._cut()

    def _cut(self) -> None:
        if self._client is not None:
            self._inner(self._client)._sock_close()
            gone = self._client._disconnected
            if gone.done() and not gone.cancelled():
                gone.exception()  # looked at, so that asyncio does not complain that nobody did
        if self._context is not None and self._context.last is not None:
            self._context.last.close()

    def _ended(self, future: asyncio.Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        code = code_of(error.rc) if isinstance(error, aiomqtt.MqttCodeError) else None
        self._end(Lost("the broker closed the connection" if error is None else str(error), code))

    def _end(self, lost: Lost) -> None:
        if not self.lost.done():
            self.lost.set_result(lost)
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_result(NO_ANSWER)

    # -- messages -----------------------------------------------------------------------------------------------------

    def acknowledge(self, packet_id: int) -> bool:
        """Send a PUBACK; False when the connection has ended.

        The broker wants them in the order of its messages (MQTT 5 section 4.6).
        """
        if self._client is None or self.lost.done() or self._inner(self._client).socket() is None:
            return False
        return self._inner(self._client).ack(packet_id, 1) == 0

    def fits(self, outgoing: Outgoing) -> bool:
        """Whether the broker takes packets of this size."""
        size = len(outgoing.payload) + len(outgoing.topic.encode()) + PROPERTY_BYTES
        return not self.max_packet or size <= self.max_packet

    def publish(self, outgoing: Outgoing, origin: str) -> asyncio.Future[int]:
        """Send at QoS 1, never retained. The result is the PUBACK's reason code, or NO_ANSWER when the connection ended."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._client is None or self.lost.done():
            answer.set_result(NO_ANSWER)
            return answer
        properties: Any = PahoProperties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho's own lack
        properties.UserProperty = user_properties(outgoing, origin)
        if outgoing.correlation_id is not None:
            properties.CorrelationData = outgoing.correlation_id.encode()
        if outgoing.expires_in is not None:
            properties.MessageExpiryInterval = outgoing.expires_in
        sent = self._inner(self._client).publish(outgoing.topic, outgoing.payload, 1, False, properties)
        if sent.rc != 0:
            answer.set_result(NO_ANSWER)
        else:
            self._answers[sent.mid] = answer
        return answer

    # -- inside aiomqtt -----------------------------------------------------------------------------------------------

    def _make(self) -> aiomqtt.Client:
        broker = self._broker
        self._context = context_of(broker) if broker.tls else None
        wanted: Any = PahoProperties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho's own lack
        wanted.SessionExpiryInterval = broker.session_seconds
        wanted.ReceiveMaximum = broker.receive_maximum
        wanted.MaximumPacketSize = MAX_PACKET_BYTES
        client = aiomqtt.Client(
            broker.host,
            broker.port,
            identifier=self._client_id,
            username=broker.username,
            password=password_of(broker),
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=False,
            properties=wanted,
            # paho pings after one keep alive and gives up after two, each a second late at most.
            keepalive=max(1, int(broker.keep_alive * 0.75) - 1),
            timeout=self._options.connect,
            max_inflight_messages=self._options.window,
            tls_context=self._context,
        )
        paho = self._inner(client)
        paho.connect_timeout = self._options.connect
        paho.manual_ack_set(True)
        paho.on_message = self._on_message
        paho.on_publish = self._on_publish
        inner: Any = paho.on_connect
        ended: Any = paho.on_disconnect

        def on_disconnect(*given: Any) -> None:
            ended(*given)
            if not self._entered:  # aiomqtt would go on waiting for an answer
                self._end(Lost("the broker closed the connection", code_of(given[3])))

        def on_connect(*given: Any) -> None:
            _, _, flags, reason, properties = given
            if code_of(reason) == 0:
                self.window = min(self.window, getattr(properties, "ReceiveMaximum", self.window))
                self.max_packet = getattr(properties, "MaximumPacketSize", 0)
                self.opened(bool(flags.session_present))
            inner(*given)

        paho.on_connect = on_connect
        paho.on_disconnect = on_disconnect
        return client

    def _on_message(self, _paho: Paho, _userdata: object, message: MQTTMessage) -> None:
        topic = message._topic.decode("utf-8", "backslashreplace")
        given = message.properties
        properties = NONE if given is None else properties_of(given)
        packet_id = message.mid if message.qos else 0
        self._receive(
            Arrival(topic, bytes(message.payload), packet_id, bool(message.dup), bool(message.retain), properties)
        )

    def _on_publish(self, _paho: Paho, _userdata: object, packet_id: int, reason: Any, _properties: object) -> None:
        answer = self._answers.pop(packet_id, None)
        if answer is not None and not answer.done():
            answer.set_result(code_of(reason) or 0)

    @staticmethod
    def _inner(client: aiomqtt.Client) -> Paho:
        return client._client

    @property
    def _place(self) -> str:
        return f"the broker at {self._broker.host}:{self._broker.port}"

    def _unavailable(self, error: aiomqtt.MqttError) -> BrokerUnavailable:
        code = code_of(error.rc) if isinstance(error, aiomqtt.MqttCodeError) else None
        remedy = "; check `username` and `password_file`" if code in _BAD_LOGIN else ""
        return BrokerUnavailable(f"{self._place} does not let us in: {error}{remedy}", reason_code=code)
