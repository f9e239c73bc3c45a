"""Addresses: how they are written, and the file that tells other processes where the doors of a gateway are."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from .entities.errors import RequestInvalid, Unavailable

ENDPOINTS_FILE: Final = "endpoints.json"


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT taken apart; ``[::1]:80`` for IPv6. Raises RequestInvalid."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise RequestInvalid(f"{text!a} is no address: write HOST:PORT, such as 127.0.0.1:1883 (port 0 = any free one)")
    return host.strip("[]") or "127.0.0.1", int(port)


def obstacle(address: str) -> str | None:
    """Why nothing can listen on HOST:PORT; None where something can. Raises RequestInvalid."""
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return error.strerror
    return None


def shown(address: tuple[str, int]) -> str:
    """HOST:PORT of a bound address."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def console_link(http: str, code: str) -> str:
    """The console's address with a sign-in code behind ``#``, which browsers keep to themselves."""
    return f"{http.rstrip('/')}/#/sign-in/{code}"


def write_endpoints(folder: Path, endpoints: Mapping[str, str]) -> Callable[[], None]:
    """Write where this process listens; returns how to take that back. Raises Unavailable."""
    path = folder / ENDPOINTS_FILE
    draft = folder / f".{ENDPOINTS_FILE}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.touch(mode=0o600)
        draft.write_text(json.dumps({**endpoints, "pid": os.getpid()}))
        draft.replace(path)
    except OSError as error:
        raise Unavailable(f"cannot write to {folder}: {error.strerror}; make room, or choose another --data") from error

    def remove() -> None:
        known = read_endpoints(folder)
        if known is not None and known.get("pid") == os.getpid():
            path.unlink(missing_ok=True)

    return remove


def read_endpoints(data: Path) -> Mapping[str, Any] | None:
    """Where the gateway that uses this data folder listens; None when none runs."""
    try:
        known: Mapping[str, Any] = json.loads((data / ENDPOINTS_FILE).read_text())
        os.kill(int(known["pid"]), 0)
    except (OSError, ValueError, KeyError):
        return None
    return known
