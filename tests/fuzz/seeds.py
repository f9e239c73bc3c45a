"""Sound conversations to begin with: a fuzzer that starts from them gets further than the first packet."""

from __future__ import annotations

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.encode import encode
from iotsphere.adapters.mqtt.properties import Properties

_WILL = p.Will("w", b"gone", 1, True, Properties(will_delay_interval=5, content_type="text/plain"))


def conversations() -> list[bytes]:
    """Byte streams of a client, each behind the byte that says how it is cut."""
    found = []
    for version in (p.MQTT_3_1_1, p.MQTT_5):
        five = version == p.MQTT_5
        block = (
            Properties(session_expiry_interval=60, receive_maximum=3, topic_alias_maximum=2) if five else Properties()
        )
        said = (
            Properties(user_properties=(("a", "b"),), message_expiry_interval=9, correlation_data=b"c")
            if five
            else Properties()
        )
        alias = Properties(topic_alias=1) if five else Properties()
        connect = p.Connect(version, "c", True, 30, "user", b"secret", _WILL if five else p.Will("w", b"gone"), block)
        talks: list[list[p.Packet]] = [
            [p.Publish(b"a/b", b"1", 1, 2), p.Publish(b"a/b", b"2", 2, 2), p.Publish(b"a", b"3", 0, 1), p.PingReq()],
            [p.Publish(b"a/b", b"1", 7, 4, said), p.Publish(b"a/b", b"1", 7, 12, said), p.Ack(p.PUBREL, 7)],
            [p.Publish(b"a", b"1", 0, 0, alias), p.Publish(b"" if five else b"a", b"2", 3, 2, alias)],
            [p.Subscribe(9, (p.Request("a/#", 2), p.Request("+/b", 1)), Properties(subscription_identifiers=(5,)) if five else Properties())],
            [p.Unsubscribe(10, ("a/#", "x"), Properties()), p.Ack(p.PUBACK, 1), p.Ack(p.PUBREC, 2), p.Ack(p.PUBCOMP, 2)],
            [p.Ack(p.PUBREC, 1), p.Ack(p.PUBREC, 3, 0), p.Ack(p.PUBCOMP, 1), p.Ack(p.PUBACK, 4), p.Disconnect()],
        ]  # fmt: skip
        for number, talk in enumerate(talks):
            found.append(bytes((number * 3,)) + b"".join(encode(packet, version) for packet in (connect, *talk)))
    return found
