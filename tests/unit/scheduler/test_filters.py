from __future__ import annotations

import logging
from typing import Any

import pytest

from kilonova import objects
from kilonova.scheduler import filters
from kilonova.scheduler.filters import extra_specs
from kilonova.scheduler.filters.affinity import (
    DifferentHostFilter,
    SameHostFilter,
    ServerGroupAffinityFilter,
    ServerGroupAntiAffinityFilter,
)
from kilonova.scheduler.filters.all_hosts import AllHostsFilter
from kilonova.scheduler.filters.compute import ComputeFilter
from kilonova.scheduler.filters.compute_capabilities import ComputeCapabilitiesFilter
from kilonova.scheduler.filters.image_properties import ImagePropertiesFilter
from kilonova.scheduler.filters.limits import IoOpsFilter, NumInstancesFilter
from kilonova.scheduler.filters.pci_passthrough import PciPassthroughFilter
from tests.unit.scheduler.builders import candidate, conf, pools, spec, state, uuid


def passes(cls: type, host: Any, request: Any, **overrides: Any) -> bool:
    one = cls()
    one.conf = conf(**overrides)
    return list(one.filter_all([host], request)) == [host]


def test_all_hosts():
    assert passes(AllHostsFilter, state(), spec())


@pytest.mark.parametrize(('service', 'expected'), [
    ({}, True), ({'disabled': True, 'disabled_reason': 'repair'}, False), ({'up': False}, False)])
def test_compute(service, expected, caplog):
    caplog.set_level(logging.DEBUG)
    assert passes(ComputeFilter, state(service=service), spec()) == expected
    assert ('repair' in caplog.text) == ('disabled_reason' in service)


@pytest.mark.parametrize(('value', 'wanted', 'expected'), [
    ('8', '8', True), ('8', '9', False), ('8', '= 8', True), ('9', '= 8', True), ('7', '= 8', False),
    ('8', '== 8.0', True), ('8', '!= 8', False), ('10', '>= 9', True), ('8', '<= 9', True), ('x', '>= 9', False),
    ('12', 's== 12', True), ('12', 's!= 12', False), ('12', 's>= 11', True), ('12', 's> 12', False),
    ('12', 's<= 12', True), ('12', 's< 13', True),
    ('avx avx2', '<in> avx2', True), ('avx', '<in> avx2', False),
    (['a', 'b'], '<all-in> a b', True), (['a'], '<all-in> a b', False),
    ('kvm', '<or> qemu <or> kvm', True), ('xen', '<or> qemu <or> kvm', False), ('', '', True), ('8', '>=', False)])
def test_comparisons(value, wanted, expected):
    assert extra_specs.match(value, wanted) == expected


@pytest.mark.parametrize(('given', 'expected'), [
    ({}, True), ({'capabilities:vcpus_total': '>= 64'}, True), ({'capabilities:vcpus_total': '>= 65'}, False),
    ({'capabilities:cpu_info:vendor': 'Intel'}, True), ({'capabilities:cpu_info:topology:cores': '>= 4'}, True),
    ({'capabilities:cpu_info:no:such': '1'}, False), ({'capabilities:no_such': '1'}, False),
    ({'capabilities:rack': 'r1'}, True), ({'rack': 'r2'}, False), ({'hypervisor_type': 'QEMU'}, True),
    ({'capabilities:temperature': '<= 40'}, True), ({'hw:cpu_policy': 'shared', 'group_policy': 'none'}, True),
    ({'trait:X': 'required', 'pci_passthrough:alias': 'gpu:1'}, True)])
def test_capabilities(given, expected):
    host = state(cpu_info='{"vendor": "Intel", "topology": {"cores": 8}}', stats={'rack': 'r1'},
                 metrics='[{"name": "temperature", "value": 35}]')
    assert passes(ComputeCapabilitiesFilter, host, spec(given)) == expected


@pytest.mark.parametrize(('properties', 'expected'), [
    ({}, True), ({'hw_architecture': 'x86_64'}, True), ({'hw_architecture': 'aarch64'}, False),
    ({'img_hv_type': 'qemu'}, True), ({'img_hv_type': 'xen'}, False), ({'hw_vm_mode': 'hvm'}, True),
    ({'hw_architecture': 'x86_64', 'hw_vm_mode': 'xen'}, False),
    ({'img_hv_requested_version': '>=8.0'}, True), ({'img_hv_requested_version': '>=9.0'}, False)])
def test_image_properties(properties, expected):
    request = spec(image={'id': uuid(), 'properties': properties})
    assert passes(ImagePropertiesFilter, state(), request) == expected


@pytest.mark.parametrize(('default', 'expected'), [(None, True), ('x86_64', True), ('aarch64', False)])
def test_default_architecture(default, expected):
    assert passes(ImagePropertiesFilter, state(), spec(),
                  filter_scheduler__image_properties_default_architecture=default) == expected


def server(name: str) -> dict[str, Any]:
    return {'uuid': uuid(name), 'host': 'host1', 'node': 'host1', 'deleted': 0, 'id': 1}


@pytest.mark.parametrize(('hints', 'different', 'same'), [
    ({}, True, True), ({'different_host': uuid('a'), 'same_host': uuid('a')}, False, True),
    ({'different_host': [uuid('x')], 'same_host': [uuid('x')]}, True, False),
    ({'different_host': [uuid('x'), uuid('a')], 'same_host': [uuid('x'), uuid('a')]}, False, True)])
def test_hints_of_other_servers(hints, different, same):
    host = state(servers=[server('a')])
    assert passes(DifferentHostFilter, host, spec(scheduler_hints=hints)) == different
    assert passes(SameHostFilter, host, spec(scheduler_hints=hints)) == same


@pytest.mark.parametrize(('members', 'rules', 'expected'), [
    (['x'], {}, True), (['a'], {}, False), (['a'], {'max_server_per_host': '2'}, True),
    (['a', 'b'], {'max_server_per_host': '2'}, False)])
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


# PCI

A, B = '0000:08:00.0', '0000:88:00.0'
GROUP = f'{uuid("request 0")}-0'


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
    """Reads every field that the field's HostState has (seed-map 3.18, 3.19)."""

    run_filter_once_per_request = True

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        fields = ('host nodename uuid cell_uuid total_usable_ram_mb total_usable_disk_gb disk_mb_used free_ram_mb '
                  'free_disk_mb vcpus_total vcpus_used pci_stats numa_topology num_instances num_io_ops failed_builds '
                  'host_ip hypervisor_type hypervisor_version hypervisor_hostname cpu_info supported_instances limits '
                  'metrics aggregates instances ram_allocation_ratio cpu_allocation_ratio disk_allocation_ratio '
                  'updated stats service allocation_candidates')
        self.seen = {name: getattr(host_state, name) for name in fields.split()} | {
            'asked': (spec_obj.memory_mb, spec_obj.vcpus), 'repr': repr(host_state)}
        return True


def test_a_filter_of_an_operator_sees_every_field():
    one = Dump()
    host = state(running_vms=3, memory_mb_used=1024, disk_available_least=10, metadata={'rack': 'r1'},
                 servers=[server('a')])
    assert filters.run([one], [host], spec()) == [host]
    seen = one.seen
    assert seen['repr'] == ('(host1, host1) ram: 261120MB disk: 10240MB io_ops: 0 instances: 3, '
                            'allocation_candidates: 1')
    assert seen['asked'] == (32768, 8)
    assert seen['supported_instances'] == [['x86_64', 'qemu', 'hvm']]
    assert list(seen['instances']) == [uuid('a')]
    assert seen['aggregates'][0].metadata == {'rack': 'r1'}
    assert seen['limits'] == {}


def test_a_filter_that_runs_once_is_left_out_for_further_servers():
    one = Dump()
    filters.run([one], [state()], spec(), index=1)
    assert not hasattr(one, 'seen')


def test_rebuild_runs_only_filters_that_look_at_rebuilds():
    rebuild = spec(scheduler_hints={'_nova_check_type': ['rebuild']}, image={
        'id': uuid(), 'properties': {'hw_architecture': 'aarch64'}})
    assert filters.is_rebuild(rebuild)
    assert passes(ComputeFilter, state(service={'disabled': True}), rebuild)
    assert not passes(ImagePropertiesFilter, state(), rebuild)


class Refuse(filters.BaseHostFilter):
    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        return False


class Stop(filters.BaseHostFilter):
    def filter_all(self, filter_obj_list: Any, spec_obj: Any) -> Any:
        return None


def test_the_log_says_who_sorted_out_how_many(caplog):
    caplog.set_level(logging.DEBUG, 'kilonova.scheduler.filters')
    request = spec()
    assert filters.run([Dump(), Refuse(), Dump()], [state('a'), state('b')], request) == []
    lines = [record.getMessage() for record in caplog.records]
    nothing = (f"Filtering removed all hosts for the request with instance ID '{request.instance_uuid}'. "
               'Filter results: ')
    assert lines == [
        'Starting with 2 host(s)', 'Filter Dump returned 2 host(s)', 'Filter Refuse returned 0 hosts',
        nothing + "[('Dump', [('a', 'a'), ('b', 'b')]), ('Refuse', [])]",
        nothing + "['Dump: (start: 2, end: 2)', 'Refuse: (start: 2, end: 0)']"]
    assert [record.levelname for record in caplog.records][2:] == ['INFO', 'DEBUG', 'INFO']


def test_a_filter_may_stop_filtering(caplog):
    caplog.set_level(logging.DEBUG, 'kilonova.scheduler.filters')
    assert filters.run([Stop(), Dump()], [state()], spec()) == []
    assert 'Filter Stop says to stop filtering' in caplog.text
