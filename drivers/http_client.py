"""A small caller of the HTTP door, for the command line."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from ..entities.errors import IotSphereError, Unavailable, error_of

TIMEOUT_S = 30.0


class HttpClient:
    """Calls the API of one gateway with one token. Blocking: not for the event loop."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._token = token

    def __call__(self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None) -> Any:
        """The decoded answer (None when it is empty). Raises IotSphereError with the gateway's code and remedy.

        Where the gateway is asked to ``wait`` (seconds, in the query or the body), so long is its answer waited for.
        """
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
        asked = (body if isinstance(body, Mapping) else wanted).get("wait")
        timeout = TIMEOUT_S + (asked if isinstance(asked, int | float) else 0.0)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as error:
            raise _refusal(error.code, error.read()) from error
        except OSError as error:
            raise Unavailable(f"no gateway answers at {self._url} ({error}); start one with: iotsphere up") from error
        return json.loads(raw) if raw else None


def _refusal(status: int, raw: bytes) -> IotSphereError:
    try:
        told = json.loads(raw)["error"]
        error = error_of(str(told["code"]), str(told["message"]), **told.get("current", {}))
        error.retry = bool(told["retry"])
    except (ValueError, KeyError, TypeError):
        return IotSphereError(f"the gateway answered HTTP {status}", code="http_error")
    return error
