"""Copies the files of libraries that the console ships out of their packages, as they are, each with its licence; and our client.

`python tests/console/vendor.py` after a change of package.json and `npm install` here. A test holds the copies to the
packages that package-lock.json names, by their hashes.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VENDOR = ROOT / "gateways" / "http" / "console" / "vendor"
# Our own client, as its build left it.
CLIENT = {VENDOR / "iotsphere" / "iotsphere.min.js": ROOT / "clients" / "js" / "lib" / "iotsphere.min.js"}
# Package -> what of it is shipped, and under which name below vendor/.
FILES = {
    "lit-html": {
        "lit-html.js": "lit/lit-html.js",
        "directive.js": "lit/directive.js",
        "directive-helpers.js": "lit/directive-helpers.js",
        "directives/repeat.js": "lit/directives/repeat.js",
        "directives/live.js": "lit/directives/live.js",
        "LICENSE": "lit/LICENSE.txt",
    },
    "uplot": {
        "dist/uPlot.esm.js": "uplot/uPlot.esm.js",
        "dist/uPlot.min.css": "uplot/uPlot.min.css",
        "LICENSE": "uplot/LICENSE.txt",
    },
    "@fontsource-variable/inter": {
        "files/inter-latin-wght-normal.woff2": "inter/inter-latin-wght-normal.woff2",
        "LICENSE": "inter/LICENSE.txt",
    },
}


def install() -> Path:
    """Install the packages as the lock says; returns their folder."""
    modules = HERE / "node_modules"
    lock, installed = HERE / "package-lock.json", modules / ".installed-lock.json"
    if not (installed.exists() and installed.read_bytes() == lock.read_bytes()):
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=HERE, check=True)
        shutil.copyfile(lock, installed)
    return modules


def copies(modules: Path) -> dict[Path, Path]:
    """Copy -> its original."""
    libraries = {
        VENDOR / name: modules / package / original
        for package, files in FILES.items()
        for original, name in files.items()
    }
    return libraries | CLIENT


def main() -> None:
    """Copy anew."""
    for copy, original in copies(install()).items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(original, copy)


if __name__ == "__main__":
    main()
