"""The pure part: order, subset, claims, alternates, forced and ignored hosts; never two servers on one device."""
from __future__ import annotations

import logging
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova import objects
from kilonova.scheduler.filters.affinity import ServerGroupAntiAffinityFilter
from kilonova.scheduler.filters.limits import NumInstancesFilter
from kilonova.scheduler.filters.pci_passthrough import PciPassthroughFilter
from kilonova.scheduler.room import Room, uses
from kilonova.scheduler.select import Choice, NotEnough, Settings, select
from kilonova.scheduler.weighers.amounts import RAMWeigher
from tests.unit.scheduler.builders import GPU, candidate, conf, device, pools, spec, state, uuid

PLENTY = Room({})
GROUP = f'{uuid("request 0")}-0'


def run(request, hosts, count=1, *, filters=(), weighers=(), settings=None, room=PLENTY, **how):
    for one in (*filters, *weighers):
        one.conf = conf(filter_scheduler__max_instances_per_host=2)
    return select(request, hosts, [uuid(f'server {number}') for number in range(count)], filters=filters,
                  weighers=weighers, settings=settings or Settings(), room=room, **how)


def hosts_of(plan):
    return [choice.host.host for choice in plan.choices]


def room_of(**capacity):
    """Room in roots by host name."""
    return Room({uuid(host): {'resources': {'VCPU': {'capacity': amount, 'used': 0}}}
                 for host, amount in capacity.items()})


def test_the_best_host_and_its_first_candidate():
    plan = run(spec(), [state('a', memory_mb=1000), state('b')], weighers=[RAMWeigher()])
    assert hosts_of(plan) == ['b']
    assert plan.choices[0].request == candidate('b')


def test_a_refused_claim_leads_to_the_next_candidate_then_the_next_host():
    tried = []

    def claim(server, host, request):
        tried.append((host.host, request['mappings'].get('x', [None])[0]))
        return Choice(host, request) if host.host == 'b' else None

    hosts = [state('a', candidates=[candidate('a', {'x': '1'}), candidate('a', {'x': '2'})]), state('b')]
    assert hosts_of(run(spec(), hosts, claim=claim)) == ['b']
    assert tried == [('a', device('a', '1')), ('a', device('a', '2')), ('b', None)]


def test_a_host_without_candidates_is_skipped_with_a_message(caplog):
    """seed-map 1.29"""
    caplog.set_level(logging.DEBUG)
    assert hosts_of(run(spec(), [state('a', candidates=[]), state('b')])) == ['b']
    assert 'Skipping host (a, a)' in caplog.text


def test_a_claim_may_come_to_another_host():
    """An earlier, unanswered select claimed it."""
    there = state('elsewhere')
    held = Choice(there, candidate('elsewhere'), held=True)
    plan = run(spec(), [state('a')], claim=lambda server, host, request: held)
    assert hosts_of(plan) == ['elsewhere']


def test_what_was_claimed_earlier_saves_a_server_that_no_host_can_take():
    there = state('elsewhere')
    assert hosts_of(run(spec(), [], recover=lambda server: Choice(there, candidate('elsewhere'), held=True))) == [
        'elsewhere']


def test_not_enough(caplog):
    """seed-map 3.11"""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(NotEnough) as caught:
        run(spec(), [state('a')], 2, room=room_of(a=8))
    assert str(caught.value) == 'No valid host was found. There are not enough hosts available.'
    assert 'There are 1 hosts available but 2 instances requested to build.' in caplog.text


def test_not_enough_counts_what_was_found(caplog):
    """seed-map 3.11: hosts that were found, not those there are; servers that were asked for."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(NotEnough):
        run(spec(), [state(name) for name in 'abcde'], 4, room=room_of(a=8, b=8, c=0, d=0, e=0))
    assert 'There are 2 hosts available but 4 instances requested to build.' in caplog.text


def test_the_next_server_sees_what_the_first_took():
    """seed-map 1.31, 3.18: RAM for the weigher, servers for the filter, room for the claim."""
    hosts = [state('a', memory_mb=100000), state('b', memory_mb=99000)]
    plan = run(spec(), hosts, 4, weighers=[RAMWeigher()], filters=[NumInstancesFilter()])
    assert hosts_of(plan) == ['a', 'b', 'a', 'b']
    with pytest.raises(NotEnough):
        run(spec(), hosts, 1, filters=[NumInstancesFilter()])


SIZE = {'vcpus': 4, 'memory_mb': 2048, 'root_gb': 5, 'ephemeral_gb': 6, 'swap': 7}


def test_a_host_has_less_of_everything_that_a_server_takes():
    """seed-map 3.18: what filters compare and weighers weigh, and the repr that tells it."""
    host = state('a', memory_mb=10000, memory_mb_used=1000, local_gb=100, local_gb_used=10, vcpus=8, vcpus_used=1,
                 running_vms=3, current_workload=2)
    assert repr(host) == '(a, a) ram: 9000MB disk: 92160MB io_ops: 2 instances: 3, allocation_candidates: 1'
    host.consume(spec(flavor_values=SIZE))
    disk = 11 * 1024 + 7
    assert (host.free_ram_mb, host.free_disk_mb, host.disk_mb_used, host.vcpus_used) == (
        9000 - 2048, 92160 - disk, 10240 + disk, 5)
    assert (host.num_instances, host.num_io_ops) == (4, 3)
    assert repr(host) == f'(a, a) ram: 6952MB disk: {92160 - disk}MB io_ops: 3 instances: 4, allocation_candidates: 1'
    # What doesn't change stays: totals, and what the host said itself.
    assert (host.total_usable_ram_mb, host.total_usable_disk_gb, host.vcpus_total) == (10000, 100, 8)


def test_what_one_select_takes_the_next_one_finds_again():
    """Equal pools are parsed once; nobody takes from the parsed ones."""
    first, second = (state('h1', pci_stats=pools('0000:08:00.0')) for _ in range(2))
    first.consume(spec(gpus=(1,)))
    assert (first.pci_stats.free, second.pci_stats.free) == (0, 1)
    assert state('h1', pci_stats=pools('0000:08:00.0')).pci_stats.free == 1


def test_servers_of_a_group_keep_apart():
    group = objects.InstanceGroup(policy='anti-affinity', members=[uuid('server 0'), uuid('server 1')], _rules={})
    plan = run(spec(instance_group=group), [state('a'), state('b')], 2, filters=[ServerGroupAntiAffinityFilter()])
    assert hosts_of(plan) == ['a', 'b']
    assert group.hosts == ['a', 'b']


def test_debug_lines(caplog):
    """seed-map 0.23, 3.12"""
    caplog.set_level(logging.DEBUG)
    run(spec(), [state('a')])
    text = caplog.text
    assert 'Filtered [(a, a) ram: 262144MB' in text
    assert 'Weighed [WeighedHost [host: (a, a) ram:' in text
    assert 'Selected host: (a, a)' in text


# Subset and shuffle

def test_subset_draws_from_the_best():
    """seed-map 3.12"""
    drawn = {hosts_of(run(spec(), [state('worst', memory_mb=1), *(state(name) for name in 'abc')],
                          weighers=[RAMWeigher()], settings=Settings(subset_size=3), rng=random.Random(seed)))[0]
             for seed in range(40)}
    assert drawn == {'a', 'b', 'c'}


def test_shuffle_changes_the_order_of_equals_only():
    drawn = {hosts_of(run(spec(), [state('worst', memory_mb=1), state('a'), state('b')], weighers=[RAMWeigher()],
                          settings=Settings(shuffle_best=True), rng=random.Random(seed)))[0] for seed in range(40)}
    assert drawn == {'a', 'b'}


# Alternates

def alternates(plan):
    return [[choice.host.host for choice in others] for others in plan.alternates]


def test_alternates_are_of_the_same_cell_and_have_candidates():
    hosts = [state('a'), state('b', cell=uuid('cell2')), state('c', candidates=[]), state('d'), state('e')]
    plan = run(spec(), hosts, settings=Settings(alternates=1))
    assert alternates(plan) == [['d']]
    assert alternates(run(spec(), hosts, settings=Settings(alternates=5))) == [['d', 'e']]
    assert plan.alternates[0][0].request == candidate('d')


def test_alternates_are_nobodys_host():
    hosts = [state('a', memory_mb=3000), state('b', memory_mb=2000), state('c', memory_mb=1000)]
    plan = run(spec(flavor_values={'memory_mb': 1500}), hosts, 2, weighers=[RAMWeigher()],
               settings=Settings(alternates=2))
    assert hosts_of(plan) == ['a', 'b']
    assert alternates(plan) == [['c'], ['c']]


def test_no_alternates_unless_asked_for():
    assert alternates(run(spec(), [state('a'), state('b')])) == [[]]


# Ignored, forced and requested hosts

def names(values, text, caplog, hosts=('Host1', 'host2')):
    caplog.set_level(logging.INFO)
    request = spec(**values)
    try:
        return hosts_of(run(request, [state(name) for name in hosts], filters=[NumInstancesFilter()])), \
            text in caplog.text
    except NotEnough:
        return [], text in caplog.text


@pytest.mark.parametrize(('values', 'expected', 'text'), [
    ({'ignore_hosts': ['host1', 'other']}, ['host2'], 'Host filter ignoring hosts: Host1'),
    ({'force_hosts': ['HOST2']}, ['host2'], 'Host filter forcing available hosts to host2'),
    ({'force_nodes': ['host1']}, ['Host1'], 'Host filter forcing available nodes to Host1'),
    ({'force_hosts': ['x']}, [], "No hosts matched due to not matching 'force_hosts' value of 'x'"),
    ({'force_nodes': ['x']}, [], "No hosts matched due to not matching 'force_nodes' value of 'x'"),
    ({'requested_destination': objects.Destination(host='host2', node=None)}, ['host2'],
     'Host filter only checking host host2 and node None'),
    ({'requested_destination': objects.Destination(host='x', node='y')}, [],
     'No hosts matched due to not matching requested destination (x, y)')])
def test_named_hosts(values, expected, text, caplog):
    """seed-map 3.14"""
    assert names(values, text, caplog) == (expected, True)


def test_filters_run_for_a_requested_host_and_not_for_a_forced_one():
    """Row 3.14."""
    full = [state('a', running_vms=2)]
    assert hosts_of(run(spec(force_hosts=['a']), full, filters=[NumInstancesFilter()])) == ['a']
    with pytest.raises(NotEnough):
        run(spec(requested_destination=objects.Destination(host='a')), full, filters=[NumInstancesFilter()])


# Never over-commit

@given(st.data())
def test_no_device_and_no_amount_is_given_twice(data):
    """Any hosts, any stale answer of Placement, any number of servers: each device once, no root beyond its room."""
    addresses = [f'0000:{number:02x}:00.0' for number in range(data.draw(st.integers(0, 4), 'devices'))]
    names_of_hosts = [f'h{number}' for number in range(data.draw(st.integers(1, 3), 'hosts'))]
    room = {uuid(name): {'resources': {'VCPU': {'capacity': data.draw(st.integers(0, 40)), 'used': 0}}}
            for name in names_of_hosts}
    free_in_pools = {name: data.draw(st.lists(st.sampled_from(addresses), unique=True)) if addresses else []
                     for name in names_of_hosts}
    hosts = []
    for name in names_of_hosts:
        room |= {device(name, address): {'resources': {GPU: {'capacity': 1, 'used': 0}}} for address in addresses}
        hosts.append(state(name, pci_stats=pools(*free_in_pools[name], host=name), candidates=[
            candidate(name, {GROUP: address}, VCPU=8) for address in addresses]))
    count = data.draw(st.integers(1, 6), 'servers')
    refused = data.draw(st.sets(st.integers(0, 5)), 'refused claims')
    given_out = Counter()
    numbers = iter(range(1000))

    def claim(server, host, request):
        if next(numbers) in refused:
            return None
        given_out.update(uses(request))
        return Choice(host, request)

    try:
        plan = run(spec(gpus=(1,)), hosts, count, filters=[PciPassthroughFilter()], room=Room(room), claim=claim)
    except NotEnough:
        pass
    else:
        assert len(plan.choices) == count
        for choice in plan.choices:
            rp = choice.request['mappings'][GROUP][0]
            assert rp in {device(choice.host.host, address) for address in free_in_pools[choice.host.host]}
    for (rp, name), amount in given_out.items():
        assert amount <= room[rp]['resources'][name]['capacity']
