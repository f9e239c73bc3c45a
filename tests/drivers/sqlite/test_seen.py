"""The index of seen ids finds what was added, in any order and number, and forgets by age."""

from __future__ import annotations

import random

from iotsphere.drivers.sqlite.seen import WINDOW_MS, SeenIds


def test_it_finds_what_was_added_and_nothing_else() -> None:
    random_numbers = random.Random(7)
    known = {random_numbers.getrandbits(64) | 1: place for place in range(1, 50_001)}
    seen = SeenIds()
    for key, place in known.items():
        seen.add(key, place, place)
    assert len(seen) == 50_000
    assert all(seen.find(key) == place for key, place in known.items())
    strangers = {random_numbers.getrandbits(64) & ~1 or 2 for _ in range(50_000)}
    assert not any(seen.find(key) for key in strangers)


def test_keys_that_meet_in_one_slot_are_told_apart() -> None:
    seen = SeenIds()
    keys = [(number << 32) | 4_095 for number in range(1, 200)]
    for place, key in enumerate(keys, 1):
        seen.add(key, place, 0)
    assert [seen.find(key) for key in keys] == list(range(1, 200))
    assert seen.find((500 << 32) | 4_095) == 0


def test_what_is_older_than_the_window_goes() -> None:
    seen = SeenIds()
    for key in range(1, 20_001):
        seen.add(key, key, 0)
    for key in range(20_001, 120_001):
        seen.add(key, key, WINDOW_MS + 1)
    assert seen.find(1) == 0
    assert seen.find(20_001) == 20_001
    assert seen.find(120_000) == 120_000


def test_what_is_younger_than_the_window_stays() -> None:
    seen = SeenIds()
    for key in range(1, 100_001):
        seen.add(key, key, key * WINDOW_MS // 100_000)
    assert all(seen.find(key) == key for key in range(1, 100_001, 97))
