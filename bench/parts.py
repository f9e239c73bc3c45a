"""The parts of a round beside the rows of all systems, in the order in which they are measured."""

from __future__ import annotations

from . import catch_up, fan_out, filters, growth, idle, scale_out, soak, spark, stages
from .part import Part

PARTS = (
    Part("fan-out", "fan-out", fan_out.fan_out, fan_out.seconds),
    Part("filters", "subscriptions of others", filters.filters, filters.seconds),
    Part("catch-up", "catching up", catch_up.catch_up, catch_up.seconds),
    Part("scale-out", "two processes in, two out", scale_out.scale_out, scale_out.seconds),
    Part("stages", "where the time goes", stages.stages, stages.seconds, in_quick=False),
    Part("idle", "idle connections", idle.idle, idle.seconds, in_quick=False),
    Part("growth", "growth", growth.growth, growth.seconds, in_quick=False),
    Part("spark", "Spark", spark.spark, spark.seconds, in_quick=False),
    Part("soak", "soak", soak.soak, soak.seconds, in_quick=False),
)
