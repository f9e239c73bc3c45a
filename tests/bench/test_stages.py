"""Samples become stages: the innermost function that has a name decides, and all of the cost is divided."""

from __future__ import annotations

import pytest

from bench.stages import REST, STAGES, shares

LOOP = "<module> (iotsphere/__main__.py:1);Runner.run (asyncio/runners.py:118)"
READ = f"{LOOP};MqttOverTcp.data_received (over_tcp.py:60);MqttClient.receive (client.py:70)"


def test_each_sample_belongs_to_its_innermost_stage() -> None:
    stacks = [
        f"{LOOP} 10",
        f"{READ} 20",
        f"{READ};MqttIngress.take (ingress.py:1);Edge.admit (edge.py:1);read_quickly (payload.py:1) 40",
        f"{LOOP};Feed._follow (feed.py:1);Feed.dispatch (feed.py:2);ClientSession.deliver (session.py:9) 20",
        f"{LOOP};Timers.run (timers.py:1) 10",
        "_bootstrap (threading.py:1);Committer._work (committer.py:1) 500",
    ]
    found = shares(stacks, 50.0)
    assert found == {
        "sockets and event loop (native code)": 5.0,
        "MQTT: the client's batch, rate, flow control": 10.0,
        "admission: strict JSON, time, envelope, message id": 20.0,
        "delivery: frames, cursor, WebSocket": 10.0,
        REST: 5.0,
    }
    assert sum(found.values()) == pytest.approx(50.0)


def test_without_samples_there_is_nothing_to_divide() -> None:
    assert shares([], 50.0) == {}


def test_every_function_that_is_named_exists() -> None:
    """A stage whose function was renamed would fall silent."""
    from asyncio import Runner

    from iotsphere.adapters.client.session import ClientSession
    from iotsphere.adapters.edge import Edge
    from iotsphere.adapters.mqtt.session import Session
    from iotsphere.drivers.redis.following import Feed as Followers
    from iotsphere.drivers.redis.following import Follower
    from iotsphere.drivers.redis.log import RedisMessagingDriver
    from iotsphere.drivers.redis.wire import Wire
    from iotsphere.gateways.mqtt.over_tcp import MqttOverTcp
    from iotsphere.gateways.mqtt.turn import Turn
    from iotsphere.gateways.websocket.client import Client
    from iotsphere.use_cases.feed import Feed
    from iotsphere.use_cases.publish import MessagePublishUseCase
    from iotsphere.use_cases.round import Outlet

    classes = (
        Runner, Session, MqttOverTcp, Edge, MessagePublishUseCase, RedisMessagingDriver, Wire, Feed, Followers, Follower,
        ClientSession, Client, Outlet, Turn,
    )  # fmt: skip
    real = {member.__qualname__ for each in classes for member in vars(each).values() if callable(member)}
    assert {name for names in STAGES.values() for name in names} <= real
