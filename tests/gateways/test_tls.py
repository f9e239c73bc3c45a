"""TLS on each of the three doors: who gets in, who is cut, and what a renewed file changes while clients are connected."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import orjson
import pytest
from cryptography import x509
from websockets.asyncio.client import connect

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.encode import encode
from iotsphere.adapters.mqtt.life import Offer
from iotsphere.adapters.mqtt.reasons import Reason
from iotsphere.drivers.certificates import CertificateFiles
from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.tls_contexts import CertificatePaths
from iotsphere.gateways.http import HttpGateway, HttpLimits
from iotsphere.gateways.mqtt import MqttLimits
from iotsphere.gateways.websocket import WebSocketLimits
from iotsphere.use_cases.access.authenticate import Authenticate
from iotsphere.use_cases.access.certificate_login import CertificateLogin
from tests.gateways.mqtt.house import House, open_house
from tests.gateways.mqtt.peer import Peer, message
from tests.gateways.mqtt.web import WebPeer, web_door
from tests.support.authority import Authority, Issued, common_name, old_client, subject
from tests.support.http_door import Door as HttpDoor
from tests.support.rooms import open_rooms
from tests.support.waiting import until

DOORS = ("mqtt", "websocket", "http")
WITHIN = 60.0
REQUESTS = {
    "mqtt": encode(p.Connect(p.MQTT_3_1_1, "c1", username="d1", password=b"wrong"), p.MQTT_3_1_1),
    "websocket": b"GET / HTTP/1.1\r\nHost: door\r\n\r\n",
    "http": b"GET /healthz HTTP/1.1\r\nHost: door\r\n\r\n",
}
ANSWERS = {"mqtt": b"\x20\x02\x00\x04", "websocket": b"HTTP/1.1 426", "http": b"HTTP/1.1 200"}


class Site:
    """One door with TLS, and the authority that its clients and itself are certified by."""

    def __init__(self, authority: Authority, name: str, demands: bool = False) -> None:
        own = authority.server()
        self.name = name
        self.authority = authority
        self.revoked = authority.revoke()
        self.files = CertificateFiles(
            CertificatePaths(own.certificate, own.key, authority.path, self.revoked), SystemClock()
        )
        self.context = self.files.context(["mqtt"] if name == "mqtt" else ["http/1.1"], demands=demands)
        self.address = ("", 0)

    async def renew(self) -> None:
        """Let the files be looked at until the change counts."""
        await self.files.refresh()
        assert await self.files.refresh()

    async def connect(self, client: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address, ssl=client)

    async def ask(self, client: ssl.SSLContext) -> bytes:
        """Connect, send a request, and return the beginning of the answer. Raises OSError or IncompleteReadError."""
        reader, writer = await self.connect(client)
        try:
            writer.write(REQUESTS[self.name])
            return await asyncio.wait_for(reader.readexactly(len(ANSWERS[self.name])), WITHIN)
        finally:
            writer.transport.abort()

    async def shown(self, client: ssl.SSLContext) -> str:
        """The name in the certificate that a new connection is shown."""
        _, writer = await self.connect(client)
        told = writer.get_extra_info("peercert")
        writer.transport.abort()
        return common_name(told)


def trusting(house: House, files: CertificateFiles, source: str = "cn") -> None:
    """Let the house's doors believe client certificates."""
    login = CertificateLogin(house.devices, files, house.clock, "san" if source == "san" else "cn")
    house.authenticate = Authenticate(house.devices, house.formats, house.revocations, certificates=login)


@asynccontextmanager
async def open_site(folder: Path, name: str, demands: bool = False) -> AsyncIterator[Site]:
    """A door of this name with TLS. It believes client certificates."""
    site = Site(Authority(folder), name, demands)
    async with AsyncExitStack() as stack:
        if name == "http":
            rooms = await stack.enter_async_context(open_rooms())
            rooms.authenticate = Authenticate(
                rooms.devices,
                rooms.formats,
                rooms.revocations,
                certificates=CertificateLogin(rooms.devices, site.files, rooms.clock),
            )
            http: HttpGateway = HttpDoor(rooms, HttpLimits(request=60)).gateway
            stack.push_async_callback(http.close)
            site.address = await http.start("127.0.0.1", 0, site.context)
        else:
            house = await stack.enter_async_context(open_house())
            trusting(house, site.files)
            site.address = await house.door(MqttLimits(offer=Offer(connect_within=60)), site.context)
            if name == "websocket":
                web = web_door(house, limits=WebSocketLimits(handshake=60), ssl=site.context)
                _, site.address = await stack.enter_async_context(web)
        yield site


@pytest.fixture(params=DOORS)
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(tmp_path, request.param) as opened:
        yield opened


async def test_a_client_that_believes_the_authority_is_served(site: Site) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        client = site.authority.client()
        client.minimum_version = client.maximum_version = version
        assert await site.ask(client) == ANSWERS[site.name]
    with pytest.raises(ssl.SSLCertVerificationError):
        await site.ask(ssl.create_default_context())


async def test_old_protocols_and_clear_text_are_refused(site: Site) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await site.ask(old_client())
    reader, writer = await asyncio.open_connection(*site.address)
    writer.write(REQUESTS[site.name])
    assert ANSWERS[site.name] not in await _read_all(reader)
    writer.close()
    await until(lambda: site.files.handshakes == {"protocol_version": 1, "no_tls": 1}, "both were counted")


@pytest.mark.parametrize("name", DOORS)
async def test_client_certificates_of_others_expired_ones_and_none_are_refused(tmp_path: Path, name: str) -> None:
    async with open_site(tmp_path, name, demands=True) as site:
        authority = site.authority
        stranger = Authority(tmp_path, "stranger").device("d1", file="s")
        expired = authority.issue("e", subject("d1"), days=(-3, -1))
        revoked = authority.device("d2", file="r")
        authority.revoke(revoked.serial)
        await site.renew()
        for shown in (None, stranger, expired, revoked):
            # With TLS 1.3 the client has connected before it learns of the refusal: it sees the end when it reads.
            with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
                await site.ask(authority.client(shown))
        assert await site.ask(authority.client(authority.device("d1"))) == ANSWERS[name]
        counted = {
            "certificate_missing": 1,
            "certificate_untrusted": 1,
            "certificate_expired": 1,
            "certificate_revoked": 1,
            "accepted": 1,
        }
        await until(lambda: site.files.handshakes == counted, "all were counted")


async def test_d4_silence_and_half_a_handshake_are_cut_and_keep_nobody_out(site: Site) -> None:
    silent = await asyncio.open_connection(*site.address)
    half = await asyncio.open_connection(*site.address)
    to_server, from_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = site.authority.client().wrap_bio(from_server, to_server, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    half[1].write(to_server.read()[:60])
    assert await site.ask(site.authority.client()) == ANSWERS[site.name]
    for reader, writer in (silent, half):
        assert await _read_all(reader) == b""
        writer.close()


async def test_a_renewed_certificate_meets_new_connections_and_leaves_old_ones(site: Site) -> None:
    client = site.authority.client()
    reader, writer = await site.connect(client)
    new = site.authority.server("renewed")
    new.certificate.replace(site.authority.folder / "gateway.pem")
    new.key.replace(site.authority.folder / "gateway.key")
    await site.renew()
    assert await site.shown(client) == "renewed"
    writer.write(REQUESTS[site.name])
    assert await asyncio.wait_for(reader.readexactly(4), WITHIN) == ANSWERS[site.name][:4]
    writer.transport.abort()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), WITHIN)
    except ConnectionError:
        return b""


# Devices by certificate


class Fleet:
    """An MQTT door with TLS and a WebSocket door, which know devices by their certificates."""

    def __init__(self, house: House, site: Site, web: tuple[str, int]) -> None:
        self.house = house
        self.site = site
        self.web = web

    def peer(self, kind: str, shown: Issued | None, version: int = p.MQTT_5) -> Peer:
        client = self.site.authority.client(shown)
        return TlsPeer(self.site.address, client, version) if kind == "tcp" else WebPeer(self.web, version, ssl=client)


class TlsPeer(Peer):
    """A peer over TLS."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext, version: int) -> None:
        super().__init__(address, version)
        self._context = context

    async def __aenter__(self) -> TlsPeer:
        self._reader, self._writer = await asyncio.open_connection(*self.address, ssl=self._context)
        self._listening = asyncio.create_task(self._listen())
        return self


@asynccontextmanager
async def open_fleet(folder: Path, source: str = "cn") -> AsyncIterator[Fleet]:
    site = Site(Authority(folder), "mqtt")
    async with open_house() as house:
        trusting(house, site.files, source)
        site.address = await house.door(ssl=site.context)
        async with web_door(house, ssl=site.files.context(["http/1.1"])) as (_, web):
            yield Fleet(house, site, web)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with open_fleet(tmp_path) as opened:
        await opened.house.device("d1")
        yield opened


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
@pytest.mark.parametrize("version", [p.MQTT_3_1_1, p.MQTT_5])
async def test_a_device_logs_in_by_its_certificate_alone(fleet: Fleet, kind: str, version: int) -> None:
    shown = fleet.site.authority.device("d1")
    async with fleet.peer(kind, shown, version) as peer:
        assert (await peer.connect(None, "any client id")).reason == 0
        peer.send(message("iotsphere/devices/d1/telemetry", b"1", 1))
        await peer.expect(p.Ack)
    async with fleet.peer(kind, shown, version) as peer:
        assert (await peer.connect(None, "d2")).reason == 0  # the client id is no identity (case C04)
        if version == p.MQTT_5:
            peer.send(message("iotsphere/devices/d2/telemetry", b"1", 1))
            assert (await peer.expect(p.Ack)).reason == Reason.NOT_AUTHORIZED
    assert {each["metadata"]["source"] for each in await fleet.house.envelopes()} == {"d1"}


@pytest.mark.parametrize("name", ["+", "D1", "d1\0", "dеv1", "d2", "other/d1"])
async def test_case_c04_certificates_that_name_no_registered_device_get_0x87(fleet: Fleet, name: str) -> None:
    async with fleet.peer("tcp", fleet.site.authority.device(name)) as peer:
        refused = await peer.connect(None, "d1")
        assert refused.reason == Reason.NOT_AUTHORIZED
        assert "names no registered device" in (refused.properties.reason_string or "")
    assert fleet.house.gateway.counts["connect_refused_forbidden"] == 1


async def test_a_user_name_of_another_device_or_domain_gets_0x87(fleet: Fleet) -> None:
    other = await fleet.house.device("d2")
    shown = fleet.site.authority.device("d1")
    for fields in (
        {"username": "d2"},
        {"username": "other/d1"},
        {"username": "d2", "password": other.password.encode()},
    ):
        async with fleet.peer("tcp", shown) as peer:
            assert (await peer.connect(None, **fields)).reason == Reason.NOT_AUTHORIZED
    async with fleet.peer("tcp", shown) as peer:
        assert (await peer.connect(None, username="d1")).reason == 0


async def test_without_a_certificate_the_password_decides(fleet: Fleet) -> None:
    device = await fleet.house.device("d2")
    async with fleet.peer("tcp", None) as peer, fleet.peer("websocket", None) as nobody:
        assert (await peer.connect(device)).reason == 0
        assert (await nobody.connect(None)).reason == Reason.NOT_AUTHORIZED


async def test_a_revoked_certificate_ends_its_connections_on_both_wires_and_no_other(fleet: Fleet) -> None:
    authority = fleet.site.authority
    await fleet.house.device("d2")
    revoked, other = authority.device("d1", file="one"), authority.device("d2", file="two")
    async with (
        fleet.peer("tcp", revoked) as first,
        fleet.peer("websocket", revoked) as second,
        fleet.peer("tcp", other) as third,
    ):
        for number, peer in enumerate((first, second, third)):
            assert (await peer.connect(None, f"c{number}")).reason == 0
        authority.revoke(revoked.serial)
        await fleet.site.renew()
        for peer in (first, second):
            assert (await peer.expect(p.Disconnect)).reason == Reason.ADMINISTRATIVE_ACTION
            await peer.end()
        await third.ping()
    assert fleet.house.gateway.counts["credential_ended"] == 2


async def test_the_alternative_name_names_the_device(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, "san") as fleet:
        await fleet.house.device("d1", "other")
        uri = x509.UniformResourceIdentifier("iotsphere://other/devices/d1")
        shown = fleet.site.authority.issue("d", subject("somebody"), [uri])
        async with fleet.peer("tcp", shown) as peer:
            assert (await peer.connect(None)).reason == 0
            peer.send(message("iotsphere/devices/d1/telemetry", b"1", 1))
            assert (await peer.expect(p.Ack)).reason == Reason.NOT_AUTHORIZED
            peer.send(message("other/devices/d1/telemetry", b"1", 2))
            assert (await peer.expect(p.Ack)).reason == 0


async def test_a_websocket_client_whose_certificate_is_revoked_is_closed(fleet: Fleet) -> None:
    shown = fleet.site.authority.device("billing")
    context = fleet.site.authority.client(shown)
    headers = {"Authorization": "Bearer " + fleet.house.token("billing", "subscribe:iotsphere/#")}
    url = f"wss://{fleet.web[0]}:{fleet.web[1]}"
    async with connect(url, ssl=context, additional_headers=headers, proxy=None) as socket:
        await socket.send(orjson.dumps({"type": "ping", "ref": 1}), text=True)
        assert orjson.loads(await socket.recv())["type"] == "ok"
        fleet.site.authority.revoke(shown.serial)
        await fleet.site.renew()
        await asyncio.wait_for(socket.wait_closed(), WITHIN)
        assert socket.close_code == 4401
