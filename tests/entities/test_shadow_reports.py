"""Reports: removal, late reports, repeated slices, and what is remembered so that late ones are known as such."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from iotsphere.entities.merge_patch import same
from iotsphere.entities.shadow import MAX_REMOVED, Answer, Mark, Shadow, ShadowKey
from iotsphere.entities.shadow_reports import AHEAD_MS, Place, Report, report

NEW = Shadow(key=ShadowKey("iotsphere", "d1"))


def told(patch: dict[str, Any], at: int, *, stated: bool = True, place: Place | None = None) -> Report:
    return Report(patch=patch, at=at, author="d1", stated=stated, place=place)


def fold(*reports: Report, start: Shadow = NEW) -> Shadow:
    shadow = start
    for said in reports:
        shadow, _ = report(shadow, said, 1_000)
    return shadow


def test_a04_null_removes_a_key_and_null_for_an_absent_key_is_no_change() -> None:
    shadow = fold(told({"led": True, "t": 1}, 10, stated=False))
    removed, answer = report(shadow, told({"led": None}, 20, stated=False), 1_000)
    assert answer == Answer(2, 0, changed=True)
    assert (removed.reported, set(removed.marks)) == ({"t": 1}, {"/t"})
    assert report(removed, told({"led": None}, 30, stated=False), 1_000) == (removed, Answer(2, 0, changed=False))


def test_b22_fields_with_newer_times_survive_an_older_report() -> None:
    shadow = fold(told({"a": 1, "b": 1}, 10), told({"b": 2}, 30))
    after, answer = report(shadow, told({"a": 3, "b": 3}, 20), 1_000)
    assert answer == Answer(3, 0, changed=True)
    assert after.reported == {"a": 3, "b": 2}
    assert after.marks == {"/a": Mark(20, 3, "d1"), "/b": Mark(30, 2, "d1")}
    same_shadow, answer = report(after, told({"b": 9}, 29), 1_000)
    assert same_shadow is after
    assert answer == Answer(3, 0, changed=False, outcome="superseded")


def test_times_of_a_clock_that_ran_ahead_keep_nothing_out() -> None:
    day = 24 * 3600 * 1000
    ahead = fold(told({"a": 1, "b": 1, "gone": 1}, day), told({"gone": None}, day + 1))
    after, answer = report(ahead, told({"a": 2, "b": 1, "gone": 2}, 900), 1_000)
    assert answer == Answer(3, 0, changed=True)
    assert after.reported == {"a": 2, "b": 1, "gone": 2}
    assert {mark.at for mark in after.marks.values()} == {900}
    # What may be a device's clock that is a little fast is believed.
    fast = fold(told({"a": 1}, 1_000 + AHEAD_MS))
    assert report(fast, told({"a": 2}, 900), 1_000)[1].outcome == "superseded"


def test_a_report_without_a_time_of_its_own_counts_in_the_order_of_the_log() -> None:
    assert fold(told({"a": 1}, 500), told({"a": 2}, 400, stated=False)).reported == {"a": 2}


def test_a_newer_report_that_changes_nothing_still_keeps_older_ones_out() -> None:
    shadow = fold(told({"a": 1, "gone": 1}, 10), told({"gone": None}, 15))
    confirmed, answer = report(shadow, told({"a": 1, "gone": None, "never": None}, 50), 1_000)
    assert answer == Answer(2, 0, changed=False)
    assert (confirmed.version, confirmed.marks["/a"]) == (2, Mark(50, 1, "d1"))
    assert confirmed.removed == {"/gone": Mark(50, 3, "d1"), "/never": Mark(50, 3, "d1")}
    late = fold(told({"a": 2, "gone": 2, "never": 2}, 40), start=confirmed)
    assert late is confirmed
    assert fold(told({"a": 2, "gone": 2}, 60), start=confirmed).reported == {"a": 2, "gone": 2}


def test_what_is_remembered_of_removed_keys_is_bounded() -> None:
    many = {f"k{number}": number for number in range(MAX_REMOVED)}
    shadow = fold(told(many, 10), told(dict.fromkeys(many), 20), told({"last": 1}, 30), told({"last": None}, 40))
    assert len(shadow.removed) == MAX_REMOVED
    assert shadow.removed["/last"].at == 40
    long = {f"{number:0120}": 1 for number in range(MAX_REMOVED)}
    shadow = fold(told({"deep": {"er" * 60: long}}, 10), told({"deep": None}, 20))
    assert 100 < len(shadow.removed) < MAX_REMOVED
    assert sum(map(len, shadow.removed)) <= 32 * 1024
    assert fold(told({"a": 1}, 10, stated=False), told({"a": None}, 20, stated=False)).removed == {}


def test_a_slice_that_is_folded_again_does_nothing() -> None:
    slice_ = [told({"n": number}, 10, stated=False, place=Place("shadow/0", 7, number)) for number in range(1, 6)]
    once = fold(*slice_)
    assert (once.version, once.reported, once.folded) == (5, {"n": 5}, {"shadow/0": (7, 5)})
    assert fold(*slice_, start=once) is once
    assert fold(*slice_[3:], start=once) is once
    elsewhere = fold(told({"n": 9}, 10, stated=False, place=Place("commands/0", 7, 1)), start=once)
    assert elsewhere.folded == {"shadow/0": (7, 5), "commands/0": (7, 1)}


def test_a_slice_of_another_epoch_is_folded_again_and_ends_in_the_same_state() -> None:
    slice_ = [told({"n": 1}, 10, stated=False, place=Place("shadow/0", 7, 1))]
    slice_ += [told({"n": 2, "m": 1}, 10, stated=False, place=Place("shadow/0", 8, 2))]
    slice_ += [told({"n": 3}, 10, stated=False, place=Place("shadow/0", 8, 3))]
    once = fold(*slice_)
    again = fold(*slice_, start=once)
    assert again.reported == once.reported == {"n": 3, "m": 1}
    assert again.folded == {"shadow/0": (8, 3)}


VALUES = st.sampled_from((0, 1, "x", None))
# Leaves stay leaves and objects stay objects, as in a device's own state; both may be removed.
SHAPES = st.fixed_dictionaries(
    {},
    optional={
        "s": VALUES,
        "t": VALUES,
        "o": st.one_of(st.none(), st.dictionaries(st.sampled_from(("x", "y", "z")), VALUES, min_size=1, max_size=3)),
    },
).filter(bool)


@given(st.lists(SHAPES, min_size=1, max_size=7), st.randoms())
def test_reports_with_times_of_their_own_end_alike_in_any_order(patches: list[dict[str, Any]], random: Any) -> None:
    reports = [told(patch, time) for time, patch in enumerate(patches, 1)]
    shuffled = list(reports)
    random.shuffle(shuffled)
    in_order, late = fold(*reports), fold(*shuffled)
    # An object that was emptied key by key may be there or not; nobody can tell which came first.
    assert same(_without_empty(in_order.reported), _without_empty(late.reported))


def _without_empty(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if value != {}}
