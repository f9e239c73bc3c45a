"""How many examples Hypothesis tries: enough to prove a law, and ten times as many with HYPOTHESIS_PROFILE=thorough."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings

THOROUGH: Final = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def tried(examples: int, steps: int = 50) -> settings:
    """Settings for a test, or for a state machine that takes ``steps`` steps in an example."""
    return settings(max_examples=examples * (10 if THOROUGH else 1), stateful_step_count=steps)
