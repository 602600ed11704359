"""PCI devices and requests in their stored forms."""

from __future__ import annotations

import json
import uuid as uuids
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.context import RequestContext
from kilonova.objects import InstancePCIRequest, InstancePCIRequests, PciDevice, PciDeviceList

UUID, REQUEST = str(uuids.UUID(int=5)), str(uuids.UUID(int=6))
STORED = {
    'count': 1,
    'spec': [{'vendor_id': '8086', 'product_id': '1533', 'rp_uuids': UUID}],
    'alias_name': 'a1',
    'is_new': False,
    'numa_policy': 'legacy',
    'request_id': REQUEST,
    'requester_id': None,
}


@pytest.fixture
def node_id(insert: Callable[..., int], node_values: dict[str, Any]) -> int:
    return insert('ComputeNode', **node_values)


def device(address: str, **values: Any) -> PciDevice:
    return PciDevice(
        **{
            'address': address,
            'vendor_id': '8086',
            'product_id': '1533',
            'dev_type': 'type-PCI',
            'status': 'available',
            'label': 'label_8086_1533',
            'extra_info': {},
            **values,
        }
    )


def test_requests_are_stored_as_a_plain_list() -> None:
    requests = InstancePCIRequests.from_list([STORED], UUID)
    assert json.loads(requests.to_column()) == [STORED]
    assert requests.instance_uuid == UUID
    assert requests.obj_what_changed() == set()


def test_requests_made_in_the_code_are_stored_with_every_key() -> None:
    request = InstancePCIRequest(count=2, spec=[{'vendor_id': '10de', 'product_id': None}], alias_name='gpu')
    requests = InstancePCIRequests(instance_uuid=UUID, requests=[request])
    assert json.loads(requests.to_column()) == [
        {
            'count': 2,
            'spec': [{'vendor_id': '10de', 'product_id': None}],
            'alias_name': 'gpu',
            'is_new': False,
            'numa_policy': None,
            'request_id': None,
            'requester_id': None,
        }
    ]


def test_a_request_without_alias_is_a_ports() -> None:
    assert InstancePCIRequest(alias_name='a1').source == InstancePCIRequest.FLAVOR_ALIAS
    assert InstancePCIRequest(alias_name=None, spec=[{}]).source == InstancePCIRequest.NEUTRON_PORT
    assert InstancePCIRequest(spec=[{'physical_network': 'a'}]).source == InstancePCIRequest.NEUTRON_PORT
    assert InstancePCIRequest(spec=[{'dev_type': 'mdev'}]).source == InstancePCIRequest.FLAVOR_RESOURCES


def test_providers_can_be_left_out() -> None:
    requests = InstancePCIRequests.from_list([STORED], UUID)
    assert requests.without_providers().requests[0].spec == [{'vendor_id': '8086', 'product_id': '1533'}]
    assert requests.requests[0].spec[0]['rp_uuids'] == UUID


def test_devices_are_saved_and_read(ctxt: RequestContext, node_id: int) -> None:
    created = [device('0000:81:00.0', extra_info={'rp_uuid': UUID}), device('0000:82:00.0', numa_node=1)]
    ids = PciDeviceList.save_all(ctxt, node_id, {'created': created})
    devices = PciDeviceList.get_by_compute_node(ctxt, node_id)
    assert {one.address: one.id for one in devices} == ids
    assert [one.extra_info for one in devices] == [{'rp_uuid': UUID}, {}]
    assert [one.numa_node for one in devices] == [None, 1]
    assert all(one.uuid and one.compute_node_id == node_id and not one.deleted for one in devices)


def test_an_audit_changes_and_removes_devices(ctxt: RequestContext, node_id: int) -> None:
    PciDeviceList.save_all(ctxt, node_id, {'created': [device(f'0000:8{n}:00.0') for n in range(3)]})
    first, second, third = PciDeviceList.get_by_compute_node(ctxt, node_id)
    first.label = 'other'
    first.extra_info = {'managed': 'true'}
    answer = PciDeviceList.save_all(
        ctxt,
        node_id,
        {
            'updated': [first],
            'removed': [second],
            'statuses': [
                {
                    'id': third.id,
                    'address': third.address,
                    'from': 'available',
                    'to': 'unavailable',
                    'instance_uuid': None,
                    'request_id': None,
                }
            ],
        },
    )
    left = PciDeviceList.get_by_compute_node(ctxt, node_id)
    assert answer == {}
    assert [(one.label, one.extra_info, one.status) for one in left] == [
        ('other', {'managed': 'true'}, 'available'),
        ('label_8086_1533', {}, 'unavailable'),
    ]


def test_an_audit_may_be_sent_again(ctxt: RequestContext, node_id: int) -> None:
    changes = {'created': [device('0000:81:00.0')]}
    assert PciDeviceList.save_all(ctxt, node_id, changes) == PciDeviceList.save_all(ctxt, node_id, changes)
    assert len(PciDeviceList.get_by_compute_node(ctxt, node_id)) == 1


def test_a_device_that_comes_back_gets_a_new_row(ctxt: RequestContext, node_id: int) -> None:
    first = PciDeviceList.save_all(ctxt, node_id, {'created': [device('0000:81:00.0')]})
    gone = list(PciDeviceList.get_by_compute_node(ctxt, node_id))
    second = PciDeviceList.save_all(ctxt, node_id, {'removed': gone, 'created': [device('0000:81:00.0')]})
    assert first.keys() == second.keys()
    assert first != second


def test_nothing_to_save_writes_nothing(ctxt: RequestContext, node_id: int) -> None:
    PciDeviceList.save_all(ctxt, node_id, {'created': [device('0000:81:00.0')]})
    (unchanged,) = PciDeviceList.get_by_compute_node(ctxt, node_id)
    assert unchanged.to_row(changed_only=True) == {}
    assert PciDeviceList.save_all(ctxt, node_id, {'updated': [unchanged]}) == {}
