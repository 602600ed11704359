"""Which provider serves which group, worked out again from a server's allocations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova import errors
from kilonova.clients.placement import WRITE_ATTEMPTS
from kilonova.scheduler.placement.claims import Caller, Claims, mappings_of
from kilonova.scheduler.placement.query import CandidateQuery, Group


def question(**groups):
    return CandidateQuery(groups={'': Group(resources={'VCPU': 2}), **groups})


def amounts(**providers):
    return {rp: {'resources': dict(resources)} for rp, resources in providers.items()}


def never(rp):
    raise AssertionError(f'traits of {rp} were read')


def test_equal_groups_in_any_order_without_a_look_at_traits():
    query = question(a=Group(resources={'GPU': 1}, required={'T'}), b=Group(resources={'GPU': 1}, required={'T'}))
    found = mappings_of(query, amounts(root={'VCPU': 2}, d1={'GPU': 1}, d2={'GPU': 1}), never)
    assert found[''] == ['root']
    assert sorted(found['a'] + found['b']) == ['d1', 'd2']


def test_groups_of_other_classes_need_no_look_at_traits():
    query = question(a=Group(resources={'GPU': 1}), b=Group(resources={'NIC': 1}, required={'FAST'}))
    assert mappings_of(query, amounts(root={'VCPU': 2}, d1={'GPU': 1}, d2={'NIC': 1}), never) == {
        '': ['root'],
        'a': ['d1'],
        'b': ['d2'],
    }


def test_groups_that_differ_in_traits_get_the_provider_that_has_them():
    query = question(a=Group(resources={'GPU': 1}), b=Group(resources={'GPU': 1}, required={'FAST'}))
    given_out = amounts(root={'VCPU': 2}, d1={'GPU': 1}, d2={'GPU': 1})
    assert mappings_of(query, given_out, {'d1': {'FAST'}, 'd2': set()}.get) == {'': ['root'], 'a': ['d2'], 'b': ['d1']}
    assert mappings_of(query, given_out, {'d1': set(), 'd2': set()}.get) is None


def test_a_group_of_two_classes_gets_the_provider_that_has_both():
    query = question(a=Group(resources={'GPU': 1, 'VF': 1}), b=Group(resources={'GPU': 1}))
    given_out = amounts(root={'VCPU': 2}, d1={'GPU': 1}, d2={'GPU': 1, 'VF': 1})
    assert mappings_of(query, given_out, lambda rp: set()) == {'': ['root'], 'a': ['d2'], 'b': ['d1']}


def test_several_groups_on_one_provider():
    query = question(a=Group(resources={'VF': 1}), b=Group(resources={'VF': 1}))
    assert mappings_of(query, amounts(root={'VCPU': 2}, pf={'VF': 2}), never) == {
        '': ['root'],
        'a': ['pf'],
        'b': ['pf'],
    }


@pytest.mark.parametrize(
    'given_out',
    [
        amounts(root={'VCPU': 2}),
        amounts(root={'VCPU': 1}, d1={'GPU': 1}),
        amounts(root={'VCPU': 2}, d1={'GPU': 2}),
        amounts(root={'VCPU': 2}, d1={'GPU': 1}, d2={'DISK_GB': 1}),
    ],
)
def test_other_amounts_are_no_answer(given_out):
    assert mappings_of(question(a=Group(resources={'GPU': 1})), given_out, never) is None


@given(st.lists(st.sampled_from(['d1', 'd2', 'd3']), min_size=1, max_size=5))
def test_every_answer_of_placement_is_recognised(devices):
    query = question(**{f'g{number}': Group(resources={'GPU': 1}) for number in range(len(devices))})
    given_out = amounts(root={'VCPU': 2}, **{rp: {'GPU': devices.count(rp)} for rp in devices})
    found = mappings_of(query, given_out, never)
    assert sorted(rp for group, rps in found.items() if group for rp in rps) == sorted(devices)


# -- claim by claim ----------------------------------------------------------------------------------------------------
class Placement:
    """Gives each provider away once."""

    def __init__(self, *taken):
        self.taken, self.held = set(taken), {}

    def claim(self, consumer, allocations, mappings=None, generation=None, **owner):
        if self.taken & set(allocations):
            raise errors.PlacementConflict(detail='no room')
        assert generation == (1 if consumer in self.held else None)
        self.taken = self.taken - set(self.held.pop(consumer, ())) | set(allocations)
        if allocations:
            self.held[consumer] = allocations

    def get_allocations(self, consumer):
        held = self.held.get(consumer)
        return {'allocations': held, 'consumer_generation': 1} if held else {'allocations': {}}


def wanting(rp):
    return {'allocations': amounts(**{rp: {'GPU': 1}}), 'mappings': {'a': [rp]}}


def test_a_refused_claim_is_the_next_hosts_turn_and_a_failure_gives_all_back():
    """A refused claim returns None, after which the next host is tried. A failure gives back what was claimed for
    the earlier servers of the request, and no other allocation."""
    placement = Placement('gone')
    placement.held['somebody'] = amounts(other={'GPU': 1})
    claims = Claims(placement, question(), Caller(), project_id='p', user_id='u', host_of=lambda rps: None)
    assert claims.claim('s1', 'host1', wanting('gone')) is None
    choice = claims.claim('s1', 'host2', wanting('free'))
    assert (choice.host, choice.request) == ('host2', wanting('free'))
    assert claims.claim('s2', 'host3', wanting('last')).host == 'host3'
    assert set(placement.held) == {'somebody', 's1', 's2'}
    claims.give_back()
    assert set(placement.held) == {'somebody'} and placement.taken == {'gone'}


def test_an_allocation_that_others_keep_writing_is_no_answer():
    class Busy(Placement):
        def claim(self, consumer, allocations, mappings=None, generation=None, **owner):
            error = errors.PlacementConflict(detail='consumer generation conflict')
            error.placement_code = 'placement.concurrent_update'
            tries.append(generation)
            raise error

    tries, placement = [], Busy()
    placement.held['s1'] = amounts(root={'VCPU': 2})
    claims = Claims(placement, question(), Caller(), project_id='p', user_id='u', host_of=lambda rps: 'host1')
    with pytest.raises(errors.Unanswered, match=r'^Other requests changed the allocation of s1 at the same time'):
        claims.existing('s1')
    assert tries == [1] * WRITE_ATTEMPTS


def test_what_is_given_back_is_asked_about_once():
    asked = []

    class Watched(Placement):
        def get_allocations(self, consumer):
            asked.append(consumer)
            return super().get_allocations(consumer)

    claims = Claims(Watched(), question(), Caller(), project_id='p', user_id='u', host_of=lambda rps: None)
    for server in ('s1', 's2'):
        claims.claim(server, 'host1', wanting(server))
    claims.give_back(['s2', 'unknown'])
    assert asked == ['s2']
    claims.give_back()
    assert asked == ['s2', 's1']
