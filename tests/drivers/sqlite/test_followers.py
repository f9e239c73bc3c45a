"""A follower is handed what follows on, holds a bounded number of bytes, and otherwise reads the file."""

from __future__ import annotations

from iotsphere.drivers.sqlite.followers import MOST_BYTES, Followers
from iotsphere.entities.message import Entry
from iotsphere.entities.position import Position
from iotsphere.use_cases.ports.message_log import Slice
from tests.contracts.records import P0, P1, record


def piece(first: int, last: int) -> Slice:
    entries = [Entry(Position(1, offset), 0, record()) for offset in range(first, last + 1)]
    return Slice(P0, entries, Position(1, last))


def test_it_begins_behind_and_goes_live_once_it_has_everything() -> None:
    followers = Followers()
    follower = followers.add({P0: Position(1, 0)})
    assert follower.next_behind() == P0
    assert follower.next_behind() is None
    assert follower.took(piece(1, 3)) is True
    assert follower.next_behind() == P0
    assert follower.took(Slice(P0, [], Position(1, 3))) is False
    followers.offer(piece(4, 5), 100)
    assert follower.next_behind() is None
    handed = follower.next_slice()
    assert handed is not None
    assert handed.end == Position(1, 5)
    assert follower.next_slice() is None


def test_what_is_committed_while_it_reads_is_not_missed() -> None:
    followers = Followers()
    follower = followers.add({P0: Position(1, 0)})
    follower.next_behind()
    followers.offer(piece(1, 1), 100)
    assert follower.took(Slice(P0, [], Position(1, 0))) is False
    assert follower.next_slice() is None
    assert follower.next_behind() == P0


def test_what_it_read_already_is_not_handed_over_again() -> None:
    followers = Followers()
    follower = followers.add({P0: Position(1, 0)})
    follower.next_behind()
    assert follower.took(piece(1, 4)) is True
    follower.next_behind()
    follower.took(Slice(P0, [], Position(1, 4)))
    followers.offer(piece(3, 4), 100)
    assert follower.next_slice() is None
    followers.offer(piece(5, 5), 100)
    assert follower.next_slice() is not None


def test_it_holds_no_more_than_its_share() -> None:
    followers = Followers()
    follower = followers.add({P0: Position(1, 0)})
    follower.next_behind()
    follower.took(Slice(P0, [], Position(1, 0)))
    for offset in range(1, 11):
        followers.offer(piece(offset, offset), MOST_BYTES // 4)
    held = []
    while (handed := follower.next_slice()) is not None:
        held += [entry.position.offset for entry in handed.entries]
    assert held == [1, 2, 3, 4]
    assert follower.next_behind() == P0
    assert follower.places[P0] == Position(1, 4)


def test_nobody_is_told_once_it_is_gone() -> None:
    followers = Followers()
    follower = followers.add({P0: Position(1, 0), P1: Position(1, 0)})
    assert followers.wanted(P0)
    assert followers.wanted(P1)
    followers.remove(follower)
    assert not followers.wanted(P0)
    followers.offer(piece(1, 1), 1)
    assert follower.next_slice() is None
