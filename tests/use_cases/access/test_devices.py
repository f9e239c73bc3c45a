"""The register of devices: grammar, twins, secrets shown once, domains apart (row A2)."""

from __future__ import annotations

import base64

import pytest

from iotsphere.entities.errors import Conflict, NotFound, RequestInvalid
from iotsphere.use_cases.access.devices import split_username, username_of
from tests.support.identity import Identity


async def test_registering_shows_a_secret_of_256_bits_once() -> None:
    identity = Identity()
    made = await identity.devices.register("iotsphere", "Pump-7.b:1_x")
    assert (made.device_id, made.username) == ("Pump-7.b:1_x", "Pump-7.b:1_x")
    assert len(base64.urlsafe_b64decode(made.password + "=")) == 32
    assert "." not in made.password
    other = await identity.devices.register("iotsphere", "d2")
    assert other.password != made.password


@pytest.mark.parametrize(
    "device_id",
    ["", "batch", "+", "#", "a/b", "a b", "a\0", "a\n", "-a", ".a", "é", "ａ", "d1\u200b", "a" * 65, "a" * 65_536, "a$",
     "a{1}", "a*", "(a)", "а1"],
)  # fmt: skip
async def test_a2_ids_outside_the_grammar_are_refused(device_id: str) -> None:
    identity = Identity()
    with pytest.raises(RequestInvalid) as refused:
        await identity.devices.register("iotsphere", device_id)
    assert len(str(refused.value)) < 700
    assert await identity.devices.list("iotsphere") == []


async def test_a2_a_domain_outside_the_grammar_is_refused() -> None:
    with pytest.raises(RequestInvalid, match="no domain"):
        await Identity().devices.register("a/b", "d1")


async def test_an_id_and_its_twin_in_other_case_are_refused() -> None:
    identity = Identity()
    await identity.devices.register("iotsphere", "Sensor-1")
    with pytest.raises(Conflict, match="registered already"):
        await identity.devices.register("iotsphere", "Sensor-1")
    with pytest.raises(Conflict, match="sensor-1 differs from the registered Sensor-1 in upper and lower case"):
        await identity.devices.register("iotsphere", "sensor-1")
    await identity.devices.register("other", "sensor-1")
    await identity.devices.remove("iotsphere", "Sensor-1")
    await identity.devices.register("iotsphere", "sensor-1")
    assert [found.device_id for found in await identity.devices.list("iotsphere")] == ["sensor-1"]


async def test_a_name_that_was_claimed_before_a_crash_can_be_taken() -> None:
    identity = Identity()
    await identity.documents.put("device-names", "iotsphere/d1", b"D1")
    made = await identity.devices.register("iotsphere", "d1")
    assert made.device_id == "d1"
    with pytest.raises(Conflict):
        await identity.devices.register("iotsphere", "D1")


async def test_listing_is_paged_in_order_and_stays_in_its_domain() -> None:
    identity = Identity()
    for name in ("b", "a", "c", "d"):
        await identity.devices.register("iotsphere", name)
    await identity.devices.register("iotsphere-2", "x")
    identity.clock.advance(5)
    await identity.devices.rotate("iotsphere", "b")
    first = await identity.devices.list("iotsphere", limit=3)
    assert [found.device_id for found in first] == ["a", "b", "c"]
    assert first[1].since > first[1].registered_at == first[0].since
    rest = await identity.devices.list("iotsphere", after="c", limit=3)
    assert [found.device_id for found in rest] == ["d"]
    assert [found.device_id for found in await identity.devices.list("iotsphere-2")] == ["x"]


async def test_what_is_not_there_or_in_another_domain_reads_the_same() -> None:
    identity = Identity()
    await identity.devices.register("other", "d1")
    texts = set()
    for call in (identity.devices.get, identity.devices.rotate, identity.devices.remove):
        for device_id in ("d1", "d9", "../other/d1"):
            with pytest.raises(NotFound) as error:
                await call("iotsphere", device_id)
            texts.add(str(error.value))
    assert len(texts) == 1
    assert (await identity.devices.get("other", "d1")).device_id == "d1"


@pytest.mark.parametrize(("domain", "username"), [("iotsphere", "d1"), ("other", "other/d1")])
def test_user_names_name_the_domain_unless_it_is_the_default(domain: str, username: str) -> None:
    assert username_of(domain, "d1") == username
    assert split_username(username) == (domain, "d1")
    assert split_username(f"{domain}/d1") == (domain, "d1")
