"""Copies put back: an old database beside a newer log, and an old log beside a newer database, end right and announced."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iotsphere.use_cases.facts.places import NOTE_EVERY_S
from tests.cases.clients import history
from tests.cases.twins import shadow, twin, until_shadow
from tests.support.gateway import Credential, Gateway

STATE = ("state.db", "state.db-wal", "state.db-shm", "state.db.opened")


def copy(source: Path, target: Path, names: Sequence[str]) -> None:
    """Let the target have just these files of the source."""
    target.mkdir(exist_ok=True)
    for name in names:
        (target / name).unlink(missing_ok=True)
        if (source / name).exists():
            shutil.copy2(source / name, target / name)


async def live(gateway: Gateway, who: Credential, number: int) -> str:
    """Report, be desired something of, and carry out a command."""
    async with gateway.api() as api, twin(gateway, who, honours=True) as device:
        await device.report({"reported": {"r": number}})
        await until_shadow(api, who.device_id, reported={"r": number})
        done = await api.post(f"/api/v1/devices/{who.device_id}/commands", json={"payload": {"n": number}, "wait": 50})
        assert done.json()["state"] == "succeeded"
        return str(done.json()["commandId"])


async def alerts(gateway: Gateway, wanted: str) -> list[dict[str, Any]]:
    told = [message["payload"] for message in await history(gateway, "iotsphere/system/alerts")]
    return [alert for alert in told if alert["alert"] == wanted]


async def test_an_old_database_catches_up_with_the_log(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "data")
    await gateway.start()
    try:
        who, other = await gateway.add_devices(["d1", "d2"])
        async with gateway.api() as api:
            await live(gateway, who, 1)
            await live(gateway, other, 1)
            sent = await api.post("/api/v1/devices/d1/commands", json={"payload": {"n": "waits"}})
        await gateway.terminate()
        copy(gateway.data, tmp_path / "copy", STATE)
        await gateway.start()
        await live(gateway, who, 2)  # it carries out what waited as well
        async with gateway.api() as api:
            waited = await api.get(f"/api/v1/commands/{sent.json()['commandId']}", params={"wait": 50})
            assert waited.json()["state"] == "succeeded"
        await gateway.terminate()
        copy(tmp_path / "copy", gateway.data, STATE)
        await gateway.start()
        async with gateway.api() as api:
            await until_shadow(api, "d1", reported={"r": 2})
            assert (await shadow(api, "d2"))["reported"] == {"r": 1}
            # What was answered before is not handed over again.
            waited = await api.get(f"/api/v1/commands/{sent.json()['commandId']}", params={"wait": 50})
            assert waited.json()["state"] == "succeeded"
            async with twin(gateway, who, honours=True) as device:
                await device.report({"reported": {"r": 3}})
                await until_shadow(api, "d1", reported={"r": 3})
                assert device.of("commands/request") == []
            deadline = asyncio.get_running_loop().time() + 60
            while not await alerts(gateway, "history_lost"):
                assert asyncio.get_running_loop().time() < deadline, gateway.tail()
                await asyncio.sleep(0.05)
            assert (await api.get("/api/v1/ledger")).json()["imbalance"] == 0
    finally:
        await gateway.kill()


async def test_an_old_log_takes_reports_again_beside_a_newer_database(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "data")
    await gateway.start()
    try:
        (who,) = await gateway.add_devices(["d1"])
        await live(gateway, who, 1)
        await gateway.terminate()
        shutil.copytree(gateway.data / "log", tmp_path / "copy")
        await gateway.start()
        for number in range(2, 5):
            await live(gateway, who, number)
        await asyncio.sleep(NOTE_EVERY_S + 0.5)
        await live(gateway, who, 6)
        await gateway.terminate()
        shutil.rmtree(gateway.data / "log")
        shutil.copytree(tmp_path / "copy", gateway.data / "log")
        await gateway.start()
        async with gateway.api() as api:
            assert (await shadow(api, "d1"))["reported"] == {"r": 6}
            for number in (7, 8):
                await live(gateway, who, number)
            told = {
                alert["partition"].partition("/")[0]: alert
                for alert in await alerts(gateway, "log_older_than_database")
            }
            assert told["shadow"]["shadows"] == 1
            assert "restore both together" in told["shadow"]["remedy"]
            assert (await api.get("/ready")).status_code == 200
    finally:
        await gateway.kill()
