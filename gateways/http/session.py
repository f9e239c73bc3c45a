"""Routes for whoever is signed in: redeem a sign-in code, tell who one is, sign out."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Response

from ...adapters.http import console_views
from ...adapters.http.models import FailureBody
from ...adapters.http.models_admin import TokenBody
from ...adapters.http.models_console import SessionBody
from ...adapters.timestamps import iso
from ...entities.errors import NotFound
from ...use_cases.access.sign_in import SignIn
from .access import PUBLIC, SIGNED_IN, Caller, RuledRoute, Use, allow, answers

router = APIRouter(prefix="/api/v1/session", tags=["session"], route_class=RuledRoute)
SCHEME: Final = "code"


async def _sign_in(request: Request) -> SignIn:
    found: SignIn | None = request.app.state.use_cases.sign_in
    if found is None:
        raise NotFound
    return found


@router.post(
    "",
    status_code=201,
    summary="Redeem a sign-in code",
    response_model=TokenBody,
    responses={
        201: answers(TokenBody.example, "A token for twelve hours, shown this once"),
        401: {"model": FailureBody, **answers(FailureBody.example, "No code, or one that counts no longer")},
        429: {"model": FailureBody, **answers(FailureBody.example, "Too many of those from this address; wait")},
    },
)
@allow(PUBLIC)
async def redeem(request: Request, sign_in: Annotated[SignIn, Depends(_sign_in)]) -> TokenBody:
    """`Authorization: Code CODE`, with a code of `iotsphere console`. It counts once, within 15 minutes.

    An address that keeps showing codes that do not count has to wait longer each time, up to a minute.
    The code travels in a header, which no page of another origin can set, and which no log keeps.
    """
    scheme, _, code = request.headers.get("authorization", "").partition(" ")
    address = request.client.host if request.client is not None else ""
    issued = await sign_in.redeem(code.strip() if scheme.lower() == SCHEME else "", address)
    return TokenBody(
        token=issued.token, token_id=issued.token_id, subject=issued.subject, expires_at=iso(issued.expires_at)
    )


@router.get(
    "",
    summary="Tell who is signed in",
    response_model=SessionBody,
    responses={200: answers(SessionBody.example, "Whom the token stands for, and what it may do")},
)
@allow(SIGNED_IN)
async def session(caller: Caller) -> SessionBody:
    """What a page needs to know to show only what will be answered."""
    return console_views.session(caller)


@router.delete("", status_code=204, response_class=Response, summary="Sign out")
@allow(SIGNED_IN)
async def end(use: Use, caller: Caller) -> Response:
    """The token that is shown counts no longer, at once; its connections end within seconds."""
    await use.tokens.end(caller)
    return Response(status_code=204)
