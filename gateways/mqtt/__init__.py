"""The MQTT door and its parts; begin with gateway.py."""

from .door import MqttLimits, MqttUseCases, Wire
from .gateway import MqttGateway

__all__ = ["MqttGateway", "MqttLimits", "MqttUseCases", "Wire"]
