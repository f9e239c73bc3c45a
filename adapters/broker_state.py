"""Shadows, commands and notifications for services in Python: requests that are answered with what was decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import orjson

from .broker_requests import PendingRequests

Facts = Mapping[str, Any]


class BrokerState:
    """The part of ``MessageBrokerAdapter`` that asks. Each request is repeated after a lost connection, and counts once.

    Methods raise Forbidden, NotFound, RequestInvalid, MessageRefused, VersionConflict (its facts hold ``version`` and
    ``state``: what is there), Conflict and Unavailable.
    """

    _requests: PendingRequests

    async def shadow(
        self, device: str, name: str = "", *, as_of: str | None = None, version: int | None = None
    ) -> Facts:
        """A device's shadow: as it is, as it was at a time (ISO-8601), or at a version."""
        answer = await self._ask_for("shadow", device=device, name=name, asOf=as_of, version=version)
        shadow: Facts = answer["shadow"]
        return shadow

    async def desire(
        self,
        device: str,
        desired: Mapping[str, Any],
        name: str = "",
        *,
        version: int | None = None,
        expires_at: str | None = None,
    ) -> Facts:
        """Change what a device is to be, by a merge patch (RFC 7396); with ``version``, only if it is still at that one.

        Returns ``version``, ``deltaSequence`` and ``changed``.
        """
        return await self._ask_for(
            "shadow",
            device=device,
            name=name,
            desired=desired,
            version=version,
            expiresAt=expires_at,
            messageId=str(uuid4()),
        )

    async def delete_shadow(self, device: str, name: str = "", *, version: int | None = None) -> Facts:
        """Delete a shadow; its versions go on if it is made anew."""
        return await self._ask_for(
            "shadow", device=device, name=name, delete=True, version=version, messageId=str(uuid4())
        )

    async def command(
        self,
        device: str,
        payload: Mapping[str, Any],
        *,
        wait: float = 0.0,
        timeout: float = 0.0,
        idempotency_key: str | None = None,
        expires_at: str | None = None,
    ) -> Facts:
        """Send a command; with ``wait`` (seconds), return when it is over or that time has passed.

        ``timeout``: seconds that the device has for it. Returns ``commandId``, ``state``, ``final``, ``steps`` and what
        the device answered (``result``, ``reason``, ``progress``).
        """
        answer = await self._ask_for(
            "command",
            device=device,
            payload=payload,
            wait=wait,
            timeout=timeout,
            expiresAt=expires_at,
            idempotencyKey=idempotency_key,
            messageId=None if idempotency_key else str(uuid4()),
        )
        command: Facts = answer["command"]
        return command

    async def cancel(self, command_id: str) -> Facts:
        """Take a command back that its device has not been sent."""
        command: Facts = (await self._ask_for("cancel", command=command_id))["command"]
        return command

    async def read(self, notification_id: str, user: str | None = None) -> Facts:
        """Mark a notification as read; without ``user``, one of the token's own."""
        notification: Facts = (await self._ask_for("read", notification=notification_id, user=user))["notification"]
        return notification

    async def _ask_for(self, kind: str, **members: object) -> Facts:
        body = b"," + orjson.dumps({name: value for name, value in members.items() if value is not None})[1:-1]
        return await self._requests.ask(kind, body, repeat=True)
