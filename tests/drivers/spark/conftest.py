"""One Spark session for all tests of a process: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from iotsphere.drivers.spark.session import open_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on both cores of this machine."""
    session = open_session("tests", "local[2]", {"spark.sql.shuffle.partitions": "4"}, tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
