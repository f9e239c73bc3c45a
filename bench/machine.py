"""What the figures were measured on, and what each process cost."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import psutil

import iotsphere
from tests.support.gateway import SOURCES


def describe() -> dict[str, str]:
    """The machine and the software, as far as they matter for the figures."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": str(os.cpu_count()),
        "cpu": _cpu_model(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "iotsphere": f"{iotsphere.__version__} ({_output('git', 'describe', '--always', '--dirty')}{_compiled()})",
        "redis": _output("redis-server", "--version").partition(" sha")[0],
        "mosquitto": _output("mosquitto", "-h").partition("\n")[0],
        "nats": _output("nats-server", "--version"),
        "rabbitmq": _rabbitmq(),
        "aedes": _npm_version("aedes"),
    }


def _compiled() -> str:
    return ", compiled" if any(SOURCES.glob("*__mypyc.*")) else ""


def _rabbitmq() -> str:
    version = _output("dpkg-query", "--show", "--showformat=${Version}", "rabbitmq-server")
    return f"RabbitMQ {version.partition('-')[0]}" if version else ""


def _npm_version(package: str) -> str:
    """The version that is installed for the benchmark."""
    facts = Path(__file__).parent / "aedes" / "node_modules" / package / "package.json"
    return f"{package} {json.loads(facts.read_text())['version']}" if facts.exists() else ""


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


class CpuMeter:
    """CPU seconds of some processes, children included, and of the whole machine, between two looks."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._before = self._read()
        self._busy_before = self._read_busy()

    def spent(self) -> dict[str, float]:
        """CPU seconds by name since the meter was made."""
        now = self._read()
        return {name: now[name] - self._before[name] for name in now}

    def busy(self) -> float:
        """CPU seconds that the machine spent on anything at all since the meter was made, stolen time included."""
        return self._read_busy() - self._busy_before

    @staticmethod
    def _read_busy() -> float:
        times = psutil.cpu_times()
        return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)

    def _read(self) -> dict[str, float]:
        seconds = {}
        for name, process in self._processes.items():
            family = (process, *process.children(recursive=True))
            seconds[name] = sum(times.user + times.system for times in (each.cpu_times() for each in family))
        return seconds
