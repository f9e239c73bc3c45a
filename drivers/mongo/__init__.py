"""Shared state and telemetry in a MongoDB replica set of version 6.0 or later."""
