"""The console and whoever wishes it ill: texts that would be code, foreign pages, frames, links, other people's tokens."""

from __future__ import annotations

import asyncio
import base64
import http
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from playwright.async_api import WebSocketRoute, expect
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from tests.console.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")
ATTACKS = (
    "<img src=x onerror=window.hacked=1>",
    "<script>window.hacked=1</script>",
    '"><svg onload=window.hacked=1>',
    "javascript:window.hacked=1",
    "${window.hacked=1}{{constructor.constructor('window.hacked=1')()}}",
    "'-window.hacked-'",
    "</textarea><iframe srcdoc='<script>parent.hacked=1</script>'>",
    "\u202e\u0000\u001b[2J\r\nforged line",
)


async def test_c06_texts_of_devices_are_shown_as_texts(stage: Stage) -> None:
    (credential,) = await stage.gateway.add_devices(["nasty"])
    topic = "iotsphere/devices/nasty"
    reported = {f"k{n}": text for n, text in enumerate(ATTACKS)} | {"<b>bold</b>": {"<i>": "<u>x</u>"}}
    await stage.publish_as(credential, f"{topic}/shadow/reported", json.dumps({"reported": reported}).encode())
    labels = {f"l{n}": text for n, text in enumerate(ATTACKS) if text.isprintable()}
    await stage.post("/api/v1/devices/nasty/labels", {"labels": labels})
    messages: list[dict[str, object]] = []
    for number, text in enumerate(ATTACKS):
        messages += [
            {"topic": f"{topic}/telemetry/m{number}", "payload": {"value": text, name: text}}
            for name in ("value", "unit", text)
        ]
        alert = {"title": text, "severity": text, "message": text, "device": text}
        messages.append({"topic": "iotsphere/devices/batch/alerts", "payload": alert})
        note = {"title": text, "text": text, text[:9]: text}
        messages.append({"topic": "iotsphere/users/operator/notifications", "payload": note})
        await stage.post("/api/v1/devices/nasty/commands", {"payload": {"action": text}})
    await stage.post("/api/v1/messages", {"messages": messages})
    page = await stage.sign_in()
    for place, seen in {
        "fleet": "nasty",
        "devices/nasty": "onerror",
        "explorer?filter=iotsphere/%23": "<script>",
        "alerts": "<img src=x",
        "letters": "",
        "journey": "nasty",
    }.items():  # fmt: skip
        await page.evaluate("place => { location.hash = `#/${place}`; }", place)
        await expect(page.locator("#page")).to_contain_text(seen)
        await page.wait_for_timeout(300)
        for head in await page.locator("button.head").all():
            await head.click()
        for line in (
            (await page.locator("[role=listitem]").all())[:3] if place.startswith(("explorer", "letters")) else []
        ):
            await line.click()
        assert await page.evaluate("window.hacked") is None, place
        foreign = "document.querySelectorAll('#page img, #page script, #page iframe, #page b > b, #page [onload], #page [onerror]').length"
        assert await page.evaluate(foreign) == 0, place
        assert await page.evaluate("[...document.querySelectorAll('a')].every((a) => a.protocol.startsWith('http'))")


async def test_c06_keys_of_objects_do_not_reach_their_prototypes(stage: Stage) -> None:
    (credential,) = await stage.gateway.add_devices(["polluter"])
    raw = b'{"reported":{"__proto__":{"isAdmin":true},"constructor":{"prototype":{"x":1}},"led":true}}'
    await stage.publish_as(credential, "iotsphere/devices/polluter/shadow/reported", raw)
    page = await stage.sign_in("#/letters?reason=key_not_allowed")
    await page.locator("[data-letter]", has_text="__proto__").first.click()
    await expect(page.locator(".raw")).to_contain_text("isAdmin")
    assert await page.evaluate("[({}).isAdmin, ({}).x, typeof Object.prototype.constructor]") == [
        None,
        None,
        "function",
    ]
    found = await page.evaluate(
        """async () => {
            const { at, difference, leaves, patchOf } = await import("./console/core/patch.js");
            const evil = JSON.parse('{"__proto__":{"isAdmin":true},"constructor":{"prototype":{"x":1}}}');
            const patch = difference({}, evil);
            const again = [...leaves(evil)].map(([path, value]) => patchOf(path, value));
            return [JSON.stringify(patch), JSON.stringify(again), at({}, ["__proto__", "constructor"]) === undefined, ({}).isAdmin];
        }"""
    )
    assert found[0] == '{"__proto__":{"isAdmin":true},"constructor":{"prototype":{"x":1}}}'
    assert found[2:] == [True, None]


async def test_c15_control_characters_reach_no_header_and_are_made_visible(stage: Stage) -> None:
    (credential,) = await stage.gateway.add_devices(["crlf"])
    await stage.publish_as(credential, "iotsphere/devices/crlf/telemetry/t", b"\x1b[2J\x00 not json \x07")
    page = await stage.sign_in("#/letters")
    await page.locator("[data-letter]", has_text="crlf").first.click()
    await expect(page.locator(".raw")).to_have_text("\\u001b[2J\\u0000 not json \\u0007")
    async with stage.gateway.api() as api:
        for host in ("evil\r\nx: y", "a b", "127.0.0.1; script-src *", "x'y", "[::1]]"):
            try:
                answer = await api.get("/", headers={"host": host})
            except httpx.LocalProtocolError:
                continue  # not even the client sends it
            assert "x" not in answer.headers
            if answer.status_code == 200:
                policy = answer.headers["content-security-policy"]
                assert re.search(r"connect-src 'self'( ws://127\.0\.0\.1:\d+)?;", policy), policy


async def test_w1_the_policy_lets_nothing_foreign_in_and_no_page_frame_it(stage: Stage) -> None:
    async with stage.gateway.api() as api:
        answer = await api.get("/")
        file = await api.get("/console/app.js")
        missing = [
            (await api.get(path)).status_code
            for path in (
                "/console/../gateway.py",
                "/console/%2e%2e/gateway.py",
                "/console/x.js",
                "/console//etc/passwd",
                "/console/core",
            )
        ]
        again = await api.get("/console/app.js", headers={"if-none-match": file.headers["etag"]})
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy.pop("connect-src").startswith("'self' ws://127.0.0.1:")
    assert policy == {
        "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "font-src": "'self'",
        "img-src": "'self' data:", "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'", "trusted-types": "lit-html",
    }  # fmt: skip
    for headers in (answer.headers, file.headers):
        assert (headers["x-content-type-options"], headers["x-frame-options"], headers["referrer-policy"]) == (
            "nosniff",
            "DENY",
            "no-referrer",
        )
        assert headers["cache-control"] == "no-cache"
    assert file.headers["content-type"] == "text/javascript; charset=utf-8"
    assert file.headers["content-encoding"] == "gzip"
    assert missing == [404] * 5
    assert (again.status_code, again.content) == (304, b"")

    async with foreign_page(f"<iframe src='{stage.gateway.http}/'></iframe>") as origin:
        page = await stage.page()
        await page.goto(origin)
        framed = page.frames[1]
        assert await framed.locator("#app").count() == 0
        await page.close()
    stage.forgive("frame", "foreign request", "favicon")


async def test_w2_a_foreign_page_can_neither_ask_nor_listen(stage: Stage) -> None:
    signed_in = await stage.sign_in()
    script = f"""<script type=module>
        const asked = [];
        for (const [path, init] of [
            ["/api/v1/ledger", {{}}], ["/api/v1/ledger", {{credentials: "include"}}],
            ["/api/v1/messages", {{method: "POST", body: "{{}}", headers: {{"content-type": "text/plain"}}, credentials: "include"}}],
            ["/api/v1/session", {{method: "POST", headers: {{authorization: "Code x"}}}}],
            ["/api/v1/session", {{method: "DELETE", credentials: "include"}}],
        ]) asked.push(await fetch("{stage.gateway.http}" + path, init).then((a) => a.status, () => "blocked"));
        document.title = JSON.stringify(asked);
    </script>"""
    async with foreign_page(script) as origin:
        other = await signed_in.context.new_page()
        await other.goto(origin)
        await other.wait_for_function("() => document.title.startsWith('[')")
        assert json.loads(await other.title()) == ["blocked"] * 5
        assert await other.evaluate("sessionStorage.length") == 0
        await other.close()
    async with stage.gateway.api() as api:
        assert (await api.get("/api/v1/session")).json()["name"] == "operator"
    stage.forgive("CORS", "ERR_FAILED", "foreign request", "favicon")


async def test_w2_pages_that_the_websocket_door_does_not_admit_are_told(stage: Stage) -> None:
    page = await stage.page()
    told = {"websocket": f"ws://127.0.0.1:{stage.link.port}", "admitted": False}
    await page.route("**/console.json", lambda route: route.fulfill(json=told))
    await page.goto(stage.gateway.http)
    await page.fill("textarea[name=token]", stage.gateway.token)
    await page.click("button.primary")
    await expect(page.locator(".notice.bad")).to_contain_text("IOTSPHERE_WEBSOCKET_ORIGINS")


async def test_w3_a_link_does_not_change_who_is_signed_in(stage: Stage) -> None:
    issued = await stage.post(
        "/api/v1/tokens", {"subject": "user:ann", "grants": ["subscribe:iotsphere/devices/#"], "lifetime": 600}
    )
    page = await stage.sign_in(token=issued["token"])
    await expect(page.locator(".who")).to_have_text("ann")
    await page.goto(stage.gateway.http + "/#/sign-in/an-attackers-code")
    await page.reload()
    await expect(page.locator(".who")).to_have_text("ann")
    await expect(page.locator(".nav a")).to_have_count(3)  # no page that she may not see
    await page.evaluate("() => { location.hash = '#/letters'; }")
    await expect(page.locator("h1")).to_have_text("Fleet")
    await expect(page.locator(".device-line", has_text="station-1")).to_be_visible()


async def test_a_token_that_ends_leads_to_signing_in_again(stage: Stage) -> None:
    issued = await stage.post(
        "/api/v1/tokens", {"subject": "user:bob", "grants": ["subscribe:iotsphere/devices/#"], "lifetime": 600}
    )
    page = await stage.sign_in(token=issued["token"])
    await expect(page.locator(".who")).to_have_text("bob")
    async with stage.gateway.api() as api:
        await api.delete(f"/api/v1/tokens/{issued['token_id']}")
    await expect(page.locator("textarea[name=token]")).to_be_visible()
    await expect(page.get_by_role("alert")).to_contain_text("Sign in again")
    assert await page.evaluate("sessionStorage.length") == 0
    await page.fill("textarea[name=token]", base64.b64encode(b"nothing").decode())
    await page.click("button.primary")
    await expect(page.get_by_role("alert")).to_contain_text("does not believe")


async def test_an_operators_session_is_renewed_in_place_before_it_ends(stage: Stage) -> None:
    grants = ["subscribe:iotsphere/#", "publish:iotsphere/#", "command:iotsphere/#"]
    lifetime = 17  # signing in takes seconds on a busy machine
    wanted = {"subject": "user:cleo", "grants": grants, "roles": ["operator"], "lifetime": lifetime}
    opened = 0

    def hasty(page_side: WebSocketRoute) -> None:
        """Tells the page that the first token ends in two seconds, so that it renews long before the true end."""
        nonlocal opened
        opened += 1

        def shorten(life: re.Match[str]) -> str:
            return life[0] if int(life[1]) > lifetime * 1_000 else '"expiresIn":2000'

        def pass_on(frame: str | bytes) -> None:
            page_side.send(re.sub(r'"expiresIn":(\d+)', shorten, frame) if isinstance(frame, str) else frame)

        page_side.connect_to_server().on_message(pass_on)

    page = await stage.page()
    await page.route_web_socket(re.compile("^ws://"), hasty)
    await page.goto(stage.gateway.http + "/#/explorer")
    await page.wait_for_selector("textarea[name=token]")  # only now, for loading a page takes the longest
    issued = await stage.post("/api/v1/tokens", wanted)
    ends = time.monotonic() + lifetime
    await stage.sign_in_on(page, issued["token"])
    renewed = "old => ![null, old].includes(sessionStorage.getItem('iotsphere.token'))"
    await page.wait_for_function(renewed, arg=issued["token"])
    await asyncio.sleep(max(0.0, ends + 2.5 - time.monotonic()))  # past its end, and past the door's next look
    assert await page.locator("[data-state=open]").count() == 1
    assert opened == 1
    first = await page.locator(".head .num, .head span").first.inner_text()
    await expect(page.locator(".head span").first).not_to_have_text(first)


@asynccontextmanager
async def foreign_page(body: str) -> AsyncIterator[str]:
    """A page on another port, which is another origin."""

    def answer(_: ServerConnection, __: Request) -> Response:
        page = f"<!doctype html><link rel=icon href=data:,>{body}".encode()
        headers = Headers({"Content-Type": "text/html", "Content-Length": str(len(page)), "Connection": "close"})
        return Response(http.HTTPStatus.OK.value, "OK", headers, page)

    async def nobody(connection: ServerConnection) -> None:
        await connection.close()

    async with serve(nobody, "127.0.0.1", 0, process_request=answer) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/"
        await asyncio.sleep(0)
