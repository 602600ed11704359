from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from kilonova import objects
from kilonova.scheduler import weighers
from kilonova.scheduler.weighers.amounts import (
    CPUWeigher,
    DiskWeigher,
    IoOpsWeigher,
    NumInstancesWeigher,
    RAMWeigher,
)
from kilonova.scheduler.weighers.hosts import BuildFailureWeigher, HypervisorVersionWeigher, PCIWeigher
from kilonova.scheduler.weighers.images import ImagePropertiesWeigher
from kilonova.scheduler.weighers.metrics import MetricsWeigher
from kilonova.scheduler.weighers.moves import CrossCellWeigher
from tests.unit.scheduler.builders import CELL, conf, host, looked_at, pools, spec, uuid

ALL = (
    RAMWeigher,
    CPUWeigher,
    DiskWeigher,
    HypervisorVersionWeigher,
    NumInstancesWeigher,
    IoOpsWeigher,
    PCIWeigher,
    BuildFailureWeigher,
    MetricsWeigher,
    CrossCellWeigher,
    ImagePropertiesWeigher,
)


def best(classes, hosts, request=None, **overrides):
    made = [cls() for cls in classes]
    for one in made:
        one.conf = conf(**overrides)
    return looked_at(hosts, request, weighers=made)


@pytest.mark.parametrize(
    ('cls', 'worse', 'better'),
    [
        (RAMWeigher, {'memory_mb_used': 1024}, {}),
        (CPUWeigher, {'vcpus_used': 8}, {}),
        (CPUWeigher, {'cpu_allocation_ratio': 1.0}, {}),
        (DiskWeigher, {'disk_available_least': 10}, {}),
        (HypervisorVersionWeigher, {}, {'hypervisor_version': 9000000}),
        (IoOpsWeigher, {'stats': {'io_workload': 3}}, {}),
        (BuildFailureWeigher, {'stats': {'failed_builds': 1}}, {}),
        (PCIWeigher, {'pci_stats': pools('0000:08:00.0')}, {}),
    ],
)
def test_order(cls, worse, better):
    assert [name for name, _ in best([cls], [host('worse', **worse), host('better', **better)])] == ['better', 'worse']


def test_servers_count_only_with_a_multiplier():
    hosts = [host('few'), host('many', running_vms=3)]
    assert best([NumInstancesWeigher], hosts) == [('few', 0.0), ('many', 0.0)]
    assert best([NumInstancesWeigher], hosts, filter_scheduler__num_instances_weight_multiplier=2.0) == [
        ('many', 2.0),
        ('few', 0.0),
    ]


def test_weights_are_scaled_multiplied_and_summed():
    hosts = [host('a', memory_mb=1000, vcpus_used=64), host('b', memory_mb=500)]
    assert best([RAMWeigher, CPUWeigher], hosts, filter_scheduler__ram_weight_multiplier=3.0) == [
        ('a', 3.0 + 192 / 256),
        ('b', 1.5 + 1.0),
    ]


@pytest.mark.parametrize(
    ('cls', 'option', 'one', 'two', 'expected'),
    [
        (RAMWeigher, 'ram', {'free_ram_mb': 300}, {'free_ram_mb': 100}, [1.0, 1 / 3]),
        (
            CPUWeigher,
            'cpu',
            {'vcpus': 4, 'cpu_allocation_ratio': 2.0, 'vcpus_used': 2},
            {'vcpus': 4, 'cpu_allocation_ratio': 1.0, 'vcpus_used': 1},
            [1.0, 0.5],
        ),
        (DiskWeigher, 'disk', {'free_disk_gb': 400}, {'free_disk_gb': 100}, [1.0, 0.25]),
        (IoOpsWeigher, 'io_ops', {'stats': {'io_workload': 4}}, {'stats': {'io_workload': 1}}, [1.0, 0.25]),
        (NumInstancesWeigher, 'num_instances', {'running_vms': 4}, {'running_vms': 1}, [1.0, 0.0]),
        (
            HypervisorVersionWeigher,
            'hypervisor_version',
            {'hypervisor_version': 9},
            {'hypervisor_version': 8},
            [1.0, 0.0],
        ),
        (
            BuildFailureWeigher,
            'build_failure',
            {'stats': {'failed_builds': 1}},
            {'stats': {'failed_builds': 3}},
            [1.0, 0.0],
        ),
    ],
)
def test_by_how_much(cls, option, one, two, expected):
    """Amounts are weighed from 0 on, what is like nothing else between the least and the most."""
    hosts = [host('one', **one), host('two', **two)]
    found = best([cls], hosts, **{f'filter_scheduler__{option}_weight_multiplier': 1.0})
    assert found == list(zip(('one', 'two'), expected, strict=True))


def test_more_than_so_many_free_devices_make_no_difference():
    look = SimpleNamespace(table={'pci_free': np.array([0, 1, 98, 99, 100, 500])})
    assert PCIWeigher().values(look, spec()).tolist() == [100, 99, 2, 1, 1, 1]


def test_all_weighers_of_equal_hosts_come_to_nothing():
    found = best(
        ALL,
        [host('a'), host('b')],
        filter_scheduler__ram_weight_multiplier=0.0,
        filter_scheduler__cpu_weight_multiplier=0.0,
        filter_scheduler__disk_weight_multiplier=0.0,
    )
    assert found == [('a', 0.0), ('b', 0.0)]


def test_an_aggregate_overrides_the_multiplier(caplog):
    hosts = [host('a'), host('b', memory_mb=1000, metadata={'ram_weight_multiplier': '-1'})]
    assert [name for name, _ in best([RAMWeigher], hosts)] == ['a', 'b']
    hosts = [host('a', metadata={'ram_weight_multiplier': '-1'}), host('b', memory_mb=1000)]
    assert [name for name, _ in best([RAMWeigher], hosts)] == ['b', 'a']
    hosts = [host('a', metadata={'ram_weight_multiplier': 'much'}), host('b', memory_mb=1000)]
    assert [name for name, _ in best([RAMWeigher], hosts)] == ['a', 'b']
    assert 'much' in caplog.text


def measured(name, **metrics):
    return host(
        name, metrics=json.dumps([{'name': key.replace('_', '.'), 'value': value} for key, value in metrics.items()])
    )


def test_metrics_are_summed_by_their_ratios():
    hosts = [measured('a', cpu_frequency=2400, cpu_percent=90), measured('b', cpu_frequency=2000, cpu_percent=10)]
    setting = {'metrics__weight_setting': ['cpu.frequency=1', 'cpu.percent=-10', 'nonsense']}
    assert best([MetricsWeigher], hosts, **setting) == [('b', 1.0), ('a', 0.0)]
    assert best([MetricsWeigher], hosts, metrics__weight_multiplier=-2.0, **setting) == [('a', 0.0), ('b', -2.0)]
    assert best([MetricsWeigher], hosts) == [('a', 0.0), ('b', 0.0)]
    hosts[1] = host(
        'b', metrics='[{"name": "cpu.frequency", "value": 2000}]', metadata={'metrics_weight_multiplier': '5'}
    )
    assert best([MetricsWeigher], [hosts[0], hosts[1]], metrics__weight_setting=['cpu.frequency=-1']) == [
        ('b', 5.0),
        ('a', 0.0),
    ]


def test_a_host_without_the_metric(caplog):
    hosts = [measured('a', cpu_frequency=2400), measured('b', cpu_frequency=2000), host('c')]
    setting = {'metrics__weight_setting': ['cpu.frequency=1']}
    assert [name for name, _ in best([MetricsWeigher], hosts, **setting)] == ['a', 'b']
    assert 'Metric cpu.frequency could not be found on the compute host node c.c' in caplog.text
    assert [name for name, _ in best([MetricsWeigher], hosts, metrics__required=False, **setting)] == ['a', 'b', 'c']
    assert [
        name
        for name, _ in best(
            [MetricsWeigher], hosts, metrics__required=False, metrics__weight_of_unavailable=9999.0, **setting
        )
    ] == ['c', 'a', 'b']


@pytest.mark.parametrize(('allowed', 'expected'), [(True, [('here', 1e6), ('there', 0.0)]), (False, [('here', 0.0)])])
def test_moves_stay_in_their_cell(allowed, expected):
    """Where they may not leave it, hosts of others aren't even weighed."""
    request = spec(
        requested_destination=objects.Destination(cell=objects.CellMapping(uuid=CELL), allow_cross_cell_move=allowed)
    )
    hosts = [host('there', cell=uuid('another cell')), host('here')]
    assert best([CrossCellWeigher], hosts, request) == expected
    assert best([CrossCellWeigher], hosts) == [('there', 0.0), ('here', 0.0)]


@pytest.mark.parametrize('cell', [{}, {'cell': None}])
def test_a_destination_without_a_cell_prefers_none(cell):
    request = spec(requested_destination=objects.Destination(allow_cross_cell_move=True, **cell))
    hosts = [host('there', cell=uuid('another cell')), host('here')]
    assert best([CrossCellWeigher], hosts, request) == [('there', 0.0), ('here', 0.0)]


@pytest.mark.parametrize(
    ('setting', 'expected'),
    [
        ([], ['b', 'a', 'c']),
        (['os_distro=1', 'hw_machine_type=5'], ['a', 'b', 'c']),
        (['os_distro=-1'], ['c', 'a', 'b']),
    ],
)
def test_servers_of_like_images(setting, expected):
    hosts = [
        host('a', images={uuid('1'): {'os_distro': 'debian', 'hw_machine_type': 'q35'}}),
        host('b', images={uuid(name): {'os_distro': 'debian', 'min_ram': '0'} for name in '234'}),
        host('c'),
    ]
    request = spec(image={'id': uuid(), 'properties': {'os_distro': 'debian', 'hw_machine_type': 'q35'}})
    found = best(
        [ImagePropertiesWeigher],
        hosts,
        request,
        filter_scheduler__image_props_weight_multiplier=1.0,
        filter_scheduler__image_props_weight_setting=setting,
    )
    assert [name for name, _ in found] == expected


@pytest.mark.parametrize(
    ('values', 'low', 'high', 'expected'),
    [
        ([], None, None, []),
        ([5, 5], None, None, [0.0, 0.0]),
        ([1, 3, 2], None, None, [0.0, 1.0, 0.5]),
        ([5, 10], 0, None, [0.5, 1.0]),
        ([-5, 5], 0, None, [0.0, 1.0]),
        ([5, 10], None, 15, [0.0, 0.5]),
    ],
)
def test_normalize(values, low, high, expected):
    assert weighers.normalize(values, low, high).tolist() == expected
