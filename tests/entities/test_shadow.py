"""Shadows: what is desired, its wishes, the delta and its sequence, expiry, deletion and limits."""

from __future__ import annotations

from typing import Any

import pytest

from iotsphere.entities.errors import MessageRefused, NotFound, VersionConflict
from iotsphere.entities.shadow import (
    MAX_SHADOW_BYTES,
    Answer,
    Mark,
    Shadow,
    ShadowKey,
    Wish,
    check_depth,
    json_size,
    shadow_key,
    shadow_of_topic,
)
from iotsphere.entities.shadow_changes import Wanted, adopt, delete, deliver, desire, expire
from iotsphere.entities.shadow_reports import Place, Report, report

KEY = ShadowKey("iotsphere", "dev-s")
NEW = Shadow(key=KEY)


def wanted(patch: dict[str, Any], **facts: Any) -> Wanted:
    return Wanted(patch=patch, author=facts.pop("author", "ui"), **facts)


def said(patch: dict[str, Any], at: int = 1, **facts: Any) -> Report:
    return Report(patch=patch, at=at, author="dev-s", **facts)


def desired(shadow: Shadow, patch: dict[str, Any], at: int = 10, **facts: Any) -> Shadow:
    return desire(shadow, wanted(patch, **facts), at)[0]


def reported(shadow: Shadow, patch: dict[str, Any], at: int = 20, **facts: Any) -> Shadow:
    return report(shadow, said(patch, at, **facts), at)[0]


def statuses(shadow: Shadow) -> dict[str, str]:
    return {pointer: wish.status for pointer, wish in shadow.wishes.items()}


def test_keys_and_topics() -> None:
    radio = ShadowKey("iotsphere", "d1", "radio")
    assert (KEY.text, radio.text) == ("iotsphere/dev-s", "iotsphere/d1/radio")
    assert shadow_key(KEY.text) == KEY
    assert shadow_key(radio.text) == radio
    assert KEY.topic("delta") == "iotsphere/devices/dev-s/shadow/delta"
    assert radio.topic("delta") == "iotsphere/devices/d1/shadow/radio/delta"
    assert shadow_of_topic(KEY.topic("desired")) == (KEY, "desired")
    assert shadow_of_topic(radio.topic("reported")) == (radio, "reported")


def test_a_wish_opens_the_delta_and_its_report_closes_it() -> None:
    shadow, answer = desire(NEW, wanted({"led": True, "pump": {"speed": 3}}), 10)
    assert answer == Answer(1, 1, changed=True)
    assert shadow.delta == {"led": True, "pump": {"speed": 3}}
    assert shadow.wishes == {
        "/led": Wish("pending", 10, 1, "ui", 1),
        "/pump/speed": Wish("pending", 10, 1, "ui", 1),
    }
    shadow, answer = report(shadow, said({"led": True, "temp": 20}, 20), 21)
    assert answer == Answer(2, 2, changed=True)
    assert shadow.delta == {"pump": {"speed": 3}}
    assert shadow.marks == {"/led": Mark(20, 2, "dev-s"), "/temp": Mark(20, 2, "dev-s")}
    assert shadow.wishes["/led"] == Wish("applied", 21, 1, "ui", 1)
    shadow = reported(shadow, {"pump": {"speed": 3.0}}, 30)
    assert (shadow.version, shadow.sequence, shadow.delta) == (3, 3, {})
    assert statuses(shadow) == {"/led": "applied", "/pump/speed": "applied"}


def test_equal_values_change_nothing() -> None:
    shadow = reported(desired(NEW, {"a": {"b": 1}}), {"a": {"b": 1}, "c": [1, 2]})
    nothing: list[dict[str, Any]] = [{"a": {"b": 1.0}}, {}, {"zz": None}, {"a": {}}, {"a": {"x": None}}]
    for patch in nothing:
        assert desire(shadow, wanted(patch), 40) == (shadow, Answer(2, 2, changed=False))
        assert desire(shadow, wanted(patch), 40)[0] is shadow
    for patch in (*nothing, {"c": [1, 2.0]}):
        assert report(shadow, said(patch, 40), 40)[0] is shadow


def test_the_delta_has_its_own_sequence() -> None:
    shadow = desired(NEW, {"a": 1})
    shadow = reported(shadow, {"other": 5})
    assert (shadow.version, shadow.sequence) == (2, 1)
    shadow = desired(shadow, {"a": 2})
    assert (shadow.version, shadow.sequence) == (3, 2)
    shadow = desired(shadow, {"other": 5})  # it is so already: no delta, and applied at once
    assert (shadow.version, shadow.sequence) == (4, 2)
    assert statuses(shadow) == {"/a": "pending", "/other": "applied"}
    shadow = desired(shadow, {"a": None})
    assert (shadow.version, shadow.sequence, shadow.delta) == (5, 3, {})


def test_a_replaced_wish_is_kept_as_superseded_with_the_version_that_replaced_it() -> None:
    shadow = desired(NEW, {"a": 1, "b": 1})
    shadow = desired(shadow, {"a": 2, "b": None}, 50, author="ada")
    assert shadow.superseded == {
        "/a": Wish("superseded", 50, 1, "ui", 1),
        "/b": Wish("superseded", 50, 1, "ui", 1),
    }
    assert shadow.wishes == {"/a": Wish("pending", 50, 2, "ada", 2)}
    assert desired(shadow, {"c": 1}).superseded == {}


def test_a_device_that_drifts_away_opens_the_wish_again() -> None:
    shadow = reported(desired(NEW, {"a": 1}), {"a": 1})
    shadow = reported(shadow, {"a": 0}, 30)
    assert (shadow.sequence, shadow.delta) == (3, {"a": 1})
    assert shadow.wishes["/a"] == Wish("pending", 30, 1, "ui", 3)


def test_evidence_moves_forward_only_and_makes_no_version() -> None:
    shadow = desired(NEW, {"a": 1})
    shadow = desired(shadow, {"b": 1})
    sent = deliver(shadow, 1, "delivered", 11)
    assert statuses(sent) == {"/a": "delivered", "/b": "pending"}
    assert (sent.version, sent.sequence) == (2, 2)
    acknowledged = deliver(sent, 2, "acknowledged", 12)
    assert statuses(acknowledged) == {"/a": "acknowledged", "/b": "acknowledged"}
    assert acknowledged.wishes["/a"].since == 12
    assert deliver(acknowledged, 2, "delivered", 13) is acknowledged
    assert acknowledged.delta == {"a": 1, "b": 1}
    assert deliver(reported(acknowledged, {"a": 1, "b": 1}), 9, "acknowledged", 99).wishes["/a"].status == "applied"


def test_a_refused_wish_leaves_the_delta_until_somebody_wishes_again() -> None:
    shadow = desired(NEW, {"pump": {"speed": 9, "on": True}, "led": True})
    shadow, answer = report(shadow, said({}, 20, refused={"/pump": "too fast" * 100}), 20)
    assert answer == Answer(2, 2, changed=True)
    assert shadow.delta == {"led": True}
    assert shadow.wishes["/pump/speed"].status == "refused"
    assert shadow.wishes["/pump/speed"].reason == ("too fast" * 100)[:200]
    assert report(shadow, said({}, 21, refused={"/pump": "no"}), 21)[0] is shadow
    again = desired(shadow, {"pump": {"speed": 9}}, 30)
    assert (again.version, again.sequence, again.delta) == (3, 3, {"led": True, "pump": {"speed": 9}})
    assert again.superseded["/pump/speed"].status == "refused"
    late = reported(shadow, {"pump": {"speed": 9}}, 40)
    assert statuses(late) == {"/pump/speed": "applied", "/pump/on": "refused", "/led": "pending"}


def test_a_refusal_of_an_old_delta_does_not_meet_a_newer_wish() -> None:
    shadow = desired(desired(NEW, {"a": 9}), {"a": 5})
    assert report(shadow, said({}, 20, refused={"/a": "no"}, sequence=1), 20)[0] is shadow
    assert reported(shadow, {}, 20, refused={"/a": "no"}, sequence=2).wishes["/a"].reason == "no"


def test_wishes_expire_one_by_one() -> None:
    shadow = desired(NEW, {"a": {"x": 1, "y": 2}, "b": 3}, 10, expires={"/a": 200, "/a/y": 100}, expires_at=300)
    assert {pointer: wish.expires_at for pointer, wish in shadow.wishes.items()} == {
        "/a/x": 200,
        "/a/y": 100,
        "/b": 300,
    }
    assert shadow.due == 100
    assert expire(shadow, 99) == (shadow, Answer(1, 1, changed=False))
    shadow, answer = expire(shadow, 200)
    assert answer == Answer(2, 2, changed=True)
    assert (shadow.delta, shadow.due, shadow.author) == ({"b": 3}, 300, "gateway")
    assert statuses(shadow) == {"/a/x": "expired", "/a/y": "expired", "/b": "pending"}
    shadow = reported(shadow, {"b": 3})
    assert shadow.due == 0
    assert reported(shadow, {"b": 4}, 400).wishes["/b"].status == "expired"
    assert reported(shadow, {"b": 4}, 250).wishes["/b"].status == "pending"
    assert statuses(desired(shadow, {"a": {"x": 1}}))["/a/x"] == "pending"


def test_another_expiry_is_another_wish() -> None:
    shadow = desired(NEW, {"a": 1}, 10, expires_at=100)
    assert desire(shadow, wanted({"a": 1}, expires_at=100), 20)[0] is shadow
    assert desire(shadow, wanted({"a": 1}), 20)[0] is shadow
    longer = desired(shadow, {"a": 1}, 20, expires_at=500)
    assert (longer.version, longer.sequence, longer.wishes["/a"].expires_at) == (2, 1, 500)
    with pytest.raises(MessageRefused) as refused:
        desire(shadow, wanted({"a": 1}, expires_at=20), 20)
    assert refused.value.code == "expired"


def test_a_wrong_version_is_a_conflict_that_holds_the_state() -> None:
    shadow = reported(desired(NEW, {"a": 1}), {"r": 2})
    with pytest.raises(VersionConflict) as conflict:
        desire(shadow, wanted({"a": 2}, version=1), 30)
    assert conflict.value.facts == {"version": 2, "state": {"reported": {"r": 2}, "desired": {"a": 1}}}
    with pytest.raises(VersionConflict):
        report(shadow, said({"r": 3}, 30, version=3), 30)
    assert desired(shadow, {"a": 2}, version=2).version == 3
    with pytest.raises(VersionConflict):
        desire(shadow, wanted({"a": 2}, version=0), 30)
    assert desired(NEW, {"a": 2}, version=0).version == 1


def test_a_request_that_comes_again_gets_the_first_answer() -> None:
    shadow, first = desire(NEW, wanted({"a": 1}, message_id="m1", version=0), 10)
    shadow = desired(shadow, {"a": 2})
    assert desire(shadow, wanted({"a": 1}, message_id="m1", version=0), 30) == (shadow, first)
    remembered, nothing = desire(shadow, wanted({"a": 2}, message_id="m2"), 40)
    assert nothing == Answer(2, 2, changed=False)
    changed = desired(remembered, {"a": 3})
    assert desire(changed, wanted({"a": 2}, message_id="m2"), 50) == (changed, nothing)
    for number in range(32):
        shadow = desired(shadow, {"n": number}, message_id=f"n{number}")
    assert shadow.answer_to("m1") is None
    assert len(shadow.recent) == 32
    assert desired(NEW, {"a": 1}, message_id="minted", repeatable=False).recent == ()


def test_a_deleted_shadow_never_uses_a_version_again() -> None:
    shadow = reported(desired(NEW, {"a": 1}), {"r": 1})
    gone, answer = delete(shadow, wanted({}, message_id="d1", behind={"shadow/0": (1, 7)}), 100)
    assert answer == Answer(3, 2, changed=True)
    assert (gone.exists, gone.reported, gone.desired, gone.marks, gone.wishes) == (False, {}, {}, {}, {})
    assert gone.superseded["/a"].status == "superseded"
    assert delete(gone, wanted({}, message_id="d1"), 110) == (gone, answer)
    with pytest.raises(NotFound):
        delete(gone, wanted({}), 110)
    with pytest.raises(NotFound):
        delete(NEW, wanted({}), 110)
    with pytest.raises(VersionConflict):
        delete(shadow, wanted({}, version=1), 110)
    with pytest.raises(VersionConflict):
        desire(gone, wanted({"a": 2}, version=2), 120)
    before, behind = Place("shadow/0", 1, 7), Place("shadow/0", 1, 8)
    # Where a report lies in the log counts, whatever the clocks say.
    late = said({"r": 2}, 999, place=before)
    assert report(gone, late, 130) == (gone, Answer(3, 2, changed=False, outcome="superseded"))
    anew = desired(gone, {"b": 1}, 140)
    assert (anew.version, anew.sequence, anew.exists, anew.created_at) == (4, 3, True, 140)
    assert report(anew, late, 150)[0] is anew
    for place in (behind, Place("shadow/1", 1, 1), Place("shadow/0", 2, 1), None):
        assert reported(gone, {"r": 2}, 1, place=place).version == 4


def test_time_never_falls_from_version_to_version() -> None:
    shadow = desired(desired(NEW, {"a": 1}, 50), {"a": 2}, 40)
    assert shadow.updated_at == 50


def test_a_shadow_has_its_limits_and_may_always_shrink() -> None:
    full = desired(NEW, {"text": "x" * (MAX_SHADOW_BYTES - 14)})
    assert json_size(full.reported) + json_size(full.desired) == MAX_SHADOW_BYTES - 1
    assert desired(full, {"text": "x" * (MAX_SHADOW_BYTES - 13)}).version == 2
    with pytest.raises(MessageRefused) as refused:
        desire(full, wanted({"text": "x" * (MAX_SHADOW_BYTES - 12)}), 20)
    assert (refused.value.code, refused.value.facts["size"]) == ("payload_too_large", MAX_SHADOW_BYTES + 1)
    with pytest.raises(MessageRefused):
        report(full, said({"a": 1}), 20)
    with pytest.raises(MessageRefused, match="1001 leaves, 1000 are allowed"):
        desire(NEW, wanted({str(number): 0 for number in range(1001)}), 20)
    deep: dict[str, Any] = {str(number): 0 for number in range(900)}
    for _ in range(14):
        deep = {"k" * 120: deep}
    with pytest.raises(MessageRefused, match="bytes of paths"):
        desire(NEW, wanted(deep), 20)
    over = adopt(None, Shadow(key=KEY, desired={"text": "x" * 100_000, "more": 1}), 30)
    assert desired(over, {"more": None}).desired == {"text": "x" * 100_000}
    with pytest.raises(MessageRefused):
        desire(over, wanted({"more": 11}), 40)


def test_depth_is_limited() -> None:
    tree: dict[str, Any] = {}
    for _ in range(15):
        tree = {"a": tree}
    check_depth(tree)
    check_depth({"a": [[[1]]]})
    with pytest.raises(MessageRefused) as refused:
        check_depth({"a": tree})
    assert refused.value.code == "json_too_deep"
    nest: Any = 1
    for _ in range(16):
        nest = [nest]
    with pytest.raises(MessageRefused):
        check_depth({"a": nest})


def test_what_was_written_by_hand_becomes_a_version() -> None:
    shadow = reported(desired(NEW, {"a": 1, "b": 2}), {"b": 2, "r": 1})
    edited = Shadow(
        key=KEY, version=2, sequence=2, reported={"r": 1}, desired={"a": 5, "c": {"d": 1}}, updated_at=20, created_at=10
    )
    after = adopt(shadow, edited, 60)
    assert (after.version, after.sequence, after.author) == (3, 3, "database")
    assert after.delta == {"a": 5, "c": {"d": 1}}
    assert after.marks == {"/r": shadow.marks["/r"]}
    assert after.wishes == {"/a": Wish("pending", 60, 3, "database", 3), "/c/d": Wish("pending", 60, 3, "database", 3)}
    assert after.superseded == {"/a": Wish("superseded", 60, 1, "ui", 1), "/b": Wish("applied", 20, 1, "ui", 1)}
    lost = adopt(shadow, Shadow(key=KEY, reported={"r": 2}), 60)  # replaced as a whole, without a version
    assert (lost.version, lost.sequence, lost.marks) == (3, 3, {"/r": Mark(60, 3, "database")})
    fresh = adopt(None, Shadow(key=KEY, desired={"x": 1}), 60)
    assert (fresh.version, fresh.sequence, fresh.delta, fresh.created_at) == (1, 1, {"x": 1}, 60)
