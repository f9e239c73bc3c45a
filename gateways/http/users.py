"""Routes for what users have: notifications until they are read, and preferences."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from ...adapters.http import queries
from ...adapters.http.models import FailureBody
from ...adapters.http.models_shadow import (
    ChangePreferencesBody,
    NotificationBody,
    NotificationsBody,
    NotificationsQuery,
    PreferencesBody,
)
from .access import PUBLISHERS, SUBSCRIBERS, Caller, RuledRoute, State, allow, answers, asks

router = APIRouter(prefix="/api/v1/users/{user_id}", tags=["users"], route_class=RuledRoute)
UserId = Annotated[str, Path(max_length=64, examples=["ann"])]


@router.get(
    "/notifications",
    summary="Read notifications",
    response_model=NotificationsBody,
    responses={200: answers(NotificationsBody.example, "Oldest first")},
)
@allow(SUBSCRIBERS)
async def notifications(
    user_id: UserId, query: Annotated[NotificationsQuery, Query()], state: State, caller: Caller
) -> NotificationsBody:
    """The unread ones, or all that are kept."""
    after = queries.read_moment(query.after, "after") if query.after is not None else 0
    found = await state.notifications(caller, user_id, unread=not query.all, after=after, limit=query.limit)
    return NotificationsBody(notifications=[dict(each) for each in found])


@router.post(
    "/notifications/{notification_id}/read",
    summary="Mark a notification as read",
    response_model=NotificationBody,
    responses={200: answers(NotificationBody.example, "Every session of the user is told")},
)
@allow(SUBSCRIBERS)
async def read(
    user_id: UserId, notification_id: Annotated[str, Path(max_length=64)], state: State, caller: Caller
) -> NotificationBody:
    """It is kept for another week."""
    return NotificationBody(**await state.read_notification(caller, user_id, notification_id))


@router.get(
    "/preferences",
    summary="Read preferences",
    response_model=PreferencesBody,
    responses={200: answers(PreferencesBody.example, "Version 0: they were never set")},
)
@allow(SUBSCRIBERS)
async def preferences(user_id: UserId, state: State, caller: Caller) -> PreferencesBody:
    """One JSON object per user."""
    return PreferencesBody(**await state.preferences(caller, user_id))


@router.patch(
    "/preferences",
    summary="Change preferences",
    response_model=PreferencesBody,
    openapi_extra=asks(ChangePreferencesBody.example),
    responses={
        200: answers(PreferencesBody.example, "As they are now"),
        409: {
            "model": FailureBody,
            **answers(FailureBody.example, "At another version; `current` holds what is there"),
        },
    },
)
@allow(PUBLISHERS)
async def change(user_id: UserId, body: ChangePreferencesBody, state: State, caller: Caller) -> PreferencesBody:
    """A merge patch: null takes a key away."""
    decided = await state.change_preferences(caller, user_id, body.model_dump(exclude_none=True))
    return PreferencesBody(**decided)
