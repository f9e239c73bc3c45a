"""What all MQTT connections share: what is behind the door, its counters, and who is connected."""

from __future__ import annotations

import asyncio
from collections import Counter

from ...entities.errors import Refused
from ...entities.message import Record
from ...entities.principal import Principal
from ...entities.topic import parse_topic
from ...use_cases.session.wills import Will
from .admission import MqttAdmission
from .limits import MqttLimits
from .takeovers import Takeovers
from .ties import Connected, Present
from .turn import Turn
from .use_cases import MqttUseCases


class MqttDoor:
    """What connections share. ``online``: the visit of each client, by session key. ``empty``: set without clients.

    ``turn``: gathers plain messages; None lets each read go its own way, as it must where guests play.
    """

    def __init__(self, use_cases: MqttUseCases, limits: MqttLimits) -> None:
        self.use = use_cases
        self.limits = limits
        self.counts: Counter[str] = Counter()
        self.admission = MqttAdmission(limits, self.counts)
        self.clients: dict[Connected, None] = {}
        self.online: dict[str, Present] = {}
        self.draining = False
        self.watches = use_cases.care.watches if use_cases.care is not None else None
        gathers = use_cases.playground is None
        self.turn = Turn(use_cases.edge, use_cases.publish, use_cases.clock, self.counts) if gathers else None
        self.takeovers = Takeovers(use_cases.edge, use_cases.publish, use_cases.clock, self.counts)
        self.empty = asyncio.Event()
        self.empty.set()
        if use_cases.requests is not None:
            use_cases.wills.carry_out = self._carry_out

    def enter(self, client: Connected) -> None:
        """A socket was opened."""
        self.clients[client] = None
        self.empty.clear()

    def forget(self, client: Connected) -> None:
        """A connection is over, with all that it had to do."""
        self.clients.pop(client, None)
        if not self.clients:
            self.empty.set()

    async def _carry_out(self, will: Will, record: Record) -> bool:
        """Carry a will out where its topic asks for that; a refusal is counted, since nobody is there to hear it."""
        requests = self.use.requests
        if requests is None or record.topic != will.topic or not requests.handles(parse_topic(will.topic)):
            return False
        try:
            await requests(Principal(will.kind, will.name, will.domain), record)
        except Refused:
            self.counts["wills_refused"] += 1
        return True
