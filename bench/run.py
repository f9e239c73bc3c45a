"""One run: a listener, then the load, then what came of it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .bitmaps import compare
from .machine import CpuMeter
from .programs import BenchFailed, Program
from .subjects import Subject


@dataclass(frozen=True, slots=True)
class Load:
    """What the devices do. ``rate``: messages a second over all of them, 0 = as fast as ``window`` in flight allows."""

    rate: float
    seconds: float
    warmup: float = 1.0
    window: int = 50
    format: str = "plain"


@dataclass(frozen=True, slots=True)
class Result:
    """One run's figures. ``rate``: messages a second. ``puback``, ``delivery``: ms. ``cpu``: seconds, by process.

    ``seconds``: from the first message sent to the last one delivered; the rate and the CPU seconds are over this span.
    ``others``: CPU seconds that everything else on the machine took, which was missing here.
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

    @property
    def is_clean(self) -> bool:
        """True when nothing was lost, reordered, repeated or invented."""
        return not (self.lost or self.reordered or self.duplicated or self.phantom)

    def as_json(self) -> dict[str, Any]:
        """All figures."""
        return asdict(self)


async def measure(subject: Subject, load: Load, folder: Path) -> Result:
    """Run the load against the subject; ``folder`` takes what the programs write. Raises BenchFailed when it cannot."""
    acked_file, received_file = folder / "acked", folder / "received"
    common = ["--devices", str(_device_list(subject, folder))]
    listener = await Program.start("listen", [*common, *subject.listener, "--received", str(received_file)])
    programs = [listener]
    try:
        await listener.answer(within=30)
        host, port = subject.mqtt
        arguments = ["--host", host, "--port", str(port), "--acked", str(acked_file), "--format", load.format]
        for name in ("rate", "seconds", "warmup", "window"):
            arguments += [f"--{name}", str(getattr(load, name))]
        generator = await Program.start("load", [*common, *arguments])
        programs.append(generator)
        started = await generator.answer(within=90)
        meter = CpuMeter(subject.pids)
        await listener.tell(f"from {int(started['at'] + load.warmup * 1e9)}")
        sent = await generator.answer(within=load.seconds + 60)
        await listener.tell(f"expect {sent['acked']}")
        received = await listener.answer(within=120)
        cpu, busy = meter.spent(), meter.busy()
        for program in programs:
            await program.wait()
    finally:
        for program in programs:
            await program.end()
    missing = await asyncio.to_thread(compare, acked_file, received_file)
    if missing.unacknowledged:
        raise BenchFailed(f"{missing.unacknowledged} of {sent['sent']} messages were never acknowledged")
    cpu |= {"load": sent["cpu_seconds"], "listener": received["cpu_seconds"]}
    span = (received["last_ns"] - started["at"]) / 1e9
    return Result(
        rate=received["distinct"] / span,
        sent=sent["sent"],
        acked=sent["acked"],
        delivered=received["distinct"],
        lost=missing.lost,
        reordered=received["reordered"],
        duplicated=received["duplicated"],
        phantom=missing.phantom + received["foreign"],
        puback=_times(sent),
        delivery=_times(received),
        cpu=cpu,
        seconds=span,
        others=max(0.0, busy - sum(cpu.values())),
        frames=received["frames"],
    )


def _device_list(subject: Subject, folder: Path) -> Path:
    path = folder / "devices"
    path.write_text("".join(f"{who.device_id} {who.username} {who.password}\n" for who in subject.credentials))
    return path


def _times(answer: dict[str, Any]) -> dict[str, float]:
    return {name: float(answer[f"{name}_ms"]) for name in ("p50", "p99", "p999", "max")}
