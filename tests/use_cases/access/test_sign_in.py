"""Sign-in codes: each becomes one operator's token, once, for a quarter of an hour, in whichever process it is shown."""

from __future__ import annotations

import asyncio

import pytest

from iotsphere.entities.errors import RateLimited, RequestInvalid, Unauthenticated
from iotsphere.entities.principal import OPERATOR
from iotsphere.use_cases.access.sign_in import CODE_MS, COLLECTION, SESSION_S, SignIn
from iotsphere.use_cases.access.tokens import Tokens
from iotsphere.use_cases.back_off import FREE_FAILURES
from tests.support.identity import Identity


def sign_in(identity: Identity) -> SignIn:
    return SignIn(identity.documents, identity.tokens, identity.clock)


async def test_a_code_becomes_an_operators_token_for_twelve_hours() -> None:
    identity = Identity()
    issued = await sign_in(identity).redeem(await sign_in(identity).invite("iotsphere", "ann"))
    principal = identity.authenticate.token(issued.token)
    assert (principal.identity, principal.roles) == ("iotsphere/user/ann", frozenset((OPERATOR,)))
    assert principal.may("publish", "iotsphere/devices/d1/shadow/desired")
    assert not principal.may("subscribe", "other/devices/d1/telemetry")
    assert issued.expires_at == identity.clock.now() + SESSION_S * 1000


async def test_a_code_counts_once_also_when_it_is_shown_twice_at_the_same_time() -> None:
    identity = Identity()
    other = Identity(documents=identity.documents)
    code = await sign_in(identity).invite("iotsphere")
    found = await asyncio.gather(
        *(sign_in(each).redeem(code) for each in (identity, other, identity)), return_exceptions=True
    )
    assert sum(not isinstance(one, BaseException) for one in found) == 1
    assert sum(isinstance(one, Unauthenticated) for one in found) == 2


async def test_a_code_ends_after_a_quarter_of_an_hour_and_is_removed() -> None:
    identity = Identity()
    code = await sign_in(identity).invite("iotsphere")
    identity.clock.advance(CODE_MS)
    await sign_in(identity).invite("iotsphere")
    assert len(await identity.documents.scan(COLLECTION)) == 1
    with pytest.raises(Unauthenticated):
        await sign_in(identity).redeem(code)
    late = await sign_in(identity).invite("iotsphere")
    identity.clock.advance(CODE_MS)
    with pytest.raises(Unauthenticated):
        await sign_in(identity).redeem(late)


@pytest.mark.parametrize("code", ["", "x", "y" * 10_000, "ü\u0000"])
async def test_what_is_no_code_is_not_believed(code: str) -> None:
    with pytest.raises(Unauthenticated):
        await sign_in(Identity()).redeem(code)


async def test_an_address_that_keeps_failing_waits_and_others_do_not() -> None:
    identity, now = Identity(), [1_000.0]
    door = SignIn(identity.documents, identity.tokens, identity.clock, lambda: now[0])
    code = await door.invite("iotsphere", "ann")
    for _ in range(FREE_FAILURES):
        with pytest.raises(Unauthenticated):
            await door.redeem("guess", "192.0.2.7")
    for waits in (1, 2, 4):
        with pytest.raises(RateLimited) as told:
            await door.redeem(code, "192.0.2.7")
        assert (told.value.code, told.value.facts) == ("rate_limited", {"retry_after": waits})
        now[0] += waits
        with pytest.raises(Unauthenticated):
            await door.redeem("guess", "192.0.2.7")
    await door.redeem(await door.invite("iotsphere"), "192.0.2.8")
    now[0] += 60
    assert (await door.redeem(code, "192.0.2.7")).subject == "user:ann"
    with pytest.raises(Unauthenticated):  # and what lies before is forgotten
        await door.redeem(code, "192.0.2.7")


async def test_many_guesses_at_once_are_few() -> None:
    identity = Identity()
    door = SignIn(identity.documents, identity.tokens, identity.clock, lambda: 1_000.0)  # no second passes meanwhile
    found = await asyncio.gather(*(door.redeem(f"guess {n}", "192.0.2.7") for n in range(50)), return_exceptions=True)
    assert sum(isinstance(one, Unauthenticated) for one in found) == FREE_FAILURES
    assert sum(isinstance(one, RateLimited) for one in found) == 50 - FREE_FAILURES


async def test_the_code_itself_is_not_stored() -> None:
    identity = Identity()
    code = await sign_in(identity).invite("iotsphere")
    (stored,) = await identity.documents.scan(COLLECTION)
    assert code not in stored.key
    assert code.encode() not in stored.value


async def test_a_name_that_is_none_gets_no_code() -> None:
    with pytest.raises(RequestInvalid):
        await sign_in(Identity()).invite("iotsphere", "a/b")


async def test_signing_out_ends_this_token_and_no_other() -> None:
    identity = Identity()
    tokens: Tokens = identity.tokens
    one, two = (tokens.issue(identity.operator, "user:ann", [], []) for _ in range(2))
    await tokens.end(identity.authenticate.token(one.token))
    with pytest.raises(Unauthenticated):
        identity.authenticate.token(one.token)
    assert identity.authenticate.token(two.token).name == "ann"
    with pytest.raises(RequestInvalid):
        await tokens.end(identity.operator)
