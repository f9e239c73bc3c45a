"""The topic index against a matcher that knows nothing of tries and caches."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.entities.topic import parse_filter
from iotsphere.use_cases import topic_index
from iotsphere.use_cases.topic_index import TopicIndex

LEVELS = st.sampled_from(["a", "b", "c"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map(lambda levels: "/".join(("d", *levels)))


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from(["a", "b", "c", "+", "+"]), max_size=4))
    if not levels or draw(st.booleans()):
        levels = [*levels, "#"]
    return "/".join(("d", *levels))


def selects(wanted: list[str], topic: list[str]) -> bool:
    """MQTT 5 section 4.7, by recursion."""
    if not wanted:
        return not topic
    if wanted[0] == "#":
        return True
    if not topic:
        return False
    return wanted[0] in ("+", topic[0]) and selects(wanted[1:], topic[1:])


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), filters(), st.integers(0, 3)),
        st.tuples(st.just("remove"), st.integers(0, 1_000), st.just(0)),
        st.tuples(st.just("match"), TOPICS, st.just(0)),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_answers_equal_brute_force_through_adds_and_removes(operations: list[tuple[str, str | int, int]]) -> None:
    index: TopicIndex[int] = TopicIndex()
    model: Counter[tuple[str, int]] = Counter()
    for name, argument, target in operations:
        if name == "add":
            index.add(parse_filter(str(argument)), target)
            model[str(argument), target] += 1
        elif name == "remove" and model:
            known = sorted(model.elements())
            text, owner = known[int(argument) % len(known)]
            index.remove(parse_filter(text), owner)
            model[text, owner] -= 1
            model += Counter()
        elif name == "match":
            topic = str(argument)
            found = index.match(topic)
            assert len(found) == len(set(found))
            assert set(found) == {t for text, t in model if selects(text.split("/"), topic.split("/"))}


def test_cached_answer_is_brought_up_to_date_after_more_changes_than_are_remembered() -> None:
    index: TopicIndex[int] = TopicIndex()
    assert index.match("d/a") == ()
    index.add(parse_filter("d/a"), 1)
    for number in range(2 * topic_index.REMEMBERED_CHANGES):
        index.add(parse_filter(f"d/other/{number}"), number)
    assert index.match("d/a") == (1,)


def test_cached_answer_survives_changes_elsewhere_as_the_same_object() -> None:
    index: TopicIndex[int] = TopicIndex()
    index.add(parse_filter("d/+"), 1)
    before = index.match("d/a")
    index.add(parse_filter("d/b/#"), 2)
    assert index.match("d/a") is before
    index.add(parse_filter("d/#"), 3)
    assert set(index.match("d/a")) == {1, 3}


def test_cache_is_bounded() -> None:
    index: TopicIndex[int] = TopicIndex()
    index.add(parse_filter("d/#"), 1)
    for number in range(topic_index.CACHED_TOPICS + 10):
        assert index.match(f"d/{number}") == (1,)
    assert len(index._cache) <= topic_index.CACHED_TOPICS


def test_same_pair_twice_needs_two_removals_and_leaves_nothing_behind() -> None:
    index: TopicIndex[int] = TopicIndex()
    wanted = parse_filter("d/+/c/#")
    index.add(wanted, 1)
    index.add(wanted, 1)
    index.remove(wanted, 1)
    assert index.match("d/x/c/y") == (1,)
    index.remove(wanted, 1)
    assert index.match("d/x/c/y") == ()
    assert not index._root.children


@pytest.mark.parametrize("text", ["d/a", "d/+", "d/#"])
def test_removing_what_was_never_added_is_an_error(text: str) -> None:
    with pytest.raises(KeyError):
        TopicIndex[int]().remove(parse_filter(text), 1)
