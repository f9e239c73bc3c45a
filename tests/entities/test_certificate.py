"""Which device a certificate names: exactly one, by its exact id, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.entities.certificate import Certificate, device_of
from iotsphere.entities.topic import is_device_id, is_domain

ID = "x509:00:1"


def by_name(*names: str, organizations: tuple[str, ...] = ()) -> tuple[str, str] | None:
    return device_of(Certificate(ID, 0, names, organizations), "cn")


def by_alternative(*uris: str, names: tuple[str, ...] = (), organizations: tuple[str, ...] = ()) -> object:
    return device_of(Certificate(ID, 0, ("ignored",), organizations, uris, names), "san")


def test_the_common_name_is_the_device_and_the_organization_its_domain() -> None:
    assert by_name("d1") == ("iotsphere", "d1")
    assert by_name("d1", organizations=("plant-2",)) == ("plant-2", "d1")
    assert by_name("D1") == ("iotsphere", "D1")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "+",
        "#",
        "d1/#",
        "a/b",
        "other/d1",
        "../d1",
        "d1\0",
        "d1\0.example",
        " d1",
        "d1 ",
        "d1\n",
        "dеv1",
        "ｄ1",
        "batch",
    ],
)
def test_case_c04_a_name_outside_the_grammar_is_nobody(name: str) -> None:
    assert by_name(name) is None
    assert by_alternative(names=(name,)) is None
    assert by_alternative(f"iotsphere://iotsphere/devices/{name}") is None


def test_several_names_or_domains_are_nobody() -> None:
    assert by_name() is None
    assert by_name("d1", "d2") is None
    assert by_name("d1", organizations=("iotsphere", "other")) is None
    assert by_name("d1", organizations=("ACME, Inc.",)) is None
    assert by_alternative("iotsphere://iotsphere/devices/d1", "iotsphere://other/devices/d1") is None


def test_the_alternative_name_is_a_uri_or_else_a_dns_name() -> None:
    assert by_alternative("iotsphere://plant-2/devices/d1", names=("d2",)) == ("plant-2", "d1")
    assert by_alternative("spiffe://plant-2/d1", names=("d2",)) == ("iotsphere", "d2")
    assert by_alternative(names=("d2",), organizations=("plant-2",)) == ("plant-2", "d2")
    assert by_alternative() is None


@pytest.mark.parametrize(
    "uri",
    [
        "iotsphere://",
        "iotsphere://d1",
        "iotsphere://iotsphere/users/d1",
        "iotsphere://iotsphere/devices/d1/x",
        "iotsphere://iotsphere/devices/d1?x",
        "iotsphere://iotsphere/devices/%64%31",
        "iotsphere:///devices/d1",
        "iotsphere://a@iotsphere/devices/d1",
    ],
)
def test_a_uri_of_another_form_is_nobody_and_no_other_name_stands_in(uri: str) -> None:
    assert by_alternative(uri, names=("d2",)) is None


@given(st.tuples(st.text(max_size=8)), st.lists(st.text(max_size=8), max_size=2))
def test_whatever_is_named_is_well_formed_and_as_it_stands_in_the_certificate(
    names: tuple[str], organizations: list[str]
) -> None:
    found = by_name(*names, organizations=tuple(organizations))
    if found is not None:
        assert found == ((organizations or ["iotsphere"])[0], names[0])
        assert is_domain(found[0])
        assert is_device_id(found[1])
