"""Tokens are read as strictly as promised, and every refusal reads the same (rows J1 to J5, case C11)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa as weak_rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import ECKey, OKPKey, RSAKey

from iotsphere.adapters.tokens import JsonWebTokens, Lifetimes
from iotsphere.drivers.clock import ManualClock
from iotsphere.entities.errors import RequestInvalid, Unauthenticated
from iotsphere.entities.principal import Principal, device, parse_grant
from iotsphere.use_cases.ports.tokens import NOT_BELIEVED
from tests.support import forgery

CLOCK = ManualClock()
NOW = CLOCK.now()
TOKENS = JsonWebTokens(forgery.SECRET, CLOCK, forgery.trusted())
ATTACKS = forgery.attacks(NOW)
HOUR = 3_600_000


def principal(**changes: object) -> Principal:
    grants = (parse_grant("subscribe:iotsphere/devices/#", domain="iotsphere"),)
    made = Principal("user", "ann", "iotsphere", grants, frozenset(("operator",)), NOW + HOUR, "t-9", NOW)
    return replace(made, **changes)  # type: ignore[arg-type]  # any field may be changed by a test


def test_a_principal_comes_back_as_it_was_issued() -> None:
    assert TOKENS.read(TOKENS.issue(principal())) == principal()


@given(
    since=st.integers(NOW - HOUR, NOW),
    lifetime=st.integers(HOUR + 1, 400 * 24 * HOUR),
    roles=st.frozensets(st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True), max_size=4),
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}", fullmatch=True),
)
def test_every_principal_comes_back_to_the_millisecond(
    since: int, lifetime: int, roles: frozenset[str], name: str
) -> None:
    made = principal(since=since, expires_at=since + lifetime, roles=roles, name=name)
    assert TOKENS.read(TOKENS.issue(made)) == made


def test_the_claims_that_all_attacks_start_from_are_accepted() -> None:
    read = TOKENS.read(forgery.sign(forgery.own_header(), forgery.good_claims(NOW)))
    assert (read.identity, read.roles, read.token_id) == ("iotsphere/user/eve", frozenset(("operator",)), "t-1")
    assert read.may("publish", "iotsphere/system/status")


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_is_refused_with_the_same_text(name: str) -> None:
    with pytest.raises(Unauthenticated) as refused:
        TOKENS.read(ATTACKS[name])
    assert refused.value.message == NOT_BELIEVED
    assert refused.value.facts == {}


@pytest.mark.parametrize(
    ("key", "header"),
    [
        (forgery.rsa(), {"typ": "JWT", "alg": "RS256", "kid": forgery.RSA_KID}),
        (forgery.ec(), {"typ": "JWT", "alg": "ES256", "kid": forgery.EC_KID}),
    ],
)
def test_another_issuer_is_believed_with_its_own_key(key: RSAKey | ECKey, header: dict[str, object]) -> None:
    read = TOKENS.read(forgery.foreign(NOW, key, header))
    assert read.name == "eve"
    assert read.since == NOW - 5_000, "its clock may run ahead by the leeway"


@pytest.mark.parametrize("algorithm", ["EdDSA", "Ed25519"])
def test_both_names_of_edwards_curve_signatures_are_understood(algorithm: str) -> None:
    key = OKPKey.generate_key("Ed25519")
    tokens = JsonWebTokens(forgery.SECRET, CLOCK, {"ed": (algorithm, key.as_pem(private=False))})
    text = forgery.foreign(NOW, key, {"typ": "JWT", "alg": algorithm, "kid": "ed"})
    assert tokens.read(text).name == "eve"


def test_clocks_may_differ_by_five_seconds() -> None:
    claims = forgery.good_claims(NOW, iat=NOW // 1000 + 5, nbf=NOW // 1000 + 5)
    assert TOKENS.read(forgery.sign(forgery.own_header(), claims)).name == "eve"
    claims = forgery.good_claims(NOW, iat=NOW / 1000 + 5.001)
    with pytest.raises(Unauthenticated):
        TOKENS.read(forgery.sign(forgery.own_header(), claims))


def test_a_device_without_grants_gets_those_of_every_device() -> None:
    claims = forgery.good_claims(NOW, sub="device:d1", roles=[])
    del claims["grants"]
    assert TOKENS.read(forgery.sign(forgery.own_header(), claims)).grants == device("iotsphere", "d1").grants
    claims["sub"] = "user:ann"
    assert TOKENS.read(forgery.sign(forgery.own_header(), claims)).grants == ()


def test_a_token_without_an_id_is_named_by_what_was_signed() -> None:
    claims = forgery.good_claims(NOW)
    del claims["jti"]
    text = forgery.sign(forgery.own_header(), claims)
    read = TOKENS.read(text)
    assert read.token_id.startswith("sha256:")
    assert len(read.token_id) == 71
    assert TOKENS.read(text).token_id == read.token_id
    del claims["roles"]
    assert TOKENS.read(forgery.sign(forgery.own_header(), claims)).token_id != read.token_id


def test_tokens_must_end() -> None:
    for wrong in (0, NOW, NOW - 1, NOW + 400 * 24 * HOUR + 1):
        with pytest.raises(RequestInvalid, match="must end"):
            TOKENS.issue(principal(expires_at=wrong))
    short = JsonWebTokens(forgery.SECRET, CLOCK, lifetimes=Lifetimes(own=HOUR))
    with pytest.raises(Unauthenticated):
        short.read(TOKENS.issue(principal(expires_at=NOW + HOUR + 1)))


def test_a_token_with_too_many_grants_is_not_issued() -> None:
    grants = tuple(parse_grant(f"subscribe:iotsphere/devices/{'d' * 50}{i}/#", domain="iotsphere") for i in range(100))
    with pytest.raises(RequestInvalid, match="fewer grants"):
        TOKENS.issue(principal(grants=grants))


def test_weak_and_unfit_keys_are_refused_at_the_start() -> None:
    private = forgery.rsa().as_pem(private=True)
    weak = (
        weak_rsa.generate_private_key(65_537, 1024)
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    unfit: list[tuple[str, str | bytes]] = [
        ("RS256", private), ("RS256", weak), ("ES256", forgery.rsa().as_pem(private=False)), ("RS256", b"no key"),
        ("none", b""), ("HS256", b"x" * 32), ("RS256", '{"kty": "oct", "k": "AA"}'),
        ("RS256", "{"),
    ]  # fmt: skip
    for key in unfit:
        with pytest.raises(RequestInvalid):
            JsonWebTokens(forgery.SECRET, CLOCK, {"k": key})
    with pytest.raises(RequestInvalid, match="32 random bytes"):
        JsonWebTokens(b"short", CLOCK)
    with pytest.raises(RequestInvalid, match="cannot name a key"):
        JsonWebTokens(forgery.SECRET, CLOCK, {"iotsphere": ("RS256", forgery.rsa().as_pem(private=False))})
    with pytest.raises(RequestInvalid, match="cannot name a key"):
        JsonWebTokens(forgery.SECRET, CLOCK, {"../key": ("RS256", forgery.rsa().as_pem(private=False))})


@given(st.text(max_size=300))
def test_no_text_at_all_does_more_than_being_refused(text: str) -> None:
    with pytest.raises(Unauthenticated):
        TOKENS.read(text)


@given(st.integers(0, 2_000), st.integers(0, 255))
def test_no_token_with_a_changed_byte_is_believed(place: int, byte: int) -> None:
    good = TOKENS.issue(principal())
    place %= len(good) - 1  # the last character holds bits that do not count
    changed = good[:place] + chr(byte) + good[place + 1 :]
    if changed != good:
        with pytest.raises(Unauthenticated):
            TOKENS.read(changed)
