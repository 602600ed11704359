"""Sets of CPUs as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova.objects import cpuset


@pytest.mark.parametrize(
    ('text', 'cpus'),
    [('0-3,^2,7', {0, 1, 3, 7}), (' 1 , 3 - 4 ', {1, 3, 4}), ('', set()), ('5', {5}), ('0-7,^0-3', {4, 5, 6, 7})],
)
def test_numbers_ranges_exceptions(text: str, cpus: set[int]) -> None:
    assert cpuset.parse(text) == cpus


def test_exceptions_alone_are_taken_from_all() -> None:
    assert cpuset.parse('^0,^3', {0, 1, 2, 3}) == {1, 2}


@pytest.mark.parametrize('text', ['a', '3-1', '1-', '-1', '0-99999999', '1;2', '^'])
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(ValueError, match=r'neither|not a range'):
        cpuset.parse(text)


@pytest.mark.parametrize(
    'text',
    ['0-99999999', f'0-{cpuset.MOST}', f'{cpuset.MOST}', '0-65535,' * 100, '^0-65535,' * 100, '9' * 5000, '1' * 10],
)
def test_no_list_grows_beyond_what_a_machine_has(text: str) -> None:
    """A list of CPUs that contains more CPUs than a machine can have is refused, in one range or in many."""
    with pytest.raises(ValueError, match=r'not a range|neither|more than'):
        cpuset.parse(text)


@given(st.sets(st.integers(0, 300)))
def test_text_is_read_back(cpus: set[int]) -> None:
    assert cpuset.parse(cpuset.text(cpus)) == cpus
