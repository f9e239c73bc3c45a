"""Who acts, and what they may do: principals and grants, deny by default."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, overload

from .errors import FilterInvalid, Forbidden, NotFound, RequestInvalid
from .topic import TopicFilter, is_device_id, is_domain, is_user_id, parse_filter

ACTIONS: Final = ("publish", "subscribe", "command")
KINDS: Final = ("device", "user", "service")
OPERATOR: Final = "operator"


class Grant(NamedTuple):
    """Permission for one action on all topics that a filter selects."""

    action: str
    filter: TopicFilter


@dataclass(frozen=True, slots=True)
class Principal:
    """A device, user or service with its rights.

    ``name``: the device id, user id or service name. ``expires_at``: ms since 1970, 0 = never. ``token_id``: what
    a revocation names. ``since``: ms; when its credential was issued or checked, so that a later revocation outdates it.
    ``certificate``: the id of the client certificate that it came with, and with whose revocation it ends.
    """

    kind: str
    name: str
    domain: str
    grants: Sequence[Grant] = ()
    roles: frozenset[str] = frozenset()
    expires_at: int = 0
    token_id: str = ""
    since: int = 0
    certificate: str = ""

    def may(self, action: str, topic: str) -> bool:
        """Tell whether a grant allows the action on this topic. Never beyond the principal's own domain."""
        return topic.partition("/")[0] == self.domain and any(
            grant.action == action and grant.filter.matches(topic) for grant in self.grants
        )

    def may_all(self, action: str, wanted: TopicFilter) -> bool:
        """Tell whether one grant allows the action on everything that the filter selects."""
        return wanted.domain == self.domain and any(
            grant.action == action and grant.filter.covers(wanted) for grant in self.grants
        )

    def refusal(self, action: str, topic: str) -> Forbidden:
        """The error for an action on a topic that no grant allows: says what to do instead, or who gives a grant."""
        text = f"{self.kind} {self.name!a} may not {action} on {topic!a}"
        if topic.partition("/")[0] != self.domain:
            return Forbidden(f"{text}: its topics begin with {f'{self.domain}/'!a}, and no grant reaches beyond")
        own = f"{self.domain}/devices/{self.name}/"
        if self.kind == "device" and not topic.startswith(own):
            return Forbidden(f"{text}: a device speaks for itself, on topics that begin with {own!a}")
        token = f"iotsphere token {f'{self.kind}:{self.name}'!a} --grant {f'{action}:TOPIC'!a}"
        return Forbidden(f"{text}: ask the operator for a token with that grant ({token})")

    def require(self, action: str, filters: Iterable[TopicFilter]) -> None:
        """Raise Forbidden for the first filter that no single grant covers."""
        for wanted in filters:
            if not self.may_all(action, wanted):
                raise Forbidden(
                    f"{wanted.text!a} is not open to {self.name!a}; ask for a filter inside your grants, "
                    "or the operator for a token with more of them",
                    filter=wanted.text,
                )

    def require_role(self, role: str) -> None:
        """Raise NotFound when the principal does not hold the role."""
        if role not in self.roles:
            raise NotFound

    @property
    def identity(self) -> str:
        """A text that is unique across domains and kinds."""
        return f"{self.domain}/{self.kind}/{self.name}"


def parse_grant(text: str, *, domain: str, name: str = "") -> Grant:
    """Read ``ACTION:FILTER``, with ``{device_id}``, ``{user_id}`` and ``{domain}`` standing for the principal's own.

    Raises RequestInvalid for an unknown action, a filter outside the principal's domain, or a name that is no id where
    a variable asks for one: an id such as ``+`` must not widen the grant.
    """
    action, colon, pattern = text.partition(":")
    if not colon or action not in ACTIONS:
        raise RequestInvalid(f"{text!a} is no grant: write ACTION:FILTER with ACTION one of {', '.join(ACTIONS)}")
    for variable, is_id in (("{device_id}", is_device_id), ("{user_id}", is_user_id)):
        if variable in pattern:
            if not is_id(name):
                raise RequestInvalid(f"{text!a} needs a proper {variable[1:-1]}, and {name[:80]!a} is none")
            pattern = pattern.replace(variable, name)
    pattern = pattern.replace("{domain}", domain)
    try:
        wanted = parse_filter(pattern)
    except FilterInvalid as error:
        raise RequestInvalid(f"{text!a} is no grant: {error.message}") from error
    if wanted.domain != domain:
        raise RequestInvalid(f"{text!a} is no grant: it leaves the domain {domain!a}")
    return Grant(action, wanted)


DEVICE_GRANTS: Final = (
    "publish:{domain}/devices/{device_id}/telemetry/#",
    "publish:{domain}/devices/{device_id}/shadow/reported",
    "publish:{domain}/devices/{device_id}/shadow/+/reported",
    "publish:{domain}/devices/{device_id}/commands/response",
    "subscribe:{domain}/devices/{device_id}/#",
)
OPERATOR_GRANTS: Final = ("publish:{domain}/#", "subscribe:{domain}/#", "command:{domain}/#")


def device(domain: str, device_id: str) -> Principal:
    """The principal of a device, bound to its own topics. Raises RequestInvalid for what is no device id."""
    if not (is_domain(domain) and is_device_id(device_id)):
        raise RequestInvalid(f"a device needs a proper id, and {device_id[:80]!a} of {domain[:80]!a} is none")
    return Principal("device", device_id, domain, DeviceGrants(domain, device_id))


class DeviceGrants(Sequence[Grant]):
    """The grants of a device, which follow from its id: they are made when they are asked for, since most connected
    devices are idle, and five parsed filters each are two kilobytes.
    """

    __slots__ = ("_domain", "_name")

    def __init__(self, domain: str, name: str) -> None:
        self._domain = domain
        self._name = name

    @overload
    def __getitem__(self, index: int) -> Grant: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Grant, ...]: ...
    def __getitem__(self, index: int | slice) -> Grant | tuple[Grant, ...]:
        return _device_grants(self._domain, self._name)[index]

    def __iter__(self) -> Iterator[Grant]:
        return iter(_device_grants(self._domain, self._name))

    def __len__(self) -> int:
        return len(DEVICE_GRANTS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceGrants | tuple) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


@lru_cache(maxsize=256)
def _device_grants(domain: str, device_id: str) -> tuple[Grant, ...]:
    return tuple(parse_grant(text, domain=domain, name=device_id) for text in DEVICE_GRANTS)
