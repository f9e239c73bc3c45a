"""Merge patches: the examples of RFC 7396, and the laws that everything else relies upon."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given

from iotsphere.entities.merge_patch import diff, effect, leaves, merge, same, unmet, without_newer
from iotsphere.entities.pointer import ancestors, below, find, holds, keys_of, nested

from .json_values import PATCHES, STATES, plain_merge

# RFC 7396, Appendix A.
EXAMPLES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), EXAMPLES)
def test_examples_of_the_rfc(target: Any, patch: Any, result: Any) -> None:
    assert merge(target, patch) == result


@given(STATES, PATCHES)
def test_merging_follows_the_rfc_and_alters_nothing(target: dict[str, Any], patch: dict[str, Any]) -> None:
    before = copy.deepcopy((target, patch))
    assert same(merge(target, patch), plain_merge(target, patch))
    assert same(list(before), [target, patch])


@given(STATES, PATCHES)
def test_merging_twice_changes_nothing_more_and_gives_the_same_object(
    target: dict[str, Any], patch: dict[str, Any]
) -> None:
    once = merge(target, patch)
    assert merge(once, patch) is once


@given(STATES, PATCHES)
def test_the_same_object_comes_back_exactly_when_nothing_changes(target: dict[str, Any], patch: dict[str, Any]) -> None:
    assert (merge(target, patch) is target) is same(plain_merge(target, patch), target)


@given(STATES, STATES)
def test_a_difference_makes_the_one_of_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = diff(old, new)
    assert same(merge(old, patch), new)
    assert (patch == {}) is same(old, new)


@given(STATES, PATCHES)
def test_effects_name_exactly_the_leaves_that_changed(target: dict[str, Any], patch: dict[str, Any]) -> None:
    new = merge(target, patch)
    was, now = leaves(target), leaves(new)
    found = effect(target, new)
    assert found.put.keys() == {p for p, value in now.items() if p not in was or not same(was[p], value)}
    assert all(found.put[p] is now[p] for p in found.put)
    assert sorted(found.gone) == sorted(was.keys() - now.keys())


@given(STATES)
def test_leaves_and_nesting_are_inverse(tree: dict[str, Any]) -> None:
    assert same(nested(leaves(tree)), tree)
    assert all(find(tree, pointer) is value for pointer, value in leaves(tree).items())


@given(STATES, STATES)
def test_what_is_unmet_is_what_is_missing(wanted: dict[str, Any], actual: dict[str, Any]) -> None:
    missing = unmet(wanted, actual)
    assert unmet(wanted, merge(actual, nested(missing))) == {}
    everything = leaves(wanted)
    assert missing.keys() <= everything.keys()
    for pointer in everything.keys() - missing.keys():
        value = find(actual, pointer)
        assert type(value) is dict if everything[pointer] == {} else same(value, everything[pointer])


def test_true_is_not_one_and_one_is_one_point_zero() -> None:
    assert not same(True, 1)
    assert not same([0], [False])
    assert same({"a": [1, {"b": 2}]}, {"a": [1.0, {"b": 2.0}]})
    assert not same({"a": 1}, {"a": 1, "b": 2})
    assert not same(2**53 + 1, float(2**53))
    assert not same(None, 0)


def test_newer_leaves_are_spared() -> None:
    newer = frozenset(("/a/b", "/s"))
    around = frozenset(("/a",))
    older = frozenset(("/a/c", "/a/d/e", "/z"))
    spared: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 2}}),
        ({"a": {"b": 1}}, {}),
        ({"a": 5}, {}),
        ({"a": None}, {"a": {"c": None, "d": {"e": None}}}),
        ({"s": {"deep": 1}, "z": None}, {"z": None}),
        ({"new": {"x": 1}}, {"new": {"x": 1}}),
    ]
    for patch, kept in spared:
        assert without_newer(patch, newer, around, older) == kept


def test_pointers_escape_what_they_use_themselves() -> None:
    assert below("", "a/b") == "/a~1b"
    assert below("/x", "~1") == "/x/~01"
    assert keys_of("/a~1b/~01/") == ["a/b", "~1", ""]
    assert list(ancestors("/a/b/c")) == ["/a/b", "/a"]
    assert list(ancestors("/a")) == []
    assert holds("/a", "/a/b")
    assert holds("/a", "/a")
    assert not holds("/a", "/ab")


@pytest.mark.parametrize("text", ["", "a", "a/b", "/a~", "/a~2", "/~~01"])
def test_a_text_that_is_no_pointer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no JSON Pointer"):
        keys_of(text)
