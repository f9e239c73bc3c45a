"""The laws of shadows, under any sequence of changes: versions, marks, wishes, delta, and the stored form."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.shadow.body import ShadowDocument, told, versions
from iotsphere.entities.errors import IotSphereError
from iotsphere.entities.merge_patch import leaves, merge, same, unmet
from iotsphere.entities.shadow import OPEN, Answer, Shadow, ShadowKey
from iotsphere.entities.shadow_changes import Wanted, delete, deliver, desire, expire
from iotsphere.entities.shadow_reports import Report, report

from .json_values import PATCHES, plain_merge

KEY = ShadowKey("iotsphere", "d1")
Step = tuple[str, Any]

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("desire"), st.tuples(PATCHES, st.sampled_from((0, 3, 8)))),
        st.tuples(st.just("report"), PATCHES),
        st.tuples(st.just("late"), PATCHES),
        st.tuples(st.just("refuse"), st.sampled_from(("/a", "/b", "/x~1y"))),
        st.tuples(st.just("deliver"), st.sampled_from(("delivered", "acknowledged"))),
        st.tuples(st.just("expire"), st.none()),
        st.tuples(st.just("delete"), st.none()),
    ),
    max_size=14,
)


def take(shadow: Shadow, step: Step, at: int) -> tuple[Shadow, Answer | None]:
    kind, what = step
    match kind:
        case "desire":
            patch, later = what
            return desire(shadow, Wanted(patch=patch, author="ui", expires_at=at + later if later else 0), at)
        case "report":
            return report(shadow, Report(patch=what, at=at, author="d1"), at)
        case "late":
            return report(shadow, Report(patch=what, at=max(1, at - 5), author="d1", stated=True), at)
        case "refuse":
            return report(shadow, Report(patch={}, at=at, author="d1", refused={what: "no"}), at)
        case "deliver":
            return deliver(shadow, shadow.sequence, what, at), None
        case "expire":
            return expire(shadow, at)
        case _:
            try:
                return delete(shadow, Wanted(patch={}, author="ui"), at)
            except IotSphereError:
                return shadow, None


def check(before: Shadow, after: Shadow, answer: Answer | None) -> None:
    grown = after.version - before.version
    assert grown == (answer is not None and answer.changed)
    if answer is not None:
        assert (answer.version, answer.sequence) == (after.version, after.sequence)
    if not grown:
        assert (after.reported, after.desired) == (before.reported, before.desired)
    assert after.marks.keys() == leaves(after.reported).keys()
    assert after.wishes.keys() == leaves(after.desired).keys()
    missing = unmet(after.desired, after.reported)
    for pointer, wish in after.wishes.items():
        assert (wish.status == "applied") is (pointer not in missing)
        assert 0 <= wish.sequence <= after.sequence
    # The delta is what is open, and merging it into the reported state meets all of it.
    assert (after.delta == {}) is not any(wish.status in OPEN for wish in after.wishes.values())
    still = unmet(after.desired, merge(after.reported, after.delta))
    assert all(after.wishes[pointer].status in ("refused", "expired") for pointer in still)
    assert after.sequence - before.sequence == (not same(before.delta, after.delta))


@given(STEPS)
def test_every_change_keeps_the_laws(steps: list[Step]) -> None:
    shadow = Shadow(key=KEY)
    for at, step in enumerate(steps, 1):
        after, answer = take(shadow, step, at)
        check(shadow, after, answer)
        shadow = after


@given(st.lists(PATCHES, max_size=10))
def test_what_is_reported_is_the_fold_of_all_patches(patches: list[dict[str, Any]]) -> None:
    shadow = Shadow(key=KEY)
    expected: dict[str, Any] = {}
    for at, patch in enumerate(patches, 1):
        shadow, _ = take(shadow, ("report", patch), at)
        expected = plain_merge(expected, patch)
        assert same(shadow.reported, expected)


@given(STEPS)
def test_a_body_gives_the_same_shadow_back_and_steps_lead_from_body_to_body(steps: list[Step]) -> None:
    form = ShadowDocument()
    shadow = Shadow(key=KEY)
    for at, step in enumerate(steps, 1):
        after, _ = take(shadow, step, at)
        assert form.read(KEY, form.write(after)) == after
        assert same(merge(told(form.write(shadow)), form.step(shadow, after)), told(form.write(after)))
        shadow = after


@given(STEPS)
def test_one_write_tells_every_version_that_it_holds(steps: list[Step]) -> None:
    form = ShadowDocument()
    first = shadow = Shadow(key=KEY)
    each = []
    for at, step in enumerate(steps, 1):
        after, _ = take(shadow, step, at)
        if after.version > shadow.version > 0:
            each.append(shadow)
        shadow = after
    if not shadow.version:
        return
    told_steps = [form.step(was, now) for was, now in zip([first, *each], each, strict=False)]
    bodies = versions(None, form.write(shadow, told_steps))
    assert [body["version"] for body in bodies] == list(range(1, shadow.version + 1))
    assert all(same(body, told(form.write(one))) for body, one in zip(bodies, [*each, shadow], strict=True))
