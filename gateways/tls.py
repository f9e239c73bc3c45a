"""What every door does with TLS: how long a handshake may take, and who showed a certificate in it."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from ..adapters.certificates import read_certificate
from ..entities.certificate import Certificate

UNREADABLE: Final = Certificate("x509:unreadable", 0)  # over since 1970, so it lets nobody in
HANDSHAKE_S: Final = 4.5  # so that who says nothing is gone within five seconds


def peer_certificate(transport: asyncio.BaseTransport) -> Certificate | None:
    """The certificate that the client showed and the handshake verified; None without TLS or without one."""
    connection: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    encoded = connection.getpeercert(binary_form=True) if connection is not None else None
    if encoded is None:
        return None
    try:
        return read_certificate(encoded)
    except ValueError:  # OpenSSL is more lenient than our parser
        return UNREADABLE
