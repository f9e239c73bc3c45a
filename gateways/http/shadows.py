"""Routes for shadows: read, as of a time too, change what is desired, delete, and the versions."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query

from ...adapters.http import queries
from ...adapters.http.models import FailureBody
from ...adapters.http.models_shadow import (
    ChangeShadowBody,
    ShadowBody,
    ShadowChangedBody,
    ShadowQuery,
    ShadowsBody,
    VersionsQuery,
)
from .access import PUBLISHERS, SUBSCRIBERS, Caller, RuledRoute, State, allow, answers, asks

router = APIRouter(prefix="/api/v1/devices/{device_id}", tags=["shadows"], route_class=RuledRoute)
DeviceId = Annotated[str, Path(max_length=64, examples=["pump-7"])]
_CONFLICT: Final[dict[int | str, dict[str, Any]]] = {
    409: {"model": FailureBody, **answers(FailureBody.example, "At another version; `current` holds what is there")},
    422: {"model": FailureBody, **answers(FailureBody.example, "It does not fit a shadow")},
}


@router.get(
    "/shadows",
    summary="Read all shadows of a device",
    response_model=ShadowsBody,
    responses={200: answers(ShadowsBody.example, "The main one first")},
)
@allow(SUBSCRIBERS)
async def shadows(device_id: DeviceId, state: State, caller: Caller) -> ShadowsBody:
    """Those whose `document` topic the caller may listen to."""
    return ShadowsBody(shadows=[dict(each) for each in await state.shadows_of(caller, device_id)])


@router.get(
    "/shadow",
    summary="Read a shadow",
    response_model=ShadowBody,
    responses={200: answers(ShadowBody.example, "What is reported, what is desired, and the delta")},
)
@allow(SUBSCRIBERS)
async def shadow(
    device_id: DeviceId, query: Annotated[ShadowQuery, Query()], state: State, caller: Caller
) -> ShadowBody:
    """As it is, as it was at a time, or at a version."""
    as_of = queries.read_moment(query.as_of, "as_of") if query.as_of is not None else None
    found = await state.shadow(caller, device_id, query.name, as_of=as_of, version=query.version)
    return ShadowBody(**found)


@router.get(
    "/shadow/versions",
    summary="Read the versions of a shadow",
    response_model=ShadowsBody,
    responses={200: answers(ShadowsBody.example, "In order")},
)
@allow(SUBSCRIBERS)
async def versions(
    device_id: DeviceId, query: Annotated[VersionsQuery, Query()], state: State, caller: Caller
) -> ShadowsBody:
    """Those after one that are still kept; a deletion is one too."""
    found = await state.shadow_versions(caller, device_id, query.name, query.after, query.limit)
    return ShadowsBody(shadows=[dict(each) for each in found])


@router.patch(
    "/shadow",
    summary="Change what a device is to be",
    response_model=ShadowChangedBody,
    openapi_extra=asks(ChangeShadowBody.example),
    responses={200: answers(ShadowChangedBody.example, "Accepted, or equal to what was desired before"), **_CONFLICT},
)
@allow(PUBLISHERS)
async def change(
    device_id: DeviceId, body: ChangeShadowBody, state: State, caller: Caller, name: str = ""
) -> ShadowChangedBody:
    """A merge patch: null takes a key away. The device is told what differs from what it reports."""
    decided = await state.change_shadow(caller, device_id, name, body.request(), body.message_id)
    return ShadowChangedBody(**decided)


@router.delete(
    "/shadow",
    summary="Delete a shadow",
    response_model=ShadowChangedBody,
    responses={
        200: answers(ShadowChangedBody.example, "It is gone; its versions go on if it is made anew"),
        **_CONFLICT,
    },
)
@allow(PUBLISHERS)
async def delete(
    device_id: DeviceId, state: State, caller: Caller, name: str = "", version: int | None = None
) -> ShadowChangedBody:
    """What was reported and desired goes; a request that was made for an older version is refused afterwards."""
    request = {"delete": True} if version is None else {"delete": True, "version": version}
    return ShadowChangedBody(**await state.change_shadow(caller, device_id, name, request))
