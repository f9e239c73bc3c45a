"""Routes for messages: publish, history, last values, and where one went."""

from __future__ import annotations

from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Path, Query, Request, Response

from ...adapters.http import queries, views
from ...adapters.http.failures import body_of, status_of
from ...adapters.http.models import (
    FailureBody,
    HistoryBody,
    HistoryQuery,
    LatestBody,
    LatestQuery,
    PublishBody,
    PublishedBody,
    RefusedBody,
)
from ...adapters.http.models_state import TraceBody
from ...adapters.http.publishing import outcome_facts, read_publications
from .access import OPERATORS, PUBLISHERS, SUBSCRIBERS, Caller, RuledRoute, Use, allow, answers

JSON: Final = "application/json"
router = APIRouter(prefix="/api/v1", tags=["messages"], route_class=RuledRoute)
_REQUEST: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {JSON: {"schema": PublishBody.model_json_schema(), "example": PublishBody.example}},
    }
}


@router.post(
    "/messages",
    summary="Publish one or many messages",
    openapi_extra=_REQUEST,
    responses={
        200: {"model": PublishedBody, **answers(PublishedBody.example, "All of them are in the log, durably")},
        422: {"model": RefusedBody, **answers(RefusedBody.example, "At least one was refused and is a dead letter")},
        429: {"model": FailureBody, **answers(FailureBody.example, "Too fast; see Retry-After")},
    },
)
@allow(PUBLISHERS)
async def publish(request: Request, use: Use, caller: Caller) -> Response:
    """Send `{"topic", "payload"}`, a whole envelope, or up to 1,000 of either in `{"messages": [...]}`.

    The payload reaches the checks byte for byte. A message that is refused becomes a dead letter; the answer is then
    the error of the first one, with a result for each message. Repeat safely by giving messages a `message_id`.
    """
    publications, _ = read_publications(await request.body())
    outcomes = await use.publishing(caller, publications)
    results = [outcome_facts(outcome) for outcome in outcomes]
    refused = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
    if refused is None:
        return Response(orjson.dumps({"results": results}), media_type=JSON)
    return Response(body_of(refused, results=results), status_of(refused), media_type=JSON)


@router.get(
    "/messages",
    summary="Read the history of one or more filters",
    responses={200: {"model": HistoryBody, **answers(HistoryBody.example, "A page, oldest first")}},
)
@allow(SUBSCRIBERS)
async def history(query: Annotated[HistoryQuery, Query()], use: Use, caller: Caller) -> Response:
    """From the earliest, a time or a cursor; ask on with the cursor of the answer. Gaps say exactly what is missing."""
    filters = queries.read_filters(query.filter)
    caller.require("subscribe", filters)
    scope = queries.scope(caller, filters)
    start = queries.read_start(query, scope, use.cursor_key)
    page = await use.history(caller, filters, start, query.limit)
    return Response(views.history(page, queries.write_cursor(page, scope, use.cursor_key)), media_type=JSON)


@router.get(
    "/latest",
    summary="Read the last value of each topic",
    responses={200: {"model": LatestBody, **answers(LatestBody.example, "A page, by topic")}},
)
@allow(SUBSCRIBERS)
async def latest(query: Annotated[LatestQuery, Query()], use: Use, caller: Caller) -> Response:
    """Of all topics that the filters select; last by event time, so that a late old sample hides nothing."""
    page = use.history.latest(caller, queries.read_filters(query.filter), query.after, query.limit)
    return Response(views.latest(page), media_type=JSON)


@router.get(
    "/messages/{message_id}/trace",
    summary="Tell where a message went",
    response_model=TraceBody,
    responses={200: answers(TraceBody.example, "What is known of it")},
)
@allow(OPERATORS)
async def trace(message_id: Annotated[str, Path(max_length=64)], use: Use, caller: Caller) -> TraceBody:
    """Its place in the log, its dead letter if it was refused, and which registered readers are past it."""
    return views.trace(await use.trace(caller, message_id))
