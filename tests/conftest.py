"""What every test shares."""

import pytest

pytest.register_assert_rewrite("tests.contracts")

pytest_plugins = ["tests.support.fixtures"]
