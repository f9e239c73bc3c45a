"""Routes for dead letters: list, inspect, redrive, discard."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from ...adapters.http import views
from ...adapters.http.models import FailureBody
from ...adapters.http.models_admin import DeadLetterBody, DeadLettersBody, DeadLettersQuery, RedrivenBody
from .access import OPERATORS, Caller, RuledRoute, Use, allow, answers

router = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"], route_class=RuledRoute)
LetterId = Annotated[str, Path(max_length=64, examples=[DeadLetterBody.example["id"]])]


@router.get(
    "",
    summary="List refused messages",
    response_model=DeadLettersBody,
    responses={200: answers(DeadLettersBody.example, "A page, newest first")},
)
@allow(OPERATORS)
async def dead_letters(query: Annotated[DeadLettersQuery, Query()], use: Use, caller: Caller) -> DeadLettersBody:
    """By reason, device and state. `before` of the answer asks on."""
    state = None if query.state == "any" else query.state
    page = await use.dead_letters.page(
        caller, reason=query.reason, device=query.device, state=state, before=query.before, limit=query.limit
    )
    return DeadLettersBody(
        dead_letters=[views.dead_letter(letter, False) for letter in page.letters], before=page.before
    )


@router.get(
    "/{letter_id}",
    summary="Inspect one refused message",
    response_model=DeadLetterBody,
    responses={200: answers(DeadLetterBody.example, "The letter with its first 4 KiB")},
)
@allow(OPERATORS)
async def dead_letter(letter_id: LetterId, use: Use, caller: Caller) -> DeadLetterBody:
    """Its reason, what exactly was wrong, and the beginning of what was sent, in base64."""
    return views.dead_letter(await use.dead_letters.get(caller, letter_id), True)


@router.post(
    "/{letter_id}/redrive",
    summary="Publish a refused message again",
    response_model=RedrivenBody,
    responses={
        200: answers(RedrivenBody.example, "It is in the log, once, however often this is called"),
        409: {"model": FailureBody, **answers(FailureBody.example, "It was discarded, or only a part of it was kept")},
        422: {"model": FailureBody, **answers(FailureBody.example, "It is refused again")},
    },
)
@allow(OPERATORS)
async def redrive(letter_id: LetterId, use: Use, caller: Caller) -> RedrivenBody:
    """Through the same checks, to the same topic, with its first time of arrival."""
    return views.redriven(await use.dead_letters.redrive(caller, letter_id))


@router.delete(
    "/{letter_id}",
    status_code=204,
    response_class=Response,
    summary="Discard a refused message",
    responses={409: {"model": FailureBody, **answers(FailureBody.example, "It was redriven already")}},
)
@allow(OPERATORS)
async def discard(letter_id: LetterId, use: Use, caller: Caller) -> Response:
    """Mark it as dealt with. It stays readable until its retention ends."""
    await use.dead_letters.discard(caller, letter_id)
    return Response(status_code=204)
