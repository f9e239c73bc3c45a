"""Who a client is: its CONNECT and its certificate, as the credentials that they are."""

from __future__ import annotations

from typing import Final

from ...adapters.mqtt import packets as p
from ...entities.certificate import Certificate
from ...entities.errors import Unauthenticated
from ...entities.principal import Principal
from .use_cases import MqttUseCases

STRANGER: Final = "anonymous clients are not admitted: send a user name and password, or a token"


async def identify(use: MqttUseCases, connect: p.Connect, certificate: Certificate | None, address: str) -> Principal:
    """Find out whose credential it is. Raises Unauthenticated, and as ``Authenticate`` does."""
    if use.playground is not None:
        return use.playground.guest
    try:
        password = connect.password.decode() if connect.password is not None else None
    except UnicodeDecodeError as error:
        raise Unauthenticated("the credential is not accepted") from error
    if certificate is not None:
        return await use.authenticate.certificate(certificate, connect.username, password, address)
    if connect.username is None and password is None:
        raise Unauthenticated(STRANGER)
    return await use.authenticate.password(connect.username or "", password or "", address)
