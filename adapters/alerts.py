"""What the gateway itself has to say, as messages on the domain's system topics."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import orjson

from ..entities.message import Record
from ..entities.position import Gap
from ..entities.principal import Principal, parse_grant
from .client.protocol import gap_facts
from .edge import Edge


@lru_cache(maxsize=1_024)
def gateway_principal(domain: str) -> Principal:
    """The gateway as the source of its own messages."""
    return Principal("service", "gateway", domain, (parse_grant("publish:{domain}/#", domain=domain),))


def loss_alert(edge: Edge, gap: Gap, now: int) -> Record:
    """The alert that a registered reader lost messages to the hard cap of retention."""
    return alert(edge, gap.partition.domain, "messages_lost", {"missed": gap_facts(gap)}, now)


def alert(edge: Edge, domain: str, name: str, facts: Mapping[str, object], now: int) -> Record:
    """An alert to a domain's operators. ``facts``: what JSON can hold."""
    route = edge.route(gateway_principal(domain), f"{domain}/system/alerts")
    return edge.admit(route, orjson.dumps({"alert": name, **facts}), now)
