"""ComputeNode: rows, the driver's report, and the remote methods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kilonova import errors
from kilonova.context import RequestContext
from kilonova.objects import ComputeNode, ComputeNodeList, HVSpec, PciDevicePool, PciDevicePoolList

POOL = {
    'vendor_id': '10de',
    'product_id': '20b0',
    'numa_node': 0,
    'count': 2,
    'dev_type': 'type-PCI',
    'address': '0000:81:00.0',
}


def test_json_columns_become_objects(node_values: dict[str, Any]) -> None:
    pools = PciDevicePoolList.from_dicts([POOL])
    node = ComputeNode.from_row(
        None,
        {
            **node_values,
            'id': 1,
            'deleted': 0,
            'supported_instances': '[["amd64", "kvm", "hvm"]]',
            'pci_stats': pools.to_json(),
            'stats': '{"failed_builds": "2"}',
            'host_ip': '192.0.2.1',
            'cpu_allocation_ratio': None,
            'ram_allocation_ratio': 1.5,
        },
    )
    assert [spec.to_list() for spec in node.supported_hv_specs] == [['x86_64', 'kvm', 'hvm']]
    assert [pool.to_dict() for pool in node.pci_device_pools] == [POOL]
    assert node.stats == {'failed_builds': '2'}
    assert node.ram_allocation_ratio == 1.5
    assert 'cpu_allocation_ratio' not in node, 'not reported yet'
    assert node.obj_what_changed() == set()


def test_rows_and_objects_are_inverse(node_values: dict[str, Any]) -> None:
    node = ComputeNode(
        **node_values,
        supported_hv_specs=[HVSpec.from_list(['x86_64', 'kvm', 'hvm'])],
        pci_device_pools=PciDevicePoolList.from_dicts([POOL]),
        stats={'a': 'b'},
        host_ip='192.0.2.1',
    )
    row = node.to_row()
    assert json.loads(row['supported_instances']) == [['x86_64', 'kvm', 'hvm']]
    assert row['host_ip'] == '192.0.2.1'
    assert 'supported_hv_specs' not in row
    again = ComputeNode.from_row(None, row)
    assert again.to_row() == {**row, 'mapped': 0}


def test_only_changed_columns_are_written(node_values: dict[str, Any]) -> None:
    node = ComputeNode.from_row(None, {**node_values, 'id': 1})
    node.pci_device_pools = None
    node.vcpus_used = 3
    assert node.to_row(changed_only=True) == {'pci_stats': None, 'vcpus_used': 3}


def test_the_drivers_report_marks_only_what_differs(node_values: dict[str, Any]) -> None:
    node = ComputeNode.from_row(
        None, {**node_values, 'supported_instances': '[["x86_64", "kvm", "hvm"]]', 'host_ip': '192.0.2.1'}
    )
    node.update_from_virt_driver(
        {
            'vcpus': 8,
            'memory_mb': '16384',
            'local_gb': 120,
            'host_ip': '192.0.2.1',
            'hypervisor_type': 'QEMU',
            'supported_instances': [('amd64', 'kvm', 'hvm')],
            'pci_passthrough_devices': '[]',
        }
    )
    assert node.obj_what_changed() == {'local_gb'}
    node.update_from_virt_driver({'supported_instances': [('aarch64', 'kvm', 'hvm')]})
    assert node.supported_hv_specs[0].arch == 'aarch64'


def test_a_node_is_created_found_and_saved(ctxt: RequestContext, node_values: dict[str, Any]) -> None:
    node = ComputeNode(ctxt, **node_values)
    node.create()
    node.running_vms = 4
    node.save()
    found = ComputeNode.get_by_host_and_nodename(ctxt, 'host1', 'node1')
    assert (found.id, found.uuid, found.running_vms) == (node.id, node_values['uuid'], 4)
    assert ComputeNode.get_by_uuid(ctxt, node.uuid).id == node.id
    assert [one.id for one in ComputeNodeList.get_all_by_host(ctxt, 'host1')] == [node.id]
    assert not len(ComputeNodeList.get_all_by_host(ctxt, 'host2'))


def test_creating_a_node_twice_finds_the_first(ctxt: RequestContext, node_values: dict[str, Any]) -> None:
    first = ComputeNode(ctxt, **node_values)
    first.create()
    second = ComputeNode(ctxt, **{**node_values, 'host': 'host2'})
    second.create()
    assert (second.id, second.host) == (first.id, 'host1')


def test_unknown_nodes_are_not_found(ctxt: RequestContext, node_values: dict[str, Any]) -> None:
    with pytest.raises(errors.ComputeHostNotFound, match='node9'):
        ComputeNode.get_by_host_and_nodename(ctxt, 'host1', 'node9')
    node = ComputeNode(ctxt, **node_values, id=99)
    with pytest.raises(errors.ComputeHostNotFound):
        node.save()


def test_a_pool_is_flat_as_a_dict() -> None:
    pool = PciDevicePool.from_dict({**POOL, 'devices': [object()]})
    assert (pool.product_id, pool.count) == ('20b0', 2)
    assert pool.tags == {'dev_type': 'type-PCI', 'address': '0000:81:00.0'}
    assert pool.to_dict() == POOL


def test_pools_are_read_from_both_stored_forms() -> None:
    for stored in (json.dumps([POOL]), PciDevicePoolList.from_dicts([POOL]).to_json()):
        assert [pool.to_dict() for pool in PciDevicePoolList.from_column(stored)] == [POOL]
    assert PciDevicePoolList.from_column(None) is None


def test_a_guest_kind_has_three_words() -> None:
    with pytest.raises(ValueError, match='shorter'):
        HVSpec.from_list(['x86_64', 'kvm'])
