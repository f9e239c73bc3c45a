"""Documents that people may have edited: members of the right type, or the first that is of another."""

from __future__ import annotations

import pytest

from iotsphere.entities.documents import MAX_WHOLE, fitted, whole

FORM = {"name": str, "due": int, "rate": float, "open": bool, "payload": dict, "steps": list}
NEEDED = frozenset(("name",))


@pytest.mark.parametrize(
    ("value", "number"),
    [(5, 5), (5.0, 5), (0, 0), (MAX_WHOLE, MAX_WHOLE), (MAX_WHOLE + 1, None), (-1, None), (1.5, None), (True, None),
     ("5", None), (None, None), (float("inf"), None), (float("nan"), None)],
)  # fmt: skip
def test_whole_numbers(value: object, number: int | None) -> None:
    assert whole(value) == number


def test_members_come_as_their_types() -> None:
    body = {"name": "x", "due": 7.0, "rate": 3, "open": True, "payload": {}, "steps": [], "more": 1}
    found = fitted(body, FORM, NEEDED)
    assert found == {"name": "x", "due": 7, "rate": 3.0, "open": True, "payload": {}, "steps": []}
    assert (type(found["due"]), type(found["rate"])) == (int, float)
    assert fitted({"name": "x", "due": None}, FORM, NEEDED) == {"name": "x"}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "name is no text"),
        ({"name": 5}, "name is no text"),
        ({"name": "x", "due": "soon"}, "due is no whole number"),
        ({"name": "x", "rate": float("nan")}, "rate is no number"),
        ({"name": "x", "open": 1}, "open is no true or false"),
        ({"name": "x", "payload": []}, "payload is no object"),
        ({"name": "x", "steps": {}}, "steps is no list"),
    ],
)
def test_the_member_that_does_not_fit_is_named(body: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}$"):
        fitted(body, FORM, NEEDED)
