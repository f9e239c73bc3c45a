"""Compiles the message path with mypyc when IOTSPHERE_COMPILED=1 is set: the same modules, as native code.

The wheel then belongs to one kind of machine and one Python. Without the variable nothing is compiled, and the wheel is
the same everywhere; what the gateway does is the same either way.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = ".compiled"  # of what is made on the way, and of `make compiled`


class CompiledMessagePath(BuildHookInterface[BuilderConfig]):
    """``modules`` in pyproject.toml: paths below src/iotsphere, with wildcards."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and put what comes of it beside the sources. Raises SystemExit with the compiler's words."""
        if version == "editable" or os.environ.get("IOTSPHERE_COMPILED") != "1":
            return
        built = self._compile(sorted(self._modules()))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"] |= {str(path): str(path.relative_to(built)) for path in built.rglob("*.so")}

    def _modules(self) -> set[str]:
        package = Path(self.root, "src", "iotsphere")
        found: set[str] = set()
        for each in self.config["modules"]:
            paths = [str(path.relative_to(self.root)) for path in package.glob(each) if path.name != "__init__.py"]
            if not paths:
                raise SystemExit(
                    f"there is nothing to compile at src/iotsphere/{each}: mend the list in pyproject.toml"
                )
            found.update(paths)
        return found

    def _compile(self, modules: list[str]) -> Path:
        # Only who compiles needs these.
        from mypyc.build import mypycify  # noqa: PLC0415
        from setuptools import Distribution  # noqa: PLC0415
        from setuptools.command.build_ext import build_ext  # noqa: PLC0415

        work = Path(self.root, FOLDER, "work")
        shutil.rmtree(work, ignore_errors=True)
        before = Path.cwd()
        os.chdir(self.root)
        try:
            extensions = mypycify(modules, opt_level="1", target_dir=str(work / "c"))
            for extension in extensions:
                extension.extra_compile_args.append("-g0")  # what a debugger wants takes longer than all else
            command = build_ext(Distribution({"ext_modules": extensions}))
            command.build_lib, command.build_temp = str(work / "lib"), str(work / "o")
            command.ensure_finalized()
            command.run()
        finally:
            os.chdir(before)
        return work / "lib"
