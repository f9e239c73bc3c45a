"""Where a message's time goes inside the gateway, stage by stage: its stacks are sampled while it works.

It runs from the sources, since who looks from outside sees no function that is compiled.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tests.support.gateway import ROOT

from .part import Scale
from .report import total_faults
from .run import Load, Result, measure
from .section import Section
from .subjects import Subject, iotsphere_on_redis

DEVICES: Final = 64
RATE: Final = 10_000
SAMPLES_PER_S: Final = 250
WARM_S: Final = 1.5
REST: Final = "all else"
HEADINGS: Final = ("stage", "µs a message at the ceiling", f"µs a message at {RATE:,}/s")

# A sample belongs to the innermost function of its stack that is named here.
STAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "sockets and event loop (native code)": ("Runner.run",),
    "MQTT: packets from bytes, protocol state": ("Session.read",),
    "MQTT: the client's batch, rate, flow control": ("MqttOverTcp.data_received", "Turn.submit"),
    "admission: strict JSON, time, envelope, message id": ("Edge.admit",),
    "batching of appends": ("MessagePublishUseCase._work", "MessagePublishUseCase.begin", "MessagePublishUseCase.join"),
    "append: sort by partition, pack, checksum, positions": ("RedisMessagingDriver.append",),
    "append: Redis wire": ("Wire.exchange", "Wire.data_received"),
    "acknowledgement: who is owed what": ("MessagePublishUseCase._answer", "Turn._answer"),
    "acknowledgement: socket": ("MqttOverTcp.write",),
    "feed: last values, matching, other readers": ("Feed._follow", "Feed.follow"),
    "feed: read again from Redis": ("Follower._read",),
    "delivery: frames, cursor, WebSocket": ("Outlet.flush", "ClientSession.deliver", "Client._flush"),
}
_STAGE_OF: Final = {name: stage for stage, names in STAGES.items() for name in names}


def seconds(scale: Scale) -> float:
    """What this part takes."""
    return 2 * (scale.seconds + WARM_S) + 4


async def stages(scale: Scale, folder: Path) -> Section:
    """A run at the ceiling and one at a rate, each with its samples."""
    runs: list[Result] = []
    costs: list[dict[str, float]] = []
    async with iotsphere_on_redis("everysec", "logged", sources=ROOT / "src")(folder, DEVICES) as subject:
        for rate in (0, RATE):
            load = Load(rate, scale.seconds + WARM_S, warmup=WARM_S)
            sampling = asyncio.create_task(sample(subject, folder / f"stacks-{rate}", scale.seconds))
            run = await measure(subject, load, folder)
            runs.append(run)
            costs.append(shares(await sampling, 1e6 * run.cpu["gateway"] / run.acked))
        await subject.check_ledger(sum(run.acked for run in runs))
    return table(runs, costs)


async def sample(subject: Subject, file: Path, duration: float) -> list[str]:
    """Stacks of the gateway, one with its count a line; none where this user may not look into other processes."""
    await asyncio.sleep(2 * WARM_S)
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(subject.pids["gateway"]),
        "--duration", str(max(1, int(duration - 2 * WARM_S))), "--rate", str(SAMPLES_PER_S), "--format", "raw",
        "--output", str(file),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await process.communicate()
    if process.returncode:
        print(f"the stacks could not be sampled: {said.decode(errors='replace').strip()}", file=sys.stderr)
        return []
    return (await asyncio.to_thread(file.read_text)).splitlines()


def shares(stacks: Iterable[str], whole: float) -> dict[str, float]:
    """Divide ``whole`` among the stages, as the samples of the event loop's thread fall."""
    counts: Counter[str] = Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        names = [frame.split(" (", 1)[0] for frame in stack.split(";")]
        if "Runner.run" in names:
            stage = next((_STAGE_OF[name] for name in reversed(names) if name in _STAGE_OF), REST)
            counts[REST if stage == _STAGE_OF["Runner.run"] and names[-1] != "Runner.run" else stage] += int(count)
    total = counts.total()
    return {stage: whole * count / total for stage, count in counts.items()}


def table(runs: list[Result], costs: list[dict[str, float]]) -> Section:
    """A row a stage, and their sum."""
    rows = [stage for stage in (*STAGES, REST) if any(cost.get(stage) for cost in costs)]
    cells = [(stage, *(f"{cost.get(stage, 0):.1f}" for cost in costs)) for stage in rows]
    cells.append(("**together**", *(f"{1e6 * run.cpu['gateway'] / run.acked:.1f}" for run in runs)))
    faulty = not all(run.is_clean for run in runs)
    notes = [
        f"{DEVICES} devices over Redis, `logged`; the ceiling was {runs[0].rate:,.0f}/s. Redis itself took "
        + " and ".join(f"{1e6 * run.cpu['redis'] / run.acked:.1f}" for run in runs)
        + " µs a message. To sample costs a few per cent.",
        "From the sources: of compiled functions nothing is seen from outside. Compiled, it is the row of the same load above.",
    ]
    if not all(costs):
        notes.append("Stacks could not be sampled here: looking into another process needs the right to.")
    return Section(
        "stages",
        "Where a message's time goes in the gateway",
        HEADINGS,
        tuple(cells),
        tuple(notes),
        {"faults": total_faults(runs)},
        frozenset(),
        faulty,
        tuple(run.others / run.seconds for run in runs),
        [run.as_json() for run in runs],
    )
