"""Many equal device groups composed from Placement's answer for one."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from dataclasses import replace
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova.scheduler.hosts.reservations import Reservation, Reservations, uses
from kilonova.scheduler.placement.claims import mappings_of
from kilonova.scheduler.placement.expand import MAX_CHOICES, expand
from kilonova.scheduler.placement.query import CandidateQuery, Group, build
from kilonova.scheduler.placement.room import RemainingCapacity
from tests.unit.scheduler.builders import GPU, candidate, device, spec, uuid

NAME = uuid('request 0')


def question(*counts, policy=None):
    query = build(spec(gpus=counts), max_results=1000, pci_in_placement=True)
    query.policy = policy
    return query.collapsed()


def answer(*addresses, capacity=1, used=0):
    """Placement's requests and room, one request for each address."""
    summaries = {
        device('host1', address): {'resources': {GPU: {'capacity': capacity, 'used': used}}} for address in addresses
    }
    return [candidate(devices={f'{NAME}-0': address}) for address in addresses], RemainingCapacity(summaries)


def chosen(request):
    return sorted(rp for suffix, (rp,) in request['mappings'].items() if suffix)


def test_eight_of_eight():
    addresses = [f'{number}' for number in range(8)]
    query, clones = question(8)
    requests, room = answer(*addresses)
    found = expand(requests, query, clones, room)
    assert [chosen(request) for request in found] == [sorted(device('host1', address) for address in addresses)]
    assert uses(found[0])[uuid('host1'), 'VCPU'] == 8
    assert all(uses(found[0])[device('host1', address), GPU] == 1 for address in addresses)
    assert set(found[0]['mappings']) == {'', *(f'{NAME}-{number}' for number in range(8))}


def test_too_few_devices():
    query, clones = question(4)
    requests, room = answer('1', '2', '3')
    assert expand(requests, query, clones, room) == []


def test_enough_of_one_kind_is_not_enough():
    query = CandidateQuery(
        groups={'': Group({'VCPU': 1}), 'a': Group({GPU: 1}), 'b': Group({'NIC': 1})}, pci_groups={'a', 'a2', 'b', 'b2'}
    )
    summaries = {
        device('host1', name): {'resources': {kind: {'capacity': 1, 'used': 0}}}
        for name, kind in (('1', GPU), ('2', GPU), ('3', 'NIC'))
    }
    requests = [
        {
            'allocations': {
                uuid('host1'): {'resources': {'VCPU': 1}},
                device('host1', a): {'resources': {GPU: 1}},
                device('host1', '3'): {'resources': {'NIC': 1}},
            },
            'mappings': {'': [uuid('host1')], 'a': [device('host1', a)], 'b': [device('host1', '3')]},
        }
        for a in '12'
    ]
    assert expand(requests, query, {'a': ['a2'], 'b': []}, RemainingCapacity(summaries)) != []
    assert expand(requests, query, {'a': ['a2'], 'b': ['b2']}, RemainingCapacity(summaries)) == []


def test_choices_begin_with_neighbours_and_differ():
    query, clones = question(3)
    addresses = ['1', '2', '3', '4']
    cells = {device('host1', '1'): 1, device('host1', '2'): 0, device('host1', '3'): 1, device('host1', '4'): 0}
    requests, room = answer(*addresses)
    found = expand(requests, query, clones, room, near=cells.__getitem__)
    # All of the first cell, then one of the other; the other way round; further ones.
    assert [sum(cells[rp] for rp in chosen(request)) for request in found[:2]] == [1, 2]
    assert len({tuple(chosen(request)) for request in found}) == 4
    two, clones = question(3)
    slots = [
        [one for (one,) in (request['mappings'][f'{NAME}-{number}'] for number in range(3))]
        for request in expand(requests, two, clones, room, near=cells.__getitem__)
    ]
    # Those of one cell come first in each of them.
    assert all(
        [cells[rp] for rp in one] in (sorted(cells[rp] for rp in one), sorted((cells[rp] for rp in one), reverse=True))
        for one in slots
    )


def kinds_of(*groups, **providers):
    """A question of these groups, each of a kind of its own; Placement's answer to it and what is left."""
    query = CandidateQuery(
        groups={'': Group({'VCPU': 1}), **{name: Group(resources) for name, resources, _ in groups}},
        pci_groups={name for name, _, _ in groups},
    )
    room = RemainingCapacity(
        {
            rp: {'resources': {name: {'capacity': amount, 'used': 0} for name, amount in amounts.items()}}
            for rp, amounts in providers.items()
        }
    )
    able = [
        [
            rp
            for rp, amounts in providers.items()
            if all(amounts.get(name, 0) >= amount for name, amount in resources.items())
        ]
        for _, resources, _ in groups
    ]
    requests = []
    for chosen in itertools.product(*able):
        allocations = {'root': {'resources': {'VCPU': 1}}}
        for rp, (_, resources, _) in zip(chosen, groups, strict=True):
            given = allocations.setdefault(rp, {'resources': {}})['resources']
            given.update({name: given.get(name, 0) + amount for name, amount in resources.items()})
        requests.append(
            {
                'allocations': allocations,
                'mappings': {'': ['root'], **{name: [rp] for rp, (name, _, _) in zip(chosen, groups, strict=True)}},
            }
        )
    clones = {name: [f'{name}{number}' for number in range(2, times + 1)] for name, _, times in groups}
    return query, requests, clones, room


def test_kinds_that_share_a_provider_take_no_more_than_it_has():
    query, requests, clones, room = kinds_of(('a', {'A': 1}, 1), ('b', {'A': 2}, 1), p1={'A': 2}, p2={'A': 2})
    found = expand([one for one in requests if room.fits(one)], query, clones, room)
    assert sorted(chosen(request) for request in found) == [['p1', 'p2'], ['p1', 'p2']]
    assert {request['mappings']['a'][0] for request in found} == {'p1', 'p2'}


def test_kinds_of_one_class_share_their_providers_in_every_way():
    query, requests, clones, room = kinds_of(
        ('a', {'A': 1}, 1), ('b', {'A': 1}, 1), p1={'A': 1}, p2={'A': 1}, p3={'A': 1}
    )
    found = expand([one for one in requests if room.fits(one)], query, clones, room)
    assert {(one['mappings']['a'][0], one['mappings']['b'][0]) for one in found} == set(
        itertools.permutations(('p1', 'p2', 'p3'), 2)
    )


def test_few_choices_are_composed_all_and_those_of_one_kind_in_their_order():
    providers = {f'{kind}{number}': {kind: 1} for kind, count in (('A', 9), ('B', 7)) for number in range(count)}
    query, requests, clones, room = kinds_of(('a', {'A': 1}, 1), ('b', {'B': 1}, 1), **providers)
    assert len(expand(requests, query, clones, room)) == 63
    query, requests, clones, room = kinds_of(('a', {'A': 1}, 3), **{f'A{number:02}': {'A': 1} for number in range(30)})
    found = [chosen(request) for request in expand(requests, query, clones, room)]
    # From each of the devices on; then what is left with the first of them.
    assert len(found) == MAX_CHOICES and all(one[0] == 'A00' for one in found[30:])


def test_of_very_many_choices_some_are_drawn_the_same_each_time():
    providers = {f'{kind}{number}': {kind: 1} for kind in 'AB' for number in range(9)}
    query, requests, clones, room = kinds_of(('a', {'A': 1}, 4), ('b', {'B': 1}, 4), **providers)
    found = expand(requests, query, clones, room)
    assert len({tuple(chosen(request)) for request in found}) == len(found) == MAX_CHOICES
    assert found == expand(requests, query, clones, room)


@pytest.mark.parametrize(('trees', 'expected'), [(1, MAX_CHOICES), (2, MAX_CHOICES), (50, 40), (1000, 8)])
def test_of_many_hosts_few_choices_each_are_composed(trees, expected):
    query = CandidateQuery(
        groups={'': Group({'VCPU': 1}), 'a': Group({GPU: 1})},
        pci_groups={'a', 'b'},
        left_out={'b': Group({'NIC': 1}, required={'FAST'})},
    )
    names = [f'{kind}{number}' for kind in 'ab' for number in range(9)]
    summaries = {
        device('host1', name): {
            'resources': {GPU if name < 'b' else 'NIC': {'capacity': 1, 'used': 0}},
            'traits': ['FAST'],
            'root_provider_uuid': uuid('host1'),
        }
        for name in names
    }
    others = {
        uuid(f'other {number}'): {'resources': {}, 'traits': [], 'root_provider_uuid': uuid(f'other {number}')}
        for number in range(trees - 1)
    }
    root = {uuid('host1'): {'resources': {'VCPU': 1}}}
    requests = [
        {
            'allocations': {**root, device('host1', a): {'resources': {GPU: 1}}},
            'mappings': {'': [uuid('host1')], 'a': [device('host1', a)]},
        }
        for a in names[:9]
    ]
    found = expand(requests, query, {'a': [], 'b': []}, RemainingCapacity({**summaries, **others}))
    assert len(found) == expected
    assert all(request['mappings'].keys() == {'', 'a', 'b'} for request in found)


def test_a_physical_function_serves_several_functions():
    query, clones = question(4)
    requests, room = answer('1', capacity=8, used=5)
    assert expand(requests, query, clones, room) == []
    requests, room = answer('1', capacity=8, used=4)
    found = expand(requests, query, clones, room)
    assert [uses(request)[device('host1', '1'), GPU] for request in found] == [4]


def test_isolated_groups_are_on_different_providers():
    query, clones = question(3, policy='isolate')
    requests, room = answer('1', '2', capacity=8)
    assert expand(requests, query, clones, room) == []
    requests, room = answer('1', '2', '3', capacity=8)
    assert [len(set(chosen(request))) for request in expand(requests, query, clones, room)] == [3]


def test_providers_that_the_host_would_not_give_are_left_out():
    query, clones = question(3)
    requests, room = answer('1', '2', '3', '4')
    found = expand(requests, query, clones, room, lambda rp: rp != device('host1', '2'))
    assert [chosen(request) for request in found] == [sorted(device('host1', address) for address in '134')]


@given(st.integers(3, 7), st.integers(3, 12))
def test_choices_are_different_and_each_fits(count, there):
    query, clones = question(count)
    requests, room = answer(*map(str, range(there)))
    found = expand(requests, query, clones, room)
    assert len({tuple(chosen(request)) for request in found}) == len(found) == min(MAX_CHOICES, comb(there, count))
    assert all(len(set(chosen(request))) == count and room.fits(request) for request in found)


def test_devices_of_several_kinds_are_near_each_other():
    """Each cell, from each of its devices on; a bad one isn't in all of the first."""
    names = ('a0', 'a00', 'a1', 'b0', 'b1', 'b11')
    cells = {device('host1', name): int(name[1]) for name in names}
    query = CandidateQuery(
        groups={'': Group({'VCPU': 1}), 'a': Group({GPU: 1}), 'b': Group({'NIC': 1}), 'b2': Group({'NIC': 1})},
        pci_groups={'a', 'b', 'b2'},
    )
    summaries = {
        device('host1', name): {
            'resources': {GPU if name < 'b' else 'NIC': {'capacity': 1 if name < 'b' else 2, 'used': 0}}
        }
        for name in names
    }
    requests = [
        {
            'allocations': {
                uuid('host1'): {'resources': {'VCPU': 1}},
                device('host1', a): {'resources': {GPU: 1}},
                device('host1', b): {'resources': {'NIC': 1}},
            },
            'mappings': {'': [uuid('host1')], 'a': [device('host1', a)], 'b': [device('host1', b)]},
        }
        for a in ('a1', 'a0', 'a00')
        for b in ('b11', 'b0', 'b1')
    ]
    found = expand(requests, query, {'a': [], 'b': ['b2']}, RemainingCapacity(summaries), near=cells.__getitem__)
    assert [{cells[rp] for rp in chosen(request)} for request in found[:4]] == [{0}, {1}, {0}, {1}]
    assert {rp for request in found[:4] for rp in chosen(request)} == set(cells)


def random_question(rng):
    """Up to six devices of two classes, with a trait, without it, or whatever they have."""
    groups = {'': Group({'VCPU': 1})}
    for number in range(rng.randint(3, 5)):
        traits = rng.choice(({}, {}, {'required': {'CUSTOM_FAST'}}, {'forbidden': {'CUSTOM_FAST'}}))
        groups[f'_{number}'] = Group({rng.choice(('CUSTOM_A', 'CUSTOM_B')): 1}, **traits)
    policy = rng.choice(('none', 'none', 'isolate'))
    return CandidateQuery(groups=groups, policy=policy, pci_groups=set(groups) - {''}, limit=1000)


@pytest.mark.parametrize('seed', range(12))
def test_composed_is_what_placement_would_answer(placement, seed):
    """The same hosts, each with the same choices while they are few; equal groups may change places."""
    rng = random.Random(seed)
    for name in ('host1', 'host2', 'host3'):
        placement.client.sync_compute(
            uuid(name),
            name,
            {'VCPU': {'total': 8, 'max_unit': 8}},
            set(),
            {
                f'{name}_{number}': {
                    'resource_class': rng.choice(('CUSTOM_A', 'CUSTOM_B')),
                    'total': rng.choice((1, 1, 2)),
                    'traits': rng.choice(({'CUSTOM_FAST'}, set())),
                }
                for number in range(rng.randint(3, 6))
            },
        )
    query = random_question(rng)
    taken = rng.choice(
        placement.client.allocation_candidates(CandidateQuery(groups={'': Group({'CUSTOM_A': 1})}).pairs())[
            'allocation_requests'
        ]
    )
    placement.client.claim(uuid('s1'), taken['allocations'], None, project_id='p', user_id='u')
    full = placement.client.allocation_candidates(replace(query, limit=None).pairs())
    asked, clones = query.collapsed()
    assert len(asked.groups) <= 3
    found = placement.client.allocation_candidates(asked.pairs())
    room = RemainingCapacity(found['provider_summaries'])
    expected, composed = {}, {}
    for request in full['allocation_requests']:
        expected.setdefault(request['mappings'][''][0], set()).add(seen(request, query))
    for root in {request['mappings'][''][0] for request in found['allocation_requests']}:
        of_host = [one for one in found['allocation_requests'] if one['mappings'][''] == [root]]
        requests = expand(of_host, asked, clones, room)
        if requests:
            composed[root] = {seen(request, query) for request in requests}
            assert all(
                mappings_of(query, request['allocations'], lambda rp: placement.client.get_traits(rp)[0])
                for request in requests
            )
    assert composed.keys() == expected.keys()
    for root, choices in composed.items():
        assert choices == expected[root] if len(expected[root]) < MAX_CHOICES else choices <= expected[root]


def seen(request, query):
    """What it allocates, and which providers serve each kind of groups."""
    kinds = {}
    for suffix, rps in request['mappings'].items():
        kinds.setdefault(query.groups[suffix].key(), []).extend(rps)
    return frozenset(uses(request).items()), frozenset((key, *sorted(rps)) for key, rps in kinds.items())


# Room


def ledger(*claimed_at):
    """Reservations of one GPU each; None: it is being claimed."""
    made = Reservations(threading.RLock(), lambda reservation, sign: None)
    for number, at in enumerate(claimed_at):
        made.take(str(number), Reservation(0, 0, 0, 0, Counter(), uses=uses(candidate(devices={'g': '1'})), claimed=at))
    return made


def test_a_claim_that_was_under_way_is_made():
    reservations = ledger(None)
    room = RemainingCapacity(
        {device('host1', '1'): {'resources': {GPU: {'capacity': 1, 'used': 0}}}}, reservations, 10.0
    )
    request = candidate(devices={'g': '1'})
    assert room.fits(request) and room.contested(request)
    reservations.made('0', 11.0)
    assert not room.fits(request)


def test_providers_beside_another_that_may_serve_a_group():
    def provider(root, traits=(), **amounts):
        return {
            'root_provider_uuid': root,
            'traits': list(traits),
            'resources': {name: {'capacity': amount, 'used': 1} for name, amount in amounts.items()},
        }

    room = RemainingCapacity(
        {
            'root': provider('root', VCPU=9),
            'both': provider('root', ['FAST'], A=3, B=2),
            'one': provider('root', ['FAST'], A=3),
            'little': provider('root', ['FAST'], A=2, B=2),
            'slow': provider('root', A=3, B=2),
            'old': provider('root', ['FAST', 'OLD'], A=3, B=2),
            'far': provider('elsewhere', ['FAST'], A=3, B=2),
        }
    )
    group = Group({'A': 2, 'B': 1}, required={'FAST'}, forbidden={'OLD'})
    assert room.providers(group, 'root') == ['both']
    assert room.providers(group, 'far') == ['far']
    assert room.trees() == {'root': ['root', 'both', 'one', 'little', 'slow', 'old'], 'elsewhere': ['far']}


def test_how_often_a_provider_can_give_what_is_asked():
    room = RemainingCapacity({'rp': {'resources': {'A': {'capacity': 9, 'used': 1}, 'B': {'capacity': 5, 'used': 0}}}})
    base = {'allocations': {'rp': {'resources': {'A': 2}}}, 'mappings': {}}
    assert [room.times('rp', {'A': 2}, base, most) for most in (2, 3, 4)] == [2, 3, 3]
    assert room.times('rp', {'A': 1, 'B': 2}, base, 9) == 2
    # Of what Placement says nothing there may be enough.
    assert room.times('unknown', {'A': 2}, base, 5) == 5


@pytest.mark.parametrize(
    ('claimed_at', 'fits', 'contested'),
    [
        ((), True, False),
        ((9.0,), True, False),
        ((11.0,), False, True),
        ((None,), True, True),
        ((9.0, None), True, True),
        ((11.0, None), False, True),
    ],
)
def test_what_was_claimed_since_the_answer_is_gone(claimed_at, fits, contested):
    """What was claimed before Placement was asked is in its answer; who is just claiming may get it or not."""
    reservations = ledger(*claimed_at)
    room = RemainingCapacity(
        {device('host1', '1'): {'resources': {GPU: {'capacity': 1, 'used': 0}}}}, reservations, 10.0
    )
    request = candidate(devices={'g': '1'})
    assert (room.fits(request), room.contested(request)) == (fits, contested)
    assert room.times(device('host1', '1'), {GPU: 1}, candidate(), 5) == (1 if fits else 0)
    for server in list(reservations.places()):
        reservations.give_back(server)
    assert (room.fits(request), room.contested(request)) == (True, False)
