"""Grants against brute force: nothing is allowed that no grant allows, and nothing beyond the own domain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.entities.errors import Forbidden, NotFound, RequestInvalid
from iotsphere.entities.principal import ACTIONS, OPERATOR_GRANTS, Grant, Principal, device, parse_grant
from iotsphere.entities.topic import TopicFilter, parse_filter

from .universe import SPACE, selects, space_filters

actions = st.sampled_from(ACTIONS)


@st.composite
def principals(draw: st.DrawFn) -> Principal:
    """With grants that may even name another domain, as a forged token could."""
    grants = draw(st.lists(st.builds(Grant, actions, space_filters()), max_size=4))
    return Principal("user", "u1", draw(st.sampled_from(("a", "ab"))), tuple(grants))


@given(principals(), actions)
def test_may_is_what_a_grant_of_the_own_domain_selects(principal: Principal, action: str) -> None:
    for topic in SPACE:
        allowed = topic.startswith(f"{principal.domain}/") and any(
            grant.action == action and selects(grant.filter.text, topic) for grant in principal.grants
        )
        assert principal.may(action, topic) == allowed, topic


@given(principals(), actions, space_filters())
def test_may_all_allows_only_what_is_allowed_topic_by_topic(
    principal: Principal, action: str, wanted: TopicFilter
) -> None:
    if principal.may_all(action, wanted):
        assert wanted.domain == principal.domain
        for topic in SPACE:
            if selects(wanted.text, topic):
                assert principal.may(action, topic), topic


@given(principals(), actions)
def test_a_grant_of_the_own_domain_covers_itself(principal: Principal, action: str) -> None:
    for grant in principal.grants:
        if grant.action == action:
            assert principal.may_all(action, grant.filter) == (grant.filter.domain == principal.domain)


def test_a_principal_without_grants_may_nothing() -> None:
    nobody = Principal("service", "s", "a")
    assert not any(nobody.may(action, topic) for action in ACTIONS for topic in SPACE)
    with pytest.raises(Forbidden):
        nobody.require("subscribe", [parse_filter("a/system/status")])
    with pytest.raises(NotFound):
        nobody.require_role("operator")


def test_a_device_is_bound_to_its_own_topics() -> None:
    principal = device("a", "d1")
    may = {topic for topic in SPACE if principal.may("publish", topic)}
    assert may == {
        "a/devices/d1/telemetry",
        "a/devices/d1/telemetry/t",
        "a/devices/d1/telemetry/t.x",
        "a/devices/d1/telemetry/telemetry",
        "a/devices/d1/shadow/reported",
        "a/devices/d1/commands/response",
    }
    assert {topic for topic in SPACE if principal.may("subscribe", topic)} == {
        topic for topic in SPACE if topic.startswith("a/devices/d1/")
    }
    assert not any(principal.may("command", topic) for topic in SPACE)
    for foreign in ("a/#", "a/devices/+/telemetry", "a/devices/d10/#", "ab/devices/d1/#"):
        assert not principal.may_all("subscribe", parse_filter(foreign))
    assert principal.identity == "a/device/d1"


def test_an_operator_may_everything_in_its_domain() -> None:
    grants = tuple(parse_grant(text, domain="a") for text in OPERATOR_GRANTS)
    principal = Principal("user", "o", "a", grants)
    for topic in SPACE:
        for action in ACTIONS:
            assert principal.may(action, topic) == topic.startswith("a/")


@pytest.mark.parametrize(
    "name", ["+", "#", "", "d1/../d2", "d1/+", "a b", "d\x00", "batch", ".*", "{domain}", "d" * 65]
)
def test_a2_a_hostile_id_never_widens_a_grant(name: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        device("iotsphere", name)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "publish",
        "publish:",
        "Publish:a/#",
        "delete:a/#",
        "publish:#",
        "publish:+/devices/#",
        "publish:b/#",
        "publish:a/devices/{unknown}x#/t",
        "publish:a/#/b",
        "subscribe:a//b",
    ],
)
def test_a_text_that_is_no_grant_is_refused(text: str) -> None:
    with pytest.raises(RequestInvalid):
        parse_grant(text, domain="a", name="d1")


def test_variables_stand_for_the_principals_own() -> None:
    assert parse_grant("subscribe:{domain}/users/{user_id}/#", domain="a", name="u@x") == Grant(
        "subscribe", parse_filter("a/users/u@x/#")
    )
