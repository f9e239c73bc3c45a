"""Settings: what cannot be meant is refused at the start, and named."""

from __future__ import annotations

import pytest

from iotsphere.cli.console import settings_of
from iotsphere.entities.errors import RequestInvalid


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("retention_days", float("inf"), "retention_days"),
        ("retention_days", 1e300, "retention_days"),
        ("hard_cap_days", 1, "hard cap"),
        ("hard_cap_gib", 0.5, "hard cap"),
        ("domains", ("a/b",), "domains"),
        ("domains", (), "domains"),
        ("messages_per_second", 1e-300, "messages_per_second"),
        ("durability", "maybe", "durability"),
        ("node", "a b", "node"),
        ("colour", "red", "colour"),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, value: object, told: str) -> None:
    with pytest.raises(RequestInvalid, match=told):
        settings_of(**{name: value})


def test_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOTSPHERE_DOMAINS", '["acme","iotsphere"]')
    monkeypatch.setenv("IOTSPHERE_RETENTION_DAYS", "2.5")
    settings = settings_of()
    assert settings.domains == ("acme", "iotsphere")
    assert settings.retention_days == 2.5
    assert settings.secrets_file.name == "secrets.json"
