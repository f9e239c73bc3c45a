"""Telemetry for analysts: Spark reads the log, jobs compute, sinks keep what came out of it."""
