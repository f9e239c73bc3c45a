"""What a client of the client protocol can reach."""

from __future__ import annotations

from dataclasses import dataclass

from ...use_cases.access.authenticate import Authenticate
from ...use_cases.access.rate_limit import RateLimit
from ...use_cases.ports.clock import Clock
from ...use_cases.publish import MessagePublishUseCase
from ...use_cases.subscribe import MessageSubscriptionUseCase
from ...use_cases.work import WorkQueueUseCase
from ..edge import Edge
from ..requests import RequestHandler
from .delivery import ClientDeliveryAdapter
from .state import ClientState


@dataclass(frozen=True, slots=True)
class ClientUseCases:
    """The use cases behind a client's requests, and what translates them; shared by all clients.

    ``state``: None where there is no database; ``elsewhere`` then says what becomes of requests that are published: with
    None too, they are messages like any other.
    """

    authenticate: Authenticate
    subscribe: MessageSubscriptionUseCase
    publish: MessagePublishUseCase
    work: WorkQueueUseCase
    edge: Edge
    delivery: ClientDeliveryAdapter
    clock: Clock
    rates: RateLimit
    state: ClientState | None = None
    elsewhere: RequestHandler | None = None
