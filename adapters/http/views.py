"""From entities to the models of the API's answers."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import orjson

from ...entities.message import Entry
from ...entities.position import Partition, Position
from ...use_cases.access.devices import Device
from ...use_cases.dead_letters import Letter, Redriven
from ...use_cases.history import LatestPage, Page
from ...use_cases.ledger import LedgerReport
from ...use_cases.trace import MessageTrace
from ..client.protocol import gap_facts
from ..timestamps import iso
from .models_admin import DeadLetterBody, DeviceBody, RedrivenBody
from .models_state import ChannelBody, LedgerBody, PassageBody, PlaceBody, ReaderBody, TraceBody


def position_text(partition: Partition, position: Position) -> str:
    """A place in the log: channel/partition/epoch-offset."""
    return f"{partition.channel}/{partition.number}/{position.epoch}-{position.offset}"


def history(page: Page, cursor: str) -> bytes:
    """A page of history as JSON; the envelopes' bytes go in as they are."""
    rest = orjson.dumps({"cursor": cursor, "gaps": [gap_facts(gap) for gap in page.gaps], "more": page.more})
    return b'{"messages":[%b],%b' % (b",".join(entry.record.body for entry in page.entries), rest[1:])


def latest(page: LatestPage) -> bytes:
    """A page of last values as JSON."""
    bodies = b",".join(entry.record.body for entry in page.entries)
    return b'{"messages":[%b],"after":%b}' % (bodies, orjson.dumps(page.after))


def dead_letter(found: Letter, with_raw: bool) -> DeadLetterBody:
    """A dead letter."""
    letter = found.letter
    return DeadLetterBody(
        id=found.letter_id,
        reason=letter.reason,
        stage=letter.stage,
        topic=letter.topic,
        source=letter.source,
        received_at=iso(letter.received_at),
        size=letter.size,
        sha256=letter.sha256,
        attempts=letter.attempts,
        detail=letter.detail,
        message_id=letter.message_id,
        state=found.state,
        decided_at=_iso(found.decided_at),
        redriven_as=found.redriven_as,
        complete=len(letter.raw) == letter.size and hashlib.sha256(letter.raw).hexdigest() == letter.sha256,
        raw=b64encode(letter.raw).decode() if with_raw else None,
    )


def redriven(found: Redriven) -> RedrivenBody:
    """Where a redriven message went."""
    return RedrivenBody(
        message_id=found.message_id,
        position=position_text(found.partition, found.position),
        duplicate=found.duplicate,
    )


def device(found: Device) -> DeviceBody:
    """A registered device."""
    return DeviceBody(device_id=found.device_id, registered_at=iso(found.registered_at), since=iso(found.since))


def ledger(report: LedgerReport) -> LedgerBody:
    """The accounts of a domain."""
    return LedgerBody(
        domain=report.domain,
        imbalance=report.imbalance,
        channels=[
            ChannelBody(channel=one.channel, partitions=one.partitions, accepted=one.accepted, retained=one.retained)
            for one in report.channels
        ],
        readers=[
            ReaderBody(
                reader=one.reader,
                kind=one.kind,
                channel=one.channel,
                accepted=one.accepted,
                applied=one.applied,
                superseded=one.superseded,
                expired=one.expired,
                dead_lettered=one.dead_lettered,
                lost=one.lost,
                pending=one.pending,
                imbalance=one.imbalance,
            )
            for one in report.readers
        ],
        dead_letters=dict(report.dead_letters),
    )


def trace(found: MessageTrace) -> TraceBody:
    """What is known of a message."""
    return TraceBody(
        message_id=found.message_id,
        place=_place(found.entry) if found.entry is not None else None,
        dead_letter=dead_letter(found.dead_letter, False) if found.dead_letter is not None else None,
        readers=[PassageBody(reader=one.reader, passed=one.passed) for one in found.readers],
    )


def _place(entry: Entry) -> PlaceBody:
    record = entry.record
    return PlaceBody(
        topic=record.topic,
        position=position_text(record.partition, entry.position),
        timestamp=iso(record.timestamp),
        appended_at=iso(entry.appended_at),
        expires_at=_iso(record.expires_at),
    )


def _iso(time: int) -> str | None:
    return iso(time) if time else None
