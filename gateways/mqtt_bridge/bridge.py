"""The bridge to an external MQTT broker: its life between connections, and what it says about its state.

It looks for the broker for as long as it runs, with a new client each time. Only when another process keeps taking its
session it stops, so that one of the two can work.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from ...adapters.bridge.file import BridgeSpec
from ...adapters.bridge.messages import Admitted, Arrival, Inward, Outward, principal_of
from ...adapters.client.protocol import gap_facts
from ...entities.errors import BrokerUnavailable, IotSphereError, RequestInvalid, Unavailable
from ...entities.position import Gap
from ...entities.topic import parse_filter
from ...use_cases.bridges import BridgeRegister
from ...use_cases.forward import ForwardUseCase
from .alarms import Alarms
from .decisions import Decisions
from .inbound import Inbound
from .link import BrokerLink, Lost
from .options import BridgeOptions, BridgeUseCases
from .outbound import Outbound
from .session import SessionClaim

WATCH_EVERY_S: Final = 1.0

log = structlog.get_logger("iotsphere.bridge")


class MqttBridge:
    """One bridge. ``counts``: what happened, by fixed names, never by anything that the broker chose."""

    def __init__(self, spec: BridgeSpec, use_cases: BridgeUseCases, options: BridgeOptions | None = None) -> None:
        self.spec = spec
        self.counts: Counter[str] = Counter()
        self.stopped: BrokerUnavailable | None = None
        self._use = use_cases
        self._options = options or BridgeOptions()
        self._register = BridgeRegister(use_cases.documents, spec.domain, spec.name)
        self._alarms = Alarms(use_cases, spec, self.counts, self._options.alert_every)
        self._claim = SessionClaim(self._register, use_cases.clock, self._options, self._alarms, self.counts)
        self._outward = Outward(use_cases.edge, spec)
        self._outbound = Outbound(use_cases, self._options, self._outward, self.counts, self._looping)
        self._inward: Inward | None = None
        self._inbound: Inbound | None = None
        self._forward: ForwardUseCase | None = None
        self._why = "it has not connected yet"
        self._tasks: list[asyncio.Task[None]] = []

    # -- what it says -------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The same after a restart, and another one for each process and each log. Known once it has started.

        The log's mark keeps two gateways apart that were both left with the default name.
        """
        return self._claim.client_id

    @property
    def connected(self) -> bool:
        """Whether the broker serves us."""
        return self._outbound.current.link is not None

    @property
    def unacknowledged(self) -> int:
        """Messages that the broker waits for."""
        return 0 if self._inbound is None else self._inbound.unacknowledged

    @property
    def oldest(self) -> float:
        """Seconds that the oldest of them has waited."""
        return 0.0 if self._inbound is None else self._inbound.oldest

    @property
    def brought_in(self) -> int:
        """Messages that were not carried out, since a bridge had brought them in."""
        return self._outward.brought_in

    async def ready(self) -> None:
        """Raise BrokerUnavailable while nothing can pass, and say why."""
        if self.stopped is not None:
            raise self.stopped
        if not self.connected:
            raise BrokerUnavailable(f"the bridge {self.spec.name!a} has no connection: {self._why}")

    # -- its life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to look for the broker. Raises RequestInvalid for an ordinal outside the slices, and LogUnavailable."""
        spec, options = self.spec, self._options
        if spec.slices > 1 and options.ordinal >= spec.slices:
            raise RequestInvalid(
                f"the bridge {spec.name!a} has {spec.slices} slices, numbered from 0, and this is number "
                f"{options.ordinal}: set IOTSPHERE_BRIDGE_ORDINAL to 0 … {spec.slices - 1}"
            )
        await self._register.divide(spec.slices)
        origin = self._outbound.origin = await self._register.origin()
        await self._claim.load(f"{options.node}-{spec.name}-{options.ordinal}-{origin[:8]}")
        requests = self._use.requests
        asks = (lambda _: False) if requests is None else requests.handles
        self._inward = Inward(self._use.edge, spec, origin, options.ordinal, asks)
        self._inbound = Inbound(self._admit, self._use.publish, self.counts, options)
        if requests is not None and spec.inward:
            decisions = Decisions(requests, principal_of(spec), self.counts, self._decided)
            self._inbound.decisions = decisions
            self._begin("requests", decisions.run)
        self._begin("connection", self._keep_connected)
        self._begin("watch", self._watch)
        if spec.outward:
            channels = {c for rule in spec.outward.rules for c in parse_filter(rule.pattern.filter).channels}
            partitions = [
                p for channel in sorted(channels - {"system"}) for p in self._use.log.partitions(spec.domain, channel)
            ]
            reader = f"{spec.domain}/bridge/{spec.name}"
            self._forward = ForwardUseCase(self._use.log, reader, partitions, self._outbound.send, self._missed)
            self._begin("forward", self._keep_forwarding)

    def _begin(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(work())
        task.add_done_callback(lambda ended: self._ended(name, ended))
        self._tasks.append(task)

    def _ended(self, name: str, task: asyncio.Future[None]) -> None:
        """A bridge with a part missing must not look well."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        self.counts["failures"] += 1
        log.critical("bridge_failed", part=name, exc_info=error)
        self._stop(f"its {name} failed: {error}; see the log, then restart it")

    def _stop(self, why: str) -> None:
        self.stopped = BrokerUnavailable(f"the bridge {self.spec.name!a} has stopped: {why}")
        self._why = why
        self._alarms.raise_alert("bridge_stopped", why=why, clientId=self.client_id)

    async def drain(self, timeout: float) -> None:
        """Take nothing more, finish what is under way both ways, say goodbye; gives up after ``timeout`` seconds."""
        if self._inbound is None:
            return
        parts = [self._inbound.drain(timeout)]
        if self._forward is not None:
            parts.append(self._forward.drain(timeout if self.connected else 0.0))
        await asyncio.gather(*parts)
        if self.connected:
            await self._claim.note(self.filters)
        await self.close()

    async def close(self) -> None:
        """End it. What is not acknowledged stays at the broker, or in the log."""
        if self._inbound is not None:
            self._inbound.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    # -- the connection -----------------------------------------------------------------------------------------------

    def _admit(self, arrival: Arrival) -> Admitted:
        assert self._inward is not None
        return self._inward(arrival, self._use.clock.now())

    def _decided(self, taken: Any, error: IotSphereError | None) -> None:
        assert self._inward is not None
        assert self._inbound is not None
        letter = None if error is None else self._inward.decided_against(taken.record, self._use.clock.now(), error)
        self._inbound.settled(taken, letter)

    async def _keep_connected(self) -> None:
        attempt = 0
        loop = asyncio.get_running_loop()
        while self.stopped is None:
            if self._inbound is not None and self._inbound.crowded:
                self._why = "too much waits for the log"
                await self._inbound.quiet()
            began = loop.time()
            lost = await self._connect()
            attempt = 1 if loop.time() - began >= self._options.stable else attempt + 1
            longest = min(self._options.last_retry, self._options.first_retry * 2.0 ** min(attempt, 30))
            await asyncio.sleep(random.uniform(self._options.first_retry, longest))
            if await self._claim.is_contested(lost):
                self._stop(
                    f"another process takes its session {self.client_id!a} again and again; give each process a name of "
                    "its own with IOTSPHERE_NODE or IOTSPHERE_BRIDGE_ORDINAL, then restart this one"
                )
                return

    async def _connect(self) -> Lost:
        """One connection from its beginning to its end."""
        inbound = self._inbound
        assert inbound is not None
        link = BrokerLink(self.spec.broker, self.client_id, self._options, inbound.receive)

        session_present = False

        def opened(present: bool) -> None:
            nonlocal session_present
            session_present = present
            inbound.opened(link, present)

        link.opened = opened
        filters = self.filters
        try:
            await link.open(filters, self._claim.stale(filters), self.spec.group is not None)
            self.counts["connects"] += 1
            log.info("bridge_connected", bridge=self.spec.name, client=self.client_id, session=session_present)
            self._outbound.current.set(link)
            await self._claim.met(filters, session_present)
            lost = await link.lost
            self.counts["disconnects"] += 1
            self._claim.lost()
            log.warning("bridge_disconnected", bridge=self.spec.name, why=lost.why)
        except BrokerUnavailable as error:
            self.counts["connect_failures"] += 1
            log.warning("bridge_not_connected", bridge=self.spec.name, message=error.message)
            lost = Lost(error.message, link.lost.result().code if link.lost.done() else None)
        finally:
            self._outbound.current.set(None)
            await link.close()
            inbound.lost()
        self._why = lost.why
        return lost

    @property
    def filters(self) -> tuple[str, ...]:
        """What it subscribes to."""
        group = self.spec.group
        return tuple(text if group is None else f"$share/{group}/{text}" for text in self.spec.inward.filters)

    # -- watching -----------------------------------------------------------------------------------------------------

    async def _keep_forwarding(self) -> None:
        forward = self._forward
        assert forward is not None
        delay = self._options.first_retry
        while True:
            try:
                await forward()
            except Unavailable as error:
                log.warning("bridge_cannot_read_the_log", code=error.code, message=error.message)
            await asyncio.sleep(random.uniform(0.5, 1.0) * delay)
            delay = min(delay * 2, self._options.last_retry)

    async def _watch(self) -> None:
        """Nothing may stand still unseen: a broker stops after its Receive Maximum without a word."""
        dropped = 0
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            if self.oldest > self._options.overdue:
                self._alarms.raise_alert(
                    "bridge_acknowledgements_overdue",
                    unacknowledged=self.unacknowledged,
                    oldestSeconds=round(self.oldest, 1),
                )
            if self.counts["dropped_qos0"] > dropped:
                self._alarms.raise_alert("bridge_dropped_qos0", count=self.counts["dropped_qos0"] - dropped)
                dropped = self.counts["dropped_qos0"]

    def _looping(self, device_id: str) -> None:
        self._alarms.raise_alert("loop_detected", device_id, deviceId=device_id, perSecond=self._options.per_device)

    def _missed(self, gap: Gap) -> None:
        self.counts["missed"] += gap.missing
        self._alarms.raise_alert("bridge_messages_missed", str(gap.first), missed=gap_facts(gap))
