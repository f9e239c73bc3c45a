"""The how-to about further collections, step by step on a running gateway: its file, its statement, its messages."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.gateway import ROOT, Gateway, GatewayFailed

from .clients import browser, history
from .test_users import client, heard, token_of, until_unread

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = (ROOT / "docs/how-to/tell-changes-of-a-collection.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder = tmp_path_factory.mktemp("further")
    (folder / "changes.toml").write_text(blocks("toml")[0])
    async with Gateway(folder / "data", settings={"changes_file": folder / "changes.toml"}) as running:
        yield running


def by_hand(gateway: Gateway, statement: str) -> None:
    shell = sqlite3.connect(gateway.data / "state.db", timeout=60)
    with shell:
        shell.executescript(statement)
    shell.close()


async def test_the_page_does_what_it_says(gateway: Gateway) -> None:
    ann = await token_of(gateway, "ann")
    async with browser(gateway, token=ann) as page, browser(gateway) as operator, client(gateway, ann) as api:
        await page.subscribe("iotsphere/users/ann/notifications")
        await operator.subscribe("iotsphere/devices/pump-7/telemetry/#", "iotsphere/system/alerts")
        by_hand(gateway, blocks("sql")[0])
        noted, measured = map(json.loads, blocks("json"))
        (told,) = await heard(page, 1)
        assert told["payload"] == noted
        (message,) = await operator.messages(1)
        assert message["payload"] == measured
        assert message["metadata"]["topic"] == "iotsphere/devices/pump-7/telemetry/work_order"
        assert message["metadata"]["source"] == "database/work_orders"
        (kept,) = await until_unread(api, "ann", 1)  # it is a notification like any other
        assert (kept["id"], kept["content"], kept["source"]) == (told["id"], noted, "database/work_orders")

        body = "UPDATE work_orders SET body = json_set(body, '$.{}', '{}') WHERE key = 'iotsphere/wo-17';"
        by_hand(gateway, body.format("remark", "no news for anybody"))
        by_hand(gateway, body.format("state", "done"))
        (message,) = await operator.messages(1)
        assert message["payload"] == {"_key": "wo-17", "state": "done"}
        by_hand(gateway, body.format("asset.device", "pump/7"))
        (message,) = await operator.messages(1)
        assert (message["payload"]["alert"], message["payload"]["document"]) == ("change_not_told", "iotsphere/wo-17")
        assert "asset.device" in message["payload"]["reason"]
        by_hand(gateway, body.format("asset.device", "pump-7") + "DELETE FROM work_orders;")
        assert [each["payload"] for each in await operator.messages(2)] == [
            {"_key": "wo-17", "state": "done"},
            {"_key": "wo-17", "state": "done", "_change": "delete"},
        ]
        assert len(await until_unread(api, "ann", 1)) == 1


async def test_a_kill_repeats_and_loses_nothing(gateway: Gateway) -> None:
    document = '{{"state": "open", "assignee": "bob", "title": "{0}", "asset": {{"device": "pump-8"}}}}'
    insert = "INSERT INTO work_orders(key, body) VALUES ('iotsphere/k-{0}', '" + document + "');"
    for number in range(30):
        by_hand(gateway, insert.format(number))
        if number in (10, 20):
            await gateway.kill()
            by_hand(gateway, insert.format(f"{number}-away"))
            await gateway.start()
    expected = [f"{number}{suffix}" for number in range(30) for suffix in ("", "-away")[: 1 + (number in (10, 20))]]
    bob = await token_of(gateway, "bob")
    async with client(gateway, bob) as api:
        await until_unread(api, "bob", len(expected))
    told = await history(gateway, "iotsphere/users/bob/notifications")
    assert [message["payload"]["title"] for message in told] == expected


async def test_a_mistake_in_the_file_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "changes.toml").write_text(blocks("toml")[0].replace("telemetry/work_order", "commands/request"))
    broken = Gateway(tmp_path / "data", settings={"changes_file": tmp_path / "changes.toml"})
    with pytest.raises(GatewayFailed, match=r"ended with 2(.|\n)*\[\[map\]\] entry 2, topic:(.|\n)*leads nowhere"):
        await broken.start()
    missing = Gateway(tmp_path / "data", settings={"changes_file": tmp_path / "none.toml"})
    with pytest.raises(GatewayFailed, match="IOTSPHERE_CHANGES_FILE"):
        await missing.start()
