"""The console's routes: where it connects to, what its policy says, who is signed in, and the fleet at a glance."""

from __future__ import annotations

import httpx
import pytest

from iotsphere.gateways.http import ConsolePlace
from tests.support.http_door import Door

PLACE = ConsolePlace({"websocket": "ws://0.0.0.0:8765"})
TOPIC = "iotsphere/devices/d1/telemetry"


@pytest.mark.parametrize(
    ("place", "host", "live"),
    [
        (PLACE, "127.0.0.1:8080", "ws://127.0.0.1:8765"),
        (PLACE, "iot.example.org", "ws://iot.example.org:8765"),
        (PLACE, "[::1]:8080", "ws://[::1]:8765"),
        (PLACE, "", None),
        (PLACE, "x; script-src *", None),
        (PLACE, "a b", None),
        (PLACE, "-x", None),
        (PLACE, "x\n", None),
        (ConsolePlace({"websocket": "wss://[::]:443"}), "h:1", "wss://h:443"),
        (ConsolePlace({}), "h", None),
        (ConsolePlace({}, "wss://iot.example.org/live"), "evil", "wss://iot.example.org/live"),
    ],
)
def test_the_page_connects_where_it_was_asked_for_or_where_the_settings_say(
    place: ConsolePlace, host: str, live: str | None
) -> None:
    assert place.live(host) == live


def test_the_policy_names_one_place_to_connect_to_and_nothing_from_a_header() -> None:
    assert "connect-src 'self' ws://h:8765;" in PLACE.policy("h:80")
    assert "connect-src 'self' wss://iot.example.org;" in ConsolePlace({}, "wss://iot.example.org/live").policy("")
    for host in ("x; script-src *", "x'", "x\r\ny", "*", "x/y", "x" * 300):
        assert "connect-src 'self';" in PLACE.policy(host)
        assert "script-src 'self';" in PLACE.policy(host)


def test_pages_are_told_when_the_websocket_door_will_not_admit_them() -> None:
    assert PLACE.admits("http", "anything")
    strict = ConsolePlace({}, origins=("https://iot.example.org",))
    assert strict.admits("https", "iot.example.org")
    assert not strict.admits("http", "iot.example.org")


async def test_without_a_console_its_routes_are_not_there(door: Door, api: httpx.AsyncClient) -> None:
    use_cases = door.gateway.app.state.use_cases
    object.__setattr__(use_cases, "console", ConsolePlace(shown=False))
    for path in ("/", "/console.json", "/console/app.js"):
        answer = await api.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_files_are_sent_packed_to_those_who_take_that_and_not_again(api: httpx.AsyncClient) -> None:
    plain = await api.get("/console/app.js", headers={"accept-encoding": "identity"})
    packed = await api.get("/console/app.js", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert plain.content == packed.content
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
    for known in (plain.headers["etag"], f"W/{plain.headers['etag']}", f'"x", {plain.headers["etag"]}'):
        answer = await api.get("/console/app.js", headers={"if-none-match": known})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", plain.headers["etag"])
    assert (await api.get("/console/app.js", headers={"if-none-match": '"x"'})).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["../static.py", "..%2fstatic.py", "%2e%2e/static.py", "/etc/passwd", "core", "", "app.js/", "app.py"],
)
async def test_nothing_but_the_console_is_served(door: Door, path: str) -> None:
    async with door.client("") as anybody:
        request = anybody.build_request("GET", f"{door.url}/console/x")
        request.url = request.url.copy_with(raw_path=f"/console/{path}".encode())
        assert (await anybody.send(request)).status_code == 404


async def test_a_code_in_a_header_becomes_a_session_that_can_be_ended(door: Door) -> None:
    code = await door.sign_in.invite("iotsphere", "ann")
    async with door.client("") as anybody:
        for header in (code, f"Bearer {code}", f"Basic {code}"):
            assert (await anybody.post("/api/v1/session", headers={"authorization": header})).status_code == 401
        assert (await anybody.post(f"/api/v1/session?code={code}")).status_code == 401
        made = await anybody.post("/api/v1/session", headers={"authorization": f"Code {code}"})
        assert (made.status_code, made.json()["subject"]) == (201, "user:ann")
        assert (await anybody.post("/api/v1/session", headers={"authorization": f"Code {code}"})).status_code == 401
    async with door.client(made.json()["token"]) as ann:
        told = (await ann.get("/api/v1/session")).json()
        assert (told["kind"], told["name"], told["domain"], told["roles"]) == ("user", "ann", "iotsphere", ["operator"])
        assert told["grants"] == ["publish:iotsphere/#", "subscribe:iotsphere/#", "command:iotsphere/#"]
        assert (await ann.delete("/api/v1/session")).status_code == 204
        assert (await ann.get("/api/v1/session")).status_code == 401


async def test_an_address_that_keeps_showing_codes_that_do_not_count_is_told_to_wait(door: Door) -> None:
    door.sign_in._monotonic = lambda: 0.0  # or a second may pass meanwhile
    async with door.client("") as anybody:
        shown = [await anybody.post("/api/v1/session", headers={"authorization": f"Code {n}"}) for n in range(7)]
    assert [each.status_code for each in shown] == [401] * 5 + [429] * 2
    assert (shown[-1].json()["error"]["code"], shown[-1].headers["retry-after"]) == ("rate_limited", "1")


async def test_the_fleet_is_shown_at_a_glance(door: Door, api: httpx.AsyncClient) -> None:
    for name in ("d1", "d2"):
        await api.post("/api/v1/devices", json={"device_id": name, "labels": {"n": name}})
    await door.rooms.say(f"{TOPIC}/temperature", {"value": 21.5, "unit": "Cel"})
    await door.rooms.come_online("iotsphere", "d1")
    await door.rooms.say("iotsphere/devices/d2/telemetry", {"a": 1, "value": {"deep": 1}})
    told = (await api.get("/api/v1/fleet", params={"limit": 1})).json()
    assert told["after"] == "d1"
    (first,) = told["devices"]
    assert (first["labels"], first["presence"]["state"]) == ({"n": "d1"}, "online")
    assert {key: first["newest"][key] for key in ("metric", "value", "unit")} == {
        "metric": "temperature", "value": 21.5, "unit": "Cel",
    }  # fmt: skip
    (second,) = (await api.get("/api/v1/fleet", params={"after": "d1"})).json()["devices"]
    assert (await api.get("/api/v1/fleet", params={"device": second["device_id"]})).json()["devices"] == [second]
    assert (await api.get("/api/v1/fleet", params={"device": "nonesuch"})).json() == {"devices": [], "after": None}
    assert (second["newest"]["metric"], second["newest"]["value"], second["presence"]) == ("", None, None)
