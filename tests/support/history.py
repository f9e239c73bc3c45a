"""A judge of histories: what was published and acknowledged, against what each consumer was delivered.

It knows nothing of the product. Its matching of filters is its own, so that a fault in the product's cannot hide here.

| finding | meaning |
|---|---|
| lost | acknowledged and covered by the consumer's filters, but neither delivered nor inside a gap that it was told |
| gap | a run of lost messages that later deliveries of the same device jumped over without a word |
| phantom | delivered though never published so: unknown, or with another id, topic or content |
| leak | delivered though no filter of the consumer, or none of its rights, covers the topic |
| duplicate | delivered to the consumer before |
| reorder | delivered for the first time, but behind a later message of the same device |
| overclaim | delivered, though a gap told the consumer that it was lost |

A delivery is at most one of phantom, leak, duplicate and reorder, in this order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

KINDS: Final = ("lost", "gap", "phantom", "leak", "duplicate", "reorder", "overclaim")
EXAMPLES: Final = 5


class Published(NamedTuple):
    """A message as its sender knows it. ``seq`` grows by its device's own order of sending.

    ``message_id``: None when the gateway was to choose it. ``content``: anything that compares; None = not compared.
    """

    device: str
    seq: int
    topic: str
    message_id: str | None = None
    content: object = None
    acked: bool = True


class Delivered(NamedTuple):
    """A message as a consumer got it."""

    device: str
    seq: int
    topic: str
    message_id: str | None = None
    content: object = None


class DeclaredGap(NamedTuple):
    """What a consumer was told that it can no longer get: sequence numbers of one device, both ends included."""

    device: str
    first: int
    last: int


@dataclass(slots=True)
class Consumer:
    """A consumer, with its deliveries in the order in which they came, over all its connections.

    ``rights``: the filters that its grants cover; None = not limited.
    """

    name: str
    filters: Sequence[str]
    rights: Sequence[str] | None = None
    deliveries: list[Delivered] = field(default_factory=list)
    gaps: list[DeclaredGap] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """How often each fault was found, with the first few examples of each."""

    published: int = 0
    acked: int = 0
    delivered: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    examples: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    @property
    def faults(self) -> dict[str, int]:
        """The kinds that were found, with how often; empty for a clean history."""
        return {kind: count for kind, count in self.counts.items() if count}

    def add(self, kind: str, consumer: Consumer, what: str) -> None:
        """Count a finding."""
        self.counts[kind] += 1
        if len(self.examples[kind]) < EXAMPLES:
            self.examples[kind].append(f"{consumer.name}: {what}")

    def __str__(self) -> str:
        lines = [f"{self.published} published, {self.acked} acknowledged, {self.delivered} delivered: "]
        lines[0] += ", ".join(f"{count} {kind}" for kind, count in self.faults.items()) or "no fault"
        lines += [f"  {kind}: {text}" for kind in KINDS for text in self.examples[kind]]
        return "\n".join(lines)


def covers(wanted: str, topic: str) -> bool:
    """Tell whether an MQTT filter selects a topic, by the letter of MQTT 5 section 4.7."""
    return _covers(wanted.split("/"), topic.split("/"))


def _covers(wanted: list[str], levels: list[str]) -> bool:
    if not wanted:
        return not levels
    if wanted[0] == "#":
        return True
    return bool(levels) and wanted[0] in ("+", levels[0]) and _covers(wanted[1:], levels[1:])


def check(published: Iterable[Published], consumers: Iterable[Consumer]) -> Report:
    """Judge a history. A message that was sent again is listed again, with the same content, or only once.

    Raises ValueError when the published side contradicts itself: one sequence number with two contents.
    """
    report = Report()
    sent = _by_device(published)
    for table in sent.values():
        report.published += len(table)
        report.acked += sum(1 for message in table.values() if message.acked)
    for consumer in consumers:
        report.delivered += len(consumer.deliveries)
        rights = consumer.rights
        allowed = {
            topic: any(covers(wanted, topic) for wanted in consumer.filters)
            and (rights is None or any(covers(right, topic) for right in rights))
            for topic in {message.topic for table in sent.values() for message in table.values()}
        }
        seen = _judge_deliveries(report, consumer, sent, allowed)
        _judge_absences(report, consumer, sent, allowed, seen)
    return report


def _by_device(published: Iterable[Published]) -> dict[str, dict[int, Published]]:
    sent: dict[str, dict[int, Published]] = {}
    for message in published:
        table = sent.setdefault(message.device, {})
        earlier = table.setdefault(message.seq, message)
        if earlier is not message:
            if earlier[:5] != message[:5]:
                raise ValueError(f"{message.device} sent two different messages as number {message.seq}")
            table[message.seq] = message._replace(acked=earlier.acked or message.acked)
    return sent


def _judge_deliveries(
    report: Report, consumer: Consumer, sent: Mapping[str, Mapping[int, Published]], allowed: Mapping[str, bool]
) -> dict[str, set[int]]:
    """Judge what came; returns the sequence numbers that came, by device."""
    nothing: Mapping[int, Published] = {}
    all_seen: dict[str, set[int]] = {device: set() for device in sent}
    highest = dict.fromkeys(sent, -1)
    for delivery in consumer.deliveries:
        device, seq, topic, message_id, content = delivery
        original = sent.get(device, nothing).get(seq)
        if original is None:
            report.add("phantom", consumer, f"{device} never published {seq} ({topic})")
            continue
        seen = all_seen[device]
        if (
            topic != original.topic
            or (original.message_id is not None and message_id != original.message_id)
            or (original.content is not None and content != original.content)
        ):
            report.add("phantom", consumer, f"{device} {seq} was altered: {original} came as {delivery}")
            seen.add(seq)
        elif not allowed[topic]:
            report.add("leak", consumer, f"{device} {seq} came on {topic}")
        elif seq in seen:
            report.add("duplicate", consumer, f"{device} {seq} came again")
        else:
            seen.add(seq)
            if seq < highest[device]:
                report.add("reorder", consumer, f"{device} {seq} came behind {highest[device]}")
            else:
                highest[device] = seq
    return all_seen


def _judge_absences(
    report: Report,
    consumer: Consumer,
    sent: Mapping[str, Mapping[int, Published]],
    allowed: Mapping[str, bool],
    all_seen: Mapping[str, set[int]],
) -> None:
    gaps: dict[str, list[DeclaredGap]] = {}
    for gap in consumer.gaps:
        gaps.setdefault(gap.device, []).append(gap)
    for device, table in sent.items():
        seen, told = all_seen[device], gaps.get(device, [])
        lost = sorted(
            seq
            for seq in table.keys() - seen
            if table[seq].acked and allowed[table[seq].topic] and not any(g.first <= seq <= g.last for g in told)
        )
        for seq in lost:
            report.add("lost", consumer, f"{device} {seq} on {table[seq].topic}")
        if lost:
            order = sorted(seen)
            for before in sorted({bisect_left(order, seq) for seq in lost}):
                if before < len(order):
                    report.add("gap", consumer, f"{device} came to {order[before]} without a word of what lay before")
        for gap in told:
            for seq in sorted(seq for seq in seen if gap.first <= seq <= gap.last):
                report.add("overclaim", consumer, f"{device} {seq} came, but was declared lost")
