"""The examples of the client's README, each run as a program of its own against a gateway with a device."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from tests.js_client.engines import NODE_OPTIONS, Node
from tests.support.gateway import ROOT, Gateway
from tests.support.processes import die_with_parent
from tests.support.servers import binary

README = (ROOT / "clients" / "js" / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^## ([^\n]+)$.*?^```js\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
WITH_DEVICE = "queued running 50 succeeded succeeded opened"
PRINTED = {
    "Begin": r"iotsphere/devices/d1/telemetry/temperature 21\.5",
    "A live page": r"connecting open [0-9]+ values .*true closed",
    "Go on after a reload": r"[A-Za-z0-9_-]+",
    "Publish": r"1 to be sent 0 to be sent in the log at telemetry/\d/\d+-\d+",
    "Change a shadow": "",
    "Send a command": WITH_DEVICE,
    "Play the past": r".*",
}
DEVICE = """
g.device = lib.connect(given.url, { token: given.token });
await g.device.opened();
g.telemetry = setInterval(() => g.device.publish("iotsphere/devices/d1/telemetry/temperature", 21.5), 100);
const requests = g.device.subscribe("iotsphere/devices/d1/commands/request");
requests.addEventListener("message", async ({ detail: { metadata } }) => {
  const answer = (payload) =>
    g.device.publish("iotsphere/devices/d1/commands/response", payload, { correlationId: metadata.messageId });
  await g.sleep(1_500); // so that whoever asks sees each state by itself
  await answer({ status: "running", progress: 50 });
  await g.sleep(1_500);
  await answer({ status: "succeeded", result: "opened" });
});
await requests.ready();
"""


def test_each_example_is_known_here() -> None:
    assert [title for title, _ in EXAMPLES] == list(PRINTED)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(("title", "code"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
async def test_example_runs(title: str, code: str, node: Node, gateway: Gateway, tmp_path: Path) -> None:
    await node.run(DEVICE, url=gateway.websocket, token=gateway.token)
    printed = await run_program(code, gateway, tmp_path)
    assert re.fullmatch(PRINTED[title], printed), printed


@pytest.mark.asyncio(loop_scope="session")
async def test_the_command_ends_while_its_device_is_away(gateway: Gateway, tmp_path: Path) -> None:
    code = dict(EXAMPLES)["Send a command"]
    assert code.count("10_000") == 2
    printed = await run_program(code.replace("10_000", "6_000").replace('"d1"', '"d2"'), gateway, tmp_path)
    assert re.fullmatch(r"(accepted )?queued expired expired", printed), printed


async def run_program(code: str, gateway: Gateway, tmp_path: Path) -> str:
    """What an example prints, on one line."""
    program = tmp_path / "example.mjs"
    library = ROOT / "clients" / "js" / "lib" / "iotsphere.js"
    assert "ws://127.0.0.1:8765" in code
    program.write_text(
        code.replace("@iotsphere/client", str(library)).replace("ws://127.0.0.1:8765", gateway.websocket)
    )
    process = await asyncio.create_subprocess_exec(
        *(binary("node"), *NODE_OPTIONS, str(program)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TOKEN": gateway.token},
        preexec_fn=die_with_parent,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 180)
    printed = " ".join(out.decode().split())
    assert process.returncode == 0, printed
    return printed
