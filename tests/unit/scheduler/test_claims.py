"""Which provider serves which group, worked out again from a server's allocations."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova.scheduler.claims import mappings_of
from kilonova.scheduler.query import Group, Query


def question(**groups):
    return Query(groups={'': Group(resources={'VCPU': 2}), **groups})


def amounts(**providers):
    return {rp: {'resources': dict(resources)} for rp, resources in providers.items()}


def never(rp):
    raise AssertionError(f'traits of {rp} were read')


def test_equal_groups_in_any_order_without_a_look_at_traits():
    query = question(a=Group(resources={'GPU': 1}, required={'T'}), b=Group(resources={'GPU': 1}, required={'T'}))
    found = mappings_of(query, amounts(root={'VCPU': 2}, d1={'GPU': 1}, d2={'GPU': 1}), never)
    assert found['']== ['root']
    assert sorted(found['a'] + found['b']) == ['d1', 'd2']


def test_groups_that_differ_in_traits_get_the_provider_that_has_them():
    query = question(a=Group(resources={'GPU': 1}), b=Group(resources={'GPU': 1}, required={'FAST'}))
    given_out = amounts(root={'VCPU': 2}, d1={'GPU': 1}, d2={'GPU': 1})
    assert mappings_of(query, given_out, {'d1': {'FAST'}, 'd2': set()}.get) == {'': ['root'], 'a': ['d2'], 'b': ['d1']}
    assert mappings_of(query, given_out, {'d1': set(), 'd2': set()}.get) is None


def test_several_groups_on_one_provider():
    query = question(a=Group(resources={'VF': 1}), b=Group(resources={'VF': 1}))
    assert mappings_of(query, amounts(root={'VCPU': 2}, pf={'VF': 2}), never) == {
        '': ['root'], 'a': ['pf'], 'b': ['pf']}


@pytest.mark.parametrize('given_out', [
    amounts(root={'VCPU': 2}), amounts(root={'VCPU': 1}, d1={'GPU': 1}), amounts(root={'VCPU': 2}, d1={'GPU': 2}),
    amounts(root={'VCPU': 2}, d1={'GPU': 1}, d2={'DISK_GB': 1})])
def test_other_amounts_are_no_answer(given_out):
    assert mappings_of(question(a=Group(resources={'GPU': 1})), given_out, never) is None


@given(st.lists(st.sampled_from(['d1', 'd2', 'd3']), min_size=1, max_size=5))
def test_every_answer_of_placement_is_recognised(devices):
    query = question(**{f'g{number}': Group(resources={'GPU': 1}) for number in range(len(devices))})
    given_out = amounts(root={'VCPU': 2}, **{rp: {'GPU': devices.count(rp)} for rp in devices})
    found = mappings_of(query, given_out, never)
    assert sorted(rp for group, rps in found.items() if group for rp in rps) == sorted(devices)
