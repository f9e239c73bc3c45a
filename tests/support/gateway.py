"""The product as its users meet it: `python -m iotsphere up` in a process of its own, started, killed and restarted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import httpx
import psutil

from .mother import Child, Mother
from .processes import die_with_parent
from .servers import free_port

ROOT = Path(__file__).resolve().parents[2]
# What the gateways of the tests and of the benchmark run from: the sources, or what `make compiled` made of them.
SOURCES = (ROOT / os.environ.get("IOTSPHERE_SOURCES", "src")).resolve()
READY_WITHIN = 60.0
# Who starts the gateways of a test run, by where their package lies; the benchmark starts each from the shell's side.
mothers: dict[Path, Mother] | None = None
POLL = 0.02


class GatewayFailed(RuntimeError):
    """The process did not become ready, or did not end. Carries the end of what it logged."""


class Credential(NamedTuple):
    """What a device logs in with."""

    device_id: str
    username: str
    password: str


class Gateway:
    """One gateway on a data folder: any free ports at the first start, the same ports again after a restart.

    ``log``: the URL of the log, as `--log` takes it. ``settings``: further `IOTSPHERE_*` variables, without the prefix.
    ``sources``: where its package lies.
    The attributes ``mqtt`` (host, port), ``websocket``, ``http`` (URLs), ``token`` (an operator's) and ``endpoints`` (by
    name) are known once ``start`` returned.
    """

    def __init__(
        self,
        data: Path,
        *,
        log: str = "sqlite",
        settings: Mapping[str, object] | None = None,
        sources: Path = SOURCES,
    ) -> None:
        self.data = data
        self.sources = sources
        self.log = log
        self.settings = dict(settings or {})
        self.mqtt = ("127.0.0.1", 0)
        self.websocket = ""
        self.http = ""
        self.token = ""
        self.endpoints: dict[str, str] = {}
        self._doors = {f"--{name}": f"127.0.0.1:{free_port()}" for name in ("mqtt", "websocket", "http")}
        self._process: subprocess.Popen[bytes] | Child | None = None
        self._log_path = data.with_name(data.name + ".gateway.log")
        self._answer_path = data.with_name(data.name + ".ready.json")

    @property
    def pid(self) -> int:
        """The process id of the running gateway. Raises GatewayFailed when there is none."""
        if self._process is None:
            raise GatewayFailed("the gateway is not running")
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the process and its children."""
        process = psutil.Process(self.pid)
        return sum(int(each.memory_info().rss) for each in (process, *process.children(recursive=True)))

    def tail(self, lines: int = 40) -> str:
        """The end of what the gateway logged over all its starts."""
        if not self._log_path.exists():
            return ""
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])

    async def start(self) -> None:
        """Start it and wait until it says that it is ready. Raises GatewayFailed with the end of its log."""
        if self._process is not None:
            raise GatewayFailed("the gateway is running already")
        self._launch()
        await self._wait_ready()

    def _launch(self) -> None:
        self.data.parent.mkdir(parents=True, exist_ok=True)
        arguments = ["up", "--data", str(self.data), "--log", self.log, "--json"]
        for name, address in self._doors.items():
            arguments += [name, address]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("IOTSPHERE_")}
        environment |= {f"IOTSPHERE_{name.upper()}": str(value) for name, value in self.settings.items()}
        environment["PYTHONPATH"] = str(self.sources)
        if mothers is not None:
            mother = mothers.get(self.sources)
            if mother is None:
                mother = mothers[self.sources] = Mother(self.sources)
            self._answer_path.write_bytes(b"")
            self._process = mother.start(arguments, environment, self._answer_path, self._log_path)
            return
        with self._answer_path.open("wb") as out, self._log_path.open("ab") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "iotsphere", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - nothing else ties its life to ours
            )

    async def _wait_ready(self) -> None:
        process = self._process
        assert process is not None
        deadline = asyncio.get_running_loop().time() + READY_WITHIN
        while not (line := self._answer()).endswith("\n"):
            if process.poll() is not None:
                self._process = None
                raise GatewayFailed(f"the gateway ended with {process.returncode} before it was ready:\n{self.tail()}")
            if asyncio.get_running_loop().time() > deadline:
                await self.kill()
                raise GatewayFailed(f"the gateway was not ready within {READY_WITHIN:.0f} s:\n{self.tail()}")
            await asyncio.sleep(POLL)
        ready = self.endpoints = json.loads(line)
        host, _, port = ready["mqtt"].rpartition(":")
        self.mqtt = (host, int(port))
        self.websocket, self.http, self.token = ready["websocket"], ready["http"], ready["token"]
        self._doors = {
            "--mqtt": ready["mqtt"],
            "--websocket": httpx.URL(self.websocket).netloc.decode(),
            "--http": httpx.URL(self.http).netloc.decode(),
        }

    def _answer(self) -> str:
        return self._answer_path.read_text()

    async def kill(self) -> None:
        """End it as a crash would: SIGKILL to its whole group, no chance to save anything."""
        await self._end(signal.SIGKILL, 60)

    async def terminate(self, within: float = 60) -> int:
        """Ask it to stop and wait. Returns its exit code; raises GatewayFailed when it does not end in time."""
        return await self._end(signal.SIGTERM, within)

    async def _end(self, how: signal.Signals, within: float) -> int:
        process = self._process
        if process is None:
            raise GatewayFailed("the gateway is not running")
        if process.poll() is None:
            os.killpg(process.pid, how)
        deadline = asyncio.get_running_loop().time() + within
        while process.poll() is None:
            if asyncio.get_running_loop().time() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self._process = None
                raise GatewayFailed(f"the gateway did not end within {within:.0f} s of {how.name}:\n{self.tail()}")
            await asyncio.sleep(POLL)
        self._process = None
        return process.wait()

    async def restart(self) -> None:
        """Start it again on the same ports and data; whatever still runs is killed first."""
        if self._process is not None:
            await self.kill()
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            await self.kill()

    def api(self) -> httpx.AsyncClient:
        """A client of the HTTP door with the operator's token."""
        return httpx.AsyncClient(
            base_url=self.http, headers={"Authorization": f"Bearer {self.token}"}, timeout=60, trust_env=False
        )

    async def add_devices(self, ids: Sequence[str]) -> list[Credential]:
        """Register devices over HTTP."""
        credentials = []
        async with self.api() as api:
            for device_id in ids:
                response = await api.post("/api/v1/devices", json={"device_id": device_id})
                if response.status_code not in (200, 201):
                    raise GatewayFailed(f"POST /api/v1/devices: {response.status_code} {response.text}")
                facts = response.json()
                credentials.append(Credential(facts["device_id"], facts["username"], facts["password"]))
        return credentials
