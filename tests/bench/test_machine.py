"""The CPU meter sees what a process burns, and what the machine burns with it."""

from __future__ import annotations

import os
import time

from bench.machine import CpuMeter, describe


def test_it_counts_what_is_burnt_between_two_looks() -> None:
    meter = CpuMeter({"me": os.getpid()})
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    spent = meter.spent()["me"]
    assert 0.25 <= spent < 2
    assert meter.busy() >= spent - 0.1  # the two come from clocks of different grain


def test_the_machine_is_described_by_what_matters() -> None:
    facts = describe()
    assert int(facts["cores"]) >= 1
    assert all(facts[name] for name in ("date", "cpu", "memory", "kernel", "python", "iotsphere"))
