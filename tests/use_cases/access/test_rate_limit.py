"""Rate limits hold in the long run for any pattern of calls, per client and per domain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.entities.errors import RateLimited
from iotsphere.entities.principal import Principal
from iotsphere.use_cases.access.rate_limit import Rate, RateLimit

ANN = Principal("user", "ann", "iotsphere")
BOB = Principal("user", "bob", "iotsphere")
EVE = Principal("user", "ann", "other")


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    limit = RateLimit(Rate(messages=10, burst=2), Rate())
    assert [limit.take(ANN, 1, 0, 5.0) for _ in range(20)] == [0.0] * 20
    assert limit.take(ANN, 1, 0, 5.0) == pytest.approx(0.1)
    assert limit.take(ANN, 1, 0, 5.05) == pytest.approx(0.05)
    assert limit.take(ANN, 1, 0, 5.1) == 0.0
    assert limit.take(BOB, 1, 0, 5.1) == 0.0
    assert limit.refused == 2


def test_a_large_batch_passes_and_is_paid_for_afterwards() -> None:
    limit = RateLimit(Rate(bytes=1_000, burst=1), Rate())
    assert limit.take(ANN, 1, 5_000, 0.0) == 0.0
    assert limit.take(ANN, 1, 1, 0.0) == pytest.approx(4.001)
    assert limit.take(ANN, 1, 1, 4.01) == 0.0


def test_a_domain_is_limited_as_a_whole_and_apart_from_others() -> None:
    limit = RateLimit(Rate(), Rate(messages=2, burst=1))
    assert [limit.take(who, 1, 0, 0.0) for who in (ANN, BOB, EVE, EVE)] == [0.0] * 4
    assert limit.take(BOB, 1, 0, 0.0) > 0
    assert limit.take(EVE, 1, 0, 0.0) > 0


def test_what_the_domain_refuses_is_not_taken_from_the_client() -> None:
    limit = RateLimit(Rate(messages=1, burst=1), Rate(messages=1, burst=1))
    assert limit.take(ANN, 1, 0, 0.0) == 0.0
    assert limit.take(BOB, 1, 0, 0.0) > 0
    assert limit.take(BOB, 1, 0, 1.0) == 0.0


def test_a_check_says_when_to_come_again() -> None:
    limit = RateLimit(Rate(messages=1, burst=1), Rate())
    limit.check(ANN, 1, 0, 0.0)
    with pytest.raises(RateLimited, match=r"send again in 1\.0 s") as limited:
        limit.check(ANN, 1, 0, 0.0)
    assert (limited.value.facts, limited.value.retry) == ({"retry_after": 1.0}, True)


def test_who_has_been_quiet_for_a_burst_is_forgotten_when_others_come_and_who_owes_is_not() -> None:
    limit = RateLimit(Rate(messages=10, burst=1), Rate())
    assert limit.take(ANN, 1, 0, 0.0) == 0.0
    assert limit.take(BOB, 15, 0, 0.0) == 0.0
    assert limit.take(EVE, 1, 0, 0.5) == 0.0
    assert list(limit._clients) == [BOB.identity, EVE.identity]
    assert limit.take(BOB, 1, 0, 0.5) == pytest.approx(0.1)


def test_the_number_of_clients_in_memory_is_bounded() -> None:
    limit = RateLimit(Rate(messages=1, burst=1), Rate(), remembered=100)
    for index in range(1_000):
        limit.take(Principal("device", f"d{index}", "iotsphere"), 1, 0, 0.0)
        limit.take(ANN, 1, 0, 0.0)
    assert len(limit._clients) == 100
    assert limit.take(ANN, 1, 0, 0.5) > 0, "whoever is active is not forgotten"


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 7)), max_size=80))
def test_never_more_than_the_burst_the_rate_and_one_batch(calls: list[tuple[float, int]]) -> None:
    limit = RateLimit(Rate(messages=4, burst=2), Rate())
    now, passed = 0.0, 0
    for pause, messages in calls:
        now += pause
        delay = limit.take(ANN, messages, 0, now)
        if delay == 0.0:
            passed += messages
            assert passed <= 8 + 4 * now + 7 + 1e-6
        else:
            assert limit.take(ANN, 1, 0, now + delay + 1e-6) == 0.0, "the promised time is enough"
            passed += 1
            now += delay + 1e-6
