"""The built client: that it is the present sources', small, without dependencies, and typed."""

from __future__ import annotations

import filecmp
import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.gateway import ROOT
from tests.support.servers import binary, missing

CLIENT = ROOT / "clients" / "js"
LIB = CLIENT / "lib"
MAX_GZIPPED = 8_000


@pytest.fixture
def node() -> str:
    """Node.js, with the client's tools installed."""
    if not (CLIENT / "node_modules" / "esbuild").is_dir():
        missing("the tools of the JavaScript client are not installed: run `python tests/support/provision.py`")
    return binary("node")


def run(*words: str, cwd: Path = CLIENT) -> None:
    result = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_is_committed_is_what_the_sources_build(node: str, tmp_path: Path) -> None:
    run(node, "build.mjs", str(tmp_path / "lib"))
    assert files(tmp_path / "lib") == files(LIB)
    _, differing, broken = filecmp.cmpfiles(tmp_path / "lib", LIB, files(LIB), shallow=False)
    assert (differing, broken) == ([], []), "build the client anew (npm run build in clients/js) and commit lib/"


def test_it_is_small_and_needs_nothing() -> None:
    minified = (LIB / "iotsphere.min.js").read_bytes()
    assert len(gzip.compress(minified, 9)) < MAX_GZIPPED
    assert b"import " not in minified
    package = json.loads((CLIENT / "package.json").read_text())
    assert "dependencies" not in package
    assert package["sideEffects"] is False
    assert "://" not in (CLIENT / "package-lock.json").read_text().replace('"url": "https://github.com', "")


def test_who_takes_less_ships_less(node: str, tmp_path: Path) -> None:
    (tmp_path / "page.js").write_text(f'import {{ connect }} from "{LIB}/iotsphere.js"; globalThis.connect = connect;')
    options: dict[str, object] = {"entryPoints": [str(tmp_path / "page.js")], "outfile": str(tmp_path / "out.js")}
    options |= {"bundle": True, "minify": True, "format": "esm"}
    build = f'import {{ build }} from "esbuild"; await build({json.dumps(options)})'
    run(node, "--input-type=module", "--eval", build)
    page = (tmp_path / "out.js").read_text()
    for name in ("idempotencyKey", "deltaSequence", "desired", "commands/status"):
        assert name not in page
        assert name in (LIB / "iotsphere.js").read_text()


def test_types_are_those_that_programs_use(node: str, tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("types.ts"), tmp_path / "program.ts")
    options = {
        "strict": True,
        "noEmit": True,
        "target": "ES2022",
        "module": "ESNext",
        "moduleResolution": "Bundler",
        "lib": ["ES2023", "DOM", "DOM.Iterable", "ESNext.Disposable"],
        "types": [],
        "exactOptionalPropertyTypes": True,
        "paths": {"@iotsphere/client": [str(LIB / "types" / "index.d.ts")]},
    }
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["program.ts"]}))
    run(node, str(CLIENT / "node_modules" / "typescript" / "bin" / "tsc"), "-p", str(tmp_path))


def test_sources_pass_their_own_checks(node: str) -> None:
    run(node, str(CLIENT / "node_modules" / "typescript" / "bin" / "tsc"), "--noEmit")
    for source in (CLIENT / "src").iterdir():
        lines = source.read_text().splitlines()
        assert len(lines) <= 300, source.name
        assert max(map(len, lines)) <= 120, source.name
        assert lines[0].startswith("/** "), f"{source.name} begins with a caption"
