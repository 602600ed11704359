"""What would fit, against what then does; nothing is touched by asking."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kilonova import errors
from kilonova.conf import pci
from kilonova.context import RequestContext
from kilonova.db.models.cell import ComputeNode, Service
from kilonova.scheduler.explain import what_if
from kilonova.scheduler.explain.decisions import Trace
from kilonova.scheduler.filters.aggregates import AggregateMultiTenancyIsolation
from tests.unit.scheduler.builders import GPU, conf, spec, uuid

CTXT = RequestContext(user_id='alice', project_id='demo', overwrite=False)
A, B, C, D = (f'0000:{bus:02x}:00.0' for bus in (8, 9, 0x88, 0x89))


def counted(rig, request, **options):
    before = rig.placement.allocations()
    manager = rig.manager(**options)
    found = what_if.capacity(
        conf(), manager, request, {database.cell.uuid: name for name, database in rig.by_name.items()}
    )
    manager.stop()
    assert rig.placement.allocations() == before
    return found


def boot_until_refused(rig, make):
    manager = rig.manager()
    number = 0
    while number < 100:
        try:
            manager.select_destinations(CTXT, make(), [uuid(f'server {number}')])
        except errors.NoValidHost:
            break
        number += 1
    manager.stop()
    return number


def test_by_host_zone_and_cell(rig):
    rig.host('gpu1', (A, B, C))
    rig.host('gpu2', (A,), cell='cell2')
    rig.host('off', (A,), service={'disabled': True})
    rig.aggregate('gpu1', availability_zone='east')
    found = counted(rig, spec(gpus=(1,)))
    assert (found.total, found.hosts) == (4, {'gpu1': 3, 'gpu2': 1, 'off': 0})
    assert found.zones == {'east': 3, 'nova': 1}
    assert found.cells == {'cell1': 3, 'cell2': 1}
    assert found.devices == {'gpu': {'legacy': {'10de:13f1': 5}}}
    lines = what_if.prometheus(found, 'a"b')
    assert 'kilonova_capacity_servers{flavor="a\\"b"} 4' in lines
    assert 'kilonova_capacity_servers_by_host{flavor="a\\"b",host="gpu1"} 3' in lines
    assert 'kilonova_free_devices{flavor="a\\"b",alias="gpu",numa_policy="legacy",device="10de:13f1"} 5' in lines


def test_lines_for_node_exporter():
    found = what_if.FittingServers(3, {'b': 1, 'a': 2}, {'z': 3}, {'c\n1': 3}, {'gpu': {'legacy': {'10de:1': 4}}})
    assert found.free_devices() == [('gpu', 'legacy', '10de:1', 4)]
    assert what_if.prometheus(found, 'a\\"') == [
        '# HELP kilonova_capacity_servers Number of additional servers that fit.',
        '# TYPE kilonova_capacity_servers gauge',
        r'kilonova_capacity_servers{flavor="a\\\""} 3',
        '# HELP kilonova_capacity_servers_by_host Number of additional servers that fit, by host.',
        '# TYPE kilonova_capacity_servers_by_host gauge',
        r'kilonova_capacity_servers_by_host{flavor="a\\\"",host="a"} 2',
        r'kilonova_capacity_servers_by_host{flavor="a\\\"",host="b"} 1',
        (
            '# HELP kilonova_capacity_servers_by_availability_zone Number of additional servers that fit, '
            'by availability_zone.'
        ),
        '# TYPE kilonova_capacity_servers_by_availability_zone gauge',
        r'kilonova_capacity_servers_by_availability_zone{flavor="a\\\"",availability_zone="z"} 3',
        '# HELP kilonova_capacity_servers_by_cell Number of additional servers that fit, by cell.',
        '# TYPE kilonova_capacity_servers_by_cell gauge',
        r'kilonova_capacity_servers_by_cell{flavor="a\\\"",cell="c\n1"} 3',
        '# HELP kilonova_free_devices Free PCI devices on hosts that may take the flavor.',
        '# TYPE kilonova_free_devices gauge',
        r'kilonova_free_devices{flavor="a\\\"",alias="gpu",numa_policy="legacy",device="10de:1"} 4',
    ]


@pytest.mark.parametrize(('policy', 'told'), [('required', 'required'), ('socket', 'socket'), (None, 'legacy')])
def test_devices_are_told_with_their_numa_policy(rig, policy, told):
    """None: a request that was made without one."""
    rig.host('gpu1', (A, B))
    request = spec(gpus=(1,))
    request.pci_requests.requests[0].numa_policy = policy
    assert counted(rig, request).devices == {'gpu': {told: {'10de:13f1': 2}}}


def test_an_alias_that_is_asked_for_twice_has_its_devices_once(rig):
    rig.host('gpu1', (A, B, C))
    request = spec(gpus=(1, 1))
    assert counted(rig, request).devices == {'gpu': {'legacy': {'10de:13f1': 3}}}
    request.pci_requests.requests[1].numa_policy = 'preferred'
    assert counted(rig, request).devices == {'gpu': {'legacy': {'10de:13f1': 3}, 'preferred': {'10de:13f1': 3}}}


def test_an_alias_of_several_devices_counts_those_of_each(rig):
    rig.host('gpu1', (A, B, C), products={B: '0001', C: '0002'})
    request = spec(gpus=(1,))
    request.pci_requests.requests[0].spec = [
        {'vendor_id': '10de', 'product_id': product} for product in ('13f1', '0001')
    ]
    assert counted(rig, request, filter_scheduler__pci_in_placement=False).devices == {
        'gpu': {'legacy': {'10de:13f1': 1, '10de:0001': 1}}
    }


def test_a_request_is_of_its_project(rig):
    row = {
        'id': 1,
        'name': 'm',
        'flavorid': '1',
        'vcpus': 2,
        'memory_mb': 64,
        'root_gb': 1,
        'ephemeral_gb': 0,
        'swap': 0,
        'disabled': False,
        'is_public': True,
        'extra_specs': {},
    }
    options = conf()
    options.register_opts(pci.OPTS, group=pci.GROUP)
    for name in ('gpu1', 'gpu2'):
        rig.host(name)
    rig.aggregate('gpu1', filter_tenant_id='gold')
    isolated = AggregateMultiTenancyIsolation()
    isolated.conf = options
    manager = rig.manager()
    manager.filters.append(isolated)
    hosts = {
        project: what_if.capacity(options, manager, what_if.request(options, row, project_id=project), {}).hosts
        for project in ('gold', 'other', '')
    }
    manager.stop()
    assert hosts['gold']['gpu1'] > 0 and hosts['other']['gpu1'] == hosts['']['gpu1'] == 0
    assert all(each['gpu2'] > 0 for each in hosts.values())


def test_what_fits_nowhere_is_zero(rig):
    rig.host('gpu1', (A,))
    assert counted(rig, spec(gpus=(2,))).as_dict() == what_if.FittingServers().as_dict()
    assert counted(rig, spec({'resources:CUSTOM_NO_SUCH': '1'})).total == 0


def test_placements_answer_is_not_cut(rig):
    for number in range(3):
        rig.host(f'gpu{number}')
    assert counted(rig, spec(), scheduler__max_placement_results=1).total == 24


HOST = st.tuples(st.integers(0, 4), st.sampled_from((8, 24, 64)), st.booleans())


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hosts=st.lists(HOST, min_size=1, max_size=3), gpus=st.integers(0, 3))
def test_as_many_boot_as_were_counted(rig, hosts, gpus):
    rig.placement.reset()
    rig.placement.client.ensure_resource_class(GPU)
    with rig.by_name['cell1'].write() as connection:
        for model in (ComputeNode, Service):
            connection.execute(model.__table__.delete())
    for number, (devices, vcpus, disabled) in enumerate(hosts):
        rig.host(f'gpu{number}', (A, B, C, D)[:devices], vcpus=vcpus, service={'disabled': disabled})

    def make():
        return spec(gpus=(gpus,) if gpus else ())

    assert counted(rig, make()).total == boot_until_refused(rig, make)


def test_of_equal_hosts_a_trial_names_the_one_that_the_scheduler_takes(rig):
    """Whatever Placement's order is."""
    for number in random.Random(7).sample(range(6), 6):
        rig.host(f'gpu{number}')
    manager, chosen = rig.manager(), []
    for number in range(6):
        one = uuid(f's{number}')
        trial = manager.try_out(spec(), [one], Trace(5)).choices[0].host.host
        chosen.append((trial, manager.select_destinations(CTXT, spec(), [one])[0][0].service_host))
    assert [trial for trial, _ in chosen] == [real for _, real in chosen]
    assert len({real for _, real in chosen}) == 6
    manager.stop()


def test_a_trial_chooses_as_the_scheduler_does_and_takes_nothing(rig):
    rig.host('gpu1', (A,))
    rig.host('gpu2', (A, B), memory_mb_used=1000)
    manager, trace = rig.manager(), Trace(5)
    plan = manager.try_out(spec(gpus=(1,)), [uuid('s1'), uuid('s2')], trace)
    assert [choice.host.host for choice in plan.choices] == ['gpu1', 'gpu2']
    assert trace.survivors['host'] == ['gpu1', 'gpu2']
    assert rig.placement.allocations() == {}
    assert manager.select_destinations(CTXT, spec(gpus=(1,)), [uuid('s1')])[0][0].service_host == 'gpu1'
    with pytest.raises(errors.NoValidHost, match='2 hosts considered'):
        manager.try_out(spec(gpus=(3,)), [uuid('s3')], trace)
    manager.stop()


@pytest.mark.parametrize(
    ('zone', 'named'),
    [
        (None, (None, None, None)),
        ('east', ('east', None, None)),
        ('east:gpu1', ('east', ['gpu1'], None)),
        ('::node1', (None, None, ['node1'])),
    ],
)
def test_a_request_is_made_as_the_api_makes_it(zone, named):
    made = conf()
    made.register_opts(pci.OPTS, group=pci.GROUP)
    made.set_override('alias', ['{"name": "gpu", "vendor_id": "10de", "product_id": "13f1"}'], 'pci')
    row = {
        'id': 1,
        'name': 'm',
        'flavorid': '1',
        'vcpus': 2,
        'memory_mb': 64,
        'root_gb': 1,
        'ephemeral_gb': 0,
        'swap': 0,
        'disabled': False,
        'is_public': True,
        'extra_specs': {'pci_passthrough:alias': 'gpu:2', 'hw:numa_nodes': '2'},
    }
    request = what_if.request(made, row, zone=zone, hints={'same_host': [uuid('s')]})
    assert (request.availability_zone, request.force_hosts, request.force_nodes) == named
    assert [(one.alias_name, one.count) for one in request.pci_requests.requests] == [('gpu', 2)]
    assert len(request.numa_topology.cells) == 2
    assert request.get_scheduler_hint('same_host') == uuid('s')
    assert (request.project_id, request.user_id, request.num_instances) == ('nobody', 'nobody', 1)
    assert request.instance_group is None and request.image is None
    assert request.pci_requests.instance_uuid == request.instance_uuid


def test_a_request_with_image_group_and_number():
    made = conf()
    made.register_opts(pci.OPTS, group=pci.GROUP)
    row = {
        'id': 1,
        'name': 'm',
        'flavorid': '1',
        'vcpus': 2,
        'memory_mb': 64,
        'root_gb': 1,
        'ephemeral_gb': 0,
        'swap': 0,
        'disabled': False,
        'is_public': True,
        'extra_specs': {},
    }
    request = what_if.request(
        made,
        row,
        image={'id': uuid('image'), 'properties': {'os_distro': 'debian'}},
        hints={'group': uuid('group')},
        project_id='p',
        count=3,
    )
    group = request.instance_group
    assert (group.uuid, group.members, group.hosts) == (uuid('group'), [], [])
    assert (request.project_id, request.num_instances, request.image.id) == ('p', 3, uuid('image'))
    assert request.image.properties.os_distro == 'debian' and request.flavor.memory_mb == 64
    assert request.availability_zone == made.default_schedule_zone


def test_what_is_counted_no_longer_builds_when_the_next_one_comes(rig):
    """Each is booted alone: how much a host may build at a time is no limit."""
    from kilonova.scheduler.filters.limits import IoOpsFilter

    rig.host('gpu1', vcpus=12)
    manager = rig.manager()
    one = IoOpsFilter()
    one.conf = conf(filter_scheduler__max_io_ops_per_host=1)
    manager.filters.append(one)
    found = what_if.capacity(conf(), manager, spec(flavor_values={'vcpus': 4}), {})
    manager.stop()
    assert found.total == 3
