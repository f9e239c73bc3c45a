"""MQTT under bytes that nobody meant to send: generated, mutated, and found by coverage."""
