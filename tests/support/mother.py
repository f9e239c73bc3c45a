"""A process that has loaded the product and turns copies of itself into gateways: a start then costs no imports.

Loading the product takes most of a second of a core, and the tests start hundreds of gateways. Each is a process of its
own all the same, with its own arguments, environment and files, and ends as one that was started from a shell.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOADED = (
    "iotsphere.app", "iotsphere.cli", "iotsphere.gateways.http", "iotsphere.gateways.mqtt", "iotsphere.gateways.websocket",
    "iotsphere.drivers.sqlite.database", "iotsphere.drivers.sqlite.log", "iotsphere.drivers.sqlite.queue",
    "iotsphere.drivers.sqlite.documents", "iotsphere.drivers.redis.log", "iotsphere.drivers.mongo.database",
)  # fmt: skip
POLL = 0.02
LARGEST = 1 << 16


@dataclass
class Child:
    """A process that the mother has made; like a Popen to those who wait for it or end it."""

    mother: Mother
    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        self.mother.look()
        return self.returncode

    def wait(self) -> int:
        """Wait for its end."""
        while (code := self.poll()) is None:
            time.sleep(POLL)
        return code


class Mother:
    """Loads the product from ``sources`` once, and dies with this process, as do all that it has made."""

    def __init__(self, sources: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("IOTSPHERE_")}
        environment["PYTHONPATH"] = f"{sources}{os.pathsep}{ROOT}"
        self._children: dict[int, Child] = {}
        self._socket = ours
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.mother", str(theirs.fileno()), str(os.getpid())],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )  # fmt: skip
        theirs.close()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], out: Path, err: Path) -> Child:
        """Run ``iotsphere`` with arguments; ``out`` is written anew, and ``err`` goes on where it ends."""
        asked = {"arguments": list(arguments), "environment": dict(environment), "out": str(out), "err": str(err)}
        self._socket.send(json.dumps(asked).encode())
        while True:
            if not select.select((self._socket,), (), (), 60)[0]:
                raise RuntimeError("the process that starts gateways does not answer")
            told = self._hear()
            if "made" in told:
                child = self._children[told["made"]] = Child(self, told["made"])
                return child

    def look(self) -> None:
        """Take note of who has ended."""
        while select.select((self._socket,), (), (), 0)[0]:
            self._hear()

    def _hear(self) -> dict[str, int]:
        answer = self._socket.recv(LARGEST)
        if not answer:
            raise RuntimeError(f"the process that starts gateways has ended with {self._process.poll()}")
        told: dict[str, int] = json.loads(answer)
        if "ended" in told:
            self._children.pop(told["ended"]).returncode = told["code"]
        return told

    def close(self) -> None:
        """End it, and all that it has made."""
        self._socket.close()
        self._process.wait(60)


def main(number: int, parent: int) -> None:
    """Be a mother until the other end of the socket is closed; in a child, be a gateway."""
    from importlib import import_module

    from tests.support.processes import die_with_parent

    die_with_parent()
    if os.getppid() != parent:  # it died before it could take us along
        return
    for name in LOADED:
        import_module(name)
    with socket.socket(fileno=number) as wire:
        while True:
            while (ended := _ended()) is not None:
                wire.send(json.dumps(ended).encode())
            if not select.select((wire,), (), (), POLL)[0]:
                continue
            if not (asked := wire.recv(LARGEST)):
                return
            mother, made = os.getpid(), os.fork()
            if not made:
                break
            wire.send(json.dumps({"made": made}).encode())
    die_with_parent()
    if os.getppid() != mother:
        return
    _become(json.loads(asked))


def _ended() -> dict[str, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return {"ended": pid, "code": os.waitstatus_to_exitcode(status)} if pid else None


def _become(asked: Mapping[str, object]) -> None:
    os.setsid()
    for name, kind, target in (("out", os.O_TRUNC, 1), ("err", os.O_APPEND, 2)):
        opened = os.open(str(asked[name]), os.O_WRONLY | os.O_CREAT | kind, 0o644)
        os.dup2(opened, target)
        os.close(opened)
    environment, arguments = asked["environment"], asked["arguments"]
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["iotsphere", *arguments]
    from iotsphere.cli import main as command

    command()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main(int(sys.argv[1]), int(sys.argv[2]))
