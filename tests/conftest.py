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
