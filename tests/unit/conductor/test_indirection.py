"""Objects' remote calls, from the caller's object through the wire to the conductor and back."""

from __future__ import annotations

import json
import uuid as uuids
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_versionedobjects import base as ovo

from kilonova import errors
from kilonova.conductor.indirection import ObjectActionRefused, ObjectCalls
from kilonova.context import RequestContext
from kilonova.db.engine import Database
from kilonova.db.migration import METADATA
from kilonova.db.models import cell as models
from kilonova.objects import ComputeNode, HVSpec, PciDevice, PciDeviceList, Service, Tag, fields
from kilonova.objects.base import IncompatibleObjectVersion, KilonovaObject, Serializer, object_versions, register
from kilonova.rpc.conductor import Conductor
from kilonova.rpc.interface import RpcInterface

UUID = str(uuids.UUID(int=1))


class Loop:
    """A client and a server of the conductor with nothing but JSON between them."""

    def __init__(self, cell: Database) -> None:
        self.cell, self.calls, self.sent = cell, ObjectCalls(), []

    def __getattr__(self, method: str) -> Any:
        def call(ctxt: RequestContext, **args: Any) -> Any:
            serializer = Serializer()
            wire = json.dumps(serializer.serialize_entity(ctxt, args))
            self.sent.append((method, json.loads(wire)))
            there = RequestContext.from_dict(json.loads(json.dumps(ctxt.to_dict())))
            there.cell = self.cell
            result = getattr(self.calls, method)(there, **serializer.deserialize_entity(there, json.loads(wire)))
            return serializer.deserialize_entity(
                ctxt, json.loads(json.dumps(serializer.serialize_entity(there, result)))
            )

        return call


@pytest.fixture
def cell() -> Iterator[Database]:
    database = Database('sqlite://', 'cell1')
    with database.write() as conn:
        METADATA['cell'].create_all(conn)
    yield database
    database.dispose()


@pytest.fixture
def ctxt(cell: Database) -> RequestContext:
    """A compute's context: no cell, only the way to the conductor."""
    context = RequestContext(user_id='user', project_id='project')
    context.indirection = Loop(cell)
    return context


@pytest.fixture
def there(cell: Database) -> RequestContext:
    """The conductor's own."""
    context = RequestContext()
    context.cell = cell
    return context


@pytest.fixture
def service(ctxt: RequestContext) -> Service:
    service = Service(ctxt, host='host1', binary='nova-compute', topic='compute', version=73, report_count=0)
    service.create()
    return service


def test_the_server_answers_what_is_declared() -> None:
    """The signatures are those of the RPC interface."""

    class Calls(RpcInterface):
        topic, version = Conductor.topic, Conductor.version

    for name in ('object_action', 'object_class_action_versions', 'object_backport_versions'):
        setattr(Calls, name, vars(Conductor)[name])
    Calls.check_server(ObjectCalls())
    assert len(Calls.methods()) == 3


def test_an_object_saves_itself_from_afar(ctxt: RequestContext, cell: Database, service: Service) -> None:
    """A save on a compute goes through object_action to the conductor, into the row, and back."""
    service.report_count += 1
    service.save()
    with cell.read() as conn:
        row = conn.execute(sa.select(models.Service.__table__)).one()
    assert (row.report_count, row.id) == (1, service.id)
    assert row.last_seen_up is not None
    assert service.obj_what_changed() == set()


def test_what_the_method_changed_comes_back(ctxt: RequestContext, service: Service) -> None:
    """What the method changed at the conductor is set in the caller's object: a create returns id and uuid."""
    assert uuids.UUID(service.uuid)
    assert service.id == 1
    assert (service.deleted, service.last_seen_up) == (False, None)
    assert service.created_at is not None
    assert service._context is ctxt


def test_updates_hold_only_what_changed(there: RequestContext, service: Service) -> None:
    mine = Service.get_by_args(there, 'host1', 'nova-compute')
    mine.topic = 'other'
    updates, result = ObjectCalls().object_action(there, mine, 'save', (), {})
    assert (updates, result) == ({'obj_what_changed': []}, None)


def test_what_is_not_saved_stays_marked_on_both_sides(
    ctxt: RequestContext, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fields that the method left unsaved are still marked as changed in the caller's object. Saved fields are not."""

    def rename(self: Service) -> str:
        self.topic = 'other'
        self.host = 'host2'
        self.obj_reset_changes(['host'])
        return 'done'

    rename.remotable = True  # type: ignore[attr-defined]
    monkeypatch.setattr(Service, 'rename', rename, raising=False)
    there = service.obj_clone()
    updates, result = ObjectCalls().object_action(ctxt, there, 'rename', (), {})
    assert (updates, result) == ({'topic': 'other', 'host': 'host2', 'obj_what_changed': ['topic']}, 'done')
    service.report_count += 1
    assert service.obj_what_changed() == {'report_count'}
    service.apply_updates(updates)
    assert (service.topic, service.host, service.obj_what_changed()) == ('other', 'host2', {'topic'})


def test_class_methods_work_from_afar(ctxt: RequestContext, service: Service) -> None:
    found = Service.get_by_args(ctxt, 'host1', binary='nova-compute')
    assert (found.id, found._context) == (service.id, ctxt)
    assert found.obj_what_changed() == set()


def test_arguments_and_results_may_hold_objects(ctxt: RequestContext, cell: Database) -> None:
    node = ComputeNode(
        ctxt,
        uuid=UUID,
        host='host1',
        hypervisor_hostname='node1',
        vcpus=1,
        memory_mb=1,
        local_gb=1,
        vcpus_used=0,
        memory_mb_used=0,
        local_gb_used=0,
        hypervisor_type='QEMU',
        hypervisor_version=1,
        supported_hv_specs=[HVSpec.from_list(['x86_64', 'kvm', 'hvm'])],
    )
    node.create()
    device = PciDevice(
        address='0000:81:00.0', vendor_id='10de', product_id='20b0', dev_type='type-PCI', label='l', status='available'
    )
    ids = PciDeviceList.save_all(ctxt, node.id, {'created': [device]})
    devices = PciDeviceList.get_by_compute_node(ctxt, node.id)
    assert {found.address: found.id for found in devices} == ids
    assert ComputeNode.get_by_uuid(ctxt, UUID).supported_hv_specs[0].to_list() == ['x86_64', 'kvm', 'hvm']


def test_expected_errors_are_the_callers(ctxt: RequestContext) -> None:
    with pytest.raises(errors.ServiceNotFound, match='nova-api on host1'):
        Service.get_by_args(ctxt, 'host1', 'nova-api')


@pytest.mark.parametrize('method', ['loaded', 'obj_clone', 'refresh_from', '__init__', 'no_such_thing'])
def test_only_remotable_methods_can_be_called(there: RequestContext, method: str) -> None:
    calls = ObjectCalls()
    with pytest.raises(ObjectActionRefused, match=f'{method} of Service is refused'):
        calls.object_action(there, Service(there, id=1), method, (), {})
    with pytest.raises(ObjectActionRefused):
        calls.object_class_action_versions(there, 'Service', method, object_versions('Service'), (), {})


def test_a_newer_caller_is_refused(there: RequestContext) -> None:
    with pytest.raises(IncompatibleObjectVersion):
        ObjectCalls().object_class_action_versions(
            there, 'Service', 'get_by_args', {'Service': '1.23'}, ('host1', 'nova-compute'), {}
        )


# -- callers of an older release ----------------------------------------------------------------------
@pytest.fixture
def newer_tag() -> Iterator[type[KilonovaObject]]:
    """Tag 1.2, which has a shade that Tag 1.1 doesn't know; registered for one test."""

    @register
    class NewTag(KilonovaObject):
        VERSION = '1.2'
        fields = {'tag': fields.StringField(), 'shade': fields.StringField()}

        @classmethod
        def obj_name(cls) -> str:
            return 'Tag'

        def obj_make_compatible(self, primitive: dict[str, Any], target_version: str) -> None:
            super().obj_make_compatible(primitive, target_version)
            if target_version == '1.1':
                primitive.pop('shade', None)

    yield NewTag
    classes = ovo.VersionedObjectRegistry.obj_classes()['Tag']
    classes.remove(NewTag)
    KilonovaObject.obj_class_from_name.__func__.cache_clear()  # type: ignore[attr-defined]
    assert classes == [Tag]


def test_an_object_is_brought_to_the_version_that_was_asked_for(
    there: RequestContext, newer_tag: type[KilonovaObject]
) -> None:
    made = newer_tag(there, tag='blue', shade='dark')
    primitive = ObjectCalls().object_backport_versions(there, made, {'Tag': '1.1'})
    assert primitive == {
        'nova_object.name': 'Tag',
        'nova_object.namespace': 'nova',
        'nova_object.version': '1.1',
        'nova_object.data': {'tag': 'blue'},
        'nova_object.changes': ['tag'],
    }


def test_results_come_in_the_callers_versions(
    there: RequestContext, newer_tag: type[KilonovaObject], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('kilonova.conductor.indirection.object_versions', lambda name: {'Tag': '1.2'})

    def find(cls: type, ctxt: RequestContext) -> list[KilonovaObject]:
        return [newer_tag.loaded(ctxt, (('tag', 'blue'), ('shade', 'dark')))]

    find.remotable = True  # type: ignore[attr-defined]
    monkeypatch.setattr(Service, 'get_by_args', classmethod(find))
    calls = ObjectCalls()
    (older,) = calls.object_class_action_versions(
        there, 'Service', 'get_by_args', {'Service': '1.22', 'Tag': '1.1'}, (), {}
    )
    (same,) = calls.object_class_action_versions(
        there, 'Service', 'get_by_args', {'Service': '1.22', 'Tag': '1.2'}, (), {}
    )
    assert older['nova_object.data'] == {'tag': 'blue'}
    assert older['nova_object.version'] == '1.1'
    assert same['nova_object.data'] == {'tag': 'blue', 'shade': 'dark'}


def test_an_old_daemon_reads_a_newer_object_through_the_conductor(
    ctxt: RequestContext, newer_tag: type[KilonovaObject]
) -> None:
    """What the older side does on its own: it asks with its manifest and reads the answer."""
    answer = ctxt.indirection.object_backport_versions(
        ctxt, objinst=newer_tag(ctxt, tag='blue', shade='dark').obj_to_primitive(), object_versions={'Tag': '1.1'}
    )
    assert type(answer) is Tag
    assert answer.primitive_data() == {'tag': 'blue'}
