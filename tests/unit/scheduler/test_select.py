"""The pure part: order, subset, claims, alternates, forced and ignored hosts; never two servers on one device."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova import objects
from kilonova.scheduler import filters
from kilonova.scheduler.filters.affinity import ServerGroupAntiAffinityFilter
from kilonova.scheduler.filters.limits import NumInstancesFilter
from kilonova.scheduler.filters.pci_passthrough import PciPassthroughFilter
from kilonova.scheduler.hosts.reservations import uses
from kilonova.scheduler.placement.candidates import PlacementCandidates
from kilonova.scheduler.plan import Candidate
from kilonova.scheduler.select import Select, SelectSettings
from kilonova.scheduler.weighers.amounts import RAMWeigher
from tests.unit.scheduler.builders import GPU, View, candidate, conf, device, host, pools, spec, state, uuid

GROUP = f'{uuid("request 0")}-0'


class Claims:
    """``claim`` decides; ``held``: what an earlier select claimed; ``confirm``: the servers that still need a host."""

    def __init__(
        self, claim=lambda server, host, request: Candidate(host, request), held=lambda server: None, confirm=set
    ):
        self.claim, self.existing, self.confirm = claim, held, confirm


def run(request, hosts, count=1, *, filters=(), weighers=(), settings=None, room=None, view=None, claims=None, **how):
    """The plan, None where there is none."""
    for one in (*filters, *weighers):
        one.conf = conf(filter_scheduler__max_instances_per_host=2)
    view = view or View(*hosts)
    offers = PlacementCandidates(view, request, view.answer(**room or {}))
    return Select(view, request, filters, weighers, settings or SelectSettings(), offers, claims, **how).plan(
        [uuid(f'server {number}') for number in range(count)]
    )


def hosts_of(plan):
    return [choice.host.host for choice in plan.choices]


def test_the_best_host_and_its_first_candidate():
    plan = run(spec(), [host('a', memory_mb=1000), host('b')], weighers=[RAMWeigher()])
    assert hosts_of(plan) == ['b']
    assert plan.choices[0].request == candidate('b')


def test_a_refused_claim_leads_to_the_next_candidate_then_the_next_host():
    tried = []

    def claim(server, host, request):
        tried.append((host.host, request['mappings'].get('x', [None])[0]))
        return Candidate(host, request) if host.host == 'b' else None

    hosts = [host('a', candidates=[candidate('a', {'x': '1'}), candidate('a', {'x': '2'})]), host('b')]
    assert hosts_of(run(spec(), hosts, claims=Claims(claim))) == ['b']
    assert tried == [('a', device('a', '1')), ('a', device('a', '2')), ('b', None)]


def test_a_host_without_candidates_is_skipped_with_a_message(caplog):
    """A host without an allocation candidate is skipped, and the log says so."""
    caplog.set_level(logging.DEBUG)
    assert hosts_of(run(spec(), [host('a'), host('b')], room={'a': 0})) == ['b']
    assert 'Skipping host (a, a)' in caplog.text


def test_a_claim_may_come_to_another_host():
    """An earlier, unanswered select claimed it: it counts there, and nothing where this one wanted to go."""
    view = View(host('a'), host('elsewhere'))
    held = Candidate(state('elsewhere'), candidate('elsewhere'), held=True)
    plan = run(spec(), [], view=view, claims=Claims(lambda server, host, request: held))
    assert hosts_of(plan) == ['elsewhere']
    assert [view.table.host(place) for place in view.table.reservations.sent_to(uuid('server 0'))] == ['elsewhere']


def test_what_was_claimed_earlier_saves_a_server_that_no_host_can_take():
    held = Candidate(state('elsewhere'), candidate('elsewhere'), held=True)
    assert hosts_of(run(spec(), [], claims=Claims(held=lambda server: held))) == ['elsewhere']


def test_not_enough(caplog):
    """If there are fewer hosts than servers, the log has Nova's lines with the hosts that were found and the
    servers that were asked for."""
    caplog.set_level(logging.DEBUG)
    assert run(spec(), [host('a')], 2, room={'a': 8}) is None
    assert 'There are 1 hosts available but 2 instances requested to build.' in caplog.text
    assert run(spec(), [host(name) for name in 'abcde'], 4, room={'a': 8, 'b': 8, 'c': 0, 'd': 0, 'e': 0}) is None
    assert 'There are 2 hosts available but 4 instances requested to build.' in caplog.text


def test_what_others_claimed_since_placement_answered_is_gone():
    """The one ledger: another select of this process gave the only room away."""
    view = View(host('a'))
    assert run(spec(), [], view=view, room={'a': 8}, claims=Claims()) is not None
    assert run(spec(), [], view=view, room={'a': 8}) is None
    assert run(spec(), [], view=view, room={'a': 16}) is not None


def test_what_is_being_claimed_is_waited_for(monkeypatch):
    """A claim that ends badly leaves its room to who waited."""
    view, order = View(host('a')), []
    waiting = threading.Event()
    wait = view.table.reservations.wait

    def noted(seconds):
        waiting.set()
        return wait(seconds)

    monkeypatch.setattr(view.table.reservations, 'wait', noted)

    def refused(server, host, request):
        assert waiting.wait(30)
        order.append('refused')

    def claimed(server, host, request):
        order.append('claimed')
        return Candidate(host, request)

    first = threading.Thread(
        target=run, args=(spec(), []), kwargs={'view': view, 'room': {'a': 8}, 'claims': Claims(refused)}
    )
    first.start()
    while not view.table.reservations.on(view.table.places.of(uuid('a'))):
        time.sleep(0.001)
    request = spec()
    offers = PlacementCandidates(view, request, view.answer(a=8))
    plan = Select(view, request, (), (), SelectSettings(), offers, Claims(claimed)).plan([uuid('another')])
    first.join()
    assert (hosts_of(plan), order) == (['a'], ['refused', 'claimed'])


def test_only_confirmed_claims_keep_their_reservations():
    """If one of two servers no longer needs a host, its reservation is removed at the end of the ``with`` block."""
    view, request, (stays, leaves) = View(host('a')), spec(), (uuid('stays'), uuid('leaves'))

    def reserved():
        return set(view.table.reservations.on(view.table.places.of(uuid('a'))))

    claims = Claims(confirm=lambda uuids: {stays})
    offers = PlacementCandidates(view, request, view.answer())
    with Select(view, request, (), (), SelectSettings(), offers, claims) as select:
        assert hosts_of(select.plan([stays, leaves])) == ['a', 'a']
        assert reserved() == {stays, leaves}
    assert reserved() == {stays}


def test_a_choice_without_claims_hides_its_reservations_from_other_threads():
    """Without claims, the host table's lock is held in the ``with`` block, and no reservation stays after it."""
    view, request = View(host('a')), spec()

    def is_locked():
        """Whether another thread gets the lock."""
        got = []

        def take():
            got.append(view.table.lock.acquire(blocking=False))
            if got[0]:
                view.table.lock.release()

        other = threading.Thread(target=take)
        other.start()
        other.join()
        return got == [False]

    with Select(view, request, (), (), SelectSettings(), PlacementCandidates(view, request, view.answer())) as select:
        assert hosts_of(select.plan([uuid('server')])) == ['a']
        assert is_locked() and view.table.reservations.on(view.table.places.of(uuid('a')))
    assert not is_locked() and not view.table.reservations.on(view.table.places.of(uuid('a')))


def test_the_next_server_sees_what_the_first_took():
    """The next server of a request sees what the first one took: RAM for the weigher, servers for the filter, and
    candidates for the claim."""
    view = View(host('a', memory_mb=100000), host('b', memory_mb=99000))
    plan = run(spec(), [], 4, view=view, weighers=[RAMWeigher()], filters=[NumInstancesFilter()])
    assert hosts_of(plan) == ['a', 'b', 'a', 'b']
    request = spec()
    offers = PlacementCandidates(view, request, view.answer())
    full = NumInstancesFilter()
    full.conf = conf(filter_scheduler__max_instances_per_host=2)
    assert Select(view, request, [full], (), SelectSettings(), offers).plan([uuid('one more')]) is None


class Seen(filters.BaseHostFilter):
    """A plug-in that notes what it sees of hosts."""

    def __init__(self):
        self.hosts = []

    def host_passes(self, host_state, spec_obj):
        self.hosts.append(
            (
                repr(host_state),
                host_state.disk_mb_used,
                host_state.vcpus_used,
                host_state.num_instances,
                list(host_state.instances),
            )
        )
        return True


SIZE = {'vcpus': 4, 'memory_mb': 2048, 'root_gb': 5, 'ephemeral_gb': 6, 'swap': 7}


def test_a_host_has_less_of_everything_that_a_server_takes():
    """After a host was chosen, its amounts that filters compare and weighers weigh, and its repr, are smaller by
    what the server takes."""
    seen = Seen()
    run(
        spec(flavor_values=SIZE),
        [
            host(
                'a',
                memory_mb=10000,
                memory_mb_used=1000,
                local_gb=100,
                local_gb_used=10,
                vcpus=8,
                vcpus_used=1,
                running_vms=3,
                current_workload=2,
            )
        ],
        2,
        filters=[seen],
    )
    disk = 11 * 1024 + 7
    assert seen.hosts == [
        ('(a, a) ram: 9000MB disk: 92160MB io_ops: 2 instances: 3, allocation_candidates: 1', 10240, 1, 3, []),
        (
            f'(a, a) ram: 6952MB disk: {92160 - disk}MB io_ops: 3 instances: 4, allocation_candidates: 1',
            10240 + disk,
            5,
            4,
            [uuid('server 0')],
        ),
    ]


def test_what_one_select_takes_the_next_one_finds_again():
    """Equal pools are parsed once; nobody takes from the parsed ones."""
    view = View(
        host('h1', pci_stats=pools('0000:08:00.0', host='h1'), candidates=[candidate('h1', {GROUP: '0000:08:00.0'})])
    )
    request = spec(gpus=(1,))
    assert run(request, [], view=view, filters=[PciPassthroughFilter()]) is not None
    place = view.table.places.of(uuid('h1'))
    assert view.table.devices.pools(place).free == 0
    view.table.reservations.give_back(uuid('server 0'))
    assert view.table.devices.pools(place).free == 1
    assert state('h1', pci_stats=pools('0000:08:00.0')).pci_stats.free == 1


def test_servers_of_a_group_keep_apart():
    group = objects.InstanceGroup(policy='anti-affinity', members=[uuid('server 0'), uuid('server 1')], _rules={})
    plan = run(spec(instance_group=group), [host('a'), host('b')], 2, filters=[ServerGroupAntiAffinityFilter()])
    assert hosts_of(plan) == ['a', 'b']
    assert group.hosts == ['a', 'b']


def test_debug_lines(caplog):
    """A select logs "Filtered", "Weighed" and "Selected host" at DEBUG."""
    caplog.set_level(logging.DEBUG)
    run(spec(), [host('a')])
    text = caplog.text
    assert 'Filtered [(a, a) ram: 262144MB' in text
    assert 'Weighed [WeighedHost [host: (a, a) ram:' in text
    assert 'Selected host: (a, a)' in text


# Subset and shuffle


def test_subset_draws_from_the_best():
    """With host_subset_size 3 each of the three best hosts is drawn, and no other."""
    drawn = {
        hosts_of(
            run(
                spec(),
                [host('worst', memory_mb=1), *(host(name) for name in 'abc')],
                weighers=[RAMWeigher()],
                settings=SelectSettings(subset_size=3),
                rng=random.Random(seed),
            )
        )[0]
        for seed in range(40)
    }
    assert drawn == {'a', 'b', 'c'}


def test_shuffle_changes_the_order_of_equals_only():
    drawn = {
        hosts_of(
            run(
                spec(),
                [host('worst', memory_mb=1), host('a'), host('b')],
                weighers=[RAMWeigher()],
                settings=SelectSettings(shuffle_best=True),
                rng=random.Random(seed),
            )
        )[0]
        for seed in range(40)
    }
    assert drawn == {'a', 'b'}


# Alternates


def alternates(plan):
    return [[choice.host.host for choice in others] for others in plan.alternates]


def test_alternates_are_of_the_same_cell_and_have_candidates():
    hosts = [host('a'), host('b', cell=uuid('cell2')), host('c', candidates=[]), host('d'), host('e')]
    plan = run(spec(), hosts, settings=SelectSettings(alternates=1))
    assert alternates(plan) == [['d']]
    assert alternates(run(spec(), hosts, settings=SelectSettings(alternates=5))) == [['d', 'e']]
    assert plan.alternates[0][0].request == candidate('d')


def test_alternates_are_nobodys_host():
    hosts = [host('a', memory_mb=3000), host('b', memory_mb=2000), host('c', memory_mb=1000)]
    plan = run(
        spec(flavor_values={'memory_mb': 1500}),
        hosts,
        2,
        weighers=[RAMWeigher()],
        settings=SelectSettings(alternates=2),
    )
    assert hosts_of(plan) == ['a', 'b']
    assert alternates(plan) == [['c'], ['c']]


def test_no_alternates_unless_asked_for():
    assert alternates(run(spec(), [host('a'), host('b')])) == [[]]


# Ignored, forced and requested hosts


def names(values, text, caplog, hosts=('Host1', 'host2')):
    caplog.set_level(logging.INFO)
    request = spec(**values)
    plan = run(request, [host(name) for name in hosts], filters=[NumInstancesFilter()])
    return hosts_of(plan) if plan is not None else [], text in caplog.text


@pytest.mark.parametrize(
    ('values', 'expected', 'text'),
    [
        ({'ignore_hosts': ['host1', 'other']}, ['host2'], 'Host filter ignoring hosts: Host1'),
        ({'force_hosts': ['HOST2']}, ['host2'], 'Host filter forcing available hosts to host2'),
        ({'force_nodes': ['host1']}, ['Host1'], 'Host filter forcing available nodes to Host1'),
        ({'force_hosts': ['x']}, [], "No hosts matched due to not matching 'force_hosts' value of 'x'"),
        ({'force_nodes': ['x']}, [], "No hosts matched due to not matching 'force_nodes' value of 'x'"),
        (
            {'requested_destination': objects.Destination(host='host2', node=None)},
            ['host2'],
            'Host filter only checking host host2 and node None',
        ),
        (
            {'requested_destination': objects.Destination(host='x', node='y')},
            [],
            'No hosts matched due to not matching requested destination (x, y)',
        ),
    ],
)
def test_named_hosts(values, expected, text, caplog):
    """Ignored, forced and requested hosts limit the choice, and the log says so."""
    assert names(values, text, caplog) == (expected, True)


def test_filters_run_for_a_requested_host_and_not_for_a_forced_one():
    """A filter may refuse a requested host. For a forced host filters do not run."""
    full = [host('a', running_vms=2)]
    assert hosts_of(run(spec(force_hosts=['a']), full, filters=[NumInstancesFilter()])) == ['a']
    assert run(spec(requested_destination=objects.Destination(host='a')), full, filters=[NumInstancesFilter()]) is None


# What the log says of filters


class Dump(filters.BaseHostFilter):
    def host_passes(self, host_state, spec_obj):
        return True


class First(filters.BaseHostFilter):
    def host_passes(self, host_state, spec_obj):
        return host_state.host == 'a'


class Refuse(filters.BaseHostFilter):
    def host_passes(self, host_state, spec_obj):
        return False


class Stop(filters.BaseHostFilter):
    def filter_all(self, filter_obj_list, spec_obj):
        return None


def test_the_log_says_who_sorted_out_how_many(caplog):
    """The log has Nova's lines about the hosts that each filter left, and a summary when none is left."""
    caplog.set_level(logging.DEBUG, 'kilonova.scheduler.select')
    request = spec()
    assert run(request, [host('a'), host('b')], filters=[Dump(), First(), Refuse(), Dump()]) is None
    nothing = (
        f"Filtering removed all hosts for the request with instance ID '{request.instance_uuid}'. Filter results: "
    )
    assert [(record.levelname, record.getMessage()) for record in caplog.records][:6] == [
        ('DEBUG', 'Starting with 2 host(s)'),
        ('DEBUG', 'Filter Dump returned 2 host(s)'),
        ('DEBUG', 'Filter First returned 1 host(s)'),
        ('INFO', 'Filter Refuse returned 0 hosts'),
        ('DEBUG', nothing + "[('Dump', [('a', 'a'), ('b', 'b')]), ('First', [('a', 'a')]), ('Refuse', [])]"),
        ('INFO', nothing + "['Dump: (start: 2, end: 2)', 'First: (start: 2, end: 1)', 'Refuse: (start: 1, end: 0)']"),
    ]


def test_a_filter_may_stop_filtering(caplog):
    """A filter whose filter_all returns None stops filtering, and no host is chosen."""
    caplog.set_level(logging.DEBUG, 'kilonova.scheduler.select')
    assert run(spec(), [host()], filters=[Stop(), Dump()]) is None
    assert 'Filter Stop says to stop filtering' in caplog.text


# Never over-commit


@given(st.data())
def test_no_device_and_no_amount_is_given_twice(data):
    """Any hosts, any stale answer of Placement, any number of servers: each device once, no root beyond its room."""
    addresses = [f'0000:{number:02x}:00.0' for number in range(data.draw(st.integers(0, 4), 'devices'))]
    names_of_hosts = [f'h{number}' for number in range(data.draw(st.integers(1, 3), 'hosts'))]
    room = {name: data.draw(st.integers(0, 40)) for name in names_of_hosts}
    free_in_pools = {
        name: data.draw(st.lists(st.sampled_from(addresses), unique=True)) if addresses else []
        for name in names_of_hosts
    }
    view = View(
        *(
            host(
                name,
                pci_stats=pools(*free_in_pools[name], host=name),
                candidates=[candidate(name, {GROUP: address}, VCPU=8) for address in addresses],
            )
            for name in names_of_hosts
        )
    )
    count = data.draw(st.integers(1, 6), 'servers')
    refused = data.draw(st.sets(st.integers(0, 5)), 'refused claims')
    given_out = Counter()
    numbers = iter(range(1000))

    def claim(server, host, request):
        if next(numbers) in refused:
            return None
        given_out.update(uses(request))
        return Candidate(host, request)

    plan = run(spec(gpus=(1,)), [], count, view=view, filters=[PciPassthroughFilter()], room=room, claims=Claims(claim))
    if plan is not None:
        assert len(plan.choices) == count
        for choice in plan.choices:
            rp = choice.request['mappings'][GROUP][0]
            assert rp in {device(choice.host.host, address) for address in free_in_pools[choice.host.host]}
    for (rp, name), amount in given_out.items():
        assert amount <= (1 if name == GPU else {uuid(name): amount for name, amount in room.items()}[rp])


class Once(filters.BaseHostFilter):
    run_filter_once_per_request = True

    def host_passes(self, host_state, spec_obj):
        return True


class OneServerAHost(filters.BaseHostFilter):
    def host_passes(self, host_state, spec_obj):
        return host_state.num_instances == 0


def test_a_filter_that_runs_once_does_not_end_the_filters():
    hosts = [host(name) for name in 'abc']
    assert hosts_of(run(spec(), hosts, 3, filters=[Once(), OneServerAHost()])) == ['a', 'b', 'c']


def test_no_filter_is_asked_about_no_hosts():
    class Together(filters.BaseHostFilter):
        def filter_all(self, filter_obj_list, spec_obj):
            asked.append([one.host for one in filter_obj_list])
            return filter_obj_list

    asked = []
    assert run(spec(), [host('a'), host('b')], filters=[Together(), Refuse(), Together()]) is None
    assert asked == [['a', 'b']]


def test_equal_hosts_keep_their_order():
    hosts = [host(f'h{number:02}', memory_mb=1000 + number % 2) for number in range(40)]
    plan = run(
        spec(flavor_values={'memory_mb': 1}), hosts, weighers=[RAMWeigher()], settings=SelectSettings(alternates=99)
    )
    order = [*hosts_of(plan), *alternates(plan)[0]]
    assert order == sorted(order[:20]) + sorted(order[20:])
    assert [int(name[1:]) % 2 for name in order] == [1] * 20 + [0] * 20


def test_hosts_that_come_late_are_taken_after_those_of_equal_weight():
    names = [f'h{number:02}' for number in range(40)]
    view, request = View(*(host(name) for name in names)), spec()
    answer = view.answer()
    answer.late = {uuid(name) for name in names[:39:2]}
    plan = Select(
        view, request, (), (), SelectSettings(alternates=99), PlacementCandidates(view, request, answer)
    ).plan([uuid()])
    assert [*hosts_of(plan), *alternates(plan)[0]] == [*names[1::2], *names[:39:2]]


def test_a_weigher_of_columns_that_raises_leaves_no_host(caplog):
    class Broken(RAMWeigher):
        def values(self, arrays, weight_properties):
            raise KeyError('no such column')

    assert run(spec(), [host('a'), host('b')], weighers=[Broken()]) is None
    assert 'Weigher Broken raised' in caplog.text
    # One host needs no weight.
    assert hosts_of(run(spec(), [host('a')], weighers=[Broken()])) == ['a']
