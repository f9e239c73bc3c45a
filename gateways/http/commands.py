"""Routes for commands: send and wait, follow, list, take back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from ...adapters.client.state import Ask
from ...adapters.http import queries
from ...adapters.http.models import FailureBody
from ...adapters.http.models_shadow import CommandBody, CommandRequestBody, CommandsBody, CommandsQuery
from .access import PUBLISHERS, SUBSCRIBERS, Caller, RuledRoute, State, allow, answers, asks

router = APIRouter(prefix="/api/v1", tags=["commands"], route_class=RuledRoute)
DeviceId = Annotated[str, Path(max_length=64, examples=["pump-7"])]
CommandId = Annotated[str, Path(max_length=64, examples=[CommandBody.example["commandId"]])]


@router.post(
    "/devices/{device_id}/commands",
    summary="Send a command",
    response_model=CommandBody,
    openapi_extra=asks(CommandRequestBody.example),
    responses={
        200: answers(CommandBody.example, "It is accepted, or (with `wait`) over"),
        409: {"model": FailureBody, **answers(FailureBody.example, "The id belongs to another command")},
        422: {"model": FailureBody, **answers(FailureBody.example, "It is no command")},
    },
)
@allow(PUBLISHERS)
async def send(device_id: DeviceId, body: CommandRequestBody, state: State, caller: Caller) -> CommandBody:
    """It waits for a device that is away. Repeat safely with the same id or idempotency key: it runs once."""
    ask = Ask(
        device=device_id,
        payload=body.payload,
        id=body.message_id,
        idempotency_key=body.idempotency_key,
        expires_at=queries.read_moment(body.expires_at, "expires_at") if body.expires_at is not None else 0,
        timeout=body.timeout,
        wait=body.wait,
    )
    return CommandBody(**await state.command(caller, ask))


@router.get(
    "/devices/{device_id}/commands",
    summary="List the commands of a device",
    response_model=CommandsBody,
    responses={200: answers(CommandsBody.example, "Oldest first")},
)
@allow(SUBSCRIBERS)
async def commands(
    device_id: DeviceId, query: Annotated[CommandsQuery, Query()], state: State, caller: Caller
) -> CommandsBody:
    """With each step of their lives. Ask on with the `createdAt` of the last one as `after`."""
    after = queries.read_moment(query.after, "after") if query.after is not None else 0
    found = await state.commands_of(caller, device_id, after, query.limit)
    return CommandsBody(commands=[dict(each) for each in found])


@router.get(
    "/commands/{command_id}",
    summary="Follow a command",
    response_model=CommandBody,
    responses={200: answers(CommandBody.example, "As it is now, or (with `wait`) at its end")},
)
@allow(SUBSCRIBERS)
async def command(
    command_id: CommandId, state: State, caller: Caller, wait: Annotated[float, Query(ge=0, le=300)] = 0.0
) -> CommandBody:
    """`wait`: seconds to wait for its end."""
    return CommandBody(**await state.command_state(caller, command_id, wait))


@router.post(
    "/commands/{command_id}/cancel",
    summary="Take a command back",
    response_model=CommandBody,
    responses={
        200: answers({**CommandBody.example, "state": "cancelled"}, "It will not be handed over"),
        409: {"model": FailureBody, **answers(FailureBody.example, "It is with the device already, or over")},
    },
)
@allow(PUBLISHERS)
async def cancel(command_id: CommandId, state: State, caller: Caller) -> CommandBody:
    """Possible until it is handed to its device."""
    return CommandBody(**await state.cancel(caller, command_id))
