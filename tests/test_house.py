"""The house itself: rooms, names, imports, locks and what the wheel holds."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "iotsphere"
LAYERS = ("entities", "use_cases", "adapters", "drivers", "gateways")
QUIET_LAYERS = ("entities", "use_cases", "adapters")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

PUBLIC_NAMES = {
    "entities": ("Message", "Topic", "Subscription"),
    "use_cases": ("MessagePublishUseCase", "MessageSubscriptionUseCase", "MessageFlowControlUseCase"),
    "adapters": ("MessageBrokerAdapter", "ClientDeliveryAdapter", "DatabaseChangeAdapter"),
    "drivers": ("RedisMessagingDriver",),
    "gateways": ("WebSocketGateway", "MqttGateway", "MqttBridge"),
}
# asyncio is allowed everywhere; its sockets, pipes and processes are I/O all the same.
IO_NAMES = frozenset(
    (
        "open_connection", "start_server", "open_unix_connection", "start_unix_server", "create_connection",
        "create_server", "create_datagram_endpoint", "create_unix_connection", "create_unix_server",
        "create_subprocess_exec", "create_subprocess_shell", "StreamReader", "StreamWriter", "connect_read_pipe",
        "connect_write_pipe", "add_reader", "add_writer", "run_in_executor", "to_thread", "urlopen",
    )
)  # fmt: skip
IO_CALLS = frozenset(("open", "print", "input"))
VAGUE = re.compile(r"(Manager|Service|Base|Helper|Utils?)\Z")


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def composing() -> list[Path]:
    return sorted(path for part in (PACKAGE, PACKAGE / "cli", PACKAGE / "containers") for path in part.glob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(path: Path) -> Iterator[str]:
    """The absolute names that a module imports, anywhere in it; relative imports are left out."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


# The rooms


@pytest.mark.parametrize("layer", LAYERS)
def test_layer_is_a_relative_link_to_its_root_folder(layer: str) -> None:
    link = PACKAGE / layer
    assert link.is_symlink()
    assert os.readlink(link) == f"../../{layer}"
    assert link.resolve() == ROOT / layer
    assert (ROOT / layer / "__init__.py").is_file()


def test_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize(("layer", "name"), [(layer, name) for layer, names in PUBLIC_NAMES.items() for name in names])
def test_public_name_is_a_class_of_its_layer(layer: str, name: str) -> None:
    homes = [
        path
        for path in modules(layer)
        if any(isinstance(node, ast.ClassDef) and node.name == name for node in tree(path).body)
    ]
    assert len(homes) == 1, f"{name} is defined in {[relative(home) for home in homes]}"
    dotted = ".".join(homes[0].relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    assert isinstance(getattr(importlib.import_module(f"iotsphere.{dotted}"), name), type)


def test_client_is_reached_from_the_top() -> None:
    assert callable(importlib.import_module("iotsphere").connect)


# What may import what


def test_import_contracts_are_kept() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-logo"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    kept = re.search(r"Contracts: (\d+) kept, 0 broken", result.stdout)
    assert kept
    assert int(kept[1]) == len(PROJECT["tool"]["importlinter"]["contracts"])


def test_import_contracts_notice_an_entity_that_looks_up(tmp_path: Path) -> None:
    package = tmp_path / "iotsphere"
    for layer in (*LAYERS, "drivers/memory", "drivers/sqlite", "drivers/redis", "drivers/mongo", "drivers/spark"):
        (package / layer).mkdir(parents=True)
        (package / layer / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "entities" / "topic.py").write_text("from ..drivers import memory\n")
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-logo"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "iotsphere.entities.topic -> iotsphere.drivers" in result.stdout


def test_entities_import_the_standard_library_only() -> None:
    for path in modules("entities"):
        outside = {name.partition(".")[0] for name in imported(path)} - sys.stdlib_module_names
        assert not outside, f"{relative(path)} imports {sorted(outside)}"


def test_quiet_layers_do_no_io() -> None:
    for path in modules(*QUIET_LAYERS):
        for node in ast.walk(tree(path)):
            line = f"{relative(path)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Attribute | ast.Name):
                name = node.attr if isinstance(node, ast.Attribute) else node.id
                assert name not in IO_NAMES, f"{line} does I/O: {name}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in IO_CALLS, f"{line} does I/O: {node.func.id}()"


def test_layers_see_each_other_by_relative_imports() -> None:
    for path in modules(*LAYERS):
        assert not [name for name in imported(path) if name.partition(".")[0] == "iotsphere"], relative(path)


# Habits


def test_every_module_has_a_caption_and_a_size_that_one_can_read() -> None:
    long = {}
    for path in (*modules(*LAYERS), *composing()):
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            continue
        caption = ast.get_docstring(ast.parse(text))
        assert caption, f"{relative(path)} has no caption"
        assert re.match(r"[^\n]{10,}[.?!:]", caption), f"{relative(path)}: {caption.splitlines()[0]!r}"
        if (lines := text.count("\n")) > 300:
            long[relative(path)] = lines
    assert not long, "divide them: at most 300 lines"


def test_names_are_words_of_the_field() -> None:
    for path in (*modules(*LAYERS), *composing()):
        assert path.stem not in {"utils", "util", "helpers", "helper", "common", "misc", "manager"}, relative(path)
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                assert not VAGUE.search(node.name), f"{relative(path)}: {node.name}"


def test_constructors_take_at_most_five_things() -> None:
    for path in (*modules(*LAYERS), *composing()):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                # An error takes its facts by keyword; everything else says what it needs in five words.
                assert len(taken) - 1 <= 5, f"{relative(path)}:{node.lineno}: {[arg.arg for arg in taken]}"


def test_tracked_text_names_no_machine_and_no_registry() -> None:
    home = re.compile(r"(?<![\w.~$}-])/(?:root|home/\w+|Users/\w+|work)/")
    registry = re.compile(r"\b(?:pypi|pythonhosted|npmjs|debian|dl-cdn)\.(?:org|com|net)\b")
    seen = 0
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # recorded payloads are bytes on purpose
            continue
        seen += 1
        for found in (home.search(text), registry.search(text)):
            assert found is None, f"{relative(path)} says {found[0]!r}"
    assert seen > 20


# Locks


def locked(name: str) -> dict[str, set[str]]:
    """The versions that a lock pins, by package; several where they depend on the Python version."""
    text = (ROOT / name).read_text(encoding="utf-8")
    pins: dict[str, set[str]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ \\;]+)", block)
        assert match, block[:80]
        assert "--hash=sha256:" in block, f"{match[1]} has no hash"
        pins.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return pins


def wanted(*groups: str) -> list[Requirement]:
    found: list[str] = []
    for group in groups:
        if group == "runtime":
            found += PROJECT["project"]["dependencies"]
            found += PROJECT["project"]["optional-dependencies"]["demo"]
        elif group == "spark":
            found += PROJECT["project"]["optional-dependencies"]["spark"]
        else:
            found += [text for text in PROJECT["dependency-groups"][group] if isinstance(text, str)]
    return [Requirement(text) for text in found]


@pytest.mark.parametrize(
    ("lock", "groups"),
    [
        ("requirements.lock", ("runtime",)),
        ("requirements-build.lock", ("build",)),
        ("requirements-compiled.lock", ("build", "compiled")),
        ("requirements-dev.lock", ("runtime", "spark", "build", "compiled", "dev")),
    ],
)
def test_lock_satisfies_the_project_with_hashes_and_no_address(lock: str, groups: tuple[str, ...]) -> None:
    assert "://" not in (ROOT / lock).read_text(encoding="utf-8")
    pins = locked(lock)
    for requirement in wanted(*groups):
        versions = pins.get(canonicalize_name(requirement.name), set())
        assert versions, f"{requirement} is not in {lock}: make lock"
        assert all(version in requirement.specifier for version in versions), f"{requirement}: {versions} in {lock}"


def test_locks_agree() -> None:
    everything = locked("requirements-dev.lock")
    for lock in ("requirements.lock", "requirements-build.lock", "requirements-compiled.lock"):
        for name, versions in locked(lock).items():
            assert everything[name] == versions, f"{name} differs between {lock} and requirements-dev.lock"


# What is shipped


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


def test_wheel_from_the_sdist_holds_every_module(shipped: Path) -> None:
    (wheel,) = shipped.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"iotsphere/{relative(path)}" for path in modules(*LAYERS)}
    expected |= {f"iotsphere/{path.relative_to(PACKAGE).as_posix()}" for path in composing()} | {"iotsphere/py.typed"}
    data = {path for layer in LAYERS for path in (ROOT / layer).rglob("*") if path.is_file()}
    expected |= {f"iotsphere/{relative(path)}" for path in data if "__pycache__" not in path.parts}
    assert expected <= held, sorted(expected - held)
    strangers = {name.partition("/")[0] for name in held}
    assert {name for name in strangers if not name.endswith(".dist-info")} == {"iotsphere"}
    assert any(name.endswith("/licenses/LICENSE") for name in held)


def test_sdist_holds_sources_and_licence_and_no_tests(shipped: Path) -> None:
    (sdist,) = shipped.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", "src/iotsphere/entities/topic.py"} <= held
    assert not [name for name in held if name.startswith(("tests", "docs", "bench"))]
