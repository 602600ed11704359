"""Instance: rows in, rows out, moves, and what compute may ask of the database."""

from __future__ import annotations

import datetime
import json
import uuid as uuids
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova import errors
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.engine import Database
from kilonova.db.models import cell as models
from kilonova.objects import (
    Flavor,
    Instance,
    InstanceList,
    InstanceNUMACell,
    InstanceNUMATopology,
    InstancePCIRequest,
    InstancePCIRequests,
    KeyPair,
    KeyPairList,
    MigrationContext,
    PciDevice,
    PciDeviceList,
)
from kilonova.objects.base import UnsetField

OLD, NEW = str(uuids.UUID(int=1)), str(uuids.UUID(int=2))
instances = models.Instance.__table__


def flavor(**values: Any) -> Flavor:
    return Flavor.from_row(
        None,
        {
            'id': 3,
            'name': 'small',
            'flavorid': 's',
            'memory_mb': 2048,
            'vcpus': 2,
            'root_gb': 20,
            'ephemeral_gb': 0,
            'swap': 0,
            'disabled': False,
            'is_public': True,
            'extra_specs': {'hw:a': 'b'},
            **values,
        },
    )


def requests(uuid: str, *ids: str) -> InstancePCIRequests:
    return InstancePCIRequests(
        instance_uuid=uuid,
        requests=[
            InstancePCIRequest(count=1, spec=[{'vendor_id': '10de'}], alias_name='gpu', request_id=one) for one in ids
        ],
    )


def device_row(number: int, uuid: str, request_id: str | None, status: str = 'allocated') -> dict[str, Any]:
    return {
        'uuid': str(uuids.UUID(int=100 + number)),
        'address': f'0000:8{number}:00.0',
        'vendor_id': '10de',
        'product_id': '20b0',
        'dev_type': 'type-PCI',
        'status': status,
        'instance_uuid': uuid,
        'label': 'l',
        'request_id': request_id,
        'extra_info': '{}',
    }


@pytest.fixture
def extra(instance_row: dict[str, Any]) -> dict[str, str | None]:
    """Every column of instance_extra that this part knows."""
    uuid = instance_row['uuid']
    context = MigrationContext(
        instance_uuid=uuid,
        migration_id=4,
        old_pci_requests=requests(uuid, OLD),
        new_pci_requests=requests(uuid, NEW),
        old_pci_devices=PciDeviceList(objects=[PciDevice(address='0000:81:00.0', request_id=OLD)]),
        new_pci_devices=PciDeviceList(objects=[PciDevice(address='0000:82:00.0', request_id=NEW)]),
        old_numa_topology=None,
        new_numa_topology=None,
        old_resources=None,
        new_resources=None,
    )
    topology = InstanceNUMATopology(
        instance_uuid=uuid,
        cells=[InstanceNUMACell(id=0, cpuset={0, 1}, pcpuset=set(), memory=2048, cpu_pinning={0: 4, 1: 5})],
    )
    return {
        'flavor': json.dumps({'cur': flavor().stored_primitive(), 'old': flavor(id=2).stored_primitive(), 'new': None}),
        'pci_requests': requests(uuid, OLD).to_column(),
        'migration_context': context.to_json(),
        'numa_topology': topology.to_json(),
        'keypairs': None,
        'trusted_certs': None,
    }


def test_a_row_alone_leaves_the_rest_unset(instance_row: dict[str, Any]) -> None:
    instance = Instance.from_row(None, instance_row)
    assert (instance.vm_state, instance.memory_mb, instance.locked, instance.deleted) == ('active', 2048, False, False)
    assert instance.created_at == datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert str(instance.access_ip_v4) == '10.0.0.1'
    assert instance.auto_disk_config is False
    for name in ('flavor', 'pci_requests', 'system_metadata', 'pci_devices', 'keypairs'):
        with pytest.raises(UnsetField):
            getattr(instance, name)
    assert instance.obj_what_changed() == set()


def test_extra_columns_become_objects(instance_row: dict[str, Any], extra: dict[str, str | None]) -> None:
    instance = Instance.from_row(None, instance_row, extra, metadata={'a': 'b'}, system_metadata={'image_x': None})
    assert instance.flavor.extra_specs == {'hw:a': 'b'}
    assert Instance.from_row(None, instance_row, {'pci_requests': None}).pci_requests is None
    assert (instance.old_flavor.id, instance.new_flavor) == (2, None)
    assert instance.pci_requests.requests[0].request_id == OLD
    assert instance.migration_context.new_pci_devices[0].address == '0000:82:00.0'
    assert instance.numa_topology.cells[0].cpu_pinning == {0: 4, 1: 5}
    assert instance.trusted_certs is None
    assert 'keypairs' not in instance
    assert (instance.metadata, instance.system_metadata) == ({'a': 'b'}, {'image_x': None})
    assert instance.obj_what_changed() == set()


def test_rows_and_objects_are_inverse(instance_row: dict[str, Any], extra: dict[str, str | None]) -> None:
    instance = Instance.from_row(None, instance_row, extra, metadata={'a': 'b'}, system_metadata={'c': 'd'})
    rows = instance.to_rows()
    never = {'id', 'updated_at', 'deleted_at', 'deleted', 'vm_state', 'task_state'}
    solid = {'auto_disk_config': False, 'shutdown_terminate': False, 'disable_terminate': False}
    assert rows.values == {**{name: value for name, value in instance_row.items() if name not in never}, **solid}
    assert {name: json.loads(text) if text else text for name, text in rows.extra.items()} == {
        name: json.loads(text) if text else text for name, text in extra.items() if name != 'keypairs'
    }
    assert (rows.metadata, rows.system_metadata) == ({'a': 'b'}, {'c': 'd'})


def test_only_changes_are_written(instance_row: dict[str, Any], extra: dict[str, str | None]) -> None:
    instance = Instance.from_row(None, instance_row, extra, metadata={}, system_metadata={})
    assert instance.to_rows(changed_only=True) == ({}, {}, None, None)
    instance.launched_at = datetime.datetime(2031, 1, 1, tzinfo=datetime.UTC)
    instance.cleaned = True
    instance.access_ip_v6 = '2001:db8::1'
    instance.old_flavor = None
    instance.migration_context = None
    instance.keypairs = KeyPairList(objects=[KeyPair(name='k', type='ssh')])
    rows = instance.to_rows(changed_only=True)
    assert rows.values == {
        'launched_at': datetime.datetime.fromisoformat('2031-01-01'),
        'cleaned': 1,
        'access_ip_v6': '2001:db8::1',
    }
    assert set(rows.extra) == {'flavor', 'migration_context', 'keypairs'}
    assert json.loads(rows.extra['flavor'])['old'] is None
    assert json.loads(rows.extra['flavor'])['cur']['nova_object.data']['id'] == 3
    assert rows.extra['migration_context'] is None
    assert 'nova_object.changes' not in rows.extra['keypairs']


def test_a_change_inside_a_nested_object_is_written(instance_row: dict[str, Any], extra: dict[str, str | None]) -> None:
    instance = Instance.from_row(None, instance_row, extra)
    instance.flavor.name = 'renamed'
    assert (
        json.loads(instance.to_rows(changed_only=True).extra['flavor'])['cur']['nova_object.data']['name'] == 'renamed'
    )


def test_during_a_move_only_devices_of_the_current_requests_are_its_own(
    instance_row: dict[str, Any], extra: dict[str, str | None]
) -> None:
    uuid = instance_row['uuid']
    rows = [device_row(1, uuid, OLD), device_row(2, uuid, NEW)]
    instance = Instance.from_row(None, instance_row, extra, pci_devices=rows)
    assert [device.address for device in instance.pci_devices] == ['0000:81:00.0']
    alone = Instance.from_row(None, instance_row, pci_devices=rows)
    assert len(alone.pci_devices) == 2


def test_a_flavor_can_stand_in_for_the_column(instance_row: dict[str, Any]) -> None:
    instance = Instance.from_row(None, instance_row, flavor=flavor())
    assert (instance.flavor.name, instance.old_flavor, instance.new_flavor) == ('small', None, None)


def test_a_new_flavor_brings_its_sizes(instance_row: dict[str, Any]) -> None:
    """A new flavor sets each of the size columns."""
    instance = Instance.from_row(None, instance_row)
    instance.set_flavor(flavor(id=9, memory_mb=4096, vcpus=4, root_gb=40, ephemeral_gb=7))
    assert (instance.instance_type_id, instance.memory_mb, instance.vcpus, instance.root_gb) == (9, 4096, 4, 40)
    assert instance.ephemeral_gb == 7


# -- the database -------------------------------------------------------------------------------------
@pytest.fixture
def stored(
    insert: Callable[..., int], instance_row: dict[str, Any], extra: dict[str, str | None], node_values: dict[str, Any]
) -> str:
    """A server with everything, in the middle of a move."""
    uuid = instance_row['uuid']
    insert('Instance', **instance_row)
    insert('InstanceExtra', instance_uuid=uuid, **extra)
    insert('InstanceSystemMetadata', instance_uuid=uuid, key='image_disk_format', value='qcow2')
    insert('InstanceMetadata', instance_uuid=uuid, key='a', value='b')
    node = insert('ComputeNode', **node_values)
    for row in (device_row(1, uuid, OLD), device_row(2, uuid, NEW), device_row(3, OLD, OLD)):
        insert('PciDevice', compute_node_id=node, **row)
    return uuid


def test_get_by_uuid_gives_all_that_a_host_needs(ctxt: RequestContext, stored: str) -> None:
    instance = Instance.get_by_uuid(ctxt, stored)
    assert (instance.flavor.name, instance.metadata) == ('small', {'a': 'b'})
    assert instance.system_metadata == {'image_disk_format': 'qcow2'}
    assert [device.address for device in instance.pci_devices] == ['0000:81:00.0']
    assert instance.migration_context.migration_id == 4
    assert instance.obj_what_changed() == set()


def test_an_unknown_server_is_not_found(ctxt: RequestContext, stored: str) -> None:
    with pytest.raises(errors.InstanceNotFound, match=OLD):
        Instance.get_by_uuid(ctxt, OLD)


def test_save_writes_columns_extra_and_system_metadata(ctxt: RequestContext, stored: str) -> None:
    instance = Instance.get_by_uuid(ctxt, stored)
    instance.power_state = 4
    instance.launched_at = datetime.datetime(2031, 1, 1, tzinfo=datetime.UTC)
    instance.migration_context = None
    instance.system_metadata = {'image_disk_format': None, 'new': 'value'}
    instance.save(expected_task_state=[None, 'spawning'])
    assert instance.obj_what_changed() == set()
    again = Instance.get_by_uuid(ctxt, stored)
    assert (again.power_state, again.launched_at.year, again.migration_context) == (4, 2031, None)
    assert again.system_metadata == {'new': 'value'}
    assert again.flavor.name == 'small'


@pytest.mark.parametrize('expected', [{'expected_task_state': 'spawning'}, {'expected_vm_state': ['stopped']}])
def test_save_is_a_compare_and_swap(ctxt: RequestContext, stored: str, expected: dict[str, Any]) -> None:
    instance = Instance.get_by_uuid(ctxt, stored)
    instance.power_state = 4
    with pytest.raises(errors.Conflict):
        instance.save(**expected)
    assert Instance.get_by_uuid(ctxt, stored).power_state == 1
    assert instance.obj_what_changed() == {'power_state'}


def test_the_servers_of_a_host_cost_four_statements(
    ctxt: RequestContext, stored: str, insert: Callable[..., int], instance_row: dict[str, Any]
) -> None:
    for number in range(5):
        uuid = str(uuids.UUID(int=50 + number))
        insert(
            'Instance',
            **{
                **instance_row,
                'id': 50 + number,
                'uuid': uuid,
                'deleted': 50 if not number else 0,
                'host': 'host2' if number == 1 else 'host1',
            },
        )
        insert('InstanceExtra', instance_uuid=uuid, flavor=None)
    seen: list[str] = []
    stop = engine.listen(lambda name, statement, many: seen.append(statement))
    try:
        found = InstanceList.get_by_host(ctxt, 'host1')
    finally:
        stop()
    assert [instance.uuid for instance in found] == [stored, *(str(uuids.UUID(int=50 + n)) for n in (2, 3, 4))]
    assert found[0].system_metadata == {'image_disk_format': 'qcow2'}
    assert [len(instance.pci_devices) for instance in found] == [1, 0, 0, 0]
    assert len([statement for statement in seen if statement.startswith('SELECT')]) == 4


def test_a_host_without_servers_has_none(ctxt: RequestContext, stored: str) -> None:
    assert len(InstanceList.get_by_host(ctxt, 'host9')) == 0


def test_deleted_servers_at_which_nobody_works(
    ctxt: RequestContext, stored: str, insert: Callable[..., int], instance_row: dict[str, Any]
) -> None:
    """Of the servers that are named, the deleted ones without an operation are returned with the time since their
    deletion, by one SQL statement."""
    moment = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - datetime.timedelta(seconds=100)
    asked = [str(uuids.UUID(int=70 + number)) for number in range(4)]
    for number, uuid in enumerate(asked[:3]):
        insert(
            'Instance',
            **{
                **instance_row,
                'id': 70 + number,
                'uuid': uuid,
                'deleted': 70 + number if number else 0,
                'deleted_at': moment,
                'host': None,
            },
        )
    insert('Operation', uuid=str(uuids.uuid4()), kind='release', instance_uuid=asked[2], args='{}', context='{}')

    def found(seconds: float) -> list[str]:
        return [instance.uuid for instance in InstanceList.get_deleted(ctxt, asked, seconds)]

    assert found(90) == [asked[1]] and found(0) == [asked[1]] and found(110) == []


def test_servers_that_an_operation_works_on(
    ctxt: RequestContext, stored: str, insert: Callable[..., int], instance_row: dict[str, Any], cell: Database
) -> None:
    idle, arriving = str(uuids.UUID(int=60)), str(uuids.UUID(int=61))
    insert('Instance', **{**instance_row, 'id': 60, 'uuid': idle})
    insert('Instance', **{**instance_row, 'id': 61, 'uuid': arriving, 'host': 'host2'})
    insert(
        'Migration',
        uuid=OLD,
        instance_uuid=arriving,
        source_compute='host2',
        dest_compute='host1',
        status='migrating',
        migration_type='resize',
    )
    for uuid in (stored, arriving):
        insert('Operation', uuid=str(uuids.uuid4()), kind='resize', instance_uuid=uuid, args='{}', context='{}')
    assert InstanceList.get_uuids_with_operations(ctxt, 'host1') == sorted([stored, arriving])
    assert InstanceList.get_uuids_with_operations(ctxt, 'host3') == []
    with cell.write() as conn:
        conn.execute(sa.delete(models.Operation.__table__))
    assert InstanceList.get_uuids_with_operations(ctxt, 'host1') == []
