"""Shadows and commands over the Python API, at a running gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

import iotsphere
from iotsphere.entities.errors import Conflict, NotFound, VersionConflict
from tests.cases.twins import twin
from tests.support.gateway import Gateway


async def test_a_service_changes_state_and_sends_commands(tmp_path: Path) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        (who,) = await gateway.add_devices(["pump-7"])
        async with iotsphere.connect(gateway.websocket, token=gateway.token) as broker:
            first = await broker.desire("pump-7", {"rate": 5})
            assert (first["version"], first["changed"]) == (1, True)
            again = await broker.desire("pump-7", {"rate": 5})
            assert (again["version"], again["changed"]) == (1, False)
            shadow = await broker.shadow("pump-7")
            assert (shadow["desired"], shadow["version"]) == ({"rate": 5}, 1)
            with pytest.raises(VersionConflict) as caught:
                await broker.desire("pump-7", {"rate": 6}, version=7)
            assert (caught.value.facts["version"], caught.value.facts["state"]) == (
                1,
                {"reported": {}, "desired": {"rate": 5}},
            )
            waiting = await broker.command("pump-7", {"action": "later"}, idempotency_key="k1")
            assert (waiting["state"], waiting["repeated"]) == ("queued", False)
            assert (await broker.cancel(waiting["commandId"]))["state"] == "cancelled"
            with pytest.raises(Conflict):
                await broker.command("pump-7", {"action": "other"}, idempotency_key="k1")
            with pytest.raises(NotFound):
                await broker.command("nobody", {"action": "x"})
            async with twin(gateway, who, honours=True):
                done = await broker.command("pump-7", {"action": "now"}, wait=30)
                assert (done["state"], done["result"]) == ("succeeded", {"action": "now"})
            decided = await broker.publish("iotsphere/devices/pump-7/shadow/desired", {"desired": {"rate": 9}})
            assert decided.position == ""
            assert decided.decided is not None
            assert decided.decided["changed"] is True
            gone = await broker.delete_shadow("pump-7")
            assert gone["version"] > decided.decided["version"]
            with pytest.raises(NotFound):
                await broker.shadow("pump-7")
