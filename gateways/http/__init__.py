"""The HTTP door and its parts; begin with gateway.py."""

from .access import HttpUseCases, Measure, RuledRoute, allow, rule_of
from .connection import HttpLimits
from .console_place import ConsolePlace
from .gateway import HttpGateway, make_app

__all__ = [
    "ConsolePlace",
    "HttpGateway",
    "HttpLimits",
    "HttpUseCases",
    "Measure",
    "RuledRoute",
    "allow",
    "make_app",
    "rule_of",
]
