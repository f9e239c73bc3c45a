"""A follower is handed what follows on, holds a bounded number of bytes, and otherwise reads the file."""

from __future__ import annotations

from iotsphere.drivers.sqlite.followers import MOST_BYTES, Follower, Followers
from iotsphere.entities.message import Entry
from iotsphere.entities.position import Partition, Position
from iotsphere.use_cases.ports.message_log import Slice
from tests.contracts.records import P0, P1, record

RECORD = record()


def piece(first: int, last: int, partition: Partition = P0) -> Slice:
    entries = [Entry(Position(1, offset), 0, RECORD) for offset in range(first, last + 1)]
    return Slice(partition, entries, Position(1, last))


def caught_up(follower: Follower, partition: Partition = P0, offset: int = 0) -> None:
    """Read the partition's file up to an offset, and find that this is its end."""
    assert follower.next_step() == partition
    if offset:
        assert follower.took(piece(1, offset, partition)) is True
        assert follower.next_step() == partition
    assert follower.took(Slice(partition, [], Position(1, offset))) is False


def test_it_begins_behind_and_goes_live_once_it_has_everything() -> None:
    followers = Followers()
    follower = followers.add({P0: Position(1, 0)})
    caught_up(follower, offset=3)
    assert follower.next_step() is None
    followers.offer(piece(4, 5), 100)
    assert follower.next_step() == piece(4, 5)
    assert follower.next_step() is None


def test_what_is_committed_while_it_reads_is_not_missed() -> None:
    followers = Followers()
    follower = followers.add({P0: Position(1, 0)})
    assert follower.next_step() == P0
    followers.offer(piece(1, 1), 100)
    assert follower.took(Slice(P0, [], Position(1, 0))) is False
    assert follower.next_step() == P0


def test_what_it_read_already_is_not_handed_over_again() -> None:
    followers = Followers()
    follower = followers.add({P0: Position(1, 0)})
    caught_up(follower, offset=4)
    followers.offer(piece(3, 4), 100)
    assert follower.next_step() is None
    followers.offer(piece(5, 5), 100)
    assert follower.next_step() == piece(5, 5)


def test_it_holds_no_more_than_its_share() -> None:
    followers = Followers()
    follower = followers.add({P0: Position(1, 0)})
    caught_up(follower)
    for offset in range(1, 11):
        followers.offer(piece(offset, offset), MOST_BYTES // 4)
    assert [follower.next_step() for _ in range(5)] == [piece(1, 1), piece(2, 2), piece(3, 3), piece(4, 4), P0]
    assert follower.places[P0] == Position(1, 4)


def test_a_busy_partition_does_not_starve_one_that_is_behind() -> None:
    followers = Followers()
    follower = followers.add({P0: Position(1, 0), P1: Position(1, 0)})
    caught_up(follower, P0)
    caught_up(follower, P1)
    followers.offer(piece(1, 1), MOST_BYTES)
    followers.offer(piece(1, 1, P1), 100)
    steps = []
    for offset in range(2, 6):
        steps.append(follower.next_step())
        followers.offer(piece(offset, offset), 100)
    assert P1 in steps


def test_nobody_is_told_once_it_is_gone() -> None:
    followers = Followers()
    follower = followers.add({P0: Position(1, 0), P1: Position(1, 0)})
    assert followers.wanted(P0)
    assert followers.wanted(P1)
    followers.remove(follower)
    assert not followers.wanted(P0)
    followers.offer(piece(1, 1), 1)
    assert follower.places == {P0: Position(1, 0), P1: Position(1, 0)}
