"""The file of secrets: made once, private, and refused in words when it cannot be kept or believed."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from iotsphere.drivers.secrets import load_or_create, load_trusted_keys
from iotsphere.entities.errors import RequestInvalid


def test_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "data" / "secrets.json"
    made = load_or_create(path)
    assert load_or_create(path) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {len(secret) for secret in made} == {32}
    assert len(set(made)) == 3
    assert [each.name for each in path.parent.iterdir()] == ["secrets.json"]


def test_others_may_not_read_it(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    load_or_create(path)
    path.chmod(0o640)
    with pytest.raises(RequestInvalid, match="chmod 600"):
        load_or_create(path)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"token":"zz","cursor":"","device":""}', '{"token":"00","cursor":"00","device":"00"}']
)
def test_what_we_did_not_write_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secrets.json"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(RequestInvalid, match=r"secrets\.json"):
        load_or_create(path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestInvalid, match="--data"):
        load_or_create(tmp_path / "file" / "secrets.json")


def test_trusted_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(
        json.dumps({"a": {"algorithm": "EdDSA", "key": {"kty": "OKP"}}, "b": {"algorithm": "RS256", "key": "PEM"}})
    )
    assert load_trusted_keys(path) == {"a": ("EdDSA", '{"kty": "OKP"}'), "b": ("RS256", "PEM")}
    assert load_trusted_keys(None) == {}
    path.write_text("[]")
    with pytest.raises(RequestInvalid, match="algorithm"):
        load_trusted_keys(path)
    with pytest.raises(RequestInvalid, match="cannot read"):
        load_trusted_keys(tmp_path / "none.json")
