"""A state machine that does the same random things to a database and to memory, and expects to see the same.

Inherit from ``DatabaseMachine``, say how to ``open`` a database and how to ``shut`` it, and run it with
``run_state_machine_as_test``. ``reopens``: the store outlives ``shut``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.entities.errors import IotSphereError
from iotsphere.use_cases.ports.database import Database, Stored, Write

from .database import COLLECTIONS, typed
from .database_changes import Told, told, up_to_now

T = TypeVar("T")
collections = st.sampled_from(("things", "notes", "visits"))
keys = st.sampled_from(("d/a", "d/b", "d/b/c", "e/a", "é/\U0001f511"))
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-2, 2)
texts = st.text(st.characters(codec="utf-8"), max_size=6)
scalars = st.none() | st.booleans() | numbers | texts
names = texts.filter(lambda name: name != "" and name[0] not in "$_" and not {".", "\0"} & set(name))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
owners = st.sampled_from(("ann", "bob", ""))
ranks = st.integers(-2, 2) | st.sampled_from((0.5, -1.0))
# What is indexed has one type per field, as the port demands, or is missing.
things = st.fixed_dictionaries(
    {},
    optional={
        "owner": owners | st.none(),
        "place": st.fixed_dictionaries({}, optional={"rank": ranks | st.none(), "more": values}) | st.just(3),
        "open": st.booleans(),
        "due": st.integers(0, 5),
        "label": owners,
        "more": values,
    },
)
writes = st.dictionaries(
    keys,
    st.tuples(things | st.none(), st.sampled_from(("right", "right", "right", "stale", "none", "other"))),
    max_size=4,
)


class DatabaseMachine(RuleBasedStateMachine):
    """The rules. Each does one thing to both sides and compares what can be seen."""

    reopens: ClassVar[bool] = False

    async def open(self) -> Database:
        """Open the driver's database: an empty store at first, the same store later."""
        raise AssertionError("the subclass says how")

    async def shut(self) -> None:
        """Close what ``open`` opened."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.is_open = False
        self.history: list[Told] = []
        self.tokens: list[str] = []

    def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    @initialize()
    def start(self) -> None:
        self.memory = MemoryDatabase(SystemClock())
        self.driver = self.do(self.open())
        self.is_open = True
        self.past: dict[str, list[Stored]] = {}
        for database in (self.memory, self.driver):
            self.do(database.ensure(COLLECTIONS))
        self.tokens.append(self.do(self.driver.now()))
        self.beginning = self.do(self.memory.now())

    def teardown(self) -> None:
        if self.is_open:
            self.do(self.shut())
        self.do(self.loop.shutdown_asyncgens())
        self.do(self.loop.shutdown_default_executor())
        self.loop.close()

    def same(self, what: Callable[[Database], Awaitable[object]]) -> None:
        """Both sides answer the same; a refusal counts by its class, code and facts."""

        async def ask(database: Database) -> object:
            try:
                return await what(database)
            except IotSphereError as error:
                return type(error), error.code, error.facts

        async def ask_both() -> tuple[object, object]:
            return await ask(self.memory), await ask(self.driver)

        memory, driver = self.do(ask_both())
        assert driver == memory

    @rule(collection=collections, wanted=writes)
    def write(self, collection: str, wanted: dict[str, tuple[Any, str]]) -> None:
        there = self.do(self.memory.get_many(collection, list(wanted)))
        drafts = []
        for key, (body, kind) in wanted.items():
            before = there.get(key)
            past = self.past.get(key, [])
            if kind == "stale" and past:
                before = past[0]
            elif kind == "none":
                before = None
            elif kind == "other":
                before = Stored(key, before.revision if before is not None else 1, {"other": 1})
            drafts.append(Write(key, before, body))
            self.past.setdefault(key, []).extend([there[key]] if key in there else [])

        async def write(database: Database) -> object:
            outcomes = await database.write(collection, drafts)
            return [(done, seen(stands)) for done, stands in outcomes]

        self.same(write)

    @rule(collection=collections, key=keys, body=things | st.none(), stale=st.booleans())
    def put(self, collection: str, key: str, body: Any, stale: bool) -> None:
        before = None if stale else self.do(self.memory.get(collection, key))

        async def put(database: Database) -> object:
            return seen(await database.put(collection, Write(key, before, body)))

        self.same(put)

    @rule(owner=owners, rank=ranks | st.none(), after=ranks | st.none(), limit=st.integers(1, 5))
    def find_by_owner(self, owner: str, rank: Any, after: Any, limit: int) -> None:
        async def find(database: Database) -> object:
            equal = [owner] if rank is None else [owner, rank]
            start = after if rank is None else None
            return list(map(seen, await database.find("things", "by_owner", equal, after=start, limit=limit)))

        self.same(find)

    @rule(is_open=st.booleans(), limit=st.integers(1, 3))
    def page_through_open(self, is_open: bool, limit: int) -> None:
        async def find(database: Database) -> object:
            found: list[Stored] = []
            while page := await database.find(
                "things", "open", [is_open], after=found[-1] if found else None, limit=limit
            ):
                found += page
            return list(map(seen, found))

        self.same(find)

    @rule(collection=collections, prefix=keys | st.just(""), after=keys | st.just(""), limit=st.integers(1, 4))
    def scan(self, collection: str, prefix: str, after: str, limit: int) -> None:
        async def scan(database: Database) -> object:
            return list(map(seen, await database.scan(collection, prefix, after, limit)))

        self.same(scan)

    @rule()
    def replay(self) -> None:
        """From each token that was seen, the driver tells the same as from the first one, less what came before."""
        expected = [told(change) for change in self.do(up_to_now(self.memory, self.beginning))]
        everything = self.do(up_to_now(self.driver, self.tokens[0]))
        assert by_document(list(map(told, everything))) == by_document(expected)
        tokens = [self.tokens[0], *(change.token for change in everything)]
        assert tokens[: len(self.tokens)] == self.tokens
        assert len(set(tokens)) == len(tokens)
        for index in {len(self.tokens) - 1, len(tokens) // 2, len(tokens) - 1}:
            assert self.do(up_to_now(self.driver, tokens[index])) == everything[index:]
        self.tokens = tokens

    @precondition(lambda self: self.reopens)
    @rule()
    def reopen(self) -> None:
        self.do(self.shut())
        self.is_open = False
        self.driver = self.do(self.open())
        self.is_open = True
        self.do(self.driver.ensure(COLLECTIONS))

    @invariant()
    def holds_the_same(self) -> None:
        if not self.is_open:
            return

        async def look(database: Database) -> object:
            return [seen(one) for name in ("things", "notes", "visits") for one in await database.scan(name, "d/")]

        self.same(look)


def seen(stands: Stored | None) -> object:
    """A document, with the types of what it holds."""
    return None if stands is None else (stands.key, stands.revision, typed(stands.body))


def by_document(changes: Sequence[Told]) -> list[object]:
    """What was told, by document: only there an order is promised, for one call writes several in any order."""
    return [typed(list(one)) for one in sorted(changes, key=lambda one: one[1:3])]
