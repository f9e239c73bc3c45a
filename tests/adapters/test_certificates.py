"""Certificates read exactly: what stands in them is neither cut, folded nor guessed."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509

from iotsphere.adapters.certificates import read_certificate, revoked_ids
from iotsphere.entities.certificate import Certificate
from tests.support.authority import Authority, Issued, subject


def read(issued: Issued) -> Certificate:
    return read_certificate(ssl.PEM_cert_to_DER_cert(issued.certificate.read_text()))


def test_the_facts_of_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    names = [x509.DNSName("d1"), x509.UniformResourceIdentifier("iotsphere://a/devices/d1"), x509.DNSName("d2")]
    made = authority.issue("d", subject("d1", "x", organizations=["plant-2"]), names)
    found = read(made)
    assert found[2:] == (("d1", "x"), ("plant-2",), ("iotsphere://a/devices/d1",), ("d1", "d2"))
    parsed = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    assert found.expires_at == int(parsed.not_valid_after_utc.timestamp()) * 1000
    assert found.id.endswith(f":{made.serial:x}")


@pytest.mark.parametrize("name", ["d1\0.example", "dеv", " d1 ", "+", "a/b", "d1\r\n"])
def test_odd_names_stay_as_they_are(tmp_path: Path, name: str) -> None:
    assert read(Authority(tmp_path).device(name)).common_names == (name,)


def test_a_certificate_without_names_has_none(tmp_path: Path) -> None:
    assert read(Authority(tmp_path).issue("d", subject()))[2:] == ((), (), (), ())


def test_a_list_revokes_what_its_own_authority_has_signed(tmp_path: Path) -> None:
    one, two = Authority(tmp_path, "one"), Authority(tmp_path, "two")
    first, second = one.device("d1", file="a"), one.device("d2", file="b")
    lists = [x509.load_pem_x509_crl(each.revoke(first.serial, 7).read_bytes()) for each in (one, two)]
    assert read(first).id in set(revoked_ids(lists[:1]))
    assert read(second).id not in set(revoked_ids(lists))
    assert read(first).id not in set(revoked_ids(lists[1:]))  # another authority's numbers are other certificates


@pytest.mark.parametrize("data", [b"", b"\x30", b"not a certificate"])
def test_what_is_no_certificate_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_certificate(data)
