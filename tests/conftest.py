"""What every test shares."""

import os

import pytest

# The tests start many processes: without compiled modules each of them would compile the product anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

pytest.register_assert_rewrite("tests.contracts")

pytest_plugins = ["tests.support.fixtures"]
