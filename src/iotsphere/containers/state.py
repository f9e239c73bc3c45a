"""State: the database, and who decides requests, folds facts, tells changes and cares for devices over it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from ..adapters.alerts import alert
from ..adapters.client.fleet import ClientFleet
from ..adapters.client.state import ClientState, StateUseCases
from ..adapters.command_messages import CommandMessages
from ..adapters.database.change_file import parse_changes
from ..adapters.database.changes import DatabaseChangeAdapter
from ..adapters.database.mapping import ChangeMap
from ..adapters.edge import Edge
from ..adapters.facts import CommandFacts, NotificationFacts
from ..adapters.poison import fact_letters
from ..adapters.requests import CareMessages, CommandRequests, PreferenceRequests, Requests
from ..adapters.shadow.body import ShadowDocument
from ..adapters.shadow.facts import ShadowFacts
from ..adapters.shadow.keeping import ShadowKeeping
from ..adapters.shadow.requests import ShadowRequests
from ..adapters.telemetry_facts import TelemetryFacts
from ..entities.errors import RequestInvalid
from ..entities.position import Partition, Position, partition_index
from ..entities.shadow import ShadowKey
from ..settings import Settings
from ..use_cases.access.devices import Devices
from ..use_cases.care.device_care import DeviceCare
from ..use_cases.changes.hold import HEARTBEATS
from ..use_cases.changes.propagate import ChangeStores, PropagateChanges
from ..use_cases.command.commands import Commands
from ..use_cases.command.documents import COMMANDS, ROLLOUTS, TARGETS
from ..use_cases.command.rollouts import Reach, Rollouts
from ..use_cases.facts.places import PLACES, StatePlaces
from ..use_cases.facts.processor import Processor
from ..use_cases.facts.tools import LaneTools
from ..use_cases.fleet import DEVICES, Fleet
from ..use_cases.leaving import Leaving, Removed
from ..use_cases.ports.clock import Clock
from ..use_cases.ports.database import Change
from ..use_cases.ports.telemetry import TelemetryStore
from ..use_cases.publish import MessagePublishUseCase
from ..use_cases.roster import Roster
from ..use_cases.shadow.history import HISTORY, ShadowHistory
from ..use_cases.shadow.shadows import Shadows
from ..use_cases.shadow.writer import SHADOWS
from ..use_cases.timers import Timers
from ..use_cases.users import NOTIFICATIONS, PREFERENCES, Notifications, Preferences

TOLD: Final = (SHADOWS, COMMANDS, NOTIFICATIONS, PREFERENCES)
READINGS: Final = ("latest", "history")  # where MongoDB keeps telemetry
COLLECTIONS: Final = (*TOLD, HISTORY, HEARTBEATS, DEVICES, ROLLOUTS, TARGETS, PLACES)
OLD_LOG: Final = (
    "the log was restored without the database: what is missing in it is in the state; restore both together"
)


def kind_of(settings: Settings) -> str:
    """Which driver the database setting asks for. Raises RequestInvalid."""
    log_kind = settings.log.partition(":")[0]
    name = "memory" if settings.database == "sqlite" and log_kind == "memory" else settings.database
    kind = {"mongodb+srv": "mongodb"}.get(name.partition(":")[0], name.partition(":")[0])
    if kind not in ("memory", "sqlite", "mongodb"):
        raise RequestInvalid(f"{name!a} is no database: write sqlite, memory or mongodb://HOST:PORT/NAME")
    return kind


def memory_database(settings: Settings, clock: Clock) -> Any:
    from ..drivers.memory.database import MemoryDatabase

    return MemoryDatabase(clock)


def sqlite_database(settings: Settings, clock: Clock) -> Any:
    from ..drivers.sqlite.database import SqliteDatabase

    return SqliteDatabase(settings.data / "state.db", clock)


def mongodb_database(settings: Settings, clock: Clock) -> Any:
    from ..drivers.mongo.database import MongoDatabase

    return MongoDatabase(settings.database, clock)


def mapped_of(settings: Settings) -> ChangeMap | None:
    """The rules for further collections, from the file that the settings name. Raises RequestInvalid."""
    path: Path | None = settings.changes_file
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestInvalid(f"cannot read {path}: {error}; see IOTSPHERE_CHANGES_FILE") from error
    own = [*(collection.name for collection in COLLECTIONS), *READINGS]
    return parse_changes(text, path.name, settings.domains, own)


def telemetry_of(settings: Settings, kind: str, database: Any) -> TelemetryStore | None:
    """Where telemetry is kept for those who ask a database for it; the embedded ones leave it in the log."""
    if kind != "mongodb":
        return None
    from ..drivers.mongo.telemetry import MongoTelemetry

    return MongoTelemetry(database.link, settings.retention_days)


@dataclass(frozen=True, slots=True)
class Ground:
    """What the state stands on."""

    database: Any
    edge: Edge
    publish: MessagePublishUseCase
    devices: Devices
    clock: Clock
    telemetry: TelemetryStore | None = None


class State:
    """One gateway's shadows, commands and users, and what keeps them going."""

    def __init__(self, ground: Ground, log: Any, documents: Any, mapped: ChangeMap | None = None) -> None:
        database, edge, clock = ground.database, ground.edge, ground.clock
        form = ShadowDocument()
        messages = CommandMessages(edge)
        self.shadows = Shadows(database, form, clock, partial(_ends, log), Removed(database, ground.devices))
        self.history = ShadowHistory(database, form, clock)
        self.commands = Commands(database, ground.publish, messages.request, partial(_known, ground.devices), clock)
        self.notifications = Notifications(database, clock)
        self.preferences = Preferences(database, clock)
        known = partial(_known, ground.devices)
        self.requests = Requests(
            known, ShadowRequests(self.shadows), CommandRequests(self.commands), PreferenceRequests(self.preferences)
        )
        self.client = ClientState(
            StateUseCases(
                self.requests, self.shadows, self.history, self.commands, self.notifications, self.preferences
            ),
            edge,
            clock,
        )
        self.care = DeviceCare(self.shadows, self.commands, CareMessages(edge, clock))
        further = () if mapped is None else mapped.collections
        self.collections = (*COLLECTIONS, *further)
        self.tell = DatabaseChangeAdapter(edge, clock, log.domains, mapped)

        async def alarm(change: Change, reason: str) -> None:
            await ground.publish([self.tell.unkept(change, reason)])

        self.keeping = ShadowKeeping(database, self.shadows, clock, alarm)
        self.listener = PropagateChanges(
            ChangeStores(database, log, documents, TOLD, further),
            ground.publish,
            self.tell,
            self.keeping,
            clock,
        )

        async def behind(partition: Partition, last: Position) -> None:
            found = await self.shadows.clamp(partition.domain, f"{partition.channel}/{partition.number}", *last)
            facts = {"partition": f"{partition.channel}/{partition.number}", "shadows": found, "remedy": OLD_LOG}
            await ground.publish([alert(edge, partition.domain, "log_older_than_database", facts, clock.now())])

        places = StatePlaces(database, log, behind, clock)
        tools = LaneTools(log, clock, ground.publish, fact_letters(edge, clock), places=places)
        self.telemetry = ground.telemetry
        self.processors: list[Processor] = [
            Processor(tools, "shadows", "shadow", ShadowFacts(self.shadows)),
            Processor(tools, "commands", "commands", CommandFacts(self.commands, messages, self.shadows)),
            Processor(tools, "notifications", "users", NotificationFacts(self.notifications)),
        ]
        if ground.telemetry is not None:
            self.processors.append(Processor(tools, "telemetry", "telemetry", TelemetryFacts(ground.telemetry)))
        reach = Reach(Fleet(database, self.shadows), self.commands, self.shadows)
        self.rollouts = Rollouts(database, reach, clock)
        self.roster = Roster(database, ground.devices, log.domains(), clock, Leaving(self.shadows, self.commands))
        self.fleet = ClientFleet(self.rollouts, self.roster, edge, clock)
        self.timers = Timers(self.commands.tend, self.shadows.expire, self.rollouts.tend)


async def _ends(log: Any, key: ShadowKey) -> dict[str, tuple[int, int]]:
    """Where the log ends for what tells the state of a device."""
    ends: dict[str, tuple[int, int]] = {}
    for channel in ("shadow", "commands"):
        partitions = log.partitions(key.domain, channel)
        partition = partitions[partition_index(key.device, len(partitions))]
        ends[f"{channel}/{partition.number}"] = tuple((await log.bounds(partition)).last)
    return ends


async def _known(devices: Devices, domain: str, device: str) -> bool:
    return await devices.known(domain, device) is not None
