"""Routes for devices and tokens: admit, list, remove, rotate; issue, revoke."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from ...adapters.http import views
from ...adapters.http.models import FailureBody
from ...adapters.http.models_admin import (
    CredentialBody,
    DeviceRequest,
    DevicesBody,
    DevicesQuery,
    RevokeQuery,
    TokenBody,
    TokenRequest,
)
from ...adapters.timestamps import iso
from ...use_cases.roster import check_labels
from .access import OPERATORS, Caller, RuledRoute, Use, allow, answers

router = APIRouter(prefix="/api/v1", tags=["devices and tokens"], route_class=RuledRoute)
DeviceId = Annotated[str, Path(max_length=512, examples=["pump-7"])]


@router.post(
    "/devices",
    status_code=201,
    summary="Admit a device",
    response_model=CredentialBody,
    responses={
        201: answers(CredentialBody.example, "Its credential, shown this once"),
        409: {"model": FailureBody, **answers(FailureBody.example, "It, or its twin in other case, exists")},
    },
    openapi_extra={"requestBody": {"content": {"application/json": {"example": DeviceRequest.example}}}},
)
@allow(OPERATORS)
async def register(body: DeviceRequest, use: Use, caller: Caller) -> CredentialBody:
    """Into the caller's domain. The gateway makes the password and keeps a keyed hash of it only."""
    check_labels(body.labels)
    made = await use.devices.register(caller.domain, body.device_id)
    if use.fleet is not None:
        await use.fleet.label(caller, made.device_id, body.labels)
    return CredentialBody(device_id=made.device_id, username=made.username, password=made.password)


@router.get(
    "/devices",
    summary="List devices",
    response_model=DevicesBody,
    responses={200: answers(DevicesBody.example, "A page, by id")},
)
@allow(OPERATORS)
async def devices(query: Annotated[DevicesQuery, Query()], use: Use, caller: Caller) -> DevicesBody:
    """Of the caller's domain."""
    found = await use.devices.list(caller.domain, query.after, query.limit + 1)
    page = found[: query.limit]
    after = page[-1].device_id if len(found) > query.limit else None
    return DevicesBody(devices=[views.device(one) for one in page], after=after)


@router.delete("/devices/{device_id}", status_code=204, response_class=Response, summary="Remove a device")
@allow(OPERATORS)
async def remove(device_id: DeviceId, use: Use, caller: Caller) -> Response:
    """Its connections end within seconds, its tokens at once."""
    await use.devices.remove(caller.domain, device_id)
    if use.fleet is not None:
        await use.fleet.forget(caller, device_id)
    return Response(status_code=204)


@router.post(
    "/devices/{device_id}/rotate",
    summary="Give a device a new password",
    response_model=CredentialBody,
    responses={200: answers(CredentialBody.example, "Its new credential, shown this once")},
)
@allow(OPERATORS)
async def rotate(device_id: DeviceId, use: Use, caller: Caller) -> CredentialBody:
    """The old password and all tokens of the device end at once."""
    made = await use.devices.rotate(caller.domain, device_id)
    return CredentialBody(device_id=made.device_id, username=made.username, password=made.password)


@router.post(
    "/tokens",
    status_code=201,
    summary="Issue a token",
    response_model=TokenBody,
    responses={
        201: answers(TokenBody.example, "The token, shown this once"),
        403: {"model": FailureBody, **answers(FailureBody.example, "A grant or role is beyond the caller's own")},
    },
    openapi_extra={"requestBody": {"content": {"application/json": {"example": TokenRequest.example}}}},
)
@allow(OPERATORS)
async def issue(body: TokenRequest, use: Use, caller: Caller) -> TokenBody:
    """For a subject of the caller's domain, with no more rights than the caller has."""
    issued = use.tokens.issue(caller, body.subject, body.grants, body.roles, body.lifetime)
    return TokenBody(
        token=issued.token, token_id=issued.token_id, subject=issued.subject, expires_at=iso(issued.expires_at)
    )


@router.delete(
    "/tokens/{token_id}", status_code=204, response_class=Response, summary="Revoke a token", name="revoke_token"
)
@allow(OPERATORS)
async def revoke(token_id: Annotated[str, Path(max_length=128)], use: Use, caller: Caller) -> Response:
    """It counts no longer, at once; connections that were opened with it end within seconds."""
    await use.tokens.revoke(caller, token_id)
    return Response(status_code=204)


@router.delete("/tokens", status_code=204, response_class=Response, summary="Revoke all tokens of a subject")
@allow(OPERATORS)
async def revoke_subject(query: Annotated[RevokeQuery, Query()], use: Use, caller: Caller) -> Response:
    """And its logins; what is issued to it afterwards counts."""
    await use.tokens.revoke_subject(caller, query.subject)
    return Response(status_code=204)
