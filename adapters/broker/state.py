"""Shadows, commands and notifications for services in Python: requests that are answered with what was decided."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from ...entities.errors import IotSphereError, RateLimited, ShuttingDown
from .requests import Answer, PendingRequests, json_text

Facts = Mapping[str, Any]

RETRY_S: Final = 0.5


class BrokerState:
    """The part of ``MessageBrokerAdapter`` that asks. Each request is repeated after a lost connection, and counts once.

    A gateway that asks to slow down, or restarts, is asked again later. ``message_id``, a UUID: a request that is repeated
    with the same one, also by another process, is answered as the first one was. Methods raise Forbidden, NotFound, RequestInvalid, MessageRefused, VersionConflict (its facts hold ``version`` and
    ``state``: what is there), Conflict and Unavailable.
    """

    _requests: PendingRequests
    _failure: IotSphereError | None

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
        expires: str | Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> Facts:
        """Change what a device is to be, by a merge patch (RFC 7396); with ``version``, only if it is still at that one.

        ``expires``: until when it is wanted (ISO-8601), or that for single places by JSON Pointer: ``{"/valve": "…"}``.
        Returns ``version``, ``deltaSequence`` and ``changed``.
        """
        single = isinstance(expires, Mapping)
        return await self._ask_for(
            "shadow",
            device=device,
            name=name,
            desired=desired,
            version=version,
            expires=expires if single else None,
            expiresAt=None if single else expires,
            messageId=message_id or str(uuid4()),
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
        message_id: str | None = None,
    ) -> Facts:
        """Send a command; with ``wait`` (seconds), return when it is over or that time has passed.

        ``timeout``: seconds that the device has for it. ``message_id``: its id; ``idempotency_key``: a text of the caller's
        that stands for one. Returns ``commandId``, ``state``, ``final``, ``steps`` and what
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
            messageId=message_id or (None if idempotency_key else str(uuid4())),
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

    async def _ask_for(self, kind: str, **members: object) -> Answer:
        body = b"," + json_text({name: value for name, value in members.items() if value is not None})[1:-1]
        while True:
            try:
                return await self._requests.ask(kind, body, repeat=True)
            except (RateLimited, ShuttingDown) as error:
                if self._failure is not None:
                    raise
                after = error.facts.get("retry_after")
                await asyncio.sleep(after if isinstance(after, float) else RETRY_S)
