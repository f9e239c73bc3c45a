"""A small caller of the HTTP door, for the command line."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from ..entities.errors import IotSphereError, Unavailable

TIMEOUT_S = 30.0


class HttpClient:
    """Calls the API of one gateway with one token. Blocking: not for the event loop."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._token = token

    def __call__(self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None) -> Any:
        """The decoded answer (None when it is empty). Raises IotSphereError with the gateway's code and remedy."""
        address = f"{self._url}{path}"
        wanted = {name: value for name, value in (query or {}).items() if value is not None}
        if wanted:
            address += "?" + urllib.parse.urlencode(wanted, doseq=True)
        request = urllib.request.Request(
            address,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as error:
            raise _refusal(error.code, error.read()) from error
        except OSError as error:
            raise Unavailable(f"no gateway answers at {self._url} ({error}); start one with: iotsphere up") from error
        return json.loads(raw) if raw else None


def _refusal(status: int, raw: bytes) -> IotSphereError:
    try:
        told = json.loads(raw)["error"]
        return IotSphereError(str(told["message"]), code=str(told["code"]))
    except (ValueError, KeyError, TypeError):
        return IotSphereError(f"the gateway answered HTTP {status}", code="http_error")
