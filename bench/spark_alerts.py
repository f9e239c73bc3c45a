"""`python -m bench.spark_alerts`: how many alerts of the detector are true, and how many faults it finds.

Series of `fitted` were looked at when the defaults were chosen, with the faults of `FITTED`. Those of `held out`
were not, and neither were the faults of `HELD_OUT`, but for the spike. A fault is as high as a good part of all that
the series does (from its 0.5th to its 99.5th percentile).
"""

from __future__ import annotations

import csv
import random
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from iotsphere.drivers.spark.jobs.anomaly import OPTIONS
from iotsphere.entities.analytics.detector import RAISED, Detector, DetectorRule

US: Final = 1_000_000
FITTED: Final = ("spike", "stuck", "drift")
HELD_OUT: Final = ("spike", "shift", "burst", "drop", "creep")
LENGTHS: Final = {
    "spike": (1, 3), "stuck": (30, 60), "drift": (40, 40), "shift": (60, 60), "burst": (40, 40), "drop": (10, 30),
    "creep": (120, 120),
}  # fmt: skip
RULE: Final = DetectorRule(stuck=int(next(option.default for option in OPTIONS if option.name == "stuck")))


@dataclass(frozen=True, slots=True)
class Series:
    """Readings of one metric, and when each was taken (µs)."""

    values: Sequence[float]
    at: Sequence[int]

    def part(self, first: float, last: float) -> Series:
        """From one share of its length to another."""
        ends = int(len(self.values) * first), int(len(self.values) * last)
        return Series(self.values[ends[0] : ends[1]], self.at[ends[0] : ends[1]])


@dataclass(slots=True)
class Score:
    """``quiet``: alerts without any fault planted, of ``readings``. ``false``: alerts beside the faults."""

    readings: int = 0
    quiet: int = 0
    false: int = 0
    found: Counter[str] = field(default_factory=Counter)
    planted: Counter[str] = field(default_factory=Counter)

    @property
    def precision(self) -> float:
        """Share of alerts that are of a fault; each fault counts once."""
        return self.found.total() / max(1, self.found.total() + self.false)

    @property
    def recall(self) -> float:
        """Share of faults with an alert."""
        return self.found.total() / max(1, self.planted.total())

    def add(self, other: Score) -> None:
        """Count another one in."""
        self.readings, self.quiet = self.readings + other.readings, self.quiet + other.quiet
        self.false += other.false
        self.found, self.planted = self.found + other.found, self.planted + other.planted


def raised(values: Sequence[float], at: Sequence[int], rule: DetectorRule = RULE) -> list[int]:
    """The indices of readings that raise an alert."""
    detector = Detector(rule)
    verdicts = (detector.take(value, time) for value, time in zip(values, at, strict=True))
    return [index for index, verdict in enumerate(verdicts) if verdict is not None and verdict.change == RAISED]


def plant(values: Sequence[float], kinds: Sequence[str], seed: int) -> tuple[list[float], list[tuple[str, int, int]]]:
    """The values with faults, one every 400 to 900; and where they are, as kind, first and end."""
    chance, made, at = random.Random(seed), list(values), 500
    ordered = sorted(values)
    lowest, highest = ordered[len(ordered) // 200], ordered[-len(ordered) // 200]
    digits = max(len(str(value % 1)) - 2 if value % 1 else 0 for value in (round(one, 4) for one in values[:200]))
    labels: list[tuple[str, int, int]] = []
    while at < len(made) - 300:
        kind = kinds[len(labels) % len(kinds)]
        height = chance.choice((-1, 1)) * chance.uniform(0.5, 1.5) * (highest - lowest)
        length = chance.randint(*LENGTHS[kind])
        for step in range(length):
            value = made[at + step]
            changed = {
                "spike": value + height,
                "stuck": made[at],
                "drift": value + height * step / 8,
                "shift": value + height,
                "burst": value + chance.gauss(0, abs(height) / 2),
                "drop": lowest - (highest - lowest) / 2,
                "creep": value + height * step / 60,
            }[kind]
            made[at + step] = round(changed, min(digits, 4))
        labels.append((kind, at, at + length))
        at += length + chance.randint(400, 900)
    return made, labels


def score(series: Series, kinds: Sequence[str], seed: int, rule: DetectorRule = RULE) -> Score:
    """Judge the detector on one series, as it is and with faults."""
    faulty, labels = plant(series.values, kinds, seed)
    alerts = raised(faulty, series.at, rule)
    made = Score(len(series.values), len(raised(series.values, series.at, rule)))
    about: set[int] = set()
    for kind, first, end in labels:
        hits = {index for index in alerts if first <= index < end + 6}  # the way back is part of the fault
        about |= hits
        made.planted[kind] += 1
        made.found[kind] += bool(hits)
    made.false = len(alerts) - len(about)
    return made


def temperatures(city: str) -> Series:
    """Hourly temperatures as the demonstration's stations send them, Celsius with one digit."""
    text = resources.files("vega_datasets").joinpath("_data", f"{city}-temps.csv").read_text()
    values = [round((float(row["temp"]) - 32) * 5 / 9, 1) for row in csv.DictReader(text.splitlines())]
    return Series(values, [hour * 3_600 * US for hour in range(len(values))])


def measured() -> Mapping[str, Series]:
    """Measured series of packages: temperatures, the sea's too, blood glucose every 5 minutes, a ride at 1 Hz."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's way of reading dates
        from bokeh_sampledata.cycling import cycling  # noqa: PLC0415  they are read when they are imported
        from bokeh_sampledata.glucose import data as glucose  # noqa: PLC0415
        from bokeh_sampledata.sea_surface_temperature import sea_surface_temperature as sea  # noqa: PLC0415
    blood = glucose.sort_index()
    blood = blood[~blood.index.duplicated()]
    found = {"seattle": temperatures("seattle"), "sf": temperatures("sf")}
    found["glucose"] = Series(blood["glucose"].astype(float).tolist(), _micros(blood.index))
    found["sea"] = Series(sea["temperature"].tolist(), _micros(sea.index))
    for name in ("power", "speed", "altitude", "cadence"):
        ride = cycling[name].astype(float).round(3).tolist()
        found[name] = Series(ride, [second * US for second in range(len(ride))])
    return found


def made_up(kind: str, seed: int, count: int = 8_000) -> Series:
    """A series of a shape that sensors have, a reading a minute."""
    dice, minute = np.random.default_rng(seed), np.arange(count)
    noise = dice.normal(0, 1, count)
    shapes: dict[str, Any] = {
        "sine": lambda: 18 + 4 * np.sin(minute / 24 * 2 * np.pi) + 0.2 * noise,
        "counter": lambda: np.floor(minute * 4.2 + dice.integers(0, 3, count)),
        "pull": lambda: 100 + np.convolve(noise, 0.97 ** np.arange(200))[:count],
        "battery": lambda: 100 - minute * 0.002 + 0.02 * noise,
        "duty": lambda: np.where(np.repeat(dice.random(count // 16), 16) < 0.15, 1_500, 0) + np.abs(3 * noise),
        "heavy": lambda: 10 + dice.standard_t(3, count),
        "coarse": lambda: np.round(2 * (21 + 1.2 * np.sin(minute / 288 * 2 * np.pi) + 0.15 * noise)) / 2,
        "shifts": lambda: np.where((minute // 4 % 24 > 7) & (minute // 4 % 24 < 18), 60, 20) + 2 * noise,
        "rain": lambda: np.where(dice.random(count) < 0.05, dice.exponential(3, count), 0),
        "walk": lambda: 500 + np.cumsum(0.1 * noise),
    }
    values = np.round(np.asarray(shapes[kind](), dtype=float), 2).tolist()
    return Series(values, [int(one) * 60 * US for one in minute])


def _micros(index: Any) -> list[int]:
    found: list[int] = index.values.astype("datetime64[us]").astype("int64").tolist()
    return found


def groups() -> Mapping[str, tuple[Sequence[str], Mapping[str, Series]]]:
    """What is judged: by group the kinds of faults, and the series."""
    real = measured()
    fitted = {"seattle": real["seattle"], "glucose, 1st half": real["glucose"].part(0, 0.5)}
    fitted |= {"sea, 1st half": real["sea"].part(0, 0.5), "power": real["power"]}
    others = {
        "sf": real["sf"],
        "glucose, 2nd half": real["glucose"].part(0.5, 1),
        "sea, 2nd half": real["sea"].part(0.5, 1),
    }
    others |= {name: real[name] for name in ("speed", "altitude", "cadence")}
    return {
        "fitted, measured": (FITTED, fitted),
        "fitted, made up": (FITTED, {kind: made_up(kind, 1) for kind in ("sine", "counter", "pull")}),
        "held out, measured": (HELD_OUT, others),
        "held out, made up": (
            HELD_OUT,
            {kind: made_up(kind, 7) for kind in ("battery", "duty", "heavy", "coarse", "shifts", "rain", "walk")},
        ),
    }


def main(seed: Annotated[int, typer.Option(help="Of the faults.")] = 101) -> None:
    """Judge, and say so."""
    console = Console(width=150)
    for group, (kinds, series) in groups().items():
        table = Table(
            "series", "readings", "false per 1,000 without faults", "precision", "recall", *kinds, title=group
        )
        whole = Score()
        for name, one in series.items():
            found = score(one, kinds, seed)
            whole.add(found)
            table.add_row(*_row(name, found, kinds))
        table.add_row(*_row("all", whole, kinds))
        console.print(table)


def _row(name: str, found: Score, kinds: Sequence[str]) -> list[str]:
    rate = f"{found.quiet / found.readings * 1_000:.2f}"
    by_kind = [f"{found.found[kind]}/{found.planted[kind]}" for kind in kinds]
    return [name, f"{found.readings:,}", rate, f"{found.precision:.2f}", f"{found.recall:.2f}", *by_kind]


if __name__ == "__main__":
    typer.run(main)
