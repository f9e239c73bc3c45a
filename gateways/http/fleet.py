"""Routes for fleets: labels, and rollouts of commands and desired changes."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Path, Query, Request

from ...adapters.client.fleet import ClientFleet
from ...adapters.http import console_views, queries
from ...adapters.http.models import FailureBody
from ...adapters.http.models_console import OverviewBody, OverviewQuery
from ...adapters.http.models_fleet import LabelsBody, RolloutBody, RolloutRequestBody, RolloutsBody, RolloutsQuery
from ...entities.errors import NotFound
from .access import OPERATORS, PUBLISHERS, SUBSCRIBERS, Caller, RuledRoute, Use, allow, answers, asks

router = APIRouter(prefix="/api/v1", tags=["fleet"], route_class=RuledRoute)
DeviceId = Annotated[str, Path(max_length=64, examples=["pump-7"])]
RolloutId = Annotated[str, Path(max_length=64, examples=[RolloutBody.example["rolloutId"]])]
_REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    409: {"model": FailureBody, **answers(FailureBody.example, "Not in this state, or the id is another rollout's")}
}


async def _fleet(request: Request) -> ClientFleet:
    fleet: ClientFleet | None = request.app.state.use_cases.fleet
    if fleet is None:
        raise NotFound
    return fleet


Fleet = Annotated[ClientFleet, Depends(_fleet)]


@router.get(
    "/fleet",
    summary="Show the fleet at a glance",
    response_model=OverviewBody,
    responses={200: answers(OverviewBody.example, "A page, by id; it may be empty and still have an `after`")},
)
@allow(SUBSCRIBERS)
async def overview(query: Annotated[OverviewQuery, Query()], use: Use, caller: Caller) -> OverviewBody:
    """Registered devices whose presence the caller may listen to: labels, presence, and the newest telemetry.

    With `device` that one alone; none where no such device is registered, or the caller may listen to nothing of it.
    """
    if use.overview is None:
        raise NotFound
    if query.device:
        return console_views.overview(await use.overview.one(caller, query.device))
    return console_views.overview(await use.overview.page(caller, query.after, query.limit))


@router.get(
    "/devices/{device_id}/labels",
    summary="Read a device's labels",
    response_model=LabelsBody,
    responses={200: answers(LabelsBody.example, "By name")},
)
@allow(OPERATORS)
async def labels(device_id: DeviceId, fleet: Fleet, caller: Caller) -> LabelsBody:
    """What fleets are selected by."""
    return LabelsBody(**await fleet.labels(caller, device_id))


@router.patch(
    "/devices/{device_id}/labels",
    summary="Change a device's labels",
    response_model=LabelsBody,
    openapi_extra=asks(LabelsBody.example),
    responses={200: answers(LabelsBody.example, "As they are now")},
)
@allow(OPERATORS)
async def label(device_id: DeviceId, body: LabelsBody, fleet: Fleet, caller: Caller) -> LabelsBody:
    """Null takes one away."""
    return LabelsBody(**await fleet.label(caller, device_id, body.labels))


@router.post(
    "/rollouts",
    summary="Begin a rollout",
    response_model=RolloutBody,
    openapi_extra=asks(RolloutRequestBody.example),
    responses={200: answers(RolloutBody.example, "It has begun, or had begun before"), **_REFUSED},
)
@allow(PUBLISHERS)
async def start(body: RolloutRequestBody, fleet: Fleet, caller: Caller) -> RolloutBody:
    """One command, or one desired change, for all devices that a filter selects, at a rate, until too many fail."""
    return RolloutBody(**await fleet.start(caller, body.model_dump(exclude_none=True)))


@router.get(
    "/rollouts",
    summary="List rollouts",
    response_model=RolloutsBody,
    responses={200: answers(RolloutsBody.example, "Oldest first")},
)
@allow(PUBLISHERS)
async def rollouts(query: Annotated[RolloutsQuery, Query()], fleet: Fleet, caller: Caller) -> RolloutsBody:
    """Those that were begun after a time."""
    after = queries.read_moment(query.after, "after") if query.after is not None else 0
    return RolloutsBody(rollouts=[dict(each) for each in await fleet.all(caller, after, query.limit)])


@router.get(
    "/rollouts/{rollout_id}",
    summary="Follow a rollout",
    response_model=RolloutBody,
    responses={200: answers(RolloutBody.example, "With its progress")},
)
@allow(PUBLISHERS)
async def rollout(rollout_id: RolloutId, fleet: Fleet, caller: Caller) -> RolloutBody:
    """How many devices were selected, were given it, and what became of it."""
    return RolloutBody(**await fleet.get(caller, rollout_id))


@router.post(
    "/rollouts/{rollout_id}/{wish}",
    summary="Pause, resume or cancel a rollout",
    response_model=RolloutBody,
    responses={200: answers(RolloutBody.example, "As it is now"), **_REFUSED},
)
@allow(PUBLISHERS)
async def steer(
    rollout_id: RolloutId, wish: Literal["pause", "resume", "cancel"], fleet: Fleet, caller: Caller
) -> RolloutBody:
    """What devices were sent stays sent; a cancel takes back what still waits."""
    return RolloutBody(**await fleet.steer(caller, rollout_id, wish))
