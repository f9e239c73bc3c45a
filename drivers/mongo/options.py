"""What can be set about the MongoDB driver beside the server's address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class MongoOptions:
    """Settings with defaults that suit production.

    ``timeout``: seconds for a whole request, including the search for a primary and one more try. ``quiet``: seconds
    between two words of a change feed that nothing happened. ``batch``: changes that a feed fetches at once.
    """

    timeout: float = 10.0
    quiet: float = 5.0
    batch: int = 500


DEFAULTS: Final = MongoOptions()
