"""What a job says at its end: names, values, and what they mean."""

from __future__ import annotations

import json

import pytest

from iotsphere.cli.spark_summary import say


def test_counts_say_what_they_mean_and_to_programs_only_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"job": "lake", "rows": 5_000, "known": 3_358, "left_out": 2}
    say(found, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "job       lake",
        "rows      5,000",
        "known     3,358  rows that were there already",
        "left out  2  findings for which the table has no room",
    ]
    say(found, as_json=True)
    assert json.loads(capsys.readouterr().out) == found
