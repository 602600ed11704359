from __future__ import annotations

import pytest

from kilonova.scheduler import weighers
from kilonova.scheduler.weighers.amounts import (
    CPUWeigher,
    DiskWeigher,
    IoOpsWeigher,
    NumInstancesWeigher,
    RAMWeigher,
)
from kilonova.scheduler.weighers.hosts import BuildFailureWeigher, HypervisorVersionWeigher, PCIWeigher
from tests.unit.scheduler.builders import conf, pools, spec, state

ALL = (RAMWeigher, CPUWeigher, DiskWeigher, HypervisorVersionWeigher, NumInstancesWeigher, IoOpsWeigher, PCIWeigher,
       BuildFailureWeigher)


def best(classes, hosts, **overrides):
    made = [cls() for cls in classes]
    for one in made:
        one.conf = conf(**overrides)
    return [(one.obj.host, one.weight) for one in weighers.weigh(made, hosts, spec())]


@pytest.mark.parametrize(('cls', 'worse', 'better'), [
    (RAMWeigher, {'memory_mb_used': 1024}, {}),
    (CPUWeigher, {'vcpus_used': 8}, {}),
    (CPUWeigher, {'cpu_allocation_ratio': 1.0}, {}),
    (DiskWeigher, {'disk_available_least': 10}, {}),
    (HypervisorVersionWeigher, {}, {'hypervisor_version': 9000000}),
    (IoOpsWeigher, {'stats': {'io_workload': 3}}, {}),
    (BuildFailureWeigher, {'stats': {'failed_builds': 1}}, {}),
    (PCIWeigher, {'pci_stats': pools('0000:08:00.0')}, {}),
])
def test_order(cls, worse, better):
    assert [host for host, _ in best([cls], [state('worse', **worse), state('better', **better)])] == [
        'better', 'worse']


def test_servers_count_only_with_a_multiplier():
    hosts = [state('few'), state('many', running_vms=3)]
    assert best([NumInstancesWeigher], hosts) == [('few', 0.0), ('many', 0.0)]
    assert best([NumInstancesWeigher], hosts, filter_scheduler__num_instances_weight_multiplier=2.0) == [
        ('many', 2.0), ('few', 0.0)]


def test_weights_are_scaled_multiplied_and_summed():
    hosts = [state('a', memory_mb=1000, vcpus_used=64), state('b', memory_mb=500)]
    assert best([RAMWeigher, CPUWeigher], hosts, filter_scheduler__ram_weight_multiplier=3.0) == [
        ('a', 3.0 + 192 / 256), ('b', 1.5 + 1.0)]


def test_all_weighers_of_equal_hosts_come_to_nothing():
    found = best(ALL, [state('a'), state('b')], filter_scheduler__ram_weight_multiplier=0.0,
                 filter_scheduler__cpu_weight_multiplier=0.0, filter_scheduler__disk_weight_multiplier=0.0)
    assert found == [('a', 0.0), ('b', 0.0)]


def test_an_aggregate_overrides_the_multiplier(caplog):
    hosts = [state('a'), state('b', memory_mb=1000, metadata={'ram_weight_multiplier': '-1'})]
    assert [host for host, _ in best([RAMWeigher], hosts)] == ['a', 'b']
    hosts = [state('a', metadata={'ram_weight_multiplier': '-1'}), state('b', memory_mb=1000)]
    assert [host for host, _ in best([RAMWeigher], hosts)] == ['b', 'a']
    hosts = [state('a', metadata={'ram_weight_multiplier': 'much'}), state('b', memory_mb=1000)]
    assert [host for host, _ in best([RAMWeigher], hosts)] == ['a', 'b']
    assert 'much' in caplog.text


@pytest.mark.parametrize(('values', 'low', 'high', 'expected'), [
    ([], None, None, []), ([5, 5], None, None, [0.0, 0.0]), ([1, 3, 2], None, None, [0.0, 1.0, 0.5]),
    ([5, 10], 0, None, [0.5, 1.0]), ([-5, 5], 0, None, [0.0, 1.0]), ([5, 10], None, 15, [0.0, 0.5])])
def test_normalize(values, low, high, expected):
    assert weighers.normalize(values, low, high) == expected
