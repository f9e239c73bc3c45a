"""The file that says which changes of further collections are told, and where (TOML 1.0).

Everything is checked before anything is opened. An error names the file, the entry and its member, and says what to do.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...entities.errors import RequestInvalid
from .mapping import CHANGE, KEY, KINDS, ChangeMap, ChangeRule, Scalar, check_path, parse_parts

MAX_RULES: Final = 1_000
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Rule(_Strict):
    collection: str
    topic: str
    payload: list[str] | Literal["all"] = "all"
    on: Annotated[list[Literal["insert", "update", "delete"]], Field(min_length=1)] = [*KINDS]
    where: dict[str, Any] = {}


class _File(_Strict):
    map: Annotated[list[_Rule], Field(min_length=1, max_length=MAX_RULES)]


def parse_changes(text: str, name: str, domains: Sequence[str], own: Sequence[str] = ()) -> ChangeMap:
    """Read the file's text. ``name``: of the file, for errors; ``own``: collections that the gateway tells itself.

    Raises RequestInvalid.
    """
    try:
        stated = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RequestInvalid(f"{name}: it is no TOML: {error}") from error
    try:
        file = _File.model_validate(stated)
    except ValidationError as error:
        raise RequestInvalid(f"{name}: {_first(error)}") from error
    rules = []
    for number, rule in enumerate(file.map, 1):
        try:
            rules.append(_rule(rule, domains, own))
        except RequestInvalid as error:
            raise RequestInvalid(f"{name}: [[map]] entry {number}, {error.message}") from error
    return ChangeMap(rules, domains)


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = first["loc"]
    if place == ("map",):
        return "it has no entry: add [[map]] with `collection` and `topic`"
    if len(place) < 3 or not isinstance(place[1], int):
        return f"{place[0]}: {first['msg']}; it holds [[map]] entries only"
    return f"[[map]] entry {place[1] + 1}, {place[2]}: {first['msg']}"


def _rule(stated: _Rule, domains: Sequence[str], own: Sequence[str]) -> ChangeRule:
    if not _NAME.match(stated.collection):
        raise RequestInvalid(
            f"collection: {stated.collection[:60]!a} cannot be watched: its name has up to 40 lower-case letters, "
            "digits and _, and begins with a letter"
        )
    if stated.collection in own:
        raise RequestInvalid(f"collection: {stated.collection} is the gateway's own, and is told already: leave it out")
    with _member("topic"):
        parts = parse_parts(stated.topic, domains)
    with _member("payload"):
        fields = None if stated.payload == "all" else tuple(map(_field, stated.payload))
        if fields == ():
            raise RequestInvalid('it is empty: name fields, or write "all"')
    with _member("where"):
        where = tuple(_conditions(stated.where))
    return ChangeRule(stated.collection, parts, fields, frozenset(stated.on), where)


def _field(path: str) -> str:
    return path if path in (KEY, CHANGE) else check_path(path)


def _conditions(stated: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Scalar]]:
    """``where.owner.kind = "x"`` and ``where = {"owner.kind" = "x"}`` say the same."""
    for name, value in stated.items():
        path = check_path(f"{before}{name}")
        if isinstance(value, dict):
            yield from _conditions(value, f"{path}.")
        elif isinstance(value, str | int | float):
            yield path, value
        else:
            raise RequestInvalid(f"{path} must equal a text, a number or a boolean")


@contextmanager
def _member(name: str) -> Iterator[None]:
    """Put a member's name before what is wrong with it."""
    try:
        yield
    except RequestInvalid as error:
        raise RequestInvalid(f"{name}: {error.message}") from error
