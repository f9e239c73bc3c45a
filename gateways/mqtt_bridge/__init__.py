"""The bridge: carries messages from and to a broker that is already there."""

from .bridge import MqttBridge
from .options import BridgeOptions, BridgeUseCases

__all__ = ["BridgeOptions", "BridgeUseCases", "MqttBridge"]
