"""The MQTT door and its parts; begin with gateway.py."""

from .gateway import MqttGateway
from .limits import MqttLimits
from .ties import Wire
from .use_cases import MqttUseCases

__all__ = ["MqttGateway", "MqttLimits", "MqttUseCases", "Wire"]
