"""Forged tokens as passwords at the MQTT door (rows J1 to J5, case C11)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.use_cases.ports.tokens import NOT_BELIEVED
from tests.gateways.mqtt.house import House, open_house
from tests.gateways.mqtt.peer import Peer
from tests.support import forgery

LONGEST_PASSWORD = 65_535
REFUSED = {p.MQTT_5: 0x86, p.MQTT_3_1_1: 4}
VERSIONS = pytest.mark.parametrize("version", REFUSED)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


@VERSIONS
async def test_the_token_that_all_attacks_start_from_is_accepted(house: House, version: int) -> None:
    good = forgery.sign(forgery.own_header(), forgery.good_claims(house.clock.now()))
    async with Peer(await house.door(), version) as peer:
        assert (await peer.connect(good)).reason == 0


@VERSIONS
async def test_j1_to_j5_and_c11_each_attack_gets_the_same_answer(
    house: House, version: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    address = await house.door()
    attacks = forgery.attacks(house.clock.now())
    for number, (name, attack) in enumerate(attacks.items()):
        async with Peer(address, version) as peer:
            # Each under another user name, since one that keeps failing has to wait; with a token any name will do.
            password = attack.encode()[:LONGEST_PASSWORD]
            connack = await peer.connect(None, username=f"user-{number}", password=password)
            assert connack.reason == REFUSED[version], name
            assert connack.properties.reason_string == (NOT_BELIEVED if version == p.MQTT_5 else None), name
            await peer.end()
            assert peer.packets == [], name
    assert house.gateway.counts["connect_refused_unauthenticated"] == len(attacks)
    assert house.gateway.counts["connected"] == 0
    shown = caplog.text + "".join(capfd.readouterr())
    for attack in attacks.values():
        assert len(attack) < 20 or attack not in shown, "tokens are never logged"


@pytest.mark.parametrize("field", ["username", "client id", "will"])
async def test_a_token_counts_only_as_the_password(house: House, field: str) -> None:
    token = house.token("s", "subscribe:iotsphere/#")
    fields = {"username": "s", "password": b"wrong"}
    client_id = "c1"
    async with Peer(await house.door()) as peer:
        if field == "username":
            fields["username"] = token[:200]
        elif field == "client id":
            client_id = token[:200]
        will = p.Will("iotsphere/system/status", token.encode()) if field == "will" else None
        connack = await peer.connect(None, client_id, will=will, **fields)
        assert connack.reason == 0x86
        await peer.end()
