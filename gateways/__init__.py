"""Doors: MQTT, WebSocket and HTTP sockets, each with an adapter and a use case behind it."""
