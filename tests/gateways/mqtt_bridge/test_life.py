"""A bridge's life between connections: away, half dead, taken over, refused; and what it says of itself meanwhile."""

from __future__ import annotations

import asyncio
import importlib.metadata
import ssl
import subprocess
from collections.abc import AsyncIterator
from getpass import getuser
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from paho.mqtt.client import Client as Paho

from iotsphere.entities.errors import BrokerUnavailable, RequestInvalid
from iotsphere.gateways.mqtt_bridge.library import client_of, context_of
from tests.support.foreign import foreign
from tests.support.servers import Server, free_port, mosquitto
from tests.support.waiting import until

from .authority import certificate
from .house import IN, OUT, QUICK, House, open_house, spec_of


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


def kept(folder: Path, more: str = "") -> Server:
    """A broker that keeps its sessions over a restart."""
    folder.mkdir()
    settings = f"user {getuser()}\nallow_anonymous true\npersistence true\npersistence_location {folder}/\n{more}"
    return mosquitto(folder, settings)


def test_the_version_whose_inside_we_know() -> None:
    """A new version of either may work, but link.py must be read again first: it reaches into both."""
    assert importlib.metadata.version("aiomqtt") == "2.5.1"
    assert importlib.metadata.version("paho-mqtt").startswith("2.")
    for name in ("manual_ack_set", "ack", "_sock_close", "socket", "on_message", "on_publish", "on_connect"):
        assert hasattr(Paho, name), name


async def test_what_is_read_inside_the_client_is_there() -> None:
    client = aiomqtt.Client("127.0.0.1", 1, protocol=aiomqtt.ProtocolVersion.V5)
    assert isinstance(client._client, Paho)
    assert isinstance(client._disconnected, asyncio.Future)
    with pytest.raises(aiomqtt.MqttError):
        await client.__aenter__()


async def test_b05_a_broker_that_comes_back_is_found_again(house: House, tmp_path: Path) -> None:
    with kept(tmp_path / "broker") as server:
        bridge = await house.running(spec_of(server.port))
        for number in range(3):
            server.restart()
            await until(lambda: not bridge.connected, "the loss is noticed")
            await until(lambda: bridge.connected, "it is connected again")
            async with foreign(server.port) as device:
                await device.publish("tele/d1/SENSOR", {"n": number})
            await house.reaches("telemetry", number + 1)
        assert bridge.counts["connects"] == 4
        assert bridge.counts["sessions_lost"] == 0


@pytest.mark.parametrize("keep_alive", [4, 20, 3_600])
async def test_b05_a_silence_is_at_most_one_and_a_half_keep_alives_long(keep_alive: int) -> None:
    """paho asks after its own keep alive, gives up after as long again, and looks at both once a second."""
    client = client_of(spec_of(1, broker=f"keep_alive = {keep_alive}").broker, "c", QUICK, None)
    assert 2 * (client._keepalive + 1) <= 1.5 * keep_alive


async def test_b05_a_frozen_broker_is_given_up_within_one_and_a_half_keep_alives(house: House, tmp_path: Path) -> None:
    with kept(tmp_path / "broker") as server:
        bridge = await house.running(spec_of(server.port, broker="keep_alive = 4"))
        loop = asyncio.get_running_loop()
        async with foreign(server.port, identifier="device", clean_start=False) as device:
            with server.pause():
                frozen = loop.time()
                await until(lambda: not bridge.connected, "the silence is noticed", 20)  # the default takes longer
                await asyncio.sleep(max(0.0, 2 * 4 - (loop.time() - frozen)))
            await until(lambda: bridge.connected, "it is connected again")
            await device.publish("tele/d1/SENSOR", {"n": 1})
            await house.reaches("telemetry", 1)


async def test_b05_a_broker_that_never_says_connack_is_left_for_a_healthy_one(house: House, tmp_path: Path) -> None:
    silent: list[asyncio.StreamWriter] = []

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent.append(writer)
        while await reader.read(100):
            pass
        writer.close()

    port = free_port()  # none that the system hands out: the broker is to have it later
    mute = await asyncio.start_server(hold, "127.0.0.1", port)
    bridge = house.bridge(spec_of(port), connect=0.3)
    await bridge.start()
    with pytest.raises(BrokerUnavailable, match="no connection"):
        await bridge.ready()
    await until(lambda: bridge.counts["connect_failures"] >= 2, "it gives up on the mute one")
    mute.close()
    for writer in silent:
        writer.close()
    await mute.wait_closed()
    server = mosquitto(tmp_path / "broker")
    server.port = port
    with server:
        await until(lambda: bridge.connected, "a new client object gets through")
        await bridge.ready()


async def test_a_connection_that_never_came_to_be_leaves_no_socket_behind(house: House) -> None:
    open_now: set[asyncio.StreamWriter] = set()
    seen = 0

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        open_now.add(writer)
        while await reader.read(100):
            pass
        open_now.discard(writer)
        writer.close()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as mute:
        bridge = house.bridge(spec_of(mute.sockets[0].getsockname()[1]), connect=0.1, last_retry=0.1)
        await bridge.start()
        await until(lambda: seen >= 5, "five attempts")
        assert len(open_now) <= 1
        await bridge.close()
        await until(lambda: not open_now, "the last one is closed, too")


async def test_b04_client_ids_are_stable_and_distinct(house: House, mosquitto_server: Server) -> None:
    spec = spec_of(mosquitto_server.port)
    ids = []
    for node, ordinal in (("a", 0), ("a", 1), ("b", 0), ("a", 0)):
        bridge = house.bridge(spec, node=node, ordinal=ordinal)
        await bridge.start()
        ids.append(bridge.client_id)
        await bridge.close()
    assert ids[0] == ids[3]
    assert len(set(ids)) == 3
    assert ids[0].startswith("a-plant-0-")
    async with open_house() as other:
        bridge = other.bridge(spec, node="a")
        await bridge.start()
        assert bridge.client_id != ids[0]  # two gateways of one name, over two logs


async def test_b04_a_twin_ends_with_one_of_them_idle_and_saying_why(house: House, mosquitto_server: Server) -> None:
    spec = spec_of(mosquitto_server.port)
    twins = [house.bridge(spec), house.bridge(spec)]
    for twin in twins:
        await twin.start()
    await until(lambda: any(twin.stopped for twin in twins), "one of them gives in")
    (idle,) = [twin for twin in twins if twin.stopped]
    (working,) = [twin for twin in twins if not twin.stopped]
    await until(lambda: working.connected, "the other one works on")
    assert idle.counts["takeovers"] == 3
    assert working.counts["takeovers"] <= 3
    with pytest.raises(BrokerUnavailable, match="IOTSPHERE_NODE"):
        await idle.ready()
    connects = idle.counts["connects"]
    async with foreign(mosquitto_server.port) as device:
        await device.publish("tele/d1/SENSOR", {"n": 1})
        await house.reaches("telemetry", 1)
    await asyncio.sleep(1)
    assert idle.counts["connects"] == connects  # it looks no further
    assert [alert["alert"] for alert in await house.alerts()] == ["bridge_stopped"]


async def test_a_lost_session_is_told(house: House, tmp_path: Path) -> None:
    """A broker without persistence forgets our session with its process, and what waited in it."""
    with mosquitto(tmp_path / "broker") as server:
        bridge = await house.running(spec_of(server.port))
        server.kill()
        server.start()
        await until(lambda: bridge.counts["sessions_lost"] == 1, "it is noticed")
        await until(lambda: bridge.counts["connects"] == 2, "it is connected again")
        await house.reaches("system", 1)
        await bridge.close()
        server.restart()
        again = await house.running(spec_of(server.port))
        await until(lambda: again.counts["sessions_lost"] == 1, "also when we were away ourselves")
    (alert, *_) = await house.alerts()
    assert (alert["alert"], alert["clientId"]) == ("bridge_session_lost", bridge.client_id)
    assert alert["after"] <= alert["seenAgain"]


async def test_a_first_session_is_not_called_lost(house: House, mosquitto_server: Server) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port))
    await asyncio.sleep(0.1)
    assert bridge.counts["sessions_lost"] == 0
    assert await house.alerts() == []


async def test_a_login_comes_from_a_file_and_may_change(house: House, tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    await asyncio.to_thread(
        subprocess.run, ["mosquitto_passwd", "-b", "-c", str(passwords), "plant", "right"], check=True
    )
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    settings = f"user {getuser()}\nallow_anonymous false\npassword_file {passwords}\n"
    with mosquitto(tmp_path / "broker", settings) as server:
        login = f'username = "plant"\npassword_file = "{secret}"'
        bridge = house.bridge(spec_of(server.port, broker=login))
        await bridge.start()
        await until(lambda: bridge.counts["connect_failures"] >= 2, "it is refused")
        with pytest.raises(BrokerUnavailable, match="password_file") as refused:
            await bridge.ready()
        assert "wrong" not in str(refused.value)
        secret.write_text("right\n")
        await until(lambda: bridge.connected, "it is let in")


async def test_a_password_file_that_is_missing_is_told_and_waited_for(
    house: House, mosquitto_server: Server, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    login = f'username = "plant"\npassword_file = "{secret}"'
    bridge = house.bridge(spec_of(mosquitto_server.port, broker=login))
    await bridge.start()
    await until(lambda: bridge.counts["connect_failures"] >= 1, "it cannot connect")
    with pytest.raises(BrokerUnavailable, match="No such file"):
        await bridge.ready()
    secret.write_text("any")
    await until(lambda: bridge.connected, "it is connected")


async def test_a_subscription_at_qos_0_only_is_no_connection(house: House, tmp_path: Path) -> None:
    with mosquitto(tmp_path / "broker", "max_qos 0\nallow_anonymous true\n") as server:
        bridge = house.bridge(spec_of(server.port))
        await bridge.start()
        await until(lambda: bridge.counts["connect_failures"] >= 2, "it does not accept that")
        with pytest.raises(BrokerUnavailable, match="QoS"):
            await bridge.ready()


async def test_slices_cannot_be_changed_behind_the_brokers_back(house: House, mosquitto_server: Server) -> None:
    two = spec_of(mosquitto_server.port, IN + "[sharing]\nslices = 2\n")
    three = spec_of(mosquitto_server.port, IN + "[sharing]\nslices = 3\n")
    await house.bridge(two).start()
    with pytest.raises(RequestInvalid, match="new name"):
        await house.bridge(three).start()
    with pytest.raises(RequestInvalid, match="IOTSPHERE_BRIDGE_ORDINAL"):
        await house.bridge(two, ordinal=2).start()


async def test_a_part_that_fails_makes_the_bridge_unready(house: House, mosquitto_server: Server) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port, IN + OUT))
    await house.registered(bridge)

    async def broken(*_: Any) -> Any:
        raise RuntimeError("planted")

    assert bridge._forward is not None
    bridge._forward._send = broken
    await house.say("iotsphere/devices/d1/commands/request", {"n": 1})
    await until(lambda: bridge.counts["failures"] == 1, "the failure is counted")
    with pytest.raises(BrokerUnavailable, match="planted"):
        await bridge.ready()


async def test_tls_is_checked_against_the_given_authority(house: House, tmp_path: Path) -> None:
    for name in ("good", "other"):
        certificate(tmp_path, name)
    settings = (
        f"user {getuser()}\nallow_anonymous true\ncafile {tmp_path}/good.pem\ncertfile {tmp_path}/good.pem\n"
        f"keyfile {tmp_path}/good.key\nrequire_certificate true\n"
    )
    with mosquitto(tmp_path / "broker", settings) as server:
        own = f'certificate_file = "{tmp_path}/good.pem"\nkey_file = "{tmp_path}/good.key"\n'

        def spec(authority: str, more: str) -> Any:
            text = f'ca_file = "{tmp_path}/{authority}.pem"\n{more}'
            return spec_of(server.port, broker=text, scheme="mqtts")

        wrong = house.bridge(spec("other", own), node="wrong")
        await wrong.start()
        nobody = house.bridge(spec("good", ""), node="nobody")
        await nobody.start()
        await until(lambda: wrong.counts["connect_failures"] >= 1, "the broker is not believed")
        await until(lambda: nobody.counts["connect_failures"] >= 1, "who shows no certificate is not let in")
        assert (wrong.counts["connects"], nobody.counts["connects"]) == (0, 0)
        await house.running(spec("good", own), node="right")


def test_tls_is_1_2_or_newer() -> None:
    context = context_of(spec_of(8883, scheme="mqtts").broker)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
