"""Many equal device groups composed from Placement's answer for one."""
from __future__ import annotations

import threading
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova.scheduler.expand import MAX_CHOICES, expand
from kilonova.scheduler.query import build
from kilonova.scheduler.room import Neighbours, Room, uses
from tests.unit.scheduler.builders import GPU, candidate, device, spec, uuid

NAME = uuid('request 0')


def question(*counts, policy=None):
    query = build(spec(gpus=counts), max_results=1000, pci_in_placement=True)
    query.policy = policy
    return query.collapsed()


def answer(*addresses, capacity=1, used=0):
    """Placement's requests and room, one request for each address."""
    summaries = {device('host1', address): {'resources': {GPU: {'capacity': capacity, 'used': used}}}
                 for address in addresses}
    return [candidate(devices={f'{NAME}-0': address}) for address in addresses], Room(summaries)


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


# Room

def test_room_counts_down():
    _, room = answer('1')
    request = candidate(devices={'g': '1'})
    assert room.fits(request)
    room.take(request)
    assert not room.fits(request)


def test_what_a_neighbour_claimed_since_the_answer_is_gone():
    neighbours = Neighbours()
    request = candidate(devices={'g': '1'})
    summaries = {device('host1', '1'): {'resources': {GPU: {'capacity': 1, 'used': 0}}}}
    room = Room(summaries, neighbours, asked=neighbours.now())
    with neighbours.claiming(request, room):
        assert room.contested(request)
        assert room.fits(request)
    assert not room.fits(request)
    later = Room(summaries, neighbours, asked=neighbours.now())
    assert later.fits(request)


def test_a_refused_claim_takes_nothing():
    neighbours = Neighbours()
    request = candidate(devices={'g': '1'})
    room = Room({device('host1', '1'): {'resources': {GPU: {'capacity': 1, 'used': 0}}}}, neighbours, neighbours.now())
    with neighbours.claiming(request, room) as mark:
        neighbours.failed(mark)
    assert room.fits(request)
    assert not room.contested(request)


def test_ones_own_claim_counts_once():
    neighbours = Neighbours()
    room = Room({device('host1', '1'): {'resources': {GPU: {'capacity': 2, 'used': 0}}}}, neighbours, neighbours.now())
    request = candidate(devices={'g': '1'})
    with neighbours.claiming(request, room):
        pass
    room.take(request)
    assert room.fits(request)


@pytest.mark.parametrize('succeeds', [True, False])
def test_a_claim_waits_for_another_one_of_the_same_device(succeeds):
    neighbours = Neighbours()
    summaries = {device('host1', '1'): {'resources': {GPU: {'capacity': 1, 'used': 0}}}}
    rooms = [Room(summaries, neighbours, neighbours.now()) for _ in range(2)]
    request = candidate(devices={'g': '1'})
    got = []

    def claim():
        with neighbours.claiming(request, rooms[1]) as mark:
            got.append(mark is not None)

    second = threading.Thread(target=claim)
    with neighbours.claiming(request, rooms[0]) as mark:
        second.start()
        if not succeeds:
            neighbours.failed(mark)
    second.join()
    assert got == [not succeeds]
