"""The WebSocket door and its parts; begin with gateway.py."""

from .gateway import WebSocketGateway
from .limits import WebSocketLimits

__all__ = ["WebSocketGateway", "WebSocketLimits"]
