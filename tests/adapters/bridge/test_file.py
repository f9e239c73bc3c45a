"""The file of a bridge: what it may say, and how precisely its mistakes are told."""

from __future__ import annotations

import re
from pathlib import PurePath

import pytest

from iotsphere.adapters.bridge.file import parse_bridge
from iotsphere.entities.errors import RequestInvalid

WHOLE = """\
name = "plant"
domain = "acme"

[broker]
url = "mqtts://broker.example"
username = "iotsphere"
password_file = "secret"
ca_file = "/etc/ca.pem"
certificate_file = "own.pem"
key_file = "own.key"
keep_alive = 30
receive_maximum = 100
session_hours = 12

[sharing]
slices = 3

[[in]]
from = "tele/{device_id}/SENSOR"
to = "acme/devices/{device_id}/telemetry"

[[in]]
from = "acme/devices/+/shadow/reported"

[[out]]
from = "acme/devices/{device_id}/commands/request"
to = "cmnd/{device_id}/POWER"
payload = "value"
"""
DOMAINS = ("iotsphere", "acme")


def test_a_whole_file_is_read() -> None:
    spec = parse_bridge(WHOLE, PurePath("/etc/iotsphere/bridge.toml"), DOMAINS)
    broker = spec.broker
    assert (spec.name, spec.domain, spec.source, spec.slices, spec.group) == ("plant", "acme", "bridge:plant", 3, None)
    assert (broker.host, broker.port, broker.tls, broker.username) == ("broker.example", 8883, True, "iotsphere")
    assert broker.password_file == PurePath("/etc/iotsphere/secret")
    assert broker.ca_file == PurePath("/etc/ca.pem")
    assert (broker.keep_alive, broker.receive_maximum, broker.session_seconds) == (30, 100, 43_200)
    assert spec.inward.filters == ("tele/+/SENSOR", "acme/devices/+/shadow/reported")
    assert spec.outward.rules[0].form == "value"


def test_little_is_enough() -> None:
    text = 'name = "b"\n[broker]\nurl = "mqtt://[::1]:1884"\n[[in]]\nfrom = "iotsphere/#"\n'
    spec = parse_bridge(text, PurePath("b.toml"), DOMAINS)
    assert (spec.domain, spec.broker.host, spec.broker.port, spec.broker.tls) == ("iotsphere", "::1", 1884, False)
    assert (spec.slices, spec.broker.keep_alive, spec.broker.receive_maximum) == (1, 20, 256)


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ('name = "plant"', 'name = "plant', 1, "no TOML"),
        ('name = "plant"', 'name = "Plant 1"', 1, "name"),
        ('name = "plant"', 'name = "plant"\ncolour = "red"', 2, "colour"),
        ('domain = "acme"', 'domain = "nobody"', 2, "none of this gateway's"),
        ("mqtts://broker.example", "https://broker.example", 5, "mqtts://HOST:PORT"),
        ("mqtts://broker.example", "mqtts://broker.example:99999", 5, "url"),
        ("mqtts://broker.example", "mqtts://me:secret@broker.example", 5, "password_file"),
        ("mqtts://broker.example", "mqtt://broker.example", 5, "certificates need TLS"),
        ('key_file = "own.key"\n', "", 5, "both"),
        ('username = "iotsphere"\n', "", 6, "needs a `username`"),
        ("keep_alive = 30", "keep_alive = 1", 11, "keep_alive"),
        ("keep_alive = 30", 'keep_alive = "30"', 11, "keep_alive"),
        ("receive_maximum = 100", "receive_maximum = 0", 12, "receive_maximum"),
        ("slices = 3", 'slices = 3\ngroup = "g"', 15, "keeps the order"),
        ("slices = 3", "slices = 1", 16, "slices"),
        ('to = "acme/devices/{device_id}/telemetry"', 'to = "acme/devices/{id}/telemetry"', 18, "[[in]] rule 1"),
        ('from = "acme/devices/+/shadow/reported"', 'from = "tele/+"', 22, "[[in]] rule 2"),
        ('from = "acme/devices/+/shadow/reported"', 'form = "tele/+"', 22, "in.2.from"),
        ('from = "acme/devices/+/shadow/reported"', 'from = "+/{x}/SENSOR"\nto = "acme/devices/{x}/telemetry"', 0, ""),
        ('to = "cmnd/{device_id}/POWER"', 'to = "cmnd/{name}/POWER"', 25, "[[out]] rule 1"),
        ('payload = "value"', 'payload = "xml"', 28, "payload"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_rule(old: str, new: str, line: int, told: str) -> None:
    assert WHOLE.count(old) == 1
    text = WHOLE.replace(old, new)
    if not told:
        parse_bridge(text, PurePath("bridge.toml"), DOMAINS)  # the wider rule covers the first one
        return
    with pytest.raises(RequestInvalid, match=re.escape(told)) as refused:
        parse_bridge(text, PurePath("/etc/bridge.toml"), DOMAINS)
    assert re.match(rf"bridge\.toml, line {line}: ", refused.value.message), refused.value.message


def test_rules_that_overlap_in_part_are_told() -> None:
    text = WHOLE.replace(
        'from = "acme/devices/+/shadow/reported"', 'from = "tele/x/+"\nto = "acme/devices/x/telemetry"'
    )
    with pytest.raises(RequestInvalid, match="come twice"):
        parse_bridge(text, PurePath("bridge.toml"), DOMAINS)


def test_a_file_without_rules_is_refused() -> None:
    with pytest.raises(RequestInvalid, match=re.escape("[[in]] or [[out]]")):
        parse_bridge('name = "b"\n[broker]\nurl = "mqtt://h"\n', PurePath("b.toml"), DOMAINS)
