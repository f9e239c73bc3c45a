"""One connection to an external broker, through aiomqtt: made anew for each attempt, and never used again.

aiomqtt 2.5.1 has no manual acknowledgement and drops what its queue cannot hold, so its callbacks are replaced by our own
on the client inside it. Everything that reaches in there is in this module, and a test pins the version.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import aiomqtt
from paho.mqtt.client import Client as Paho
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from ...adapters.bridge.file import BrokerSpec
from ...adapters.bridge.messages import Arrival, Outgoing
from ...adapters.mqtt.properties import NONE
from ...entities.errors import BrokerUnavailable
from .library import Context, client_of, code_of, context_of, properties_of, publish_properties
from .options import BridgeOptions

NO_ANSWER: Final = -1
SESSION_TAKEN_OVER: Final = 0x8E
PROPERTY_BYTES: Final = 512
REASON_S: Final = 0.2
BURST: Final = 64
_FIRST: Final = asyncio.FIRST_COMPLETED
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
        self._arrived = 0
        self._closing = False
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
            await asyncio.wait((entering, self.lost), return_when=_FIRST)
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
        before = -1
        try:
            # Behind a session full of messages the answer is late, and as long as they come it is on its way.
            while not task.done() and not self.lost.done() and before != self._arrived:
                before = self._arrived
                await asyncio.wait((task, self.lost), timeout=self._options.answer, return_when=_FIRST)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            why = self.lost.result().why if self.lost.done() else "no answer to SUBSCRIBE"
            raise BrokerUnavailable(f"{self._place} does not serve us: {why}")
        task.result()

    async def _choose(self, client: aiomqtt.Client, filters: Sequence[str], stale: Sequence[str], shared: bool) -> None:
        if stale:
            await client.unsubscribe(list(stale), timeout=math.inf)
        if not filters:
            return
        # Retained As Published stays off, so that RETAIN says one thing only: this is a replay. Shared subscriptions
        # know no No Local (MQTT 5 section 3.8.3.1).
        once = SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
        wanted = [
            (text, SubscribeOptions(qos=1, noLocal=not shared, retainAsPublished=False, retainHandling=once))
            for text in filters
        ]
        for text, reason in zip(filters, await client.subscribe(wanted, timeout=math.inf), strict=True):
            code = code_of(reason)
            if code != 1:
                why = "grants QoS 0 only" if code == 0 else f"refuses (0x{code or 0:02X})"
                raise BrokerUnavailable(
                    f"{self._place} {why} for {text[:80]!a}: allow {self._client_id!a} to subscribe to it at QoS 1"
                )

    def drop(self, why: str) -> None:
        """Call the connection lost; what was acknowledged before still leaves with ``close``."""
        self._end(Lost(why))

    async def close(self) -> None:
        """Say goodbye where the broker still listens; the session stays. Then cut what is left."""
        self._closing = True
        client = self._client
        if client is not None and self._entered and self._inner(client).socket() is not None:
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
        if self._closing or self._client is None or self.lost.done() or self._inner(self._client).socket() is None:
            return False  # behind a goodbye it would not arrive
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
        sent = self._inner(self._client).publish(
            outgoing.topic, outgoing.payload, 1, False, publish_properties(outgoing, origin)
        )
        if sent.rc != 0:
            answer.set_result(NO_ANSWER)
        else:
            self._answers[sent.mid] = answer
        return answer

    # -- inside aiomqtt -----------------------------------------------------------------------------------------------

    def _make(self) -> aiomqtt.Client:
        broker = self._broker
        self._context = context_of(broker) if broker.tls else None
        client = client_of(broker, self._client_id, self._options, self._context)
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

        read = paho.loop_read

        def read_many(max_packets: int = 1) -> MQTTErrorCode:
            """As paho's, which reads one packet for each turn of the loop, until no further message comes."""
            for _ in range(BURST):
                before = self._arrived
                code = read(max_packets)
                if code or self._arrived == before:
                    break
            return code

        paho.loop_read = read_many  # type: ignore[method-assign]  # what aiomqtt calls when the socket has data
        paho.on_connect = on_connect
        paho.on_disconnect = on_disconnect
        return client

    def _on_message(self, _paho: Paho, _userdata: object, message: MQTTMessage) -> None:
        self._arrived += 1
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
