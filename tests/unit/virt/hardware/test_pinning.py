"""Host CPUs for dedicated vCPUs, by thread policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova.virt.hardware.pinning import ISOLATE, PREFER, REQUIRE, occupied, pin

PAIRS = [{0, 1}, {2, 3}, {4, 5}, {6, 7}]


def test_neighbours_share_a_core() -> None:
    found = pin({2, 3, 6, 7}, PAIRS, [0, 1])
    assert found is not None
    assert (found.pins, found.threads) == ({0: 2, 1: 3}, 2)


def test_an_odd_guest_takes_what_others_left_first() -> None:
    found = pin({0, 1, 2, 3, 5}, PAIRS, [0], PREFER)
    assert found is not None
    assert found.pins == {0: 5}


def test_prefer_falls_back_to_single_threads() -> None:
    found = pin({1, 3, 5, 7}, PAIRS, [0, 1], PREFER)
    assert found is not None
    assert (sorted(found.pins.values()), found.threads) == ([1, 3], 1)


@pytest.mark.parametrize(
    ('free', 'siblings', 'pins'),
    [
        ({0, 1, 2, 3}, PAIRS, {0: 0, 1: 1, 2: 2}),  # the fourth thread stays free, three don't make cores
        ({1, 3, 5, 7}, PAIRS, None),  # no core has two free threads
        ({0, 1, 2, 3}, [], None),
    ],
)  # a host without threads
def test_require_takes_whole_cores(free: set[int], siblings: list[set[int]], pins: dict[int, int] | None) -> None:
    found = pin(free, siblings, [0, 1, 2], REQUIRE)
    assert (found.pins if found else None) == pins


def test_isolate_leaves_the_other_threads_unused() -> None:
    found = pin({0, 1, 2, 3, 5}, PAIRS, [0, 1], ISOLATE)
    assert found is not None
    assert found.pins == {0: 0, 1: 2}
    assert occupied(found.pins, found.reserved, PAIRS, ISOLATE) == {0, 1, 2, 3}
    assert pin({0, 1, 2, 3, 5}, PAIRS, [0, 1, 2], ISOLATE) is None


def test_emulator_threads_get_a_cpu_of_their_own() -> None:
    found = pin({0, 1, 2}, PAIRS, [0, 1], reserve=1)
    assert found is not None
    assert (found.pins, found.reserved) == ({0: 0, 1: 1}, {2})
    assert pin({0, 1}, PAIRS, [0, 1], reserve=1) is None
    alone = pin({0, 1, 2, 3}, PAIRS, [0], ISOLATE, reserve=1)
    assert alone is not None
    assert occupied(alone.pins, alone.reserved, PAIRS, ISOLATE) == {0, 1, 2, 3}


@given(
    st.sets(st.integers(0, 15)),
    st.integers(1, 4),
    st.integers(1, 8),
    st.sampled_from((None, PREFER, REQUIRE, ISOLATE)),
    st.integers(0, 1),
)
def test_pins_are_free_different_and_of_the_policy(
    free: set[int], threads: int, count: int, policy: str | None, reserve: int
) -> None:
    siblings = [set(range(first, first + threads)) for first in range(0, 16, threads)]
    found = pin(free, siblings, range(count), policy, reserve)
    if found is None:
        # Only a policy, or too few, refuses.
        assert policy in (REQUIRE, ISOLATE) or len(free) < count + reserve
        return
    taken = occupied(found.pins, found.reserved, siblings, policy)
    assert sorted(found.pins) == list(range(count))
    assert len({*found.pins.values(), *found.reserved}) == count + reserve
    assert taken <= free
    cores = [group & set(found.pins.values()) for group in siblings]
    if policy == ISOLATE:
        assert all(len(core) <= 1 for core in cores)
    if found.threads > 1:
        cpus = [found.pins[vcpu] for vcpu in range(count)]
        for first in range(0, count, found.threads):
            assert any(set(cpus[first : first + found.threads]) <= group for group in siblings)
