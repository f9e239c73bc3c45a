"""The error tree: as drawn, with stable codes."""

from __future__ import annotations

import re

import pytest

from iotsphere.entities import errors
from iotsphere.entities.dead_letter import REASONS
from iotsphere.entities.errors import IotSphereError, MessageRefused

ABSTRACT = {"IotSphereError", "Refused", "Limited", "Unavailable"}
# Codes are part of every wire; this list may grow, but no line of it may change.
STABLE = {
    "TopicInvalid": ("topic_invalid", False),
    "FilterInvalid": ("filter_invalid", False),
    "MessageRefused": ("schema_violation", False),
    "Unauthenticated": ("unauthenticated", False),
    "Forbidden": ("forbidden", False),
    "NotFound": ("not_found", False),
    "RequestInvalid": ("request_invalid", False),
    "CertificateRejected": ("certificate_rejected", False),
    "DocumentNewer": ("document_newer", False),
    "CursorInvalid": ("cursor_invalid", False),
    "UnknownDomain": ("unknown_domain", False),
    "Conflict": ("conflict", False),
    "RateLimited": ("rate_limited", True),
    "TooManyConnections": ("too_many_connections", True),
    "TooManyGroups": ("too_many_groups", True),
    "MessagesMissed": ("messages_missed", False),
    "JobFailed": ("job_failed", False),
    "LogUnavailable": ("log_unavailable", True),
    "LogFull": ("log_full", True),
    "DurabilityTooWeak": ("durability_too_weak", False),
    "LeaseHeld": ("lease_held", True),
    "DatabaseUnavailable": ("database_unavailable", True),
    "BrokerUnavailable": ("broker_unavailable", True),
    "ChangesLost": ("changes_lost", False),
    "VersionConflict": ("version_conflict", False),
    "Fenced": ("fenced", False),
    "ShuttingDown": ("shutting_down", True),
}


def _subclasses(kind: type[IotSphereError]) -> list[type[IotSphereError]]:
    found = []
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            found += [child, *_subclasses(child)]
    return found


def _drawn() -> dict[str, tuple[str, str]]:
    """name -> (parent, what is written beside it), read from the list at the head of the module."""
    assert errors.__doc__ is not None
    lines = errors.__doc__.splitlines()
    rows = lines[lines.index("IotSphereError") + 1 :]
    drawn: dict[str, tuple[str, str]] = {}
    path = ["IotSphereError"]
    for row in rows:
        found = re.fullmatch(r"((?:\u2502   |    )*)(?:\u251c|\u2514)\u2500\u2500 (\w+) *(.*)", row)
        if found is None:
            break
        depth = len(found[1]) // 4 + 1
        path[depth:] = [found[2]]
        drawn[found[2]] = (path[depth - 1], found[3])
    return drawn


def test_the_drawn_tree_is_the_tree() -> None:
    real = {kind.__name__: kind.__base__.__name__ for kind in _subclasses(IotSphereError) if kind.__base__}
    assert {name: parent for name, (parent, _) in _drawn().items()} == real


def test_the_codes_are_drawn_beside_their_class() -> None:
    drawn = _drawn()
    for kind in _subclasses(IotSphereError):
        if kind.__name__ not in ABSTRACT | {"MessageRefused"}:
            assert re.match(rf"{kind.code}\b", drawn[kind.__name__][1]), kind


def test_each_class_has_a_code_of_its_own() -> None:
    codes = [IotSphereError.code, *(kind.code for kind in _subclasses(IotSphereError))]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("name", STABLE)
def test_codes_and_retry_never_change(name: str) -> None:
    kind: type[IotSphereError] = getattr(errors, name)
    assert (kind.code, kind.retry) == STABLE[name]


def test_no_class_is_missing_from_the_stable_list() -> None:
    assert {kind.__name__ for kind in _subclasses(IotSphereError)} == set(STABLE) | ABSTRACT - {"IotSphereError"}


def test_an_error_carries_its_code_facts_and_message() -> None:
    error = MessageRefused("too deep: flatten it", code="json_too_deep", position=7)
    assert (error.code, error.facts, str(error)) == (
        "json_too_deep",
        {"position": 7},
        "json_too_deep: too deep: flatten it",
    )
    assert MessageRefused("x").code == "schema_violation"
    assert MessageRefused.code in REASONS
