"""The WebSocket door and its parts; begin with gateway.py."""

from .connection import WebSocketLimits
from .gateway import WebSocketGateway

__all__ = ["WebSocketGateway", "WebSocketLimits"]
