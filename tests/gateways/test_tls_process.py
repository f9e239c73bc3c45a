"""A gateway process with TLS as its operator runs it: every door, renewal, revocation and what it says about them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import paho.mqtt.client as paho
import pytest
import structlog.testing
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from websockets.asyncio.client import connect

from iotsphere.app import App
from iotsphere.drivers.secrets import Secrets
from iotsphere.settings import Settings
from tests.cases.clients import log_lines
from tests.client.house import Talker
from tests.support.authority import Authority, Issued, common_name
from tests.support.gateway import Gateway
from tests.support.waiting import until

WITHIN = 60.0
TOPIC = "iotsphere/devices/d1/telemetry/t"


class Site(NamedTuple):
    gateway: Gateway
    authority: Authority

    @property
    def mqtts(self) -> tuple[str, int]:
        host, _, port = self.gateway.endpoints["mqtts"].removeprefix("mqtts://").rpartition(":")
        return host, int(port)

    def api(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.gateway.token}"}
        trust = self.authority.client()
        return httpx.AsyncClient(base_url=self.gateway.http, headers=headers, verify=trust, trust_env=False, timeout=60)

    async def shown(self, address: tuple[str, int]) -> str:
        """The name in the certificate that a new connection is shown."""
        _, writer = await asyncio.open_connection(*address, ssl=self.authority.client())
        told = writer.get_extra_info("peercert")
        writer.transport.abort()
        return common_name(told)

    async def all_show(self, doors: Sequence[tuple[str, int]], name: str) -> None:
        """Wait until each of these doors shows this certificate."""
        async with asyncio.timeout(WITHIN):
            for door in doors:
                while True:
                    shown = await self.shown(door)
                    if shown == name:
                        break
                    await asyncio.sleep(0.1)

    async def first_alert(self) -> dict[str, Any]:
        """The only alert, once it is there."""
        async with asyncio.timeout(WITHIN):
            while True:
                alerts = await self.alerts()
                if alerts:
                    (only,) = alerts
                    return only
                await asyncio.sleep(0.1)

    async def alerts(self) -> list[dict[str, Any]]:
        async with self.api() as api:
            query = {"filter": "iotsphere/system/alerts"}
            return [each["payload"] for each in (await api.get("/api/v1/messages", params=query)).json()["messages"]]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    authority = Authority(tmp_path)
    own = authority.server()
    settings = {
        "mqtt_tls": "127.0.0.1:0",
        "tls_certificate": own.certificate,
        "tls_key": own.key,
        "tls_client_ca": authority.path,
        "tls_client_crl": authority.revoke(),
        "tls_require_client_certificate": '["mqtt"]',
    }
    async with Gateway(tmp_path / "data", settings=settings) as gateway:
        yield Site(gateway, authority)


class Device:
    """A paho client that shows a certificate, over TCP or WebSocket."""

    def __init__(self, site: Site, shown: Issued, client_id: str, transport: str = "tcp") -> None:
        loop = asyncio.get_running_loop()
        self.connected: asyncio.Future[int] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()
        self.acknowledged: asyncio.Future[int] = loop.create_future()
        self._paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            transport="websockets" if transport == "websockets" else "tcp",
            reconnect_on_failure=False,
        )
        self._paho.tls_set_context(site.authority.client(shown))

        def tell(future: asyncio.Future[int], code: int) -> None:
            loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(code))

        self._paho.on_connect = lambda _c, _u, _f, reason, _p: tell(self.connected, reason.value)
        self._paho.on_disconnect = lambda _c, _u, _f, reason, _p: tell(self.ended, reason.value)
        self._paho.on_publish = lambda _c, _u, _m, reason, _p: tell(self.acknowledged, reason.value)

    async def open(self, address: tuple[str, int]) -> int:
        await asyncio.to_thread(self._paho.connect, *address, 30)
        self._paho.loop_start()
        return await asyncio.wait_for(self.connected, WITHIN)

    async def publish(self, payload: bytes) -> int:
        self._paho.publish(TOPIC, payload, 1)
        return await asyncio.wait_for(self.acknowledged, WITHIN)

    async def close(self) -> None:
        self._paho.disconnect()
        await asyncio.to_thread(self._paho.loop_stop)


async def test_every_door_speaks_tls_and_a_certificate_is_followed_from_issue_to_revocation(site: Site) -> None:
    gateway, authority = site
    assert gateway.endpoints["mqtts"].startswith("mqtts://127.0.0.1:")
    assert gateway.websocket.startswith("wss://")
    assert gateway.http.startswith("https://")
    async with site.api() as api:
        assert (await api.post("/api/v1/devices", json={"device_id": "d1"})).status_code in (200, 201)

    shown = authority.device("d1")
    host, _, port = gateway.websocket.removeprefix("wss://").rpartition(":")
    tcp, web = Device(site, shown, "over-tcp"), Device(site, shown, "over-websocket", "websockets")
    assert await tcp.open(site.mqtts) == 0
    assert await web.open((host, int(port))) == 0
    headers = {"Authorization": f"Bearer {gateway.token}"}
    async with connect(
        gateway.websocket, ssl=authority.client(), additional_headers=headers, proxy=None, compression=None
    ) as socket:
        browser = Talker(socket)
        await browser.subscribe(TOPIC)
        assert await tcp.publish(b"1") == 0
        assert await web.publish(b"2") == 0
        assert [each["payload"]["value"] for each in await browser.messages(2)] == [1, 2]

        # A renewed certificate: the open connections stay, new ones are shown the new one, on each door.
        renewed = authority.server("renewed")
        renewed.certificate.replace(authority.folder / "gateway.pem")
        renewed.key.replace(authority.folder / "gateway.key")
        url = httpx.URL(gateway.http)
        doors = [site.mqtts, (host, int(port)), (url.host, url.port or 0)]
        await site.all_show(doors, "renewed")
        assert (await browser.ask("ping"))["type"] == "ok"
        assert not tcp.ended.done()
        assert not web.ended.done()

        # A revoked certificate: its connections end by themselves, the browser without one stays.
        authority.revoke(shown.serial)
        assert await asyncio.wait_for(tcp.ended, WITHIN) == 0x98
        assert await asyncio.wait_for(web.ended, WITHIN) == 0x98
        assert (await browser.ask("ping"))["type"] == "ok"
    await tcp.close()
    await web.close()
    again = Device(site, shown, "again")
    with pytest.raises((TimeoutError, OSError)):
        await asyncio.wait_for(again.open(site.mqtts), 3)
    await again.close()

    # A broken file: refused, said once, and the old one goes on to count.
    (authority.folder / "gateway.pem").write_text("nothing")
    told = await site.first_alert()
    assert told["alert"] == "certificate_rejected"
    assert "holds no certificates in PEM" in told["message"]
    async with site.api() as api:
        figures = dict(
            line.rsplit(" ", 1) for line in (await api.get("/metrics")).text.splitlines() if not line.startswith("#")
        )
    assert 89 < float(figures["iotsphere_certificate_days_left"]) < 90
    assert 6 < float(figures["iotsphere_client_crl_days_left"]) < 7
    assert figures["iotsphere_certificates_rejected_total"] == "1.0"
    assert figures["iotsphere_certificates_renewed_total"] == "2.0"
    assert float(figures["iotsphere_tls_handshakes_failed_total"]) >= 1
    failed = [line for line in log_lines(gateway) if line["event"] == "tls_handshakes_failed"]
    assert sum(line.get("certificate_revoked", 0) for line in failed) >= 1
    assert await gateway.terminate() == 0


async def test_an_expiring_certificate_is_told_at_the_start(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.server(days=(-80, 6))
    settings = {"mqtt_tls": "127.0.0.1:0", "tls_certificate": own.certificate, "tls_key": own.key}
    async with Gateway(tmp_path / "data", settings=settings) as gateway:
        site = Site(gateway, authority)
        told = await site.first_alert()
        assert (told["alert"], told["what"], round(told["daysLeft"])) == ("certificate_expires", "certificate", 6)


# In this process


def settings_of(folder: Path, **given: Any) -> Settings:
    doors = {"mqtt": "127.0.0.1:0", "mqtt_tls": "127.0.0.1:0", "websocket": "127.0.0.1:0", "http": "127.0.0.1:0"}
    return Settings(data=folder, log="memory", **{**doors, **given})


SECRETS = Secrets(b"t" * 32, b"c" * 32, b"d" * 32)


async def test_a_process_with_the_websocket_role_alone_serves_mqtt_devices(tmp_path: Path) -> None:
    async with App(settings_of(tmp_path), ("websocket",), SECRETS) as app:
        assert set(app.endpoints) == {"websocket"}
        assert app.settings.node == "gateway.websocket"  # the sessions of an ingress process are not its own
        made = await app.container.devices().register("iotsphere", "d1")
        client = paho.Client(CallbackAPIVersion.VERSION2, "c1", transport="websockets")
        client.username_pw_set(made.username, made.password)
        acknowledged = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(acknowledged.set)

        client.on_connect = lambda c, *_: c.publish(TOPIC, b"7", 1)
        client.on_publish = lambda *_: tell()
        host, _, port = app.endpoints["websocket"].removeprefix("ws://").rpartition(":")
        await asyncio.to_thread(client.connect, host, int(port))
        client.loop_start()
        await asyncio.wait_for(acknowledged.wait(), WITHIN)
        await until(lambda: app.container.publish().accepted >= 2, "presence and message are in the log")
        client.disconnect()
        await asyncio.to_thread(client.loop_stop)


async def test_mqtt_in_clear_beyond_this_host_is_warned_of_once(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with App(settings_of(tmp_path / "a", mqtt="0.0.0.0:0"), ("ingress",), SECRETS):
            pass
        async with App(settings_of(tmp_path / "b"), ("ingress",), SECRETS):
            pass
    warned = [line for line in logs if line["event"] == "mqtt_without_tls"]
    assert [(line["address"], line["log_level"]) for line in warned] == [("0.0.0.0:0", "warning")]


async def test_the_plain_door_may_stay_closed(tmp_path: Path) -> None:
    own = Authority(tmp_path).server()
    settings = settings_of(tmp_path, mqtt="", tls_certificate=own.certificate, tls_key=own.key)
    async with App(settings, ("ingress",), SECRETS) as app:
        assert set(app.endpoints) == {"mqtts"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"tls_key": "k"}, "need tls_certificate"),
        ({"tls_client_ca": "c"}, "need tls_certificate"),
        ({"tls_certificate": "c", "tls_client_crl": "r"}, "need tls_client_ca"),
        ({"tls_certificate": "c", "tls_require_client_certificate": ["mqtt"]}, "need tls_client_ca"),
        ({"mqtt": ""}, "there must be TLS"),
    ],
)
def test_half_of_a_tls_configuration_is_refused(tmp_path: Path, given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        settings_of(tmp_path, **given)
