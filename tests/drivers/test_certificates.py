"""Certificates in files: what is refused, when a change counts, and what the newest contexts do in a handshake."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from iotsphere.adapters.certificates import read_certificate
from iotsphere.drivers.certificates import CertificateFiles
from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.tls_contexts import CertificatePaths
from iotsphere.entities.channel import DAY_MS
from iotsphere.entities.errors import CertificateRejected
from tests.support.authority import Authority, Issued, common_name, old_client, subject

MQTT = ("mqtt",)


class Handshake:
    """Client and server in one process, joined by memory."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None) -> None:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(to_server, to_client, server_side=True)
        self.client = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1", session=session)
        self.error: ssl.SSLError | None = None  # of the server
        waiting = [self.client, self.server] * 3
        while waiting:
            side = waiting.pop(0)
            try:
                side.do_handshake()
                waiting = [each for each in waiting if each is not side]
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                if side is self.server:
                    self.error = error
                return

    @property
    def shown(self) -> str:
        """The common name that the server showed."""
        told = self.client.getpeercert()
        assert told is not None
        return common_name(told)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def paths_of(authority: Authority, own: Issued | None = None) -> CertificatePaths:
    issued = own or authority.server()
    return CertificatePaths(issued.certificate, issued.key, authority.path, authority.revoke())


def files_of(paths: CertificatePaths) -> CertificateFiles:
    return CertificateFiles(paths, SystemClock())


async def settle(files: CertificateFiles) -> bool:
    """Two looks: one sees the change, the other one that it is complete."""
    assert not await files.refresh()
    return await files.refresh()


def id_of(issued: Issued) -> str:
    return read_certificate(ssl.PEM_cert_to_DER_cert(issued.certificate.read_text())).id


async def test_a_renewed_certificate_is_shown_to_new_connections(authority: Authority) -> None:
    files = files_of(paths_of(authority))
    context = files.context(MQTT)
    assert Handshake(context, authority.client()).shown == "gateway"
    assert not await files.refresh()
    new = authority.server("renewed")
    new.certificate.replace(authority.folder / "gateway.pem")
    assert not await files.refresh()  # certificate and key do not belong together, and nobody is alarmed yet
    new.key.replace(authority.folder / "gateway.key")
    assert await settle(files)
    assert Handshake(context, authority.client()).shown == "renewed"
    assert not await files.refresh()


async def test_a_swapped_link_is_noticed(authority: Authority) -> None:
    made = {}
    for name in ("one", "two"):
        folder = authority.folder / name
        folder.mkdir()
        issued = authority.server(name)
        issued.certificate.rename(folder / "tls.pem")
        with (folder / "tls.pem").open("ab") as both:
            both.write(issued.key.read_bytes())
        made[name] = folder
    link = authority.folder / "current"
    link.symlink_to(made["one"])
    files = files_of(CertificatePaths(link / "tls.pem", link / "tls.pem"))
    context = files.context(MQTT)
    assert Handshake(context, authority.client()).shown == "one"
    (authority.folder / "next").symlink_to(made["two"])
    (authority.folder / "next").replace(link)
    assert await settle(files)
    assert Handshake(context, authority.client()).shown == "two"


@pytest.mark.parametrize("how", ["empty", "noise", "foreign key", "gone", "expired"])
async def test_a_broken_file_is_refused_once_and_the_old_one_goes_on(authority: Authority, how: str) -> None:
    own = authority.server()
    files = files_of(paths_of(authority, own))
    context = files.context(MQTT)
    good = own.certificate.read_bytes(), own.key.read_bytes()
    match how:
        case "empty":
            own.certificate.write_bytes(b"")
        case "noise":
            own.certificate.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        case "foreign key":
            authority.server("other").key.replace(own.key)
        case "gone":
            own.key.unlink()
        case "expired":
            authority.server(days=(-3, -1))
    assert not await files.refresh()
    with pytest.raises(CertificateRejected):
        await files.refresh()
    assert not await files.refresh()
    assert Handshake(context, authority.client()).shown == "gateway"
    own.certificate.write_bytes(good[0])
    own.key.write_bytes(good[1])
    assert await settle(files)
    assert Handshake(context, authority.client()).shown == "gateway"


def test_a_key_with_a_passphrase_is_refused_without_asking(authority: Authority) -> None:
    own = authority.server()
    key = serialization.load_pem_private_key(own.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    own.key.write_bytes(key.private_bytes(pem, form, locked))
    files = files_of(paths_of(authority, own))
    with pytest.raises(CertificateRejected, match="no passphrase"):
        files.context(MQTT)


def test_files_that_are_not_there_are_named(authority: Authority) -> None:
    paths = paths_of(authority)
    for name in ("certificate", "key", "client_ca", "client_crl"):
        with pytest.raises(CertificateRejected, match=r"cannot read .*nowhere: No such file"):
            files_of(replace(paths, **{name: authority.folder / "nowhere"}))


def test_a_list_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    impostor = Authority(tmp_path, "test authority")  # the same name, another key
    paths = paths_of(authority)
    for each in (stranger, impostor):
        with pytest.raises(CertificateRejected, match="none of the client authorities has signed"):
            files_of(replace(paths, client_ca=authority.path, client_crl=each.revoke(file="x.pem")))
        authority.path.write_bytes(authority.certificate.public_bytes(serialization.Encoding.PEM))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_new_list_keeps_the_revoked_out_of_the_context_in_use(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    files = files_of(paths_of(authority))
    context = files.context(MQTT)
    device, other = authority.device("d1", file="d1"), authority.device("d2", file="d2")
    clients = [authority.client(device), authority.client(other)]
    for client in clients:
        client.maximum_version = version
    assert [Handshake(context, client).error for client in clients] == [None, None]
    assert files.holds(id_of(device))
    authority.revoke(device.serial)
    assert await settle(files)
    assert not files.holds(id_of(device))
    assert files.holds(id_of(other))
    refused = Handshake(context, clients[0]).error
    assert refused is not None
    assert refused.reason == "CERTIFICATE_VERIFY_FAILED"
    assert Handshake(context, clients[1]).error is None
    assert files.handshakes == {"accepted": 3, "certificate_revoked": 1}


async def test_a_session_from_before_an_authority_was_dropped_is_not_resumed(authority: Authority) -> None:
    paths = replace(paths_of(authority), client_crl=None)
    files = files_of(paths)
    context = files.context(MQTT)
    client = authority.client(authority.device("d1"))
    client.maximum_version = ssl.TLSVersion.TLSv1_2  # resumes without tickets, which are off
    first = Handshake(context, client)
    assert first.error is None
    again = Handshake(context, client, first.client.session)
    assert again.error is None
    assert again.client.session_reused
    successor = Authority(authority.folder, "successor")
    assert paths.client_ca is not None
    successor.path.replace(paths.client_ca)
    assert await settle(files)
    refused = Handshake(context, client, first.client.session)
    assert refused.error is not None
    assert files.handshakes == {"accepted": 2, "session_outdated": 1}


def test_tickets_are_off_where_clients_show_certificates(authority: Authority) -> None:
    paths = paths_of(authority)
    for chosen, tickets in ((paths, 0), (replace(paths, client_ca=None, client_crl=None), 2)):
        assert files_of(chosen).context(MQTT).num_tickets == tickets


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("nothing", "certificate_missing"),
        ("expired", "certificate_expired"),
        ("not yet", "certificate_not_yet_valid"),
        ("stranger", "certificate_untrusted"),
        ("impostor", "certificate_untrusted"),
        ("server", "certificate_for_another_purpose"),
        ("old list", "revocation_list_expired"),
        ("version", "protocol_version"),
        ("cipher", "no_shared_cipher"),
    ],
)
def test_each_failed_handshake_is_counted_with_its_reason(authority: Authority, what: str, reason: str) -> None:
    paths = paths_of(authority)
    shown: Issued | None = authority.device("d1")
    match what:
        case "nothing":
            shown = None
        case "expired":
            shown = authority.issue("d", subject("d1"), days=(-3, -1))
        case "not yet":
            shown = authority.issue("d", subject("d1"), days=(1, 3))
        case "stranger":
            shown = Authority(authority.folder, "stranger").device("d1")
        case "impostor":
            folder = authority.folder / "impostor"
            folder.mkdir()
            shown = Authority(folder).device("d1")
        case "server":
            shown = authority.issue("d", subject("d1"), purpose=ExtendedKeyUsageOID.SERVER_AUTH)
        case "old list":
            authority.revoke(days=(-3, -1))
    files = files_of(paths)
    client = authority.client(shown)
    if what == "version":
        client = old_client()
    if what == "cipher":
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        client.set_ciphers("AES128-SHA")
    result = Handshake(files.context(MQTT, demands=True), client)
    assert result.error is not None
    assert files.handshakes == {reason: 1}


def test_alpn_names_the_protocol_of_the_door(authority: Authority) -> None:
    files = files_of(paths_of(authority))
    client = authority.client()
    client.set_alpn_protocols(["h2", "mqtt"])
    assert Handshake(files.context(MQTT), client).client.selected_alpn_protocol() == "mqtt"
    assert Handshake(files.context(["http/1.1"]), client).client.selected_alpn_protocol() is None


def test_validities_tell_the_first_that_expires(authority: Authority) -> None:
    issued = authority.server(days=(-1, 90))
    found = {each.name: each for each in files_of(paths_of(authority, issued)).validities()}
    now = SystemClock().now()
    days = {name: round((each.until - now) / DAY_MS) for name, each in found.items()}
    assert days == {"certificate": 90, "client_ca": 365, "client_crl": 7}
    assert found["certificate"].id == id_of(issued)
