"""Passwords and tokens become principals, and stop to be ones at once when they are revoked (rows J6 and D8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from iotsphere.drivers.memory.documents import MemoryDocuments
from iotsphere.entities.errors import RateLimited, Unauthenticated
from iotsphere.entities.principal import device
from iotsphere.use_cases.access.tokens import operator
from iotsphere.use_cases.ports.documents import Document
from iotsphere.use_cases.ports.tokens import NOT_BELIEVED
from tests.support import forgery
from tests.support.identity import Identity


async def refused(identity: Identity, username: str, password: str, address: str = "192.0.2.1") -> None:
    with pytest.raises(Unauthenticated) as error:
        await identity.authenticate.password(username, password, address)
    assert (error.value.message, error.value.facts) == (NOT_BELIEVED, {})


async def test_a_device_logs_in_with_its_secret_and_gets_its_own_topics() -> None:
    identity = Identity()
    made = await identity.devices.register("iotsphere", "d1")
    principal = await identity.authenticate.password(made.username, made.password, "192.0.2.1")
    assert principal.identity == "iotsphere/device/d1"
    assert principal.grants == device("iotsphere", "d1").grants
    assert identity.authenticate.still_valid(principal)
    same = await identity.authenticate.password("iotsphere/d1", made.password, "192.0.2.1")
    assert same == principal


async def test_a_device_of_another_domain_logs_in_with_its_domain() -> None:
    identity = Identity()
    made = await identity.devices.register("plant-2", "d1")
    assert made.username == "plant-2/d1"
    principal = await identity.authenticate.password(made.username, made.password, "192.0.2.1")
    assert principal.domain == "plant-2"
    await refused(identity, "d1", made.password)


@pytest.mark.parametrize(
    "username", ["d2", "D1", "", "d1\n", "d1/", "/d1", "iotsphere/d1/x", "x" * 300, "+", "#", "{device_id}", "d1\0"]
)
async def test_a_wrong_name_is_refused(username: str) -> None:
    identity = Identity()
    made = await identity.devices.register("iotsphere", "d1")
    await refused(identity, username, made.password)


async def test_a_wrong_or_huge_secret_is_refused() -> None:
    identity = Identity()
    made = await identity.devices.register("iotsphere", "d1")
    for index, wrong in enumerate(("", made.password[:-1], made.password + "x", made.password.swapcase(), "x" * 10**6)):
        await refused(identity, "d1", wrong, f"192.0.2.{index}")


async def test_a_token_is_accepted_as_the_password_with_any_user_name() -> None:
    identity = Identity()
    issued = identity.tokens.issue(identity.operator, "device:d7")
    principal = await identity.authenticate.password("whatever", issued.token, "192.0.2.1")
    assert principal.identity == "iotsphere/device/d7"
    for name, attack in forgery.attacks(identity.clock.now()).items():
        await refused(identity, "whatever", attack, name)


async def test_nothing_that_is_stored_contains_a_secret() -> None:
    identity = Identity()
    made = await identity.devices.register("iotsphere", "d1")
    for collection in ("devices", "device-names", "revocations"):
        for document in await identity.documents.scan(collection):
            assert made.password.encode() not in document.value


async def test_whoever_keeps_failing_waits_longer_each_time() -> None:
    identity = Identity()
    made = await identity.devices.register("iotsphere", "d1")
    for _ in range(5):
        await refused(identity, "d1", "wrong")
    waits = []
    for _ in range(8):
        with pytest.raises(RateLimited) as limited:
            await identity.authenticate.password("d1", made.password, "192.0.2.1")
        wait = limited.value.facts["retry_after"]
        assert isinstance(wait, float)
        waits.append(wait)
        identity.watch.seconds += wait
        await refused(identity, "d1", "wrong")
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert await identity.authenticate.password("d1", made.password, "192.0.2.9"), "another address is not held back"
    await refused(identity, "d2", "wrong")
    identity.watch.seconds += 60
    assert await identity.authenticate.password("d1", made.password, "192.0.2.1")
    await refused(identity, "d1", "wrong")
    assert await identity.authenticate.password("d1", made.password, "192.0.2.1"), "a success starts the count anew"


async def test_the_memory_of_failures_is_bounded() -> None:
    identity = Identity()
    for index in range(10_050):
        with pytest.raises(Unauthenticated):
            await identity.authenticate.password(f"d{index}", "wrong", "192.0.2.1")
    assert len(identity.authenticate._back_off) == 10_000


# -- J6: what ends while somebody is connected -------------------------------------------------------------------------


async def test_j6_a_token_ends_at_its_expiry_to_the_millisecond() -> None:
    identity = Identity()
    issued = identity.tokens.issue(identity.operator, "user:ann", lifetime=60)
    principal = identity.authenticate.token(issued.token)
    identity.clock.advance(59_999)
    assert identity.authenticate.still_valid(principal)
    identity.clock.advance(1)
    assert not identity.authenticate.still_valid(principal)
    with pytest.raises(Unauthenticated, match=NOT_BELIEVED):
        identity.authenticate.token(issued.token)


async def test_j6_a_revoked_token_ends_at_once_here_and_after_a_refresh_elsewhere() -> None:
    here = Identity()
    there = Identity(here.documents, here.clock)
    issued = here.tokens.issue(here.operator, "user:ann")
    other = here.tokens.issue(here.operator, "user:ann")
    principal = there.authenticate.token(issued.token)
    await here.tokens.revoke(here.operator, issued.token_id)
    assert not here.authenticate.still_valid(principal)
    assert there.authenticate.still_valid(principal), "the other process has not looked yet"
    await there.authenticate.refresh()
    assert not there.authenticate.still_valid(principal)
    with pytest.raises(Unauthenticated, match=NOT_BELIEVED):
        there.authenticate.token(issued.token)
    assert there.authenticate.still_valid(there.authenticate.token(other.token))


async def test_j6_all_tokens_of_a_subject_end_and_later_ones_do_not() -> None:
    identity = Identity()
    old = identity.authenticate.token(identity.tokens.issue(identity.operator, "user:ann").token)
    bystander = identity.authenticate.token(identity.tokens.issue(identity.operator, "service:ann").token)
    for _ in range(3):
        await identity.tokens.revoke_subject(identity.operator, "user:ann")
        assert not identity.authenticate.still_valid(old)
        assert identity.authenticate.still_valid(bystander)
        old = identity.authenticate.token(identity.tokens.issue(identity.operator, "user:ann").token)
        assert identity.authenticate.still_valid(old), "issued after the revocation, in the same millisecond"


async def test_j6_a_token_of_another_issuer_whose_clock_runs_ahead_does_not_outlive_its_revocation() -> None:
    identity = Identity()
    now = identity.clock.now()
    header: dict[str, object] = {"typ": "JWT", "alg": "RS256", "kid": forgery.RSA_KID}
    text = forgery.foreign(now, forgery.rsa(), header, iat=now // 1000 + 4)
    principal = identity.authenticate.token(text)
    await identity.tokens.revoke_subject(identity.operator, "user:eve")
    identity.clock.advance(10_000)
    assert not identity.authenticate.still_valid(principal)
    with pytest.raises(Unauthenticated):
        identity.authenticate.token(text)


async def test_j6_a_role_is_lost_by_revoking_and_issuing_anew() -> None:
    identity = Identity()
    issued = identity.tokens.issue(identity.operator, "user:ann", roles=["operator"])
    before = identity.authenticate.token(issued.token)
    assert before.roles == {"operator"}
    await identity.tokens.revoke_subject(identity.operator, "user:ann")
    after = identity.authenticate.token(identity.tokens.issue(identity.operator, "user:ann").token)
    assert (identity.authenticate.still_valid(before), after.roles) == (False, frozenset())


@pytest.mark.parametrize("act", ["rotate", "remove"])
async def test_j6_a_device_ends_with_its_secret(act: str) -> None:
    here = Identity()
    there = Identity(here.documents, here.clock)
    made = await here.devices.register("iotsphere", "d1")
    login = await there.authenticate.password("d1", made.password, "192.0.2.1")
    token = there.authenticate.token(here.tokens.issue(here.operator, "device:d1").token)
    neighbour = await here.devices.register("iotsphere", "d10")
    bystander = await there.authenticate.password("d10", neighbour.password, "192.0.2.1")
    await getattr(here.devices, act)("iotsphere", "d1")
    await there.authenticate.refresh()
    for identity in (here, there):
        assert not identity.authenticate.still_valid(login)
        assert not identity.authenticate.still_valid(token)
        assert identity.authenticate.still_valid(bystander)
        await refused(identity, "d1", made.password)


async def test_a_rotated_and_a_registered_again_device_are_valid_in_the_same_millisecond() -> None:
    identity = Identity()
    made = await identity.devices.register("iotsphere", "d1")
    for _ in range(3):
        made = await identity.devices.rotate("iotsphere", "d1")
        assert identity.authenticate.still_valid(await identity.authenticate.password("d1", made.password, "a"))
    await identity.devices.remove("iotsphere", "d1")
    made = await identity.devices.register("iotsphere", "d1")
    login = await identity.authenticate.password("d1", made.password, "a")
    assert identity.authenticate.still_valid(login)
    await identity.devices.remove("iotsphere", "d1")
    assert not identity.authenticate.still_valid(login)


async def test_old_revocations_are_forgotten_everywhere_when_no_token_can_live_any_more() -> None:
    identity = Identity()
    await identity.tokens.revoke(identity.operator, "t-1")
    await identity.tokens.revoke_subject(identity.operator, "user:ann")
    identity.clock.advance(400 * 24 * 3_600_000)
    await identity.authenticate.refresh()
    assert len(await identity.documents.scan("revocations")) == 2
    identity.clock.advance(2 * 24 * 3_600_000)
    await identity.authenticate.refresh()
    assert await identity.documents.scan("revocations") == []
    assert identity.revocations.earliest("iotsphere", "user", "ann") == 0


async def test_a_revocation_of_one_domain_does_not_touch_another() -> None:
    identity = Identity()
    foreign = identity.tokens.issue(identity.operator, "user:ann")
    other = operator("other")
    await identity.tokens.revoke(other, foreign.token_id)
    await identity.tokens.revoke_subject(other, "user:ann")
    assert identity.authenticate.still_valid(identity.authenticate.token(foreign.token))


async def test_many_revocations_are_all_learnt() -> None:
    here = Identity()
    for index in range(2_500):
        await here.revocations.revoke_token("iotsphere", f"t-{index}")
    there = Identity(here.documents, here.clock)
    await there.authenticate.refresh()
    await there.authenticate.refresh()
    assert len(there.revocations._known) == 2_500


async def test_a_revocation_by_a_process_that_is_behind_never_revives_a_credential() -> None:
    here = Identity()
    there = Identity(here.documents)
    old = here.authenticate.token(here.tokens.issue(here.operator, "user:ann").token)
    here.clock.advance(5_000)
    newer = here.authenticate.token(here.tokens.issue(here.operator, "user:ann").token)
    await here.tokens.revoke_subject(here.operator, "user:ann")
    await there.tokens.revoke_subject(there.operator, "user:ann")
    await here.authenticate.refresh()
    for identity in (here, there):
        assert not identity.revocations.allows(old)
        assert not identity.revocations.allows(newer)


async def test_a_device_that_another_process_removed_can_be_registered_here_at_once() -> None:
    here = Identity()
    there = Identity(here.documents)
    here.clock.advance(5_000)
    await here.devices.register("iotsphere", "d1")
    await here.devices.remove("iotsphere", "d1")
    made = await there.devices.register("iotsphere", "d1")
    await there.authenticate.refresh()
    assert there.authenticate.still_valid(await there.authenticate.password("d1", made.password, "a"))


class _PausedScan(MemoryDocuments):
    """Documents that let a test act in the middle of a scan."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def scan(self, collection: str, prefix: str = "", after: str = "", limit: int = 1_000) -> Sequence[Document]:
        found = await super().scan(collection, prefix, after, limit)
        if self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            await act()
        return found


async def test_what_is_revoked_during_a_refresh_is_not_forgotten() -> None:
    documents = _PausedScan()
    identity = Identity(documents)
    await identity.tokens.revoke_subject(identity.operator, "user:ann")
    principal = identity.authenticate.token(identity.tokens.issue(identity.operator, "user:ann").token)
    documents.meanwhile = lambda: identity.tokens.revoke_subject(identity.operator, "user:ann")
    await identity.authenticate.refresh()
    assert not identity.authenticate.still_valid(principal)
