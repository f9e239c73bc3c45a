"""What every test shares."""

import gc
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it ships no types

from tests.support.examples import THOROUGH

# The tests start many processes: without compiled modules each of them would compile the product anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A busy machine is slow, and that is no fault of what is tested. (With CI set, Hypothesis does the same by itself.)
settings.register_profile("patient", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("patient"), max_examples=1_000)
settings.load_profile("thorough" if THOROUGH else "patient")

pytest.register_assert_rewrite("tests.contracts")

pytest_plugins = ["tests.support.fixtures"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported here is kept to the end: neither while it is made, nor later on, is garbage looked for in it."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long: with several workers, the short ones fill the gaps in the end."""
    slow = ("slow", "timeout")
    long = {item.path for item in items if any(map(item.get_closest_marker, slow)) or item.path.parent.name == "faults"}
    items.sort(key=lambda item: item.path not in long)


class OneSpark(LoadFileScheduling):  # type: ignore[misc]  # it ships no types
    """A file is work for one worker, and all files that share a Spark session are: starting one takes 20 s of a core."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return "spark" if _takes_spark(self.config.rootpath / file) else file


@cache
def _takes_spark(file: Path) -> bool:
    return "spark: SparkSession" in file.read_text(encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneSpark:
    """Share Spark with `-n`, whatever `--dist` says."""
    return OneSpark(config, log)
