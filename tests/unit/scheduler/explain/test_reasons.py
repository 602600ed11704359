"""Why nothing fits, in words: true for each host, and short enough for a fault."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kilonova import errors
from kilonova.context import RequestContext
from kilonova.db.models.cell import ComputeNode, Service
from kilonova.scheduler.explain import reasons
from kilonova.scheduler.explain.decisions import Trace
from kilonova.scheduler.explain.reasons import ROOM, WORDS, ReasonCheck, RefusalReport
from kilonova.scheduler.filters import all_filters
from kilonova.scheduler.filters.limits import IoOpsFilter
from tests.unit.scheduler.builders import GPU, spec, uuid

CTXT = RequestContext(user_id='alice', project_id='demo', overwrite=False)
A, B, C = '0000:08:00.0', '0000:88:00.0', '0000:89:00.0'
BEGIN = 'No valid host was found. '


def refusal(manager, request, servers=('s1',), **how):
    with pytest.raises(errors.NoValidHost) as caught:
        manager.select_destinations(CTXT, request, [uuid(name) for name in servers], **how)
    assert type(caught.value) is errors.NoValidHost
    text = str(caught.value)
    assert text.startswith(BEGIN) and len(text) <= 255
    return text.removeprefix(BEGIN)


def test_each_kind_of_host_is_counted_with_the_nearest_miss(rig):
    for number in range(3):
        rig.host(f'gpu{number}', (A,) if number else ())
    rig.host('off1', (A, B), service={'disabled': True})
    rig.host('off2', (A, B), service={'disabled': True})
    rig.host('far', (A, B), service={'forced_down': True})
    text = refusal(rig.manager(), spec(gpus=(2,)))
    assert text == '6 hosts considered: 3 have fewer than 2 free gpu (best: 1 free), 2 disabled, 1 down.'
    for name in ('gpu1', 'off1', 'far'):
        assert name not in text


def test_a_host_with_two_faults_is_told_with_both(rig):
    rig.host('gpu1', (A,), service={'disabled': True})
    assert refusal(rig.manager(), spec(gpus=(2,))) == (
        '1 host considered: 1 disabled and has fewer than 2 free gpu (best: 1 free).'
    )


def test_amounts_that_the_rows_know(rig):
    root = rig.host('gpu1', memory_mb_used=262144 - 1000, local_gb_used=990)
    rig.placement.client.claim(
        uuid('other'), {root: {'resources': {'MEMORY_MB': 262144 - 1000, 'DISK_GB': 990}}}, project_id='p', user_id='u'
    )
    assert refusal(rig.manager(), spec()) == (
        '1 host considered: 1 has less than 32768 MiB free memory (best: 1000 MiB) and has less than 16 GB free disk '
        '(best: 10 GB).'
    )


def test_a_host_with_just_enough_is_not_said_to_lack_it(rig):
    rig.host('gpu1', (A,), memory_mb_used=262144 - 32768, local_gb_used=1000 - 16)
    assert refusal(rig.manager(), spec(gpus=(2,))) == '1 host considered: 1 has fewer than 2 free gpu (best: 1 free).'


def test_amounts_that_only_placement_knows(rig):
    """The row's ratio says four times as many."""
    rig.host('gpu1')
    assert refusal(rig.manager(), spec(flavor_values={'vcpus': 65})) == (
        '1 host considered: 1 has fewer than 65 free vCPUs.'
    )


def test_devices_that_only_placement_knows(rig):
    """Allocated to somebody whom the host doesn't count yet."""
    rig.host('gpu1', (A, B, C))
    providers = {row['name']: row['uuid'] for row in rig.placement.client.list_providers()}
    rig.placement.client.claim(
        uuid('other'), {providers[f'gpu1_{A}']: {'resources': {GPU: 1}}}, project_id='p', user_id='u'
    )
    assert refusal(rig.manager(), spec(gpus=(3,))) == ('1 host considered: 1 has fewer than 3 free gpu (best: 2 free).')


def test_a_trait_and_a_class(rig):
    rig.placement.client.ensure_traits(['CUSTOM_FAST'])
    rig.placement.client.ensure_resource_class('CUSTOM_LICENSE')
    rig.host('gpu1')
    assert refusal(rig.manager(), spec({'trait:CUSTOM_FAST': 'required'})) == (
        '1 host considered: 1 has no trait CUSTOM_FAST.'
    )
    assert refusal(rig.manager(), spec({'resources:CUSTOM_LICENSE': '2'})) == (
        '1 host considered: 1 has fewer than 2 free CUSTOM_LICENSE.'
    )


def test_a_zone(rig):
    rig.host('gpu1', (A,))
    rig.host('gpu2')
    aggregate = rig.aggregate('gpu2', availability_zone='east')
    rig.placement.client.set_member(uuid('gpu2'), aggregate, True)
    assert refusal(rig.manager(), spec(gpus=(1,), availability_zone='east')) == (
        '2 hosts considered: 1 wrong availability zone, 1 has fewer than 1 free gpu (best: 0 free).'
    )


def test_a_zone_that_placement_does_not_know_yet(rig):
    for name in ('gpu1', 'gpu2'):
        rig.host(name)
    rig.aggregate('gpu1', availability_zone='east')
    assert refusal(rig.manager(), spec(availability_zone='east')) == (
        '2 hosts considered: 1 wrong availability zone, 1 not in this zone or aggregate in Placement.'
    )


def test_an_aggregate_that_asks_for_traits(rig):
    rig.host('gpu1')
    rig.aggregate('gpu1', **{'trait:CUSTOM_A': 'required'})
    assert refusal(
        rig.manager(scheduler__enable_isolated_aggregate_filtering=True), spec(flavor_values={'vcpus': 999})
    ).startswith('1 host considered: 1 reserved for other servers')


def test_hints_and_what_is_named(rig):
    rig.host('gpu1')
    other = rig.server('other', 'gpu1')
    manager = rig.manager()
    assert refusal(manager, spec(scheduler_hints={'different_host': [other]})) == (
        '1 host considered: 1 has a server of the hint different_host.'
    )
    assert refusal(manager, spec(scheduler_hints={'same_host': [uuid('x')]})) == (
        '1 host considered: 1 has no server of the hint same_host.'
    )
    assert refusal(manager, spec(ignore_hosts=['gpu1'])) == '1 host considered: 1 excluded by the request.'
    assert refusal(manager, spec(force_hosts=['no-such'])) == 'There is no host to consider.'


def test_several_servers_of_which_some_would_fit(rig):
    rig.host('gpu1', (A,))
    assert refusal(rig.manager(), spec(gpus=(1,)), ('s1', 's2')) == (
        '1 host considered: 1 could take one of the servers, not all of them.'
    )


def test_a_filter_of_an_operator_is_named(rig):
    from kilonova.scheduler.filters import BaseHostFilter

    class Mondays(BaseHostFilter):
        def host_passes(self, host_state, spec_obj):
            return host_state.host == 'gpu2'

    rig.host('gpu1')
    rig.host('gpu2', service={'disabled': True})
    manager = rig.manager()
    manager.filters.append(Mondays())
    assert refusal(manager, spec()) == '2 hosts considered: 1 disabled, 1 rejected by Mondays.'


def test_a_plain_refusal_asks_placement_nothing_more(rig):
    rig.host('gpu1', (A,))
    manager = rig.manager()
    refusal(manager, spec(gpus=(2,)))
    rig.placement.requests.clear()
    refusal(manager, spec(gpus=(2,)))
    assert [path.partition('?')[0] for _, path in rig.placement.requests] == [
        '/allocation_candidates',
        f'/allocations/{uuid("s1")}',
    ]


def test_success_looks_for_no_reasons(rig, monkeypatch):
    rig.host('gpu1')
    monkeypatch.setattr('kilonova.scheduler.explain.reasons.explain', None)
    assert rig.manager().select_destinations(CTXT, spec(), [uuid('s1')])


@given(st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=60), st.integers(60, ROOM))
def test_the_text_is_short_and_its_counts_add_up(hosts, room):
    checks = [
        ReasonCheck(
            str(index),
            f'{{have}} fault number {index}' + ' that is long' * index,
            np.array([index in faults for faults in hosts]),
        )
        for index in range(8)
    ]
    text = RefusalReport({place: f'h{place}' for place in range(len(hosts))}, 1, checks).text(room)
    assert len(text) <= room or ' rejected for several reasons.' in text
    first, *others = re.findall(r'(?:^|: |, )(\d+) ', text)
    assert int(first) == len(hosts) == sum(map(int, others))


def test_administrators_read_of_each_host_what_lacks():
    """Those first that lack least; a host that fails no check lost its claim, or has no room for all servers."""
    checks = [
        ReasonCheck('disabled', 'disabled', np.array([False, True, True])),
        ReasonCheck('memory', '{have} less than 8 MB', np.array([False, False, True]), np.array([9, 9, 5]), ' MB'),
    ]
    report = RefusalReport({0: 'a', 1: 'b', 2: 'c'}, 2, checks)
    first, second, third = report.hosts(5)
    assert first == {
        'host': 'a',
        'turned_away_by': ['claim'],
        'why': ['could take one of the servers, not all of them'],
    }
    assert second == {'host': 'b', 'turned_away_by': ['disabled'], 'why': ['disabled']}
    assert (third['host'], third['turned_away_by']) == ('c', ['disabled', 'memory'])
    assert third['why'][0] == 'disabled' and 'has less than 8 MB' in third['why'][1] and '5 MB' in third['why'][1]
    assert [found['host'] for found in report.hosts(2)] == ['a', 'b']
    assert RefusalReport({0: 'a'}, 1, []).hosts(1)[0]['why'] == ['claimed by other requests at the same time']


def test_each_filter_has_words_of_its_own():
    """But those that refuse nothing, or whose refusals have several reasons."""
    words = {one.__name__: reasons._filter_words(one()) for one in all_filters()}
    assert [name for name, said in words.items() if said == f'rejected by {name}'] == [
        'AllHostsFilter',
        'ComputeFilter',
    ]
    assert all(words[name] == said for name, said in WORDS.items())
    assert words['IoOpsFilter'] == words['AggregateIoOpsFilter'] == 'busy with other builds'
    # A subclass of somebody's own has those of its base.
    assert reasons._filter_words(type('Mine', (IoOpsFilter,), {})()) == 'busy with other builds'


@pytest.mark.parametrize(
    ('name', 'words', 'unit'),
    [
        ('VCPU', '{have} fewer than 3 free vCPUs', ''),
        ('PCPU', '{have} fewer than 3 free dedicated CPUs', ''),
        ('MEMORY_MB', '{have} less than 3 MiB free memory', ' MiB'),
        ('DISK_GB', '{have} less than 3 GB free disk', ' GB'),
        ('CUSTOM_A', '{have} fewer than 3 free CUSTOM_A', ''),
    ],
)
def test_words_of_amounts(name, words, unit):
    assert reasons._amount(name, 3) == (words, unit)


@pytest.mark.parametrize(
    ('room', 'expected'),
    [
        (225, '4 hosts considered: 2 down, 1 disabled, 1 full.'),
        (60, '4 hosts considered: 2 down, 1 disabled, 1 full.'),
        (59, '4 hosts considered: 2 down, 2 for other reasons.'),
        (48, '4 hosts considered: 2 down, 2 for other reasons.'),
        (47, '4 hosts considered: 4 rejected for several reasons.'),
    ],
)
def test_a_text_that_is_too_long_is_cut(room, expected):
    checks = [
        ReasonCheck(name, name, np.array(mask))
        for name, mask in (('down', [1, 1, 0, 0]), ('disabled', [0, 0, 1, 0]), ('full', [0, 0, 0, 1]))
    ]
    for check in checks:
        check.failing = check.failing.astype(bool)
    assert RefusalReport({place: f'h{place}' for place in range(4)}, 1, checks).text(room) == expected


def test_no_host_at_all():
    assert RefusalReport({}, 1, []).text() == 'There is no host to consider.'
    assert RefusalReport({3: 'a'}, 1, []).text() == '1 host considered: 1 claimed by other requests at the same time.'
    assert RefusalReport({3: 'a', 5: 'b'}, 2, []).text() == (
        '2 hosts considered: 2 could take one of the servers, not all of them.'
    )


def test_two_reasons_of_one_host_are_told_together():
    checks = [
        ReasonCheck('down', 'down', np.array([False, True])),
        ReasonCheck('memory', '{have} less than 8 MiB', np.array([False, True]), np.array([-1, 5]), ' MiB'),
        ReasonCheck('gpu', '{have} fewer than 2 free gpu', np.array([True, False]), np.array([0, -1])),
    ]
    found = RefusalReport({0: 'a', 1: 'b'}, 1, checks)
    assert found.text() == (
        '2 hosts considered: 1 down and has less than 8 MiB (best: 5 MiB), 1 has fewer than 2 free gpu (best: 0 free).'
    )
    assert found.hosts(9) == [
        {'host': 'a', 'turned_away_by': ['gpu'], 'why': ['has fewer than 2 free gpu (has: 0 free)']},
        {'host': 'b', 'turned_away_by': ['down', 'memory'], 'why': ['down', 'has less than 8 MiB (has: 5 MiB)']},
    ]


def report(*failing, servers=1, has=None):
    checks = [
        ReasonCheck('gpu', '{have} fewer than 3 free gpu', np.array(mask), has and np.array(has)) for mask in failing
    ]
    return RefusalReport({place: f'h{place}' for place in range(len(failing[0]))}, servers, checks)


def test_the_nearest_miss_of_several_hosts_is_told():
    found = report([True, True, True], has=[0, 2, 1])
    assert found.text() == '3 hosts considered: 3 have fewer than 3 free gpu (best: 2 free).'
    assert [one['why'] for one in found.hosts(9)] == [
        [f'has fewer than 3 free gpu (has: {number} free)'] for number in (0, 2, 1)
    ]


def test_the_most_frequent_reasons_come_first_and_those_who_lack_least():
    found = report([True, True, False, True, True, False], [True, False, True, True, True, False])
    assert found.groups() == [((0, 1), [0, 3, 4]), ((), [5]), ((0,), [1]), ((1,), [2])]
    assert [one['host'] for one in found.hosts(9)] == ['h5', 'h1', 'h2', 'h0', 'h3', 'h4']
    assert [one['host'] for one in found.hosts(4)] == ['h5', 'h1', 'h2', 'h0']
    assert found.text().startswith('6 hosts considered: 3 have')


def test_a_race_is_lost_where_a_host_lacks_nothing_for_one_server():
    assert report([False, True]).lost_races
    assert not report([True, True]).lost_races
    assert not report([False, True], servers=2).lost_races


def test_of_a_forced_host_no_filter_is_told(rig):
    rig.host('gpu1', service={'disabled': True})
    for named in ({'force_hosts': ['gpu1']}, {'force_nodes': ['gpu1']}):
        assert refusal(rig.manager(), spec(flavor_values={'memory_mb': 300000}, **named)) == (
            '1 host considered: 1 has less than 300000 MiB free memory (best: 262144 MiB).'
        )


@pytest.mark.parametrize('named', [{'force_hosts': ['gpu1']}, {'force_nodes': ['gpu1']}])
def test_of_several_hosts_those_that_are_not_named_are_not_told(rig, named):
    for number in (1, 2, 3):
        rig.host(f'gpu{number}')
    assert refusal(rig.manager(), spec(flavor_values={'memory_mb': 300000}, **named)) == (
        '1 host considered: 1 has less than 300000 MiB free memory (best: 262144 MiB).'
    )


def test_no_more_is_asked_of_placement_than_there_may_be(rig):
    rig.host('gpu1', (A, B, C))
    providers = {row['name']: row['uuid'] for row in rig.placement.client.list_providers()}
    rig.placement.client.claim(
        uuid('other'), {providers[f'gpu1_{A}']: {'resources': {GPU: 1}}}, project_id='p', user_id='u'
    )
    manager = rig.manager()
    rig.placement.requests.clear()
    refusal(manager, spec(gpus=(3,)))
    asked = [path for _, path in rig.placement.requests if path.startswith('/resource_providers?') and GPU in path]
    # Each device is one: none has two.
    assert [f'resources={GPU}:{number}' in path for path, number in zip(asked, (1, 2), strict=True)] == [True, True]


HOST = st.fixed_dictionaries(
    {
        'gpus': st.integers(0, 2),
        'memory': st.sampled_from((1000, 262144)),
        'disabled': st.booleans(),
        'down': st.booleans(),
    }
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(HOST, min_size=1, max_size=3))
def test_each_kind_of_fault_that_there_is_and_no_other_is_told(rig, hosts):
    """What was made wrong with each host is known here: the text has as many parts as there are combinations."""
    rig.placement.reset()
    rig.placement.client.ensure_resource_class(GPU)
    with rig.by_name['cell1'].write() as connection:
        for model in (ComputeNode, Service):
            connection.execute(model.__table__.delete())
    for number, host in enumerate(hosts):
        root = rig.host(
            f'gpu{number}',
            (A, B)[: host['gpus']],
            memory_mb_used=262144 - host['memory'],
            service={'disabled': host['disabled'], 'forced_down': host['down']},
        )
        if host['memory'] < 262144:
            rig.placement.client.claim(
                uuid(f'other {number}'),
                {root: {'resources': {'MEMORY_MB': 262144 - host['memory']}}},
                project_id='p',
                user_id='u',
            )
    manager = rig.manager()
    trace = Trace(5)
    try:
        manager.try_out(spec(gpus=(2,)), [uuid('s1')], trace)
    except errors.NoValidHost:
        text = trace.report.text(10_000)
    else:
        assert {'gpus': 2, 'memory': 262144, 'disabled': False, 'down': False} in hosts
        return
    for host in hosts:
        for wrong, words in (
            (host['disabled'], 'disabled'),
            (host['down'], 'down'),
            (host['gpus'] < 2, 'fewer than 2 free gpu'),
            (host['memory'] < 32768, 'less than 32768 MiB free memory'),
        ):
            assert not wrong or words in text
    kinds = {
        tuple(
            sorted(
                why
                for why, holds in (
                    ('disabled', host['disabled']),
                    ('down', host['down']),
                    ('pci', host['gpus'] < 2),
                    ('memory', host['memory'] < 32768),
                )
                if holds
            )
        )
        for host in hosts
    }
    assert text.count(', ') == len(kinds) - 1
