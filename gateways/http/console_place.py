"""Where the console's page may connect to, and what its policy says to the browser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; "
    "connect-src 'self'{live}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types lit-html"
)
_HOST: Final = re.compile(r"(?P<name>[A-Za-z0-9]([A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?\Z")
_URL: Final = re.compile(r"(?P<origin>wss?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?)(?:/[\w./~-]*)?\Z")


@dataclass(frozen=True, slots=True)
class ConsolePlace:
    """Where the console's live connection goes. ``endpoints``: of this process by name, filled as its doors open.

    ``websocket_url``: what browsers are told instead, behind a proxy. ``origins``: those that the WebSocket door admits;
    empty = any.
    """

    endpoints: Mapping[str, str] = field(default_factory=dict)
    websocket_url: str = ""
    origins: tuple[str, ...] = ()
    shown: bool = True

    def live(self, host: str) -> str | None:
        """The WebSocket URL for a page that was asked for at this host (a Host header); None when there is none."""
        if self.websocket_url:
            return self.websocket_url
        near = _HOST.match(host)
        scheme, _, address = self.endpoints.get("websocket", "").partition("://")
        if near is None or not address:
            return None
        port = address.partition("/")[0].rpartition(":")[2]
        return f"{scheme}://{near['name']}:{port}"

    def policy(self, host: str) -> str:
        """The Content-Security-Policy of the page: it may talk to its own origin and the WebSocket door, and to nobody else."""
        url = _URL.match(self.live(host) or "")
        return POLICY.format(live=f" {url['origin']}" if url else "")

    def admits(self, scheme: str, host: str) -> bool:
        """Tell whether the WebSocket door lets a page of this origin connect."""
        return not self.origins or f"{scheme}://{host}" in self.origins
