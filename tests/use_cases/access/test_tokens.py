"""Tokens are issued inside the issuer's rights only, and revoked inside its domain only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iotsphere.entities.errors import Forbidden, NotFound, RequestInvalid
from iotsphere.entities.principal import Principal, parse_grant
from iotsphere.use_cases.access.tokens import operator
from tests.support.identity import Identity


def test_an_operator_issues_for_its_own_domain() -> None:
    identity = Identity()
    issued = identity.tokens.issue(
        operator("plant-2"), "user:ann", ["subscribe:{domain}/devices/+/telemetry/#", "command:plant-2/devices/d1/#"]
    )
    principal = identity.authenticate.token(issued.token)
    assert principal.identity == "plant-2/user/ann"
    assert issued.expires_at == principal.expires_at == identity.clock.now() + 24 * 3_600_000
    assert [f"{grant.action}:{grant.filter.text}" for grant in principal.grants] == [
        "subscribe:plant-2/devices/+/telemetry/#",
        "command:plant-2/devices/d1/#",
    ]
    assert principal.token_id == issued.token_id


def test_a_user_without_grants_may_nothing_and_a_device_what_devices_may() -> None:
    identity = Identity()
    nobody = identity.authenticate.token(identity.tokens.issue(identity.operator, "user:ann").token)
    assert nobody.grants == ()
    device = identity.authenticate.token(identity.tokens.issue(identity.operator, "device:d1").token)
    assert device.may("publish", "iotsphere/devices/d1/telemetry")
    assert not device.may("publish", "iotsphere/devices/d2/telemetry")


@pytest.mark.parametrize("grant", ["publish:other/#", "publish:iotsphere", "write:iotsphere/#", "publish", "publish:#"])
def test_grants_outside_the_domain_or_the_grammar_are_refused(grant: str) -> None:
    identity = Identity()
    with pytest.raises((RequestInvalid, Forbidden)):
        identity.tokens.issue(identity.operator, "user:ann", [grant] if grant != "publish:iotsphere" else ["publish:+"])


def test_grants_and_roles_beyond_the_issuers_own_are_refused() -> None:
    identity = Identity()
    held = (parse_grant("subscribe:iotsphere/devices/+/telemetry/#", domain="iotsphere"),)
    limited = Principal("user", "ann", "iotsphere", held, frozenset(("operator",)))
    assert identity.tokens.issue(limited, "user:bob", ["subscribe:iotsphere/devices/d1/telemetry"])
    for beyond in ("subscribe:iotsphere/devices/#", "publish:iotsphere/devices/d1/telemetry", "subscribe:iotsphere/#"):
        with pytest.raises(Forbidden, match="beyond your own grants"):
            identity.tokens.issue(limited, "user:bob", [beyond])
    with pytest.raises(Forbidden, match="beyond"):
        identity.tokens.issue(limited, "device:d1")
    with pytest.raises(Forbidden, match="role"):
        identity.tokens.issue(limited, "user:bob", roles=["root"])


async def test_only_operators_issue_and_revoke() -> None:
    identity = Identity()
    plain = replace(identity.operator, roles=frozenset(("viewer",)))
    with pytest.raises(NotFound):
        identity.tokens.issue(plain, "user:ann")
    with pytest.raises(NotFound):
        await identity.tokens.revoke(plain, "t-1")
    with pytest.raises(NotFound):
        await identity.tokens.revoke_subject(plain, "user:ann")


@pytest.mark.parametrize(
    "subject", ["ann", "root:ann", "user:", "device:+", "device:batch", "user:a b", "user:a\n", ""]
)
async def test_subjects_outside_the_grammar_are_refused(subject: str) -> None:
    identity = Identity()
    with pytest.raises(RequestInvalid, match="no subject"):
        identity.tokens.issue(identity.operator, subject)
    with pytest.raises(RequestInvalid, match="no subject"):
        await identity.tokens.revoke_subject(identity.operator, subject)


@pytest.mark.parametrize("lifetime", [0, -1, 401 * 24 * 3600])
def test_tokens_live_for_a_while_and_no_longer_than_allowed(lifetime: int) -> None:
    identity = Identity()
    with pytest.raises(RequestInvalid, match="must end"):
        identity.tokens.issue(identity.operator, "user:ann", lifetime=lifetime)


@pytest.mark.parametrize("token_id", ["", "a b", "a\n", "x" * 129, "é"])
async def test_token_ids_outside_the_grammar_are_refused(token_id: str) -> None:
    identity = Identity()
    with pytest.raises(RequestInvalid):
        await identity.tokens.revoke(identity.operator, token_id)
