"""Forged tokens: each attack of rows J1 to J5 and of case C11 as a text, for the tests of every door."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import warnings
from functools import cache
from typing import Final

from joserfc import jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OKPKey, RSAKey

SECRET: Final = bytes(range(32))
RSA_KID: Final = "rsa-2026"
EC_KID: Final = "ec-2026"

# Case C11 as it was seen in the field.
C11: Final = {
    "alg none": (
        "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJzdWIiOiJhZG1pbiIsImV4cCI6NDEwMjQ0NDgwMCwicm9sZXMiOlsiYWRtaW4iXX0."
    ),
    "kid traversal": (
        "eyJhbGciOiJIUzI1NiIsImtpZCI6Ii4uLy4uLy4uLy4uL2Rldi9udWxsIiwidHlwIjoiSldUIn0"
        ".eyJzdWIiOiJhZG1pbiIsImV4cCI6NDEwMjQ0NDgwMH0.AAAA"
    ),
    "embedded jwk and jku": (
        "eyJhbGciOiJSUzI1NiIsImprdSI6Imh0dHA6Ly8xMjcuMC4wLjE6MS9rIiwiandrIjp7Imt0eSI6Im9jdCIsImsiOiJBQSJ9fQ"
        ".eyJzdWIiOiJhZG1pbiIsImV4cCI6NDEwMjQ0NDgwMH0.AAAA"
    ),
    "empty signature": "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIiwiZXhwIjo0MTAyNDQ0ODAwfQ.",
    "two dots missing": "abc",
    "64 KB": "a" * 65_536,
}


@cache
def rsa() -> RSAKey:
    """A key of another issuer, RS256."""
    return RSAKey.generate_key(2048)


@cache
def ec() -> ECKey:
    """A key of another issuer, ES256."""
    return ECKey.generate_key("P-256")


def trusted() -> dict[str, tuple[str, str | bytes]]:
    """The public keys as configuration."""
    return {RSA_KID: ("RS256", rsa().as_pem(private=False)), EC_KID: ("ES256", ec().as_pem(private=False))}


def segment(value: object) -> str:
    """One part of a token; texts are taken as they are, everything else as JSON."""
    raw = value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def sign(header: object, claims: object, secret: bytes = SECRET) -> str:
    """A token with a correct HS256 signature, whatever its header says."""
    signed = f"{segment(header)}.{segment(claims)}"
    return f"{signed}.{segment(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


def own_header(**more: object) -> dict[str, object]:
    """The header that our own tokens have, with changes."""
    return {"typ": "JWT", "alg": "HS256", "kid": "iotsphere", **more}


def good_claims(now: int, **more: object) -> dict[str, object]:
    """Claims that are accepted at ``now`` (ms), with changes."""
    second = now // 1000
    return {
        "iss": "iotsphere", "aud": "iotsphere", "sub": "user:eve", "dom": "iotsphere", "jti": "t-1",
        "roles": ["operator"], "grants": ["publish:iotsphere/#", "subscribe:iotsphere/#"],
        "iat": second, "exp": second + 3600, **more,
    }  # fmt: skip


def foreign(now: int, key: RSAKey | ECKey | OKPKey, header: dict[str, object], **more: object) -> str:
    """A token that another issuer signed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)  # the library advises against the name EdDSA
        claims = json.dumps(good_claims(now, **more))
        return jws.serialize_compact(header, claims, key, algorithms=[str(header["alg"])])


def attacks(now: int) -> dict[str, str]:
    """Name -> token; every one of them must be refused at ``now`` (ms)."""
    good = good_claims(now)
    second = now // 1000
    text = json.dumps(good)
    own = json.dumps(own_header())
    pem = rsa().as_pem(private=False)
    jwk = ec().as_dict(private=False)
    deep = "[" * 20_000 + "]" * 20_000
    found = {f"C11 {name}": token for name, token in C11.items()}
    found |= {
        "J1 alg none": f"{segment(own_header(alg='none'))}.{segment(good)}.",
        "J1 alg none with a signature": sign(own_header(alg="none"), good),
        "J1 alg None": sign(own_header(alg="None"), good),
        "J1 HS256 signed with the RSA public key": sign(own_header(kid=RSA_KID), good, pem),
        "J1 RS256 claimed, HS256 signed with the RSA public key": sign(own_header(kid=RSA_KID, alg="RS256"), good, pem),
        "J1 HS512 with our secret": sign(own_header(alg="HS512"), good),
        "J1 embedded jwk": foreign(now, ec(), {"typ": "JWT", "alg": "ES256", "kid": EC_KID, "jwk": jwk}),
        "J1 jku": sign(own_header(jku="http://127.0.0.1:1/keys"), good),
        "J1 x5u": sign(own_header(x5u="http://127.0.0.1:1/chain"), good),
        "J1 x5c": sign(own_header(x5c=["AAAA"]), good),
        "J1 unknown crit": sign(own_header(crit=["exp"]), good),
        "J1 b64 false": sign(own_header(crit=["b64"], b64=False), good),
        "J1 empty key": sign(own_header(), good, b""),
        "J1 another key": sign(own_header(), good, b"x" * 32),
        "J1 empty signature": f"{segment(own_header())}.{segment(good)}.",
        "J2 no kid": sign({"typ": "JWT", "alg": "HS256"}, good),
        "J2 kid unknown": sign(own_header(kid="nobody"), good),
        "J2 kid with a path": sign(own_header(kid="../../../../dev/null"), good, b""),
        "J2 kid of another key": sign(own_header(kid=EC_KID), good),
        "J2 kid no text": sign(own_header(kid=["iotsphere"]), good),
        "J3 exp missing": sign(own_header(), {k: v for k, v in good.items() if k != "exp"}),
        "J3 iat missing": sign(own_header(), {k: v for k, v in good.items() if k != "iat"}),
        "J3 iss missing": sign(own_header(), {k: v for k, v in good.items() if k != "iss"}),
        "J3 aud missing": sign(own_header(), {k: v for k, v in good.items() if k != "aud"}),
        "J3 sub missing": sign(own_header(), {k: v for k, v in good.items() if k != "sub"}),
        "J3 dom missing": sign(own_header(), {k: v for k, v in good.items() if k != "dom"}),
        "J3 exp past": sign(own_header(), good_claims(now, exp=second - 1, iat=second - 60)),
        "J3 exp now": sign(own_header(), good_claims(now, exp=now / 1000, iat=second - 60)),
        "J3 exp text": sign(own_header(), good_claims(now, exp=str(second + 60))),
        "J3 exp true": sign(own_header(), good_claims(now, exp=True)),
        "J3 exp null": sign(own_header(), good_claims(now, exp=None)),
        "J3 exp list": sign(own_header(), good_claims(now, exp=[second + 60])),
        "J3 exp NaN": sign(own_header(), text.replace(f'"exp": {second + 3600}', '"exp": NaN')),
        "J3 exp Infinity": sign(own_header(), text.replace(f'"exp": {second + 3600}', '"exp": Infinity')),
        "J3 exp 1e400": sign(own_header(), text.replace(f'"exp": {second + 3600}', '"exp": 1e400')),
        "J3 exp of 5,000 digits": sign(own_header(), text.replace(f"{second + 3600}", "9" * 5_000)),
        "J3 exp negative": sign(own_header(), good_claims(now, exp=-1)),
        "J3 iat text": sign(own_header(), good_claims(now, iat=str(second))),
        "J3 iat false": sign(own_header(), good_claims(now, iat=False)),
        "J3 nbf in the future": sign(own_header(), good_claims(now, nbf=second + 60)),
        "J3 nbf text": sign(own_header(), good_claims(now, nbf=str(second))),
        "J3 iat in the future": sign(own_header(), good_claims(now, iat=second + 60)),
        "J3 exp before iat": sign(own_header(), good_claims(now, iat=second + 4, exp=second + 2)),
        "J3 wrong iss": sign(own_header(), good_claims(now, iss="https://evil.example")),
        "J3 iss list": sign(own_header(), good_claims(now, iss=["iotsphere"])),
        "J3 wrong aud": sign(own_header(), good_claims(now, aud="other")),
        "J3 aud list without us": sign(own_header(), good_claims(now, aud=["a", "b"])),
        "J3 aud object": sign(own_header(), good_claims(now, aud={"iotsphere": 1})),
        "J3 sub number": sign(own_header(), good_claims(now, sub=7)),
        "J3 sub list": sign(own_header(), good_claims(now, sub=["user:eve"])),
        "J3 sub without kind": sign(own_header(), good_claims(now, sub="eve")),
        "J3 sub of unknown kind": sign(own_header(), good_claims(now, sub="root:eve")),
        "J3 sub with a wildcard": sign(own_header(), good_claims(now, sub="device:+")),
        "J3 sub with a line break": sign(own_header(), good_claims(now, sub="device:a\n")),
        "J3 dom with a slash": sign(own_header(), good_claims(now, dom="a/b")),
        "J3 grants text": sign(own_header(), good_claims(now, grants="publish:iotsphere/#")),
        "J3 grants of another domain": sign(own_header(), good_claims(now, grants=["publish:other/#"])),
        "J3 grant without action": sign(own_header(), good_claims(now, grants=["iotsphere/#"])),
        "J3 roles text": sign(own_header(), good_claims(now, roles="operator")),
        "J3 jti number": sign(own_header(), good_claims(now, jti=1)),
        "J3 lives over 24 hours, another issuer": foreign(
            now, rsa(), {"typ": "JWT", "alg": "RS256", "kid": RSA_KID}, exp=second + 24 * 3600 + 1
        ),
        "J4 typ missing": sign({"alg": "HS256", "kid": "iotsphere"}, good),
        "J4 typ at+jwt": sign(own_header(typ="at+jwt"), good),
        "J4 typ jwt": sign(own_header(typ="jwt"), good),
        "J4 typ list": sign(own_header(typ=["JWT"]), good),
        "J4 claim twice": sign(own_header(), text[:-1] + ', "sub": "user:root"}'),
        "J4 claim twice, escaped": sign(own_header(), text[:-1] + ', "\\u0073ub": "user:root"}'),
        "J4 nested claim twice": sign(own_header(), text[:-1] + ', "x": {"a": 1, "a": 2}}'),
        "J4 header twice": sign(own[:-1] + ', "alg": "HS256"}', good),
        "J5 1 MB": sign(own_header(), good_claims(now, x="a" * 1_000_000)),
        "J5 20,000 deep": sign(own_header(), text[:-1] + f', "x": {deep}}}'),
        "J5 2,500 deep inside 8 KiB": sign(own_header(), text[:-1] + f', "x": {"[" * 2_500 + "]" * 2_500}}}'),
        "empty": "",
        "dots": "..",
        "four segments": sign(own_header(), good) + ".AAAA",
        "not UTF-8": sign(own_header(), b"\xff\xfe"),
        "claims are a list": sign(own_header(), [good]),
        "header is a text": sign('"JWT"', good),
        "padding": sign(own_header(), good) + "=",
        "white space": " " + sign(own_header(), good),
        "not ASCII": sign(own_header(), good) + "é",
    }  # fmt: skip
    return found
