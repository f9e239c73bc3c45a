"""The demonstration: simulated stations measure, honour what is desired of them, and answer commands."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from iotsphere.app import App
from iotsphere.demo import demonstration
from iotsphere.settings import Settings

ANY = "127.0.0.1:0"


async def until_wish(api: httpx.AsyncClient, device: str, pointer: str, status: str) -> dict[str, Any]:
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        shadow: dict[str, Any] = (await api.get(f"/api/v1/devices/{device}/shadow")).json()
        if shadow.get("wishes", {}).get(pointer, {}).get("status") == status:
            return shadow
        assert asyncio.get_running_loop().time() < deadline, shadow
        await asyncio.sleep(0.05)


async def test_stations_honour_desired_state_and_answer_commands(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, mqtt=ANY, websocket=ANY, http=ANY)
    async with App(settings) as app, demonstration(app) as sample:
        assert sample["device_id"] == "my-device"
        headers = {"authorization": f"Bearer {app.operator_token()}"}
        async with httpx.AsyncClient(base_url=app.endpoints["http"], headers=headers, timeout=60) as api:
            path = "/api/v1/devices/weather-sf-1"
            asked = await api.patch(f"{path}/shadow", json={"desired": {"interval": 0.5, "color": "red"}})
            assert asked.status_code == 200, asked.text
            await until_wish(api, "weather-sf-1", "/interval", "applied")
            shadow = await until_wish(api, "weather-sf-1", "/color", "refused")
            assert shadow["reported"] == {"interval": 0.5, "unit": "Cel", "firmware": "1.0.0"}
            assert shadow["delta"] == {}
            assert shadow["wishes"]["/color"]["reason"] == (
                'a weather station takes an interval from 0.1 to 60 (seconds), and a unit of "Cel" or "[degF]"'
            )
            done = (await api.post(f"{path}/commands", json={"payload": {"action": "restart"}, "wait": 30})).json()
            assert (done["state"], done["result"]) == ("succeeded", {"firmware": "1.0.0", "restarted": True})
            assert [step["state"] for step in done["steps"]][-2:] == ["running", "succeeded"]
            other = (await api.post(f"{path}/commands", json={"payload": {"action": "fly"}, "wait": 30})).json()
            assert (other["state"], other["reason"]) == ("rejected", 'a weather station knows {"action": "restart"}')
            labels = (await api.get("/api/v1/devices/weather-seattle-2/labels")).json()
            assert labels == {"labels": {"city": "seattle"}}
