"""Routes about the gateway itself: alive, ready, metrics, the ledger, and the description of this API."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ...adapters.http import views
from ...adapters.http.models import FailureBody
from ...adapters.http.models_state import LedgerBody, StatusBody
from ...entities.errors import ShuttingDown
from .access import OPERATORS, PUBLIC, Caller, RuledRoute, Use, allow, answers
from .metrics import CONTENT_TYPE, Metrics

router = APIRouter(tags=["state"], route_class=RuledRoute)


@router.get(
    "/healthz",
    summary="Tell whether the process is alive",
    response_model=StatusBody,
    responses={200: answers(StatusBody.example, "It is")},
)
@allow(PUBLIC)
async def healthz() -> StatusBody:
    """Restart the process when this fails."""
    return StatusBody(status="alive")


@router.get(
    "/ready",
    summary="Tell whether messages can be taken",
    response_model=StatusBody,
    responses={
        200: answers({"status": "ready"}, "They can"),
        503: {
            "model": FailureBody,
            **answers(FailureBody.example, "The log is away or full, or the gateway is stopping"),
        },
    },
)
@allow(PUBLIC)
async def ready(request: Request, use: Use) -> StatusBody:
    """Send no traffic here while this fails."""
    if request.app.state.draining:
        raise ShuttingDown("the gateway is stopping; use another one")
    await use.log.ready()
    for check in use.checks:
        await check()
    return StatusBody(status="ready")


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_class=Response,
    responses={200: {"description": "Text format", "content": {CONTENT_TYPE: {"example": "iotsphere_up 1.0\n"}}}},
)
@allow(PUBLIC)
async def metrics(request: Request, use: Use) -> Response:
    """Figures of the whole gateway. No label names a tenant, a device or anything else that clients choose."""
    figures: Metrics = request.app.state.metrics
    text = figures.recent
    if text is None:
        reports = [await use.ledger.of_domain(domain) for domain in use.log.domains()]
        text = figures.render(reports, use.measures)
    return Response(text, media_type=CONTENT_TYPE)


@router.get(
    "/api/v1/ledger",
    summary="Show what became of all messages",
    response_model=LedgerBody,
    responses={200: answers(LedgerBody.example, "The accounts of the caller's domain")},
)
@allow(OPERATORS)
async def ledger(use: Use, caller: Caller) -> LedgerBody:
    """accepted = applied + superseded + expired + dead-lettered + lost + pending, per reader and channel."""
    return views.ledger(await use.ledger(caller))


@router.get("/openapi.json", include_in_schema=False)
@allow(PUBLIC)
async def openapi(request: Request) -> JSONResponse:
    """The OpenAPI document of this API."""
    return JSONResponse(request.app.openapi())
