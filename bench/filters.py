"""Ten thousand wildcard filters of other clients, which match nothing that comes: the throughput that they cost."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median

from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.support.gateway import Gateway

from .part import Scale, per_message
from .programs import BenchFailed
from .report import faults, total_faults
from .run import Load, Result, measure
from .section import Section
from .subjects import iotsphere_on_redis

FILTERS = 10_000
A_SUBSCRIPTION = 100
A_CONNECTION = 1_000
HEADINGS = ("filters held", "messages/s", "gateway CPU µs a message", "lost / reordered / duplicated")


def seconds(scale: Scale) -> float:
    """What this part takes."""
    return 2 * _pairs(scale) * (scale.seconds + 0.5) + _pairs(scale) + 3


def _pairs(scale: Scale) -> int:
    return 1 if scale.quick else 3


def wildcards(count: int) -> list[str]:
    """Filters in every way near to the traffic: any device with another metric, and all of another device."""
    half = [f"iotsphere/devices/+/telemetry/metric{number}" for number in range((count + 1) // 2)]
    return half + [f"iotsphere/devices/other{number}/+/#" for number in range(count // 2)]


@asynccontextmanager
async def held(gateway: Gateway, count: int) -> AsyncGenerator[None]:
    """Clients that hold so many filters while the block runs. Raises BenchFailed when they are not let in."""
    filters = wildcards(count)
    async with AsyncExitStack() as stack:
        for begin in range(0, count, A_CONNECTION):
            client = await stack.enter_async_context(
                connect(
                    gateway.websocket,
                    subprotocols=[Subprotocol("iotsphere.v1.json")],
                    additional_headers={"Authorization": f"Bearer {gateway.token}"},
                    compression=None,
                    proxy=None,
                )
            )
            own = filters[begin : begin + A_CONNECTION]
            for ref, at in enumerate(range(0, len(own), A_SUBSCRIPTION)):
                wish = {"type": "subscribe", "ref": ref, "filters": own[at : at + A_SUBSCRIPTION], "from": "live"}
                await client.send(json.dumps(wish))
                answer = json.loads(await client.recv())
                if answer["type"] != "ok":
                    raise BenchFailed(f"the gateway does not let clients hold {count} filters: {answer}")
        yield


async def filters(scale: Scale, folder: Path) -> Section:
    """The ceiling without and with them, by turns."""
    load = Load(0, scale.seconds, warmup=0.5)
    without: list[Result] = []
    with_them: list[Result] = []
    async with iotsphere_on_redis("everysec", "logged")(folder, 20) as subject:
        for _ in range(_pairs(scale)):
            without.append(await measure(subject, load, folder))
            async with held(subject.running, FILTERS):
                with_them.append(await measure(subject, load, folder))
        await subject.check_ledger(sum(run.acked for run in (*without, *with_them)))
    return table(without, with_them)


def table(without: list[Result], with_them: list[Result]) -> Section:
    """The median of both."""
    rates = [median(run.rate for run in runs) for runs in (without, with_them)]
    cost = 100 * (1 - rates[1] / rates[0])
    groups = (("none", without), (f"{FILTERS:,}", with_them))
    cells = tuple(
        (
            title,
            f"{rate:,.0f}",
            f"{median(per_message(run) for run in runs):.1f}",
            faults(runs),
        )
        for (title, runs), rate in zip(groups, rates, strict=True)
    )
    every = (*without, *with_them)
    return Section(
        "filters",
        "Subscriptions of others",
        HEADINGS,
        cells,
        (f"They cost {max(0.0, cost):.1f} % of the throughput.",),
        {"filters/cost": max(0.0, cost), "faults": total_faults(every)},
        frozenset(number for number, (_, runs) in enumerate(groups) if not all(run.is_clean for run in runs)),
        not all(run.is_clean for run in every),
        tuple(run.others / run.seconds for run in every),
        [run.as_json() for run in every],
    )
