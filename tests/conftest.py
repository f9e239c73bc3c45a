"""What every test shares."""

import os

import pytest
from hypothesis import HealthCheck, settings

# The tests start many processes: without compiled modules each of them would compile the product anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A busy machine is slow, and that is no fault of what is tested. (With CI set, Hypothesis does the same by itself.)
settings.register_profile("patient", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

pytest.register_assert_rewrite("tests.contracts")

pytest_plugins = ["tests.support.fixtures"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long: with several workers, the short ones fill the gaps in the end."""
    slow = ("slow", "timeout")
    long = {item.path for item in items if any(map(item.get_closest_marker, slow)) or item.path.parent.name == "faults"}
    items.sort(key=lambda item: item.path not in long)
