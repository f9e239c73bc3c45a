"""Subscriptions and cursor scopes: what they select, and what a cursor is bound to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iotsphere.entities.cursor import scope_of
from iotsphere.entities.subscription import Subscription
from iotsphere.entities.topic import TopicFilter

from .universe import SPACE, selects, space_filters


@given(st.lists(space_filters(), min_size=1, max_size=4))
def test_a_subscription_selects_what_any_filter_selects(filters: list[TopicFilter]) -> None:
    subscription = Subscription(tuple(filters))
    for topic, channel in SPACE.items():
        wanted = any(selects(one.text, topic) for one in filters)
        assert subscription.matches(topic) == wanted
        if wanted:
            assert channel in subscription.channels
    assert subscription.domain == filters[0].domain


texts = st.lists(st.sampled_from(("a/#", "a/b", "a/+/c", "a/devices/#")), min_size=1, max_size=4)


@given(st.sampled_from(("a/user/u", "a/device/u")), texts, st.sampled_from(("a/user/u", "a/device/u")), texts)
def test_scopes_are_equal_only_for_the_same_principal_and_set_of_filters(
    one: str, mine: list[str], two: str, theirs: list[str]
) -> None:
    assert (scope_of(one, mine) == scope_of(two, theirs)) == (one == two and set(mine) == set(theirs))
