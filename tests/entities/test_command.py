"""The life of a command as a table: what random evidence can and cannot do."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from iotsphere.entities.command import (
    FINAL,
    LIFE,
    Command,
    accept,
    advance,
    body_of,
    command_of,
    picture,
    timed_evidence,
)

EVIDENCE = sorted({evidence for _, evidence in LIFE})
RANK = {state: rank for rank, state in enumerate(("accepted", "queued", "sent", "acknowledged", "running"))}
NEW = accept(
    Command(
        id="c1",
        domain="iotsphere",
        device="d1",
        caller="iotsphere/user/u",
        payload={"action": "open"},
        created_at=1_000,
        expires_at=100_000,
        timeout=5_000,
    )
)


def rank(state: str) -> int:
    return RANK.get(state, len(RANK))


@given(st.lists(st.tuples(st.sampled_from(EVIDENCE), st.integers(0, 3))))
def test_a_life_never_goes_back_and_ends_once(learned: list[tuple[str, int]]) -> None:
    command = NEW
    seen = []
    for now, (evidence, number) in enumerate(learned, 2_000):
        moved = advance(command, evidence, now, {"n": number} if evidence in ("progress", "succeed", "fail") else None)
        if (command.state, evidence) == ("sent", "unsent"):  # the one way back: it never left
            assert moved.state == "queued"
        else:
            assert rank(moved.state) >= rank(command.state)
        if command.is_final:
            assert (moved.state, moved.answer, moved.steps) == (command.state, command.answer, command.steps)
        if moved.state != command.state:
            seen.append(evidence)
        command = moved
    assert ("acknowledged" in [step.state for step in command.steps]) <= ("acknowledged" in seen)
    states = [step.state for step in command.steps]
    again = [state for state in states if states.count(state) > 1]
    assert set(again) <= ({"queued", "sent"} if "unsent" in seen else set())
    assert command.is_final == (command.state in FINAL) == (command.due == 0)
    assert command_of(body_of(command)) == command


@given(st.sampled_from(EVIDENCE), st.sampled_from(EVIDENCE))
def test_the_same_evidence_twice_is_learned_once(first: str, second: str) -> None:
    command = advance(advance(NEW, first, 2_000), second, 3_000)
    assert advance(command, second, 4_000) == command


def test_what_never_left_waits_again_as_long_as_it_lives() -> None:
    sent = advance(advance(NEW, "logged", 2_000), "sent", 10_000)
    back = advance(sent, "unsent", 11_000)
    assert (back.state, back.due, back.is_outstanding) == ("queued", 100_000, True)
    assert [step.state for step in back.steps] == ["accepted", "queued", "sent", "queued"]
    assert timed_evidence(back, 16_000) is None
    for learned in ("acknowledged", "progress", "succeed"):  # whoever has answered has it
        answered = advance(sent, learned, 10_500)
        assert advance(answered, "unsent", 11_000) == answered


def test_time_says_what_the_state_allows() -> None:
    assert timed_evidence(NEW, 2_999) is None
    assert timed_evidence(NEW, 3_000) == "heal"
    assert timed_evidence(NEW, 100_000) == "expire"
    queued = advance(NEW, "logged", 2_000)
    assert timed_evidence(queued, 99_999) is None
    assert timed_evidence(queued, 100_000) == "expire"
    sent = advance(queued, "sent", 10_000)
    assert timed_evidence(sent, 14_999) is None
    assert timed_evidence(sent, 15_000) == "time_out"
    assert timed_evidence(advance(sent, "succeed", 11_000), 10**9) is None


def test_the_page_shows_the_life_as_it_is() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
    assert f"```mermaid\n{picture()}\n```" in page.read_text(encoding="utf-8")
