"""Logging in by a certificate: who it is, what else it may show, and when that ends (case C04)."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from iotsphere.entities.certificate import Certificate, IdentitySource
from iotsphere.entities.errors import Forbidden, RateLimited, Unauthenticated
from iotsphere.use_cases.access.authenticate import Authenticate
from iotsphere.use_cases.access.certificate_login import CertificateLogin
from iotsphere.use_cases.access.devices import Credential
from tests.support.identity import Identity

HERE = "10.0.0.1"


class Trust:
    """A list of revoked certificates."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()

    def holds(self, certificate_id: str) -> bool:
        return certificate_id not in self.revoked


class Scene(NamedTuple):
    identity: Identity
    trust: Trust
    d1: Credential
    d2: Credential

    def authenticate(self, source: IdentitySource = "cn") -> Authenticate:
        one = self.identity
        login = CertificateLogin(one.devices, self.trust, one.clock, source)
        return Authenticate(one.devices, one.formats, one.revocations, one.watch, login)

    def certificate(self, name: str = "d1", *organizations: str, hours: int = 1) -> Certificate:
        expires = self.identity.clock.now() + hours * 3_600_000
        return Certificate("x509:aa:1", expires, (name,), organizations)


@pytest.fixture
async def scene() -> Scene:
    identity = Identity()
    credentials = [await identity.devices.register("iotsphere", each) for each in ("d1", "d2")]
    await identity.devices.register("other", "d1")
    return Scene(identity, Trust(), *credentials)


async def test_a_certificate_is_enough(scene: Scene) -> None:
    certificate = scene.certificate()
    found = await scene.authenticate().certificate(certificate, None, None, HERE)
    assert (found.kind, found.domain, found.name) == ("device", "iotsphere", "d1")
    assert (found.certificate, found.expires_at) == (certificate.id, certificate.expires_at)
    assert found.may("publish", "iotsphere/devices/d1/telemetry/t")
    assert not found.may("publish", "iotsphere/devices/d2/telemetry/t")
    foreign = await scene.authenticate().certificate(scene.certificate("d1", "other"), "", "", HERE)
    assert foreign.identity == "other/device/d1"


@pytest.mark.parametrize(
    ("name", "organization"),
    [("d3", "iotsphere"), ("D1", "iotsphere"), ("+", "iotsphere"), ("d1\0", "iotsphere"), ("d2", "other"), ("d1", "x")],
)
async def test_case_c04_a_certificate_of_nobody_registered_is_refused(
    scene: Scene, name: str, organization: str
) -> None:
    authenticate = scene.authenticate()
    for username in (None, "", "d1", name):
        with pytest.raises(Forbidden, match="names no registered device"):
            await authenticate.certificate(scene.certificate(name, organization), username, None, HERE)
    with pytest.raises(Forbidden, match="somebody else"):  # a device's password does not mend it
        await authenticate.certificate(scene.certificate(name, organization), "d1", scene.d1.password, HERE)


async def test_a_removed_device_is_nobody_and_its_connection_ends(scene: Scene) -> None:
    authenticate = scene.authenticate()
    found = await authenticate.certificate(scene.certificate(), None, None, HERE)
    assert authenticate.still_valid(found)
    await scene.identity.devices.remove("iotsphere", "d1")
    assert not authenticate.still_valid(found)
    with pytest.raises(Forbidden):
        await authenticate.certificate(scene.certificate(), None, None, HERE)


async def test_a_user_name_or_password_must_be_the_same_devices(scene: Scene) -> None:
    authenticate, certificate = scene.authenticate(), scene.certificate()
    for username, password in (("d1", None), ("iotsphere/d1", ""), ("d1", scene.d1.password)):
        assert (await authenticate.certificate(certificate, username, password, HERE)).name == "d1"
    for username, password in (("d2", None), ("other/d1", None), ("D1", None), ("d2", scene.d2.password)):
        with pytest.raises(Forbidden, match="somebody else"):
            await authenticate.certificate(certificate, username, password, HERE)
    with pytest.raises(Unauthenticated):
        await authenticate.certificate(certificate, "d1", scene.d2.password, HERE)


async def test_guessing_beside_a_certificate_is_slowed_down_like_any_other(scene: Scene) -> None:
    authenticate, certificate = scene.authenticate(), scene.certificate()
    refused: set[type[Exception]] = set()
    for _ in range(50):
        try:
            await authenticate.certificate(certificate, "d1", "wrong", HERE)
        except (Unauthenticated, RateLimited) as error:
            refused.add(type(error))
    assert refused == {Unauthenticated, RateLimited}


async def test_a_token_needs_its_own_certificate_or_one_of_nobody(scene: Scene) -> None:
    issuer, tokens = scene.identity.operator, scene.identity.tokens
    service = tokens.issue(issuer, "service:billing", ["subscribe:iotsphere/#"]).token
    authenticate = scene.authenticate()
    found = await authenticate.certificate(scene.certificate("billing"), "token", service, HERE)
    assert (found.kind, found.name, found.certificate) == ("service", "billing", "x509:aa:1")
    assert found.expires_at <= scene.certificate().expires_at
    with pytest.raises(Forbidden, match="somebody else"):
        await authenticate.certificate(scene.certificate("d1"), "", service, HERE)
    own = tokens.issue(issuer, "device:d1", ["publish:iotsphere/devices/d1/telemetry/#"]).token
    narrow = await authenticate.certificate(scene.certificate("d1"), "d1", own, HERE)
    assert not narrow.may(
        "subscribe", "iotsphere/devices/d1/commands/request"
    )  # the token's rights, not all of its own


async def test_a_certificate_that_is_over_is_refused_and_ends_what_is_open(scene: Scene) -> None:
    authenticate = scene.authenticate()
    found = await authenticate.certificate(scene.certificate(), None, None, HERE)
    scene.trust.revoked.add(found.certificate)
    assert not authenticate.still_valid(found)
    assert not authenticate.trusts(found.certificate)
    with pytest.raises(Unauthenticated, match="revoked"):
        await authenticate.certificate(scene.certificate(), None, None, HERE)
    scene.trust.revoked.clear()
    assert authenticate.still_valid(found)
    scene.identity.clock.advance(3_600_000)
    assert not authenticate.still_valid(found)
    with pytest.raises(Unauthenticated, match="expired"):
        await authenticate.certificate(scene.certificate(hours=0), None, None, HERE)


async def test_the_alternative_name_counts_where_it_is_asked_for(scene: Scene) -> None:
    certificate = scene.certificate("d2")._replace(uris=("iotsphere://iotsphere/devices/d1",))
    assert (await scene.authenticate("san").certificate(certificate, None, None, HERE)).name == "d1"
    assert (await scene.authenticate("cn").certificate(certificate, None, None, HERE)).name == "d2"


async def test_without_authorities_a_certificate_is_nobodys(scene: Scene) -> None:
    with pytest.raises(Forbidden):
        await scene.identity.authenticate.certificate(scene.certificate(), "d1", scene.d1.password, HERE)
