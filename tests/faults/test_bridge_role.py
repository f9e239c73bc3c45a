"""The role `bridge` as a process of its own over a shared log: ready as long as its broker serves it, gone within a drain."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.foreign import foreign
from tests.support.gateway import ROOT
from tests.support.processes import die_with_parent
from tests.support.servers import Server, mosquitto

FILE = """\
name = "plant"
[broker]
url = "mqtt://127.0.0.1:{port}"
keep_alive = 4
[[in]]
from = "tele/{{device_id}}/SENSOR"
to = "iotsphere/devices/{{device_id}}/telemetry"
[[out]]
from = "iotsphere/devices/+/commands/request"
"""


def environment(**settings: object) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("IOTSPHERE_")}
    given = {f"IOTSPHERE_{name.upper()}": str(value) for name, value in settings.items()}
    return {**known, **given, "PYTHONPATH": str(ROOT / "src")}


@asynccontextmanager
async def bridge_process(folder: Path, log: str, **settings: object) -> AsyncIterator[tuple[Any, Any]]:
    command = [sys.executable, "-m", "iotsphere", "run", "bridge", "--data", str(folder / "data"), "--log", log]
    with (folder / "bridge.log").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, "--listen", "127.0.0.1:0", "--json",
            stdout=subprocess.PIPE, stderr=errors, env=environment(**settings),
            preexec_fn=die_with_parent,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        yield process, json.loads(line)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def answer(url: str, status: int) -> dict[str, Any]:
    """Wait until /ready answers so."""
    deadline = asyncio.get_running_loop().time() + 60
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        while True:
            response = await client.get("/ready")
            if response.status_code == status:
                body: dict[str, Any] = response.json()
                return body
            assert asyncio.get_running_loop().time() < deadline, response.text
            await asyncio.sleep(0.1)


async def test_a_bridge_is_ready_while_its_broker_serves_it_and_drains(tmp_path: Path, redis_server: Server) -> None:
    log = f"redis://127.0.0.1:{redis_server.port}/0"
    with mosquitto(tmp_path / "broker") as broker:
        file = tmp_path / "bridge.toml"
        file.write_text(FILE.format(port=broker.port))
        async with bridge_process(tmp_path, log, bridges=json.dumps([str(file)])) as (process, told):
            await answer(told["http"], 200)
            async with foreign(broker.port) as device:
                await device.publish("tele/d1/SENSOR", {"t": 1})
            broker.stop()
            refusal = await answer(told["http"], 503)
            assert refusal["error"]["code"] == "broker_unavailable"
            assert refusal["error"]["retry"] is True
            broker.start()
            await answer(told["http"], 200)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 60) == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "no bridge is declared"),
        ("", "Field required"),
        (FILE.format(port=1).replace("telemetry", "gadget"), "line 5: [[in]] rule 1"),
    ],
)
async def test_a_bad_file_ends_the_process_with_one_line(tmp_path: Path, text: str | None, told: str) -> None:
    settings: dict[str, object] = {}
    if text is not None:
        file = tmp_path / "bridge.toml"
        file.write_text(text)
        settings["bridges"] = json.dumps([str(file)])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "iotsphere", "run", "bridge", "--log", "memory", "--data", str(tmp_path / "data"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**environment(**settings), "COLUMNS": "300"},
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2, out.decode() + err.decode()
    assert told in err.decode()
    assert err.decode().strip().splitlines()[-1].startswith("request_invalid: ")
