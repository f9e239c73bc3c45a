"""The console's files: found by name in a fixed table, compressed once, with an ETag and a strict policy for the page."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Depends, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse

from ...entities.errors import NotFound
from .access import PUBLIC, RuledRoute, allow
from .console_place import ConsolePlace

FOLDER: Final = Path(__file__).parent / "console"
TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
COMPRESSED: Final = frozenset((".html", ".js", ".css", ".svg", ".txt"))


class File(NamedTuple):
    """A file as it is sent."""

    body: bytes
    packed: bytes | None
    kind: str
    etag: str


class Files:
    """All files below a folder, read once. Names are looked up and never made into paths, so nothing else is reached."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _files(self) -> Mapping[str, File]:
        found: dict[str, File] = {}
        for path in sorted(self._folder.rglob("*")):
            if path.is_file() and path.suffix in TYPES:
                body = path.read_bytes()
                packed = gzip.compress(body, mtime=0) if path.suffix in COMPRESSED else None
                etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
                found[path.relative_to(self._folder).as_posix()] = File(body, packed, TYPES[path.suffix], etag)
        return found

    def answer(self, name: str, request: Request) -> Response:
        """The file, or that the browser has it already. Raises NotFound."""
        file = self._files.get(name)
        if file is None:
            raise NotFound
        headers = {"etag": file.etag, "cache-control": "no-cache", "vary": "Accept-Encoding"}
        if file.etag in [
            each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")
        ]:
            return Response(status_code=304, headers=headers)
        if file.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.packed, media_type=file.kind, headers={**headers, "content-encoding": "gzip"})
        return Response(file.body, media_type=file.kind, headers=headers)


FILES: Final = Files(FOLDER)
router = APIRouter(route_class=RuledRoute, include_in_schema=False)


async def _console(request: Request) -> ConsolePlace:
    place: ConsolePlace | None = request.app.state.use_cases.console
    if place is None or not place.shown:
        raise NotFound
    return place


Console = Annotated[ConsolePlace, Depends(_console)]


@router.get("/")
@allow(PUBLIC)
async def page(request: Request, console: Console) -> Response:
    """The console. Everything that it shows it asks for with the token of whoever signs in."""
    answer = FILES.answer("index.html", request)
    answer.headers["content-security-policy"] = console.policy(request.headers.get("host", ""))
    answer.headers["cross-origin-opener-policy"] = "same-origin"
    return answer


@router.get("/console.json")
@allow(PUBLIC)
async def settings(request: Request, console: Console) -> JSONResponse:
    """Where the page connects to, and whether it will be let in there."""
    host = request.headers.get("host", "")
    return JSONResponse(
        {"websocket": console.live(host), "admitted": console.admits(request.url.scheme, host)},
        headers={"cache-control": "no-store"},
    )


@router.get("/console/{path:path}")
@allow(PUBLIC)
async def file(path: Annotated[str, PathParameter(max_length=128)], request: Request, _: Console) -> Response:
    """A file of the console."""
    return FILES.answer(path, request)
