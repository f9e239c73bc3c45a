"""The secrets of a gateway: made at the first start, kept in one file that only its owner can read."""

from __future__ import annotations

import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ..entities.errors import RequestInvalid

BYTES: Final = 32


class Secrets(NamedTuple):
    """Keys of 32 random bytes each: for tokens, for cursors, and for the hashes of device secrets."""

    token: bytes
    cursor: bytes
    device: bytes


def load_or_create(path: Path) -> Secrets:
    """Read the file, or make it (mode 0600) where it is missing; two processes that start at once agree on one.

    Raises RequestInvalid when others may read it, or when it is not what we wrote.
    """
    try:
        return _load_or_create(path)
    except OSError as error:
        raise RequestInvalid(
            f"cannot keep secrets in {path}: {error.strerror}; name a folder that can be written with --data"
        ) from error


def _load_or_create(path: Path) -> Secrets:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = {name: secrets.token_hex(BYTES) for name in Secrets._fields}
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(made, file)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process was first, and its file is the one that counts
                os.link(draft, path)
        finally:
            draft.unlink()
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise RequestInvalid(f"{path} may be read by others (mode {mode:04o}); run: chmod 600 {path}")
    try:
        stored = json.loads(path.read_text())
        found = Secrets(*(bytes.fromhex(stored[name]) for name in Secrets._fields))
    except (ValueError, KeyError, TypeError) as error:
        raise RequestInvalid(f"{path} does not hold the secrets; restore it, or remove it to make new ones") from error
    if any(len(secret) < BYTES for secret in found):
        raise RequestInvalid(f"{path} holds a secret of less than {BYTES} bytes; remove it to make new ones")
    return found


def load_trusted_keys(path: Path | None) -> dict[str, tuple[str, str | bytes]]:
    """Public keys of other issuers: kid -> (algorithm, PEM or JWK text). Raises RequestInvalid for another shape."""
    if path is None:
        return {}
    try:
        stored = json.loads(path.read_text())
        return {
            str(kid): (
                str(entry["algorithm"]),
                entry["key"] if isinstance(entry["key"], str) else json.dumps(entry["key"]),
            )
            for kid, entry in stored.items()
        }
    except OSError as error:
        raise RequestInvalid(f"cannot read the trusted keys: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestInvalid(f'{path} must hold {{"KID": {{"algorithm": …, "key": …}}}}') from error
