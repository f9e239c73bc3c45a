"""One run: listeners, then the load, then what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .bitmaps import Missing, compare
from .machine import CpuMeter
from .programs import BenchFailed, Program
from .subjects import Subject

LISTENS_WITHIN_S = 30.0
CONNECTS_WITHIN_S = 90.0
DRAINS_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """What the devices do. ``rate``: messages a second over all of them, 0 = as fast as ``window`` in flight allows.

    ``pad``: bytes of text added to each payload. ``tick_us``: microseconds between the groups in which messages fall
    due. ``suffix``: what follows the device in the topic. ``count``: messages after which to end a load without a rate, 0 =
    none.
    """

    rate: float
    seconds: float
    warmup: float = 1.0
    window: int = 50
    format: str = "plain"
    pad: int = 0
    tick_us: int = 500
    suffix: str = "telemetry"
    count: int = 0

    def arguments(self) -> list[str]:
        """The load generator's command line."""
        return [word for name, value in asdict(self).items() for word in (f"--{name.replace('_', '-')}", str(value))]


@dataclass(frozen=True, slots=True)
class Audience:
    """Who listens at each door: so many ``clients``, told the percentiles of each ``slice`` seconds (0 = not)."""

    clients: int = 1
    slice: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """One run's figures. ``rate``: messages a second. ``puback``, ``delivery``: ms. ``cpu``: seconds, by process.

    ``seconds``: from the first message sent to the last one delivered; the rate and the CPU seconds are over this span.
    ``delivered``: over all clients. ``others``: CPU seconds that everything else on the machine took, which was missing
    here. Where several load generators or listeners took part, the times are those of the worst.
    """

    rate: float
    sent: int
    acked: int
    delivered: int
    lost: int
    reordered: int
    duplicated: int
    phantom: int
    puback: dict[str, float]
    delivery: dict[str, float]
    cpu: dict[str, float]
    seconds: float
    others: float
    frames: int
    slices: tuple[dict[str, float], ...] = ()

    @property
    def is_clean(self) -> bool:
        """True when nothing was lost, reordered, repeated or invented."""
        return not (self.lost or self.reordered or self.duplicated or self.phantom)

    def share(self, process: str) -> float:
        """The share of one core that a process took."""
        return self.cpu[process] / self.seconds

    def as_json(self) -> dict[str, Any]:
        """All figures."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Heard:
    """What a listener had to say in the end, and what the comparison with the load generators' files showed."""

    answer: dict[str, Any]
    missing: Missing
    slices: tuple[dict[str, float], ...]


@dataclass(frozen=True, slots=True)
class Listening:
    """A running listener and the file in which it will leave what it has received."""

    program: Program
    received: Path
    clients: int

    @classmethod
    async def start(
        cls, subject: Subject, devices: Path, received: Path, audience: Audience = Audience(), *more: str
    ) -> Listening:
        """Start it and wait until it is subscribed. ``more``: further words of its command line. Raises BenchFailed."""
        arguments = ["--devices", str(devices), *subject.listener, "--received", str(received)]
        arguments += ["--connections", str(audience.clients), "--slice", str(audience.slice), *more]
        program = await Program.start("listen", arguments)
        try:
            await program.answer(within=LISTENS_WITHIN_S)
        except BaseException:
            await program.end()
            raise
        return cls(program, received, audience.clients)

    async def hear(self, acked: int, acked_files: Sequence[Path], within: float = DRAINS_WITHIN_S) -> Heard:
        """Wait until everything acknowledged was received, or nothing comes any more, and compare."""
        await self.program.tell(f"expect {acked}")
        slices = []
        while (answer := await self.program.answer(within)).get("event") == "slice":
            slices.append({name: float(value) for name, value in answer.items() if name != "event"})
        await self.program.wait()
        missing = await asyncio.to_thread(compare, acked_files, self.received, self.clients)
        return Heard(answer, missing, tuple(slices))


async def generate(subject: Subject, load: Load, devices: Path, acked: Path) -> Program:
    """Start a load generator, which says when its devices are connected and again when it is done."""
    host, port = subject.mqtt
    common = ["--devices", str(devices), "--host", host, "--port", str(port), "--acked", str(acked)]
    return await Program.start("load", [*common, *load.arguments()])


async def measure(
    subjects: Subject | Sequence[Subject], load: Load, folder: Path, audience: Audience = Audience()
) -> Result:
    """Run the load against a subject, or half of it against each of two that share a log; every door is listened to.

    ``folder`` takes what the programs write. Raises BenchFailed when the run cannot be trusted.
    """
    parts = [subjects] if isinstance(subjects, Subject) else list(subjects)
    everybody = device_list(folder / "devices", parts)
    own = [device_list(folder / f"devices-{number}", [part]) for number, part in enumerate(parts)]
    acked_files = [folder / f"acked-{number}" for number in range(len(parts))]
    each = replace(load, rate=load.rate / len(parts))
    listeners: list[Listening] = []
    generators: list[Program] = []
    try:
        for number, part in enumerate(parts):
            listeners.append(await Listening.start(part, everybody, folder / f"received-{number}", audience))
        for part, devices, acked in zip(parts, own, acked_files, strict=True):
            generators.append(await generate(part, each, devices, acked))
        started = [await program.answer(within=CONNECTS_WITHIN_S) for program in generators]
        meter = CpuMeter({name: pid for part in parts for name, pid in part.pids.items()})
        for listener in listeners:
            await listener.program.tell(f"from {max(int(one['at']) for one in started) + int(load.warmup * 1e9)}")
        sent = [await program.answer(within=load.seconds + 60) for program in generators]
        acked_count = sum(one["acked"] for one in sent)
        heard = await asyncio.gather(*(one.hear(acked_count, acked_files) for one in listeners))
        cpu, busy = meter.spent(), meter.busy()
        for program in generators:
            await program.wait()
    finally:
        for program in (*generators, *(one.program for one in listeners)):
            await program.end()
    if heard[0].missing.unacknowledged:
        count = sum(one["sent"] for one in sent)
        raise BenchFailed(f"{heard[0].missing.unacknowledged} of {count} messages were never acknowledged")
    answers = [one.answer for one in heard]
    cpu |= {"load": sum(one["cpu_seconds"] for one in sent), "listener": sum(one["cpu_seconds"] for one in answers)}
    span = (max(one["last_ns"] for one in answers) - min(one["at"] for one in started)) / 1e9
    if span <= 0:
        raise BenchFailed("not one message arrived")
    delivered = sum(one["distinct"] for one in answers)
    return Result(
        rate=delivered / (len(parts) * audience.clients) / span,
        sent=sum(one["sent"] for one in sent),
        acked=acked_count,
        delivered=delivered,
        lost=sum(one.missing.lost for one in heard),
        reordered=sum(one["reordered"] for one in answers),
        duplicated=sum(one["duplicated"] for one in answers),
        phantom=sum(one.missing.phantom for one in heard) + sum(one["foreign"] for one in answers),
        puback=times(sent),
        delivery=times(answers),
        cpu=cpu,
        seconds=span,
        others=max(0.0, busy - sum(cpu.values())),
        frames=sum(one["frames"] for one in answers),
        slices=heard[0].slices,
    )


def device_list(path: Path, subjects: Sequence[Subject]) -> Path:
    """Write the file of the subjects' devices, which both programs read."""
    who = [one for subject in subjects for one in subject.credentials]
    path.write_text("".join(f"{one.device_id} {one.username} {one.password}\n" for one in who))
    return path


def times(answers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The percentiles in ms; of several programs those of the worst."""
    return {name: max(float(one[f"{name}_ms"]) for one in answers) for name in ("p50", "p99", "p999", "max")}
