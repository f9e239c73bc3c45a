"""What the gateway is compared with: each peer is a starter like the gateway's own, on loopback and started by hand."""

from __future__ import annotations

from .brokers import mosquitto_alone, nats_jetstream
from .built import aedes_with_redis, fixed_packages
from .rabbitmq import rabbitmq_stream

__all__ = ["aedes_with_redis", "fixed_packages", "mosquitto_alone", "nats_jetstream", "rabbitmq_stream"]
