"""Checkpoints: whose they are, what fits them, and how to go on from one that does not."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

import pytest

from iotsphere.drivers.spark.checkpoints import LOCK, NOTE, Identity, generation, opened, planned, recorded, rewound
from iotsphere.drivers.spark.places import offsets
from iotsphere.entities.errors import Conflict, RequestInvalid, Unavailable
from iotsphere.entities.position import Position
from iotsphere.spark import open_ranges
from tests.support.telemetry import fill_sqlite

SOURCE = {"channel": "telemetry", "domain": "iotsphere"}
FIRST = Identity("rollup", 1, {"zones": ""}, SOURCE)
PLACE = {"iotsphere/telemetry/0": [7, 40]}


def spark_was_here(location: Path, committed: int, planned_too: int) -> None:
    """What Spark leaves of batches 0 to ``planned_too``."""
    for name in ("offsets", "commits"):
        (location / name).mkdir(exist_ok=True)
    for number in range(planned_too + 1):
        place = {"iotsphere/telemetry/0": [7, 10 * (number + 1)]}
        (location / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(place)}')
        (location / "offsets" / f".{number}.crc").write_bytes(b"")
    for number in range(committed + 1):
        (location / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_a_checkpoint_keeps_its_application(tmp_path: Path) -> None:
    with opened(tmp_path / "c", FIRST) as first:
        assert first.location.name == "1-v1"
        assert not first.begun
    with opened(tmp_path / "c", FIRST) as again:
        assert again == first
    spark_was_here(first.location, 2, 3)
    assert again.begun
    assert recorded(first.location) == {"iotsphere/telemetry/0": [7, 30]}
    assert planned(first.location, 3) == PLACE
    assert planned(first.location, 4) is None


def test_a_deleted_checkpoint_has_another_application(tmp_path: Path) -> None:
    with opened(tmp_path / "c", FIRST) as first:
        pass
    shutil.rmtree(tmp_path / "c")
    with opened(tmp_path / "c", FIRST) as second:
        assert second.location == first.location
        assert second.application != first.application
    shutil.rmtree(second.location)
    with opened(tmp_path / "c", FIRST) as third:
        assert len({first.application, second.application, third.application}) == 3


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (Identity("health", 1, {"zones": ""}, SOURCE), "belongs to the job rollup, not health"),
        (Identity("rollup", 2, {"zones": ""}, SOURCE), "made by version 1 of rollup, and this is version 2"),
        (Identity("rollup", 1, {"zones": "a=UTC"}, SOURCE), "zones was '' and is 'a=UTC' now"),
        (Identity("rollup", 1, {"zones": ""}, {**SOURCE, "domain": "b"}), "domain was 'iotsphere' and is 'b' now"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(tmp_path: Path, other: Identity, why: str) -> None:
    with opened(tmp_path, FIRST) as first:
        spark_was_here(first.location, 1, 1)
    with pytest.raises(Conflict, match=rf"does not fit: .*{why}.*--migrate"), opened(tmp_path, other):
        pass
    with opened(tmp_path, FIRST) as again:
        assert again == first


def test_a_migration_is_a_new_generation_that_begins_with_what_was_recorded(tmp_path: Path) -> None:
    with opened(tmp_path, FIRST) as first:
        spark_was_here(first.location, 2, 3)
    second = FIRST._replace(version=2)
    asked: list[Path] = []

    def migrate(location: Path) -> dict[str, list[int]]:
        asked.append(location)
        return recorded(location) or {}

    with opened(tmp_path, second, migrate) as new:
        assert new.location.name == "2-v2"
        assert new.start == {"iotsphere/telemetry/0": [7, 30]}
        assert new.application != first.application
    assert asked == [first.location]
    # A crash before Spark's first batch changes nothing: the place is in the note.
    with opened(tmp_path, second, migrate) as again:
        assert again == new
    assert recorded(new.location) == new.start
    assert asked == [first.location]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path, FIRST), pytest.raises(Unavailable, match="used by another process"), opened(tmp_path, FIRST):
        pass
    with opened(tmp_path, FIRST):
        pass


def test_who_just_looks_who_uses_it_keeps_nobody_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, FIRST):
        pass
    with (tmp_path / LOCK).open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        monkeypatch.setattr("iotsphere.drivers.spark.checkpoints.sleep", lambda _: fcntl.flock(look, fcntl.LOCK_UN))
        with opened(tmp_path, FIRST) as checkpoint:
            assert checkpoint.location.name == "1-v1"


def test_a_folder_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "photo").touch()
    with pytest.raises(RequestInvalid, match="no checkpoint of a job"), opened(tmp_path, FIRST):
        pass
    (tmp_path / "photo").unlink()
    with opened(tmp_path, FIRST) as made:
        (made.location / NOTE).write_text("{")
    with pytest.raises(RequestInvalid, match="cannot be read"):
        generation(tmp_path)


def test_offsets_are_rewound_by_the_time_of_what_lies_there(tmp_path: Path) -> None:
    log = fill_sqlite(tmp_path, 400)
    with open_ranges(log) as ranges:
        ends = {one: ranges.bounds(one).last for one in ranges.partitions("telemetry")}
        middle = offsets({one: Position(end.epoch, end.offset // 2) for one, end in ends.items()})
        assert rewound(ranges, middle, 3_600) == {name: [epoch, 0] for name, (epoch, _) in middle.items()}
        later = rewound(ranges, middle, 0)
        assert all(later[name][1] <= middle[name][1] for name in middle)
