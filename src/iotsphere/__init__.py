"""IoTSphere: a gateway between devices, browsers, services and analysts over one durable log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from .adapters.broker.broker import MessageBrokerAdapter

__version__ = "0.1.0"


def connect(
    url: str, *, token: str | None = None, domain: str = "iotsphere", database: str | None = None
) -> AbstractAsyncContextManager[MessageBrokerAdapter]:
    """Open a broker: ``async with iotsphere.connect(url, token=token) as broker``; see docs/reference/python-api.md.

    ``url``: ``ws://HOST:PORT`` or ``wss://HOST:PORT`` with a ``token``; or a log directly, as the operator of
    ``domain``: ``sqlite:FOLDER`` (the data folder of a gateway that is not running), ``redis://HOST:PORT/DB`` or
    ``memory://``. ``database``: ``mongodb://HOST:PORT/NAME``, where the gateways on that log keep shadows and commands.
    Raises RequestInvalid, Unauthenticated, Unavailable.
    """
    from . import client  # noqa: PLC0415  a gateway that only needs the entities should not load a client

    return client.connect(url, token=token, domain=domain, database=database)
