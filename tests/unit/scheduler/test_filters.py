from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from kilonova import objects
from kilonova.scheduler import filters, weighers
from kilonova.scheduler.filters import extra_specs
from kilonova.scheduler.filters.affinity import (
    DifferentHostFilter,
    SameHostFilter,
    ServerGroupAffinityFilter,
    ServerGroupAntiAffinityFilter,
)
from kilonova.scheduler.filters.aggregates import (
    AggregateFilter,
    AggregateImagePropertiesIsolation,
    AggregateInstanceExtraSpecsFilter,
    AggregateMultiTenancyIsolation,
    AggregateTypeAffinityFilter,
)
from kilonova.scheduler.filters.all_hosts import AllHostsFilter
from kilonova.scheduler.filters.cidr import SimpleCIDRAffinityFilter
from kilonova.scheduler.filters.compute import ComputeFilter
from kilonova.scheduler.filters.compute_capabilities import ComputeCapabilitiesFilter
from kilonova.scheduler.filters.image_properties import ImagePropertiesFilter
from kilonova.scheduler.filters.isolated_hosts import IsolatedHostsFilter
from kilonova.scheduler.filters.json_query import JsonFilter
from kilonova.scheduler.filters.limits import (
    AggregateIoOpsFilter,
    AggregateNumInstancesFilter,
    IoOpsFilter,
    NumInstancesFilter,
)
from kilonova.scheduler.filters.metrics import MetricsFilter
from kilonova.scheduler.filters.pci_passthrough import PciPassthroughFilter
from kilonova.scheduler.plugins import nova_names
from kilonova.scheduler.plugins.guard import Guard
from tests.unit.scheduler.builders import candidate, conf, pools, spec, state, uuid

# Those whose answer the servers of a request before change nothing of, and those that look at rebuilds.
ONCE = {
    'AggregateImagePropertiesIsolation',
    'AggregateInstanceExtraSpecsFilter',
    'AggregateMultiTenancyIsolation',
    'AggregateTypeAffinityFilter',
    'AllHostsFilter',
    'ComputeCapabilitiesFilter',
    'ComputeFilter',
    'DifferentHostFilter',
    'ImagePropertiesFilter',
    'IsolatedHostsFilter',
    'SameHostFilter',
    'SimpleCIDRAffinityFilter',
}
ON_REBUILD = {'AggregateImagePropertiesIsolation', 'ImagePropertiesFilter', 'IsolatedHostsFilter'}


def passes(cls: type, host: Any, request: Any, **overrides: Any) -> bool:
    one = cls()
    one.conf = conf(**overrides)
    # What each of them is on the way: whether it is asked about the second server of a request, and about rebuilds.
    assert one.run_filter_for_index(0) and one.run_filter_for_index(1) != (cls.__name__ in ONCE)
    assert (cls.__name__ in ON_REBUILD) == one.RUN_ON_REBUILD
    alone = list(one.filter_all([host], request)) == [host]
    # Of all hosts at once it says the same, or leaves the answer to ``host_passes``; an upper bound is none too low.
    found = filters.mask_of(one, host.arrays, request, Guard('Filter', one))
    if found is not filters.PER_HOST:
        at_once = found is None or bool(found[host.host_index])
        assert at_once == alone or (at_once and one.at_most)
    return alone


def test_all_hosts():
    assert passes(AllHostsFilter, state(), spec())


@pytest.mark.parametrize(
    ('service', 'expected'),
    [({}, True), ({'disabled': True, 'disabled_reason': 'repair'}, False), ({'up': False}, False)],
)
def test_compute(service, expected):
    assert passes(ComputeFilter, state(service=service), spec()) == expected


@pytest.mark.parametrize(
    ('value', 'wanted', 'expected'),
    [
        ('8', '8', True),
        ('8', '9', False),
        ('8', '= 8', True),
        ('9', '= 8', True),
        ('7', '= 8', False),
        ('8', '== 8.0', True),
        ('8', '!= 8', False),
        ('10', '>= 9', True),
        ('8', '<= 9', True),
        ('x', '>= 9', False),
        ('12', 's== 12', True),
        ('12', 's!= 12', False),
        ('12', 's>= 11', True),
        ('12', 's> 12', False),
        ('12', 's<= 12', True),
        ('12', 's< 13', True),
        ('avx avx2', '<in> avx2', True),
        ('avx', '<in> avx2', False),
        (['a', 'b'], '<all-in> a b', True),
        (['a'], '<all-in> a b', False),
        # A list has words or it has them not; part of one is none of them.
        (['sse4_1', 'avx2'], '<all-in> sse4 avx', False),
        (('sse4_1', 'avx2'), '<all-in> avx2 sse4_1', True),
        ({1, 2}, '<all-in> 1 2', True),
        (['sse4_1', 'avx2'], '<all-in> avx2', True),
        ("['sse4_1', 'avx2']", '<all-in> sse4 avx', False),
        ("['sse4_1', 'avx2']", '<all-in> avx2 sse4_1', True),
        ('["sse4_1", "avx2"]', '<all-in> avx2 sse4_1', True),
        ('[1, 2]', '<all-in> 1 2', True),
        # Other texts are looked at as they are.
        ('sse4_1 avx2', '<all-in> sse4 avx', True),
        ('[sse4_1', '<all-in> sse4', True),
        ('[]', '<all-in> a', False),
        ('[f(1)]', '<all-in> f 1', True),
        ('[f(1)]', '<all-in> f 2', False),
        ('avx', '<all-in> sse4', False),
        ('sse4_1 avx2', '<all-in> sse4 vmx', False),
        ('kvm', '<or> qemu <or> kvm', True),
        ('xen', '<or> qemu <or> kvm', False),
        ('', '', True),
        ('8', '>=', False),
    ],
)
def test_comparisons(value, wanted, expected):
    assert extra_specs.match(value, wanted) == expected


@pytest.mark.parametrize(
    ('given', 'expected'),
    [
        ({}, True),
        ({'capabilities:vcpus_total': '>= 64'}, True),
        ({'capabilities:vcpus_total': '>= 65'}, False),
        ({'capabilities:cpu_info:vendor': 'Intel'}, True),
        ({'capabilities:cpu_info:topology:cores': '>= 4'}, True),
        ({'capabilities:cpu_info:no:such': '1'}, False),
        ({'capabilities:no_such': '1'}, False),
        ({'capabilities:rack': 'r1'}, True),
        ({'rack': 'r2'}, False),
        ({'hypervisor_type': 'QEMU'}, True),
        ({'capabilities:temperature': '<= 40'}, True),
        ({'hw:cpu_policy': 'shared', 'group_policy': 'none'}, True),
        ({'trait:X': 'required', 'pci_passthrough:alias': 'gpu:1'}, True),
    ],
)
def test_capabilities(given, expected):
    host = state(
        cpu_info='{"vendor": "Intel", "topology": {"cores": 8}}',
        stats={'rack': 'r1'},
        metrics='[{"name": "temperature", "value": 35}]',
    )
    assert passes(ComputeCapabilitiesFilter, host, spec(given)) == expected


@pytest.mark.parametrize(
    ('properties', 'expected'),
    [
        ({}, True),
        ({'hw_architecture': 'x86_64'}, True),
        ({'hw_architecture': 'aarch64'}, False),
        ({'img_hv_type': 'qemu'}, True),
        ({'img_hv_type': 'xen'}, False),
        ({'hw_vm_mode': 'hvm'}, True),
        ({'hw_architecture': 'x86_64', 'hw_vm_mode': 'xen'}, False),
        ({'img_hv_requested_version': '>=8.0'}, True),
        ({'img_hv_requested_version': '>=9.0'}, False),
    ],
)
def test_image_properties(properties, expected):
    request = spec(image={'id': uuid(), 'properties': properties})
    assert passes(ImagePropertiesFilter, state(), request) == expected


@pytest.mark.parametrize(
    ('properties', 'expected'),
    [
        ({'hw_architecture': 'x86_64'}, True),
        ({'hw_architecture': 'aarch64', 'img_hv_type': 'kvm'}, True),
        ({'hw_architecture': 'aarch64', 'img_hv_type': 'qemu'}, False),
        ({'hw_architecture': 'ppc64'}, False),
    ],
)
@pytest.mark.parametrize('version', [{}, {'img_hv_requested_version': '>=8.0'}], ids=['by table', 'host by host'])
def test_one_of_the_kinds_of_guests_of_a_host_is_enough(properties, expected, version):
    host = state(supported_instances='[["x86_64", "qemu", "hvm"], ["aarch64", "kvm", "hvm"]]')
    request = spec(image={'id': uuid(), 'properties': {**properties, **version}})
    assert passes(ImagePropertiesFilter, host, request) == expected


@pytest.mark.parametrize(('default', 'expected'), [(None, True), ('x86_64', True), ('aarch64', False)])
def test_default_architecture(default, expected):
    assert (
        passes(ImagePropertiesFilter, state(), spec(), filter_scheduler__image_properties_default_architecture=default)
        == expected
    )


def server(name: str) -> dict[str, Any]:
    return {'uuid': uuid(name), 'host': 'host1', 'node': 'host1', 'deleted': 0, 'id': 1}


@pytest.mark.parametrize(
    ('hints', 'different', 'same'),
    [
        ({}, True, True),
        ({'different_host': uuid('a'), 'same_host': uuid('a')}, False, True),
        ({'different_host': [uuid('x')], 'same_host': [uuid('x')]}, True, False),
        ({'different_host': [uuid('x'), uuid('a')], 'same_host': [uuid('x'), uuid('a')]}, False, True),
    ],
)
def test_hints_of_other_servers(hints, different, same):
    host = state(servers=[server('a')])
    assert passes(DifferentHostFilter, host, spec(scheduler_hints=hints)) == different
    assert passes(SameHostFilter, host, spec(scheduler_hints=hints)) == same


@pytest.mark.parametrize(
    ('members', 'rules', 'expected'),
    [
        (['x'], {}, True),
        (['a'], {}, False),
        (['a'], {'max_server_per_host': '2'}, True),
        (['a', 'b'], {'max_server_per_host': '2'}, False),
    ],
)
def test_anti_affinity(members, rules, expected):
    group = objects.InstanceGroup(policy='anti-affinity', members=[uuid(name) for name in members], _rules=rules)
    host = state(servers=[server('a'), server('b')])
    assert passes(ServerGroupAntiAffinityFilter, host, spec(instance_group=group)) == expected
    assert passes(ServerGroupAntiAffinityFilter, host, spec())
    assert passes(ServerGroupAntiAffinityFilter, host, spec(instance_group=group, instance_uuid=uuid('a')))


@pytest.mark.parametrize(('hosts', 'expected'), [([], True), (['host1'], True), (['host2'], False)])
def test_affinity(hosts, expected):
    group = objects.InstanceGroup(policy='affinity', members=[], hosts=hosts)
    assert passes(ServerGroupAffinityFilter, state(), spec(instance_group=group)) == expected
    assert passes(ServerGroupAffinityFilter, state(), spec())


def test_io_ops():
    assert passes(IoOpsFilter, state(stats={'io_workload': 7}), spec())
    assert not passes(IoOpsFilter, state(stats={'io_workload': 8}), spec())


def test_num_instances():
    assert passes(NumInstancesFilter, state(running_vms=49), spec())
    assert not passes(NumInstancesFilter, state(running_vms=49), spec(), filter_scheduler__max_instances_per_host=49)


# Aggregates


@pytest.mark.parametrize(
    ('given', 'expected'),
    [
        ({}, True),
        ({'aggregate_instance_extra_specs:ssd': 'true'}, True),
        ({'aggregate_instance_extra_specs:ssd': 'false'}, False),
        ({'ssd': 'true'}, True),
        ({'hdd': 'true'}, False),
        ({'aggregate_instance_extra_specs:rack': 'r2'}, True),
        ({'aggregate_instance_extra_specs:rack': '<or> r3 <or> r1'}, True),
        ({'aggregate_instance_extra_specs:cores': '>= 8'}, True),
        ({'aggregate_instance_extra_specs:cores': '>= x'}, False),
        ({'aggregate_instance_extra_specs:cores': '=~ 8'}, False),
        ({'aggregate_instance_extra_specs:a:b': 'c'}, True),
        ({'hw:cpu_policy': 'shared', 'capabilities:x': 'y', 'group_policy': 'none'}, True),
        ({'hw:cpu_policy': 'shared', 'ssd': 'false'}, False),
    ],
)
def test_extra_specs_of_aggregates(given, expected):
    host = state(metadata={'ssd': 'true', 'rack': 'r1, r2', 'cores': '16', 'a:b': 'c'})
    assert passes(AggregateInstanceExtraSpecsFilter, host, spec(given)) == expected
    assert passes(AggregateInstanceExtraSpecsFilter, state(), spec())


@pytest.mark.parametrize(
    ('metadata', 'namespace', 'expected'),
    [
        ({}, None, True),
        ({'os_distro': 'debian'}, None, True),
        ({'os_distro': 'windows, debian'}, None, True),
        ({'os_distro': 'windows'}, None, False),
        ({'hw_disk_bus': 'scsi'}, None, True),
        ({'no_property': 'x'}, None, True),
        ({'os_distro': 'windows'}, 'hw', True),
        ({'os_distro': 'windows'}, 'os', False),
        ({'os_require_quiesce': 'False'}, None, False),
    ],
)
def test_image_properties_of_aggregates(metadata, namespace, expected):
    request = spec(image={'id': uuid(), 'properties': {'os_distro': 'debian', 'os_require_quiesce': 'true'}})
    assert (
        passes(
            AggregateImagePropertiesIsolation,
            state(metadata=metadata),
            request,
            filter_scheduler__aggregate_image_properties_isolation_namespace=namespace,
            filter_scheduler__aggregate_image_properties_isolation_separator='_',
        )
        == expected
    )
    assert passes(AggregateImagePropertiesIsolation, state(metadata=metadata), spec())


@pytest.mark.parametrize(
    ('metadata', 'expected'),
    [
        ({}, True),
        ({'filter_tenant_id': 'demo'}, True),
        ({'filter_tenant_id': 'other,demo'}, True),
        ({'filter_tenant_id': 'other'}, False),
        ({'filter_tenant_id': 'other', 'filter_tenant_id3': 'demo'}, True),
        ({'rack': 'r1'}, True),
    ],
)
def test_aggregates_of_projects(metadata, expected):
    assert passes(AggregateMultiTenancyIsolation, state(metadata=metadata), spec()) == expected


@pytest.mark.parametrize(
    ('metadata', 'expected'),
    [
        ({}, True),
        ({'instance_type': 'tmp1'}, True),
        ({'instance_type': 'tmp0, tmp1'}, True),
        ({'instance_type': 'tmp'}, False),
        ({'instance_type': ''}, False),
    ],
)
def test_aggregates_of_flavors(metadata, expected):
    assert passes(AggregateTypeAffinityFilter, state(metadata=metadata), spec()) == expected


def test_a_host_of_several_aggregates_takes_the_flavors_of_each():
    one = AggregateTypeAffinityFilter()
    assert one.fits([{'instance_type': 'tmp0'}, {'instance_type': 'tmp1'}, {}], spec())
    assert not one.fits([{'instance_type': 'tmp0'}, {}], spec())


@pytest.mark.parametrize(
    ('cls', 'key', 'counted'),
    [
        (AggregateIoOpsFilter, 'max_io_ops_per_host', {'stats': {'io_workload': 7}}),
        (AggregateNumInstancesFilter, 'max_instances_per_host', {'running_vms': 7}),
    ],
)
@pytest.mark.parametrize(('value', 'expected'), [('8', True), ('7', False), ('many', True), (None, True)])
def test_limits_of_aggregates(cls, key, counted, value, expected, caplog):
    host = state(metadata={key: value} if value else None, **counted)
    assert passes(cls, host, spec()) == expected
    assert ('Could not decode' in caplog.text) == (value == 'many')


@pytest.mark.parametrize(
    ('image', 'host', 'restrict', 'expected'),
    [
        ('isolated', 'isolated', True, True),
        ('isolated', 'other', True, False),
        ('other', 'isolated', True, False),
        ('other', 'other', True, True),
        ('other', 'isolated', False, True),
        ('isolated', 'other', False, False),
        (None, 'isolated', True, False),
        (None, 'other', True, True),
    ],
)
def test_isolated_hosts(image, host, restrict, expected):
    request = spec(image={'id': uuid(image), 'properties': {}} if image else None)
    options = {
        'filter_scheduler__isolated_images': [uuid('isolated')],
        'filter_scheduler__isolated_hosts': ['isolated'],
        'filter_scheduler__restrict_isolated_hosts_to_isolated_images': restrict,
    }
    assert passes(IsolatedHostsFilter, state(host), request, **options) == expected


@pytest.mark.parametrize(
    ('hints', 'expected'),
    [
        ({}, True),
        ({'build_near_host_ip': '10.0.0.200'}, True),
        ({'build_near_host_ip': '10.0.1.1'}, False),
        ({'build_near_host_ip': '10.0.1.1', 'cidr': '/16'}, True),
        ({'build_near_host_ip': 'fe80::1'}, False),
        ({'build_near_host_ip': 'next door'}, False),
        ({'build_near_host_ip': '10.0.0.2', 'cidr': '/99'}, False),
    ],
)
def test_hosts_near_an_address(hints, expected):
    assert passes(SimpleCIDRAffinityFilter, state(), spec(scheduler_hints=hints)) == expected


@pytest.mark.parametrize(
    ('query', 'expected'),
    [
        (['>=', '$free_ram_mb', 1024], True),
        (['<', '$free_ram_mb', 1024], False),
        (['=', '$host', 'host1'], True),
        (['in', '$hypervisor_type', 'KVM', 'QEMU'], True),
        (['in', '$hypervisor_type', 'KVM'], False),
        (['not', ['=', '$host', 'host1']], False),
        (['not', False, True], False),
        (['not', False, False], True),
        (['=', 5, 5, 6], False),
        (['<', 5, 6, 7], True),
        (['and', ['>', '$vcpus_total', 8], ['<=', '$vcpus_used', 0]], True),
        (['or', ['=', '$host', 'x'], ['=', '$cpu_info.vendor', 'Intel']], True),
        (['=', '$cpu_info.no.such', 1], False),
        ([], True),
        (['=', '$stats.rack', 'r1'], True),
        (['>', '$no_such', 1], False),
        (['>', '$host', 1], False),
        (['?', 1, 2], False),
        ([['='], 1], False),
        (['=', 1], False),
        (['in'], False),
        ({'a': 1}, False),
        (0, False),
        ('$_node', False),
        ('$consume', False),
    ],
)
def test_json_queries(query, expected):
    host = state(cpu_info='{"vendor": "Intel"}', stats={'rack': 'r1'})
    assert passes(JsonFilter, host, spec(scheduler_hints={'query': json.dumps(query)})) == expected


def test_a_host_passes_all_queries_of_several():
    good, bad = json.dumps(['=', '$host', 'host1']), json.dumps(['=', '$host', 'x'])
    assert passes(JsonFilter, state(), spec(scheduler_hints={'query': [good, good]}))
    assert not passes(JsonFilter, state(), spec(scheduler_hints={'query': [good, bad]}))


@pytest.mark.parametrize(
    'garbage',
    ['[">=", "$free_ram_mb", 1024', 'x', '[' * 100000, '["not", ' * 100 + '1' + ']' * 100],
    ids=['cut', 'word', 'deep', 'nested'],
)
def test_json_garbage_suits_no_host(garbage, caplog):
    caplog.set_level(logging.DEBUG)
    assert not passes(JsonFilter, state(), spec(scheduler_hints={'query': garbage}))
    assert 'cannot be evaluated for' in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


METRICS = '[{"name": "cpu.frequency", "value": 2400, "timestamp": "2026-01-01T00:00:00Z", "source": "libvirt"}]'


@pytest.mark.parametrize(
    ('setting', 'metrics', 'expected'),
    [
        ([], None, True),
        (['cpu.frequency=1.0'], METRICS, True),
        (['cpu.frequency=1.0'], None, False),
        (['cpu.frequency=1', 'cpu.percent=1'], METRICS, False),
        (['nonsense'], None, True),
        (['cpu.frequency=1'], '{not json', False),
        (['cpu.frequency=1'], '[1]', False),
    ],
)
def test_metrics(setting, metrics, expected):
    assert passes(MetricsFilter, state(metrics=metrics), spec(), metrics__weight_setting=setting) == expected


@pytest.mark.parametrize(('bits', 'expected'), [('42', True), ('46', True), ('47', False), ('wide', True)])
def test_bits_of_addresses(bits, expected):
    host = state(cpu_info='{"maxphysaddr": {"mode": "emulate", "bits": 46}}')
    assert passes(ComputeCapabilitiesFilter, host, spec({'hw:maxphysaddr_bits': bits})) == expected
    if bits.isdecimal():
        request = spec(image={'id': uuid(), 'properties': {'hw_maxphysaddr_bits': bits}})
        assert passes(ImagePropertiesFilter, host, request) == expected
        assert passes(ImagePropertiesFilter, state(), request)


# PCI

A, B = '0000:08:00.0', '0000:88:00.0'
GROUP = f'{uuid("request 0")}-0'


def test_a_provider_may_give_devices_while_one_of_its_pools_has_some():
    stored = objects.PciDevicePoolList(
        objects=[
            objects.PciDevicePool(
                vendor_id='10de', product_id=product, numa_node=cell, count=count, tags={'rp_uuid': uuid(provider)}
            )
            for product, cell, count, provider in (('1', 0, 0, 'some'), ('2', 0, 1, 'some'), ('3', 1, 0, 'none'))
        ]
    )
    host = state(pci_stats=stored.to_json())
    assert [host.may_give(uuid(name)) for name in ('some', 'none', 'unknown')] == [True, False, True]
    assert [host.cell_of(uuid(name)) for name in ('some', 'none', 'unknown')] == [0, 1, -1]


def test_pci_without_requests():
    assert passes(PciPassthroughFilter, state(), spec())


@pytest.mark.parametrize(('count', 'expected'), [(1, True), (2, True), (3, False)])
def test_pci_counts_devices(count, expected):
    assert passes(PciPassthroughFilter, state(pci_stats=pools(A, B)), spec(gpus=(count,))) == expected


def test_pci_keeps_the_candidates_that_the_pools_can_serve():
    """Placement has room at A (its allocation went), but the host still holds the device."""
    host = state(pci_stats=pools(B), candidates=[candidate(devices={GROUP: A}), candidate(devices={GROUP: B})])
    assert passes(PciPassthroughFilter, host, spec(gpus=(1,)))
    assert host.allocation_candidates == [candidate(devices={GROUP: B})]


def test_pci_fails_without_a_candidate_that_fits():
    host = state(pci_stats=pools(B), candidates=[candidate(devices={GROUP: A})])
    assert not passes(PciPassthroughFilter, host, spec(gpus=(1,)))


def test_pci_of_a_host_without_devices():
    assert not passes(PciPassthroughFilter, state(), spec(gpus=(1,)))


# The base and the handler


class Dump(filters.BaseHostFilter):
    """A filter that reads every field of Nova's HostState."""

    run_filter_once_per_request = True

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        fields = (
            'host nodename uuid cell_uuid total_usable_ram_mb total_usable_disk_gb disk_mb_used free_ram_mb '
            'free_disk_mb vcpus_total vcpus_used pci_stats numa_topology num_instances num_io_ops failed_builds '
            'host_ip hypervisor_type hypervisor_version hypervisor_hostname cpu_info supported_instances limits '
            'metrics aggregates instances ram_allocation_ratio cpu_allocation_ratio disk_allocation_ratio '
            'updated stats service allocation_candidates'
        )
        self.seen = {name: getattr(host_state, name) for name in fields.split()} | {
            'asked': (spec_obj.memory_mb, spec_obj.vcpus),
            'repr': repr(host_state),
        }
        return True


def test_a_filter_of_an_operator_sees_every_field():
    """A filter of an operator can read every field of HostState and of the request spec."""
    one = Dump()
    host = state(
        running_vms=3, memory_mb_used=1024, disk_available_least=10, metadata={'rack': 'r1'}, servers=[server('a')]
    )
    assert nova_names.BaseFilterHandler().get_filtered_objects([one], [host], spec()) == [host]
    seen = one.seen
    assert seen['repr'] == (
        '(host1, host1) ram: 261120MB disk: 10240MB io_ops: 0 instances: 3, allocation_candidates: 1'
    )
    assert seen['asked'] == (32768, 8)
    assert seen['supported_instances'] == [['x86_64', 'qemu', 'hvm']]
    assert list(seen['instances']) == [uuid('a')]
    assert seen['aggregates'][0].metadata == {'rack': 'r1'}
    assert seen['limits'] == {}


def test_types_of_the_fields():
    """The fields of HostState have Nova's types: the topology is an envelope, servers are by uuid, metrics are
    objects, and the service is read-only."""
    topology = objects.NUMATopology(
        cells=[
            objects.NUMACell(
                id=0,
                cpuset={0, 1},
                pcpuset=set(),
                memory=1024,
                cpu_usage=0,
                memory_usage=0,
                pinned_cpus=set(),
                siblings=[],
                mempages=[
                    objects.NUMAPagesTopology(size_kb=size, total=1, used=0, reserved=0) for size in (4, 2048, 1048576)
                ],
                network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
                socket=0,
            )
        ]
    )
    host = state(
        servers=[server('a')], numa_topology=topology.to_json(), metrics=METRICS, cpu_info='{"arch": "x86_64"}'
    )
    envelope = json.loads(host.numa_topology)
    assert envelope['nova_object.name'] == 'NUMATopology'
    cell = envelope['nova_object.data']['cells'][0]
    assert cell['nova_object.name'] == 'NUMACell'
    assert [
        (page['nova_object.name'], page['nova_object.data']['size_kb']) for page in cell['nova_object.data']['mempages']
    ] == [('NUMAPagesTopology', size) for size in (4, 2048, 1048576)]
    assert isinstance(host.instances[uuid('a')], objects.Instance)
    assert isinstance(host.metrics, objects.MonitorMetricList)
    assert (host.metrics[0].name, host.metrics[0].value) == ('cpu.frequency', 2400)
    assert host.cpu_info == {'arch': 'x86_64'}
    assert (host.ram_allocation_ratio, host.cpu_allocation_ratio, host.disk_allocation_ratio) == (1.0, 4.0, 1.0)
    with pytest.raises(TypeError):
        host.service['disabled'] = True


@pytest.mark.parametrize(('cpu', 'ram', 'disk'), [(16.0, 1.5, 1.2), (0.5, 2.0, 3.0), (None, None, None)])
def test_ratios_are_the_hosts_own(cpu, ram, disk):
    """The allocation ratios, and the room on the NUMA cells, are those of the host's row, else the initial ones."""
    host = state(cpu_allocation_ratio=cpu, ram_allocation_ratio=ram, disk_allocation_ratio=disk)
    cpu, ram, disk = cpu or 4.0, ram or 1.0, disk or 1.0
    assert (host.cpu_allocation_ratio, host.ram_allocation_ratio, host.disk_allocation_ratio) == (cpu, ram, disk)
    assert (host.numa_limits.cpu_ratio, host.numa_limits.ram_ratio) == (cpu, ram)


def test_a_filter_that_runs_once_is_left_out_for_further_servers():
    """A filter with run_filter_once_per_request is not called for the second server of a request."""
    one = Dump()
    nova_names.BaseFilterHandler().get_filtered_objects([one], [state()], spec(), index=1)
    assert not hasattr(one, 'seen')


class Listed(filters.BaseHostFilter):
    """Decides for all hosts at once; what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def filter_all(self, filter_obj_list: Any, spec_obj: Any) -> Any:
        self.asked.append(([host.host for host in filter_obj_list], spec_obj))
        return (host for host in filter_obj_list if host.host != 'b')

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        raise AssertionError('filter_all was to decide')


class ByNumber(Listed):
    """Runs for the second server only."""

    def run_filter_for_index(self, index: int) -> bool:
        return index == 1


def test_what_the_base_classes_let_a_filter_decide():
    """A filter may decide host by host (host_passes), for all hosts at once (filter_all), and whether it runs for a
    server (run_filter_for_index)."""
    request, hosts = spec(), [state('a'), state('b'), state('c')]
    each, listed, numbered = Dump(), Listed(), ByNumber()

    def passing(index):
        handler = nova_names.BaseFilterHandler()
        return [host.host for host in handler.get_filtered_objects([each, listed, numbered], hosts, request, index)]

    assert passing(0) == ['a', 'c']
    assert each.seen['host'] == 'c'
    assert listed.asked == [(['a', 'b', 'c'], request)] and numbered.asked == []
    del each.seen
    assert passing(1) == ['a', 'c']
    # ``run_filter_once_per_request``: not again for the second server.
    assert not hasattr(each, 'seen')
    assert len(listed.asked) == 2 and numbered.asked == [(['a', 'c'], request)]
    base = filters.BaseFilter()
    assert list(base.filter_all(hosts, request)) == hosts and base.run_filter_for_index(7)
    with pytest.raises(TypeError, match='BaseHostFilter has no method host_passes'):
        filters.BaseHostFilter().host_passes(hosts[0], request)
    with pytest.raises(TypeError, match='AggregateFilter has no method fits'):
        AggregateFilter().fits([], request)
    with pytest.raises(TypeError, match='BaseHostWeigher has no method _weigh_object'):
        weighers.BaseHostWeigher()._weigh_object(state(), request)


def test_which_filters_run_once_a_request_and_which_look_at_rebuilds():
    made = {one.__name__: one for one in filters.all_filters()}
    assert {name for name, one in made.items() if one.run_filter_once_per_request} == ONCE
    assert {name for name, one in made.items() if one.RUN_ON_REBUILD} == ON_REBUILD
    assert [name for name, one in made.items() if one.at_most] == ['PciPassthroughFilter']


def test_rebuild_runs_only_filters_that_look_at_rebuilds():
    """For a rebuild only filters with RUN_ON_REBUILD refuse hosts."""
    rebuild = spec(
        scheduler_hints={'_nova_check_type': ['rebuild']},
        image={'id': uuid(), 'properties': {'hw_architecture': 'aarch64'}},
    )
    assert filters.is_rebuild(rebuild)
    assert passes(ComputeFilter, state(service={'disabled': True}), rebuild)
    assert not passes(ImagePropertiesFilter, state(), rebuild)
