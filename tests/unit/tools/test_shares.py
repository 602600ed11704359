"""Which tests of a file are in a share."""

from __future__ import annotations

import pytest

from tests.fixtures import shares

SEEDS = [str(seed) for seed in range(40)]
NAMES = [f'tests/flows/test_some.py::test_it[{number}]' for number in range(30)]


@pytest.mark.parametrize('step', [2, 3, 12])
@pytest.mark.parametrize('number', [1, 2, 30])
def test_each_test_of_a_file_is_chosen_by_some_seed(number, step):
    chosen = [shares.share_of(NAMES[:number], 0, step, seed) for seed in SEEDS]
    assert set().union(*chosen) == set(NAMES[:number])
    assert number == 1 or len(set(map(frozenset, chosen))) > 1


@pytest.mark.parametrize('step', [2, 3, 12])
@pytest.mark.parametrize('seed', SEEDS[:5])
def test_the_shares_of_a_seed_have_no_test_in_common_and_are_all_tests(step, seed):
    """Of a file large enough that each share has a test by its place."""
    names = [f'{name} {number}' for name in NAMES for number in range(10)]
    found = [shares.share_of(names, first, step, seed) for first in range(step)]
    assert sum(map(len, found)) == len(names) and set().union(*found) == set(names)
    assert max(map(len, found)) < 2 * len(names) / step


@pytest.mark.parametrize('first', range(3))
@pytest.mark.parametrize('seed', SEEDS)
def test_a_file_with_one_test_always_runs_it(first, seed):
    assert shares.share_of(NAMES[:1], first, 3, seed) == set(NAMES[:1])


def test_a_file_without_tests_has_an_empty_share():
    assert shares.share_of([], 0, 2, '1') == set()


@pytest.mark.parametrize('seed', SEEDS[:10])
def test_a_test_that_comes_or_goes_changes_no_other(seed):
    whole = shares.share_of(NAMES, 1, 3, seed)
    assert shares.share_of(NAMES[:20], 1, 3, seed) == whole & set(NAMES[:20])


def test_what_is_asked_for_by_the_environment(monkeypatch):
    for name in ('SHARE', 'SEED'):
        monkeypatch.delenv(f'KILONOVA_TEST_{name}', raising=False)
    assert (shares.share('SHARE'), shares.seed()) == ((0, 1), '0')
    monkeypatch.setenv('KILONOVA_TEST_SHARE', '2/4')
    monkeypatch.setenv('KILONOVA_TEST_SEED', '17')
    assert (shares.share('SHARE'), shares.seed()) == ((2, 4), '17')
