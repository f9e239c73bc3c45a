"""The file that declares a bridge: which broker, how it is shared, and the topic rules of both directions (TOML 1.0).

Everything is checked before anything is opened. An error names the file, the line and the rule, and says what to do.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...entities.errors import RequestInvalid
from ...entities.topic import is_domain
from .mapping import NO_RULES, Rule, TopicMap, check_disjoint, inward_rule, outward_rule

PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
MAX_RULES: Final = 1_000

_NAME: Final = r"^[a-z0-9][a-z0-9-]{0,31}$"
_LINE: Final = re.compile(r"\(at line (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSpec:
    """Where the broker is and how to log in.

    ``keep_alive``: seconds; a broker that falls silent is given up within 1.5 times as long. ``receive_maximum``: how
    many messages may be on their way in, unacknowledged. ``session_seconds``: how long it keeps our session for us.
    """

    host: str
    port: int
    tls: bool = False
    username: str | None = None
    password_file: PurePath | None = None
    ca_file: PurePath | None = None
    certificate_file: PurePath | None = None
    key_file: PurePath | None = None
    keep_alive: int = 20
    receive_maximum: int = 256
    session_seconds: int = 7 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeSpec:
    """One bridge. ``slices``: over how many bridges the device ids are spread; ``group``: a shared subscription's name."""

    name: str
    domain: str
    broker: BrokerSpec
    inward: TopicMap = NO_RULES
    outward: TopicMap = NO_RULES
    slices: int = 1
    group: str | None = None

    @property
    def source(self) -> str:
        """Who its messages come from, in their metadata. No token can carry this name."""
        return f"bridge:{self.name}"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


class _Broker(_Strict):
    url: str
    username: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    keep_alive: Annotated[int, Field(ge=4, le=3_600)] = 20
    receive_maximum: Annotated[int, Field(ge=1, le=65_535)] = 256
    session_hours: Annotated[float, Field(gt=0, le=24 * 365, strict=False)] = 168


class _Sharing(_Strict):
    slices: Annotated[int, Field(ge=2, le=1_024)] | None = None
    group: Annotated[str, Field(pattern=r"^[^/+#\x00]{1,64}$")] | None = None


class _In(_Strict):
    taken: Annotated[str, Field(alias="from")]
    to: str | None = None


class _Out(_In):
    payload: Literal["envelope", "payload", "value"] = "envelope"


class _File(_Strict):
    name: Annotated[str, Field(pattern=_NAME)]
    domain: str | None = None
    broker: _Broker
    sharing: _Sharing = _Sharing()
    inward: Annotated[list[_In], Field(alias="in", max_length=MAX_RULES)] = []
    outward: Annotated[list[_Out], Field(alias="out", max_length=MAX_RULES)] = []


def parse_bridge(text: str, path: PurePath, domains: Sequence[str]) -> BridgeSpec:
    """Read the file's text. Paths in it count from its own folder; without ``domain`` it is the first of ``domains``.

    Raises RequestInvalid.
    """
    where = _Where(path.name, text)
    try:
        stated = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = _LINE.search(str(error))
        raise where.wrong(f"it is no TOML: {error}", int(line[1]) if line else 0) from error
    try:
        file = _File.model_validate(stated)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        shown = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
        raise where.wrong(f"{shown}: {first['msg']}", where.line(first["loc"])) from error
    domain = domains[0] if file.domain is None else file.domain
    if not is_domain(domain) or domain not in domains:
        raise where.wrong(
            f"the domain {domain[:64]!a} is none of this gateway's: choose one of {', '.join(domains)}",
            where.line(("domain",)),
        )
    if not file.inward and not file.outward:
        raise where.wrong("it has no rule: add [[in]] or [[out]] with `from`")
    inward = TopicMap(tuple(where.rules("in", file.inward, lambda rule: inward_rule(domain, rule.taken, rule.to))))
    outward = TopicMap(
        tuple(where.rules("out", file.outward, lambda rule: outward_rule(domain, rule.taken, rule.to, rule.payload)))
    )
    try:
        check_disjoint(inward.filters)
    except RequestInvalid as error:
        raise where.wrong(error.message, where.line(("in", 0))) from error
    if file.sharing.slices is not None and file.sharing.group is not None:
        raise where.wrong("choose `slices` (keeps the order) or `group` (does not)", where.line(("sharing",)))
    return BridgeSpec(
        name=file.name,
        domain=domain,
        broker=_broker(file.broker, path.parent, where),
        inward=inward,
        outward=outward,
        slices=file.sharing.slices or 1,
        group=file.sharing.group,
    )


def _broker(stated: _Broker, folder: PurePath, where: _Where) -> BrokerSpec:
    line = where.line(("broker", "url"))
    try:
        url = urlsplit(stated.url)
        port = url.port
    except ValueError as error:
        raise where.wrong(f"the broker's url is none: {error}", line) from error
    if url.scheme not in PORTS or not url.hostname or url.path not in ("", "/") or url.query or url.fragment:
        raise where.wrong("the broker's url must be mqtt://HOST:PORT, or mqtts://HOST:PORT for TLS", line)
    if url.username is not None or url.password is not None:
        raise where.wrong("credentials do not belong in a url: use `username` and `password_file`", line)
    tls = url.scheme == "mqtts"
    certificates = (stated.ca_file, stated.certificate_file, stated.key_file)
    if not tls and any(certificates):
        raise where.wrong("certificates need TLS: write mqtts:// in the broker's url", line)
    if (stated.certificate_file is None) != (stated.key_file is None):
        raise where.wrong("a client certificate needs both `certificate_file` and `key_file`", line)
    if stated.password_file is not None and stated.username is None:
        raise where.wrong("a password needs a `username`", where.line(("broker", "password_file")))
    ca, certificate, key = (None if name is None else folder / name for name in certificates)
    return BrokerSpec(
        host=url.hostname,
        port=port or PORTS[url.scheme],
        tls=tls,
        username=stated.username,
        password_file=None if stated.password_file is None else folder / stated.password_file,
        ca_file=ca,
        certificate_file=certificate,
        key_file=key,
        keep_alive=stated.keep_alive,
        receive_maximum=stated.receive_maximum,
        session_seconds=int(stated.session_hours * 3600),
    )


class _Where:
    """Finds lines again, since what parsed the file has forgotten them."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._lines = text.splitlines()

    def wrong(self, why: str, line: int = 0) -> RequestInvalid:
        at = f", line {line}" if line else ""
        return RequestInvalid(f"{self._name}{at}: {why}")

    def rules(self, kind: str, stated: Sequence[Any], make: Callable[[Any], Rule]) -> list[Rule]:
        """The rules of one direction; an error is told with the rule's number and line."""
        made = []
        for index, rule in enumerate(stated):
            try:
                made.append(make(rule))
            except RequestInvalid as error:
                raise self.wrong(f"[[{kind}]] rule {index + 1}: {error.message}", self.line((kind, index))) from error
        return made

    def line(self, place: Sequence[int | str]) -> int:
        """The line (from 1) of a key or rule; 0 when it is not found, such as in an inline table."""
        start, rest = 0, list(place)
        if len(rest) >= 2 and isinstance(rest[1], int):
            start = self._find(rf"\[\[\s*{rest[0]}\s*\]\]", 0, rest[1])
            rest = rest[2:]
        elif len(rest) >= 1 and rest[0] in ("broker", "sharing"):
            start = self._find(rf"\[\s*{rest[0]}\s*\]", 0, 0)
            rest = rest[1:]
        if rest and isinstance(rest[0], str):
            line = self._find(rf"{re.escape(rest[0])}\s*=", start, 0)
            end = self._find(r"\[", start, 0) or len(self._lines) + 1
            return line if 0 < line < end else start
        return start

    def _find(self, pattern: str, after: int, skip: int) -> int:
        expression = re.compile(rf"\s*{pattern}")
        found = [number for number, line in enumerate(self._lines, 1) if number > after and expression.match(line)]
        return found[skip] if len(found) > skip else 0
