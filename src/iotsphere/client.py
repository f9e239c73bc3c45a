"""`iotsphere.connect`: the adapter API at an address, be it a running gateway or a log without one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes

from .adapters.broker.broker import MessageBrokerAdapter
from .adapters.broker.session_wire import SessionWire
from .adapters.requests import DecidedElsewhere
from .drivers.secrets import Secrets, load_or_create
from .drivers.websocket_wire import WebSocketWire
from .entities.errors import RequestInvalid
from .entities.topic import DEFAULT_DOMAIN
from .settings import Settings


@asynccontextmanager
async def connect(
    url: str, *, token: str | None = None, domain: str = DEFAULT_DOMAIN, database: str | None = None
) -> AsyncIterator[MessageBrokerAdapter]:
    """As ``iotsphere.connect``, which says what the addresses may be."""
    if url.startswith(("ws:", "wss:")):
        async with MessageBrokerAdapter(WebSocketWire(url, token)) as broker:
            yield broker
        return
    from .app import App  # noqa: PLC0415  a client of a running gateway needs none of this

    settings, secrets = _of_log(url, domain, database)
    async with App(settings, (), secrets) as gateway:
        use_cases = gateway.container.client_use_cases()
        if settings.database == "memory":  # which is no gateway's: what were decided there would be known to nobody
            elsewhere = None if settings.log.startswith("memory") else DecidedElsewhere()
            use_cases = replace(use_cases, state=None, elsewhere=elsewhere)
        async with MessageBrokerAdapter(SessionWire(use_cases, gateway.operator)) as broker:
            yield broker


def _of_log(url: str, domain: str, database: str | None) -> tuple[Settings, Secrets]:
    kind, _, place = url.partition(":")
    if kind == "sqlite" and place:
        folder = Path(place.removeprefix("//"))
        named = {} if database is None else {"database": database}
        settings = Settings.model_validate({"log": "sqlite", "data": folder, "domains": (domain,), **named})
        return settings, load_or_create(folder / "secrets.json")
    if kind not in ("memory", "redis", "rediss", "unix"):
        raise RequestInvalid(
            f"{url!a} is nothing to connect to; write ws://HOST:PORT, sqlite:FOLDER, redis://HOST:PORT/DB or memory://"
        )
    # Whoever reaches the log itself needs no cursor forged: this key only has to be the same each time.
    cursor = sha256(b"cursors of a log without a gateway").digest()
    settings = Settings(log=url, database=database or "memory", domains=(domain,))
    return settings, Secrets(token_bytes(32), cursor, token_bytes(32))
