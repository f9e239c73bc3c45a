"""Access tokens as JSON Web Tokens (RFC 7519), read as strictly as RFC 8725 asks.

Each key has one algorithm, fixed by configuration, and is found by ``kid`` in a fixed map; nothing that stands in a
token chooses an algorithm, a key or an address.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
import secrets
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from joserfc import jws
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

from ..entities.errors import RequestInvalid, Unauthenticated
from ..entities.principal import DEVICE_GRANTS, Grant, Principal, parse_grant
from ..entities.topic import is_device_id, is_domain, is_user_id
from ..use_cases.ports.clock import Clock
from ..use_cases.ports.tokens import NOT_BELIEVED

ISSUER: Final = "iotsphere"
OWN_KID: Final = "iotsphere"
MAX_TOKEN_BYTES: Final = 8 * 1024
MAX_GRANTS: Final = 256
MAX_ROLES: Final = 32
LEEWAY_MS: Final = 5_000
HOUR_MS: Final = 3600 * 1000
SECRET_BYTES: Final = 32

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_TOKEN_ID: Final = re.compile(r"[\x21-\x7e]{1,128}\Z")
_ROLE: Final = re.compile(r"[a-z][a-z0-9-]{0,31}\Z")
_KID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_HEADER_KEYS: Final = frozenset(("typ", "alg", "kid"))
_LAST_SECOND: Final = 253_402_300_799  # 9999-12-31, the last that every date library can show
_KEY_TYPES: Final[Mapping[str, type[Key]]] = {
    "RS256": RSAKey, "RS384": RSAKey, "RS512": RSAKey, "PS256": RSAKey,
    "ES256": ECKey, "ES384": ECKey, "EdDSA": OKPKey, "Ed25519": OKPKey,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long tokens may live, in ms from ``iat`` to ``exp``: those that we sign, and those of other issuers."""

    own: int = 400 * 24 * HOUR_MS
    foreign: int = 24 * HOUR_MS


class _Trusted(NamedTuple):
    algorithm: str
    key: Key
    registry: jws.JWSRegistry
    lifetime: int
    skew: int


class _Doubt(ValueError):
    """Why a token is not believed: a fixed text, nothing of the token itself."""


class JsonWebTokens:
    """Issues tokens with one HS256 secret (32 bytes or more), and believes that secret and the ``trusted`` keys.

    ``trusted``: kid -> (algorithm, public key as PEM or JWK text) of other issuers, who must write ``iss`` and ``aud``
    as we do. Raises RequestInvalid for keys that do not fit their algorithm or are too weak.
    """

    def __init__(
        self,
        secret: bytes,
        clock: Clock,
        trusted: Mapping[str, tuple[str, str | bytes]] | None = None,
        lifetimes: Lifetimes = Lifetimes(),
    ) -> None:
        if len(secret) < SECRET_BYTES:
            raise RequestInvalid(f"the token secret must hold at least {SECRET_BYTES} random bytes")
        self._clock = clock
        self._lifetimes = lifetimes
        self._own = _Trusted("HS256", OctKey.import_key(secret), _only("HS256"), lifetimes.own, 0)
        self._keys = {OWN_KID: self._own}
        for kid, (algorithm, text) in (trusted or {}).items():
            if not _KID.match(kid) or kid in self._keys:
                raise RequestInvalid(f"{kid!a} cannot name a key: use letters, digits and _.- , and no name twice")
            key = _public_key(kid, algorithm, text)
            self._keys[kid] = _Trusted(algorithm, key, _only(algorithm), lifetimes.foreign, LEEWAY_MS)

    def issue(self, principal: Principal) -> str:
        """The token of a principal, as it stands. Raises RequestInvalid."""
        issued = principal.since or self._clock.now()
        if not issued < principal.expires_at <= issued + self._lifetimes.own:
            raise RequestInvalid(
                f"a token must end, and within {self._lifetimes.own // HOUR_MS} hours; ask for a shorter life"
            )
        claims = {
            "iss": ISSUER,
            "aud": ISSUER,
            "sub": f"{principal.kind}:{principal.name}",
            "dom": principal.domain,
            "grants": [f"{grant.action}:{grant.filter.text}" for grant in principal.grants],
            "roles": sorted(principal.roles),
            "jti": principal.token_id or secrets.token_urlsafe(16),
            "iat": issued / 1000,
            "exp": principal.expires_at / 1000,
        }
        header = {"typ": "JWT", "alg": self._own.algorithm, "kid": OWN_KID}
        body = json.dumps(claims, separators=(",", ":"))
        text = jws.serialize_compact(header, body, self._own.key, registry=self._own.registry)
        if len(text) > MAX_TOKEN_BYTES:
            raise RequestInvalid(f"the token would be longer than {MAX_TOKEN_BYTES} bytes; give it fewer grants")
        return text

    def read(self, text: str) -> Principal:
        """The principal that a token speaks for. Raises Unauthenticated, always with the same text."""
        try:
            return self._principal(text)
        except (_Doubt, JoseError, RequestInvalid) as error:
            raise Unauthenticated(NOT_BELIEVED) from error

    def _principal(self, text: str) -> Principal:
        if len(text) > MAX_TOKEN_BYTES:
            raise _Doubt("longer than 8 KiB")
        segments = text.split(".")
        if len(segments) != 3 or not all(_SEGMENT.match(segment) for segment in segments):
            raise _Doubt("not three base64url segments")
        header = _object(segments[0])
        kid = header.get("kid")
        trusted = self._keys.get(kid) if isinstance(kid, str) else None
        if trusted is None:
            raise _Doubt("unknown kid")
        if header.keys() != _HEADER_KEYS or header["typ"] != "JWT" or header["alg"] != trusted.algorithm:
            raise _Doubt("the header is not exactly typ JWT, the key's algorithm and its kid")
        _verify(text, trusted)
        return self._claims(_object(segments[1]), trusted, ".".join(segments[:2]))

    def _claims(self, claims: Mapping[str, object], trusted: _Trusted, signed: str) -> Principal:
        now = self._clock.now()
        expires_at = _time(claims.get("exp"))
        issued = _time(claims.get("iat"))
        if expires_at <= now:
            raise _Doubt("expired")
        if issued > now + LEEWAY_MS or ("nbf" in claims and _time(claims["nbf"]) > now + LEEWAY_MS):
            raise _Doubt("not valid yet")
        if not 0 < expires_at - issued <= trusted.lifetime:
            raise _Doubt("it lives too long")
        audience = claims.get("aud")
        if claims.get("iss") != ISSUER or ISSUER not in (audience if isinstance(audience, list) else (audience,)):
            raise _Doubt("another issuer or audience")
        domain = claims.get("dom")
        if not isinstance(domain, str) or not is_domain(domain):
            raise _Doubt("no domain")
        kind, name = _subject(claims.get("sub"))
        # An issuer whose clock runs ahead must not place a token after a revocation that has just been made.
        return Principal(
            kind,
            name,
            domain,
            _grants(claims.get("grants"), kind, domain, name),
            frozenset(_texts(claims.get("roles", []), MAX_ROLES, _ROLE)),
            expires_at,
            _token_id(claims, signed),
            issued - trusted.skew,
        )


def _only(algorithm: str) -> jws.JWSRegistry:
    return jws.JWSRegistry(algorithms=[algorithm])


def _verify(text: str, trusted: _Trusted) -> None:
    if trusted.algorithm != "EdDSA":
        jws.deserialize_compact(text, trusted.key, registry=trusted.registry)
        return
    with warnings.catch_warnings():  # the library advises against this name (RFC 9864), but it is what issuers write
        warnings.simplefilter("ignore", SecurityWarning)
        jws.deserialize_compact(text, trusted.key, registry=trusted.registry)


def _public_key(kid: str, algorithm: str, text: str | bytes) -> Key:
    kind = _KEY_TYPES.get(algorithm)
    if kind is None:
        raise RequestInvalid(f"key {kid}: {algorithm!a} is not among {', '.join(_KEY_TYPES)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SecurityWarning)  # a key that the library calls weak is none
            key = kind.import_key(json.loads(text) if text.lstrip()[:1] in ("{", b"{") else text)
    except SecurityWarning as error:
        raise RequestInvalid(f"key {kid}: too weak: {error}") from error
    except (JoseError, ValueError, TypeError) as error:
        raise RequestInvalid(f"key {kid}: not a public key for {algorithm} in PEM or JWK form") from error
    if key.is_private:
        raise RequestInvalid(f"key {kid}: this is a private key; give the gateway the public one only")
    return key


def _once(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise _Doubt("a key twice")
        found[key] = value
    return found


def _no_constant(_: str) -> NoReturn:
    raise _Doubt("NaN or Infinity")


def _object(segment: str) -> dict[str, object]:
    try:
        raw = base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
        value = json.loads(raw.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except (binascii.Error, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _Doubt("not a JSON object") from error
    except _Doubt:
        raise
    except ValueError as error:  # an integer of more digits than Python converts
        raise _Doubt("a number too long") from error
    if not isinstance(value, dict):
        raise _Doubt("not a JSON object")
    return value


def _time(value: object) -> int:
    """A NumericDate (seconds, may have a fraction) in ms."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Doubt("a time that is missing or no number")
    if not math.isfinite(value) or not 0 <= value <= _LAST_SECOND:
        raise _Doubt("a time out of range")
    return round(value * 1000)


def _subject(value: object) -> tuple[str, str]:
    kind, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    check = {"device": is_device_id, "user": is_user_id, "service": is_user_id}.get(kind)
    if check is None or not check(name):
        raise _Doubt("the subject is not device:ID, user:ID or service:NAME")
    return kind, name


def _texts(value: object, most: int, pattern: re.Pattern[str] | None = None) -> list[str]:
    if not isinstance(value, list) or len(value) > most:
        raise _Doubt("a list that is none, or too long")
    for text in value:
        if not isinstance(text, str) or (pattern is not None and not pattern.match(text)):
            raise _Doubt("a list with something else than texts")
    return value


def _grants(value: object, kind: str, domain: str, name: str) -> tuple[Grant, ...]:
    """The grants of the claims; a device without any has those of every device."""
    if value is None:
        value = list(DEVICE_GRANTS) if kind == "device" else []
    return tuple(parse_grant(text, domain=domain, name=name) for text in _texts(value, MAX_GRANTS))


def _token_id(claims: Mapping[str, object], signed: str) -> str:
    """What a revocation names: ``jti``, or else a digest of what was signed (a signature can be written in two ways)."""
    if "jti" not in claims:
        return "sha256:" + hashlib.sha256(signed.encode()).hexdigest()
    value = claims["jti"]
    if not isinstance(value, str) or not _TOKEN_ID.match(value):
        raise _Doubt("a jti that is no short printable text")
    return value
