"""One partition of a shared subscription against a model: members come, go, die, stall and acknowledge in any order."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iotsphere.entities.message import Entry, Record
from iotsphere.entities.position import Gap, Partition, Position
from iotsphere.use_cases.ports.message_log import Slice, Tally
from iotsphere.use_cases.sharing.crew import SLOTS, Crew, Handout, Seat, slot_of
from iotsphere.use_cases.sharing.lane import AHEAD, Lane
from iotsphere.use_cases.sharing.marks import APPLIED, EXPIRED, HELD, OPEN, Marks
from tests.support.examples import tried

PARTITION = Partition("iotsphere", "telemetry", 0)
NOW = 1_000
LEASED = 1 << 50
KEYS = "abcde"


def entry(offset: int, key: str, *, expires_at: int = 0, epoch: int = 1) -> Entry:
    """``key`` is the topic; ``-`` is selected by nobody."""
    return Entry(Position(epoch, offset), 0, Record(PARTITION, key, f"id-{offset}", b"x" * 100, 0, expires_at))


class Bench:
    """A lane over a list, and members that pull by hand."""

    def __init__(self, start: int = 0, limit: int = 700) -> None:
        self.log: list[Entry] = []
        self.crew = Crew()
        self.lane = self.new_lane(start)
        self.limit = limit

    def new_lane(self, start: int) -> Lane:
        lane = Lane(
            PARTITION, Position(1, start), self.crew, lambda topic: None if topic == "-" else topic, lambda _: None
        )
        lane.until = LEASED
        return lane

    def say(self, *keys: str, expires_at: int = 0) -> None:
        for key in keys:
            self.log.append(entry(len(self.log) + 1, key, expires_at=expires_at))

    def seat(self, name: str) -> Seat:
        seat = Seat(name, lambda: None, lambda: None, self.limit)
        self.crew.join(seat)
        return seat

    def read(self, after: Position, limit: int) -> Slice:
        entries = self.log[after.offset : after.offset + limit]
        return Slice(PARTITION, entries, entries[-1].position if entries else after)

    def step(self, limit: int = 100, now: int = NOW) -> bool:
        """What a group does when it is woken."""
        moved = False
        after = self.lane.again()
        if after is not None:
            self.lane.retake(after, self.read(after, limit), now)
            moved = True
        if self.lane.wants_more and self.lane.read.offset < len(self.log):
            self.lane.take(self.read(self.lane.read, limit), now)
            moved = True
        return moved

    def leave(self, seat: Seat, *, gone: bool) -> None:
        self.crew.leave(seat)
        for handout in [*seat.withdraw(), *(seat.ground() if gone else ())]:
            self.lane.take_back(handout)
        if gone:
            self.crew.forget(seat)

    def settled(self) -> tuple[int, Tally]:
        found = self.lane.settled()
        assert found is not None
        return found[0].offset, found[1]


def pulled(seat: Seat, count: int = 1_000, now: int = NOW) -> list[int]:
    found: list[int] = []
    while len(found) < count and (item := seat.pull(now)) is not None:
        found.append(item[0].offset)
    return found


def flying(seat: Seat, offset: int) -> Handout:
    (handout,) = (each for each in seat.flying if each.offset == offset)
    return handout


def test_keys_are_spread_and_few_of_them_move_when_a_member_comes_or_goes() -> None:
    bench = Bench()
    for name in "xyz":
        bench.seat(name)
    homes = {slot: bench.crew.home(slot) for slot in range(SLOTS)}
    counts = [list(homes.values()).count(seat) for seat in bench.crew]
    assert min(counts) > SLOTS * 0.29
    fourth = bench.seat("w")
    moved = {slot for slot, home in homes.items() if bench.crew.home(slot) is not home}
    assert {bench.crew.home(slot) for slot in moved} == {fourth}
    assert SLOTS * 0.2 < len(moved) < SLOTS * 0.3
    bench.leave(fourth, gone=True)
    assert {slot: bench.crew.home(slot) for slot in range(SLOTS)} == homes


def test_a_full_member_holds_back_its_own_keys_only_and_they_go_on_from_the_log() -> None:
    bench = Bench(limit=600)
    one, two = bench.seat("one"), bench.seat("two")
    mine = next(key for key in KEYS if bench.crew.home(slot_of(key)) is one)
    other = next(key for key in KEYS if bench.crew.home(slot_of(key)) is two)
    bench.say(mine, mine, mine)
    bench.step(limit=2)
    assert one.full
    bench.say(other)
    while bench.step(limit=1):
        pass
    assert pulled(two) == [4]
    assert bench.lane.again() is None
    assert pulled(one) == [1, 2]
    assert bench.lane.again() == Position(1, 2)
    while bench.step():
        pass
    assert pulled(one) == [3]


def test_what_a_dead_member_had_comes_to_another_before_anything_newer() -> None:
    bench = Bench(limit=10_000)
    one = bench.seat("one")
    bench.say("a", "b", "a", "a")
    bench.step()
    assert pulled(one, 3) == [1, 2, 3]
    bench.lane.settle(flying(one, 2))
    bench.leave(one, gone=True)
    two = bench.seat("two")
    bench.say("a")
    while bench.step():
        pass
    assert pulled(two) == [1, 3, 4, 5]


def test_what_a_stuck_member_did_not_pull_goes_to_others_once_its_own_is_settled() -> None:
    bench = Bench()
    one, two = bench.seat("one"), bench.seat("two")
    mine = next(key for key in KEYS if bench.crew.home(slot_of(key)) is one)
    idle = next(key for key in "fghijklmnop" if bench.crew.home(slot_of(key)) is one)
    bench.say(mine, mine, idle)
    bench.step()
    assert pulled(one, 1) == [1]
    assert [one.look(at, 5.0) for at in (0.0, 1.0, 5.9)] == [False, False, False]
    assert one.look(6.0, 5.0)
    for handout in one.withdraw():
        bench.lane.take_back(handout)
    while bench.step():
        pass
    assert pulled(two) == [3]
    bench.lane.settle(flying(one, 1))
    while bench.step():
        pass
    assert pulled(two) == [2]


def test_without_its_lease_nothing_is_handed_out() -> None:
    bench = Bench()
    one = bench.seat("one")
    bench.say("a")
    bench.step()
    bench.lane.until = NOW
    assert pulled(one) == []
    bench.lane.until = NOW + 1
    assert pulled(one) == [1]


def test_expired_and_foreign_messages_are_passed_over_and_accounted_for() -> None:
    bench = Bench()
    one = bench.seat("one")
    bench.say("a", "-")
    bench.say("a", expires_at=NOW)
    bench.say("a", expires_at=NOW + 1)
    bench.step()
    assert pulled(one, now=NOW + 1) == [1]
    bench.lane.settle(flying(one, 1))
    assert bench.settled() == (4, Tally(applied=2, expired=2))


def test_a_gap_is_lost_but_not_what_members_hold_already() -> None:
    bench = Bench(limit=400)
    one = bench.seat("one")
    bench.say("a", "a", "a", "b")
    bench.step(limit=2)
    assert pulled(one, 1) == [1]
    piece = Slice(PARTITION, [entry(6, "a")], Position(1, 6), Gap(PARTITION, 3, 5, "retention"))
    assert pulled(one) == [2]
    bench.lane.take(piece, NOW)
    assert pulled(one) == [6]
    for offset in (1, 2, 6):
        bench.lane.settle(flying(one, offset))
    assert bench.settled() == (6, Tally(applied=3, lost=3))


def test_a_log_that_was_made_anew_is_read_from_where_it_begins() -> None:
    bench = Bench(start=7)
    one = bench.seat("one")
    piece = Slice(PARTITION, [entry(5, "a", epoch=2)], Position(2, 5), Gap(PARTITION, 5, 4, "rebuilt"))
    bench.lane.take(piece, NOW)
    assert pulled(one) == [5]
    bench.lane.settle(flying(one, 5))
    assert bench.lane.settled() == (Position(2, 5), Tally())  # it was counted in its earlier life


def test_a_lane_goes_a_million_messages_past_one_that_is_not_settled_and_no_further() -> None:
    bench = Bench()
    one = bench.seat("one")
    bench.say("a")
    bench.step()
    assert pulled(one) == [1]
    bench.lane.take(Slice(PARTITION, [], Position(1, AHEAD), Gap(PARTITION, 2, AHEAD, "retention")), NOW)
    assert not bench.lane.wants_more
    bench.lane.settle(flying(one, 1))
    assert bench.settled() == (AHEAD, Tally(applied=1, lost=AHEAD - 1))
    bench.lane.committed(Position(1, AHEAD))
    assert bench.lane.wants_more


def test_marks_know_the_epoch_of_each_offset() -> None:
    marks = Marks(Position(1, 10))
    for offset in (11, 12):
        marks.add(Position(1, offset), APPLIED)
    marks.add(Position(3, 13), HELD)
    marks.add(Position(3, 14), OPEN)
    assert [marks.position(offset) for offset in (9, 10, 12, 13, 14)] == [
        (1, 9),
        (1, 10),
        (1, 12),
        (3, 13),
        (3, 14),
    ]
    assert marks.settled() == (Position(1, 12), Tally(applied=2))
    marks.forget(12)
    assert marks.settled() is None
    marks.put(13, EXPIRED)
    assert marks.settled() == (Position(3, 13), Tally(expired=1))


def test_what_is_settled_behind_a_stuck_message_is_remembered() -> None:
    marks = Marks(Position(1, 10))
    for offset, mark in ((11, APPLIED), (12, HELD), (13, APPLIED), (14, EXPIRED)):
        marks.add(Position(1, offset), mark)
    marks.add(Position(2, 15), OPEN)
    assert marks.scattered()
    again = Marks.read(marks.stored())
    assert [again.known(Position(1, offset)) for offset in range(9, 15)] == [
        OPEN,
        OPEN,
        APPLIED,
        OPEN,
        APPLIED,
        EXPIRED,
    ]
    assert again.known(Position(2, 14)) == OPEN  # another message in a log that was made anew
    assert (again.known(Position(2, 15)), again.known(Position(2, 16))) == (OPEN, OPEN)
    marks.put(12, APPLIED)
    assert not marks.scattered()


class LaneMachine(RuleBasedStateMachine):
    """Invariants: order per key, one member per key at a time, nothing settled comes again, nothing is stranded."""

    @initialize()
    def begin(self) -> None:
        self.bench = Bench()
        self.members: list[Seat] = []
        self.leaving: list[Seat] = []
        self.names = 0
        self.done: set[int] = set()
        self.committed = 0
        self.tally = Tally()
        self.remembered: bytes | None = None
        self.remembered_done: set[int] = set()

    @rule(keys=st.lists(st.sampled_from([*KEYS, "-"]), min_size=1, max_size=12))
    def say(self, keys: list[str]) -> None:
        self.bench.say(*keys)

    @rule(limit=st.integers(1, 8))
    def step(self, limit: int) -> None:
        self.bench.step(limit)

    @rule()
    def join(self) -> None:
        self.names += 1
        self.members.append(self.bench.seat(f"m{self.names}"))

    def pull(self, seat: Seat) -> bool:
        item = seat.pull(NOW)
        if item is None:
            return False
        handout, got = item
        key = got.record.topic
        assert handout.offset not in self.done, "settled, and it comes again"
        for earlier in self.bench.log[: handout.offset - 1]:
            offset = earlier.position.offset
            if earlier.record.topic == key and offset not in self.done and offset > self.committed:
                assert any(each.offset == offset for each in seat.flying), f"{handout.offset} overtakes {offset}"
        return True

    @precondition(lambda self: self.members)
    @rule(data=st.data(), count=st.integers(1, 4))
    def some_pull(self, data: st.DataObject, count: int) -> None:
        seat = data.draw(st.sampled_from(self.members))
        for _ in range(count):
            self.pull(seat)

    @precondition(lambda self: any(seat.flying for seat in [*self.members, *self.leaving]))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        held = [handout for seat in [*self.members, *self.leaving] for handout in seat.flying]
        handout = data.draw(st.sampled_from(held))
        assert handout.offset not in self.done
        self.done.add(handout.offset)
        self.bench.lane.settle(handout)
        self.bench.lane.settle(handout)  # safe to repeat

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        seat = data.draw(st.sampled_from(self.members))
        self.members.remove(seat)
        self.leaving.append(seat)
        self.bench.leave(seat, gone=False)

    @precondition(lambda self: self.members or self.leaving)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        seat = data.draw(st.sampled_from([*self.members, *self.leaving]))
        (self.members if seat in self.members else self.leaving).remove(seat)
        had = list(seat.flying)
        self.bench.leave(seat, gone=True)
        for handout in had:
            self.bench.lane.settle(handout)  # too late to count

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def get_stuck(self, data: st.DataObject) -> None:
        seat = data.draw(st.sampled_from(self.members))
        seat.look(0.0, 1.0)
        if seat.look(0.0, 1.0) or seat.look(2.0, 1.0):
            for handout in seat.withdraw():
                self.bench.lane.take_back(handout)

    @rule()
    def commit(self) -> None:
        found = self.bench.lane.settled()
        if found is not None:
            position, tally = found
            self.bench.lane.committed(position)
            self.committed = position.offset
            self.tally = self.tally.plus(tally)

    @rule()
    def remember(self) -> None:
        self.remembered = self.bench.lane.scattered()
        self.remembered_done = set(self.done) if self.remembered is not None else set()

    @rule()
    def crash(self) -> None:
        """Another process goes on from what is committed, with members of its own."""
        self.bench.lane.end()
        self.members.clear()
        self.leaving.clear()
        self.bench.crew = Crew()
        self.bench.lane = self.bench.new_lane(self.committed)
        self.bench.lane.past = Marks.read(self.remembered) if self.remembered is not None else None
        self.done = {offset for offset in self.done if offset <= self.committed or offset in self.remembered_done}

    @invariant()
    def each_key_is_with_one_member(self) -> None:
        if not hasattr(self, "bench"):
            return
        holders: dict[str, set[str]] = {}
        for seat in [*self.members, *self.leaving]:
            for handout in [*seat.flying, *(pair[0] for pair in seat.waiting)]:
                holders.setdefault(handout.line.key, set()).add(seat.name)
        assert all(len(names) == 1 for names in holders.values()), holders

    def teardown(self) -> None:
        """Whoever is left settles everything; then nothing may be missing."""
        if not hasattr(self, "bench"):
            return
        for seat in list(self.leaving):
            self.bench.leave(seat, gone=True)
        self.leaving.clear()
        self.join()
        for _ in range(10 * len(self.bench.log) + 100):
            while self.bench.step():
                pass
            for seat in self.members:
                while self.pull(seat):
                    pass
                for handout in list(seat.flying):
                    self.done.add(handout.offset)
                    self.bench.lane.settle(handout)
            self.commit()
            if self.committed == len(self.bench.log):
                break
        assert self.committed == len(self.bench.log)
        assert self.tally == Tally(applied=len(self.bench.log))
        wanted = {each.position.offset for each in self.bench.log if each.record.topic != "-"}
        assert self.done == wanted


TestLaneMachine = LaneMachine.TestCase
TestLaneMachine.settings = tried(100, 40)
