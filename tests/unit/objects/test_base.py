"""The base of the objects: envelopes, change marks, remote calls, serialisation, backports."""

from __future__ import annotations

import datetime
import json
import uuid as uuids
from typing import Any

import pytest

from kilonova.context import RequestContext
from kilonova.objects import Flavor, Instance, PciDevice, PciDeviceList, Service, Tag, TagList, base, fields
from kilonova.objects.base import IncompatibleObjectVersion, OrphanedObjectError, Serializer, UnsetField

UUID = str(uuids.UUID(int=5))


class Recorder:
    """An indirection that keeps what it was asked and answers what it was given."""

    def __init__(self, answer: Any = None) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answer = answer

    def object_action(self, ctxt: Any, **kwargs: Any) -> Any:
        self.calls.append(('object_action', kwargs))
        return self.answer

    def object_class_action_versions(self, ctxt: Any, **kwargs: Any) -> Any:
        self.calls.append(('object_class_action_versions', kwargs))
        return self.answer

    def object_backport_versions(self, ctxt: Any, **kwargs: Any) -> Any:
        self.calls.append(('object_backport_versions', kwargs))
        return self.answer


@pytest.fixture
def plain() -> RequestContext:
    return RequestContext(user_id='user', project_id='project')


def test_an_envelope_names_object_namespace_and_version() -> None:
    tag = Tag.loaded(None, (('resource_id', UUID), ('tag', 'blue')))
    assert tag.obj_to_primitive() == {
        'nova_object.name': 'Tag',
        'nova_object.namespace': 'nova',
        'nova_object.version': '1.1',
        'nova_object.data': {'resource_id': UUID, 'tag': 'blue'},
    }


def test_an_envelope_lists_changed_fields() -> None:
    tag = Tag(resource_id=UUID, tag='blue')
    assert tag.obj_to_primitive()['nova_object.changes'] == ['resource_id', 'tag']
    tag.obj_reset_changes()
    assert 'nova_object.changes' not in tag.obj_to_primitive()


def test_unset_fields_are_absent_and_cant_be_read() -> None:
    device = PciDevice(address='0000:81:00.0')
    assert device.primitive_data() == {'address': '0000:81:00.0'}
    assert 'status' not in device
    with pytest.raises(UnsetField, match="field 'status' of this PciDevice is not set"):
        device.status  # noqa: B018


def test_a_name_that_is_no_field_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        Tag().obj_attr_is_set('colour')


def test_a_change_in_a_nested_object_is_a_change() -> None:
    device = PciDevice.loaded(None, (('address', '0000:81:00.0'), ('status', 'available')))
    instance = Instance.loaded(None, (('uuid', UUID), ('pci_devices', PciDeviceList.of(None, [device]))))
    assert instance.obj_what_changed() == set()
    device.status = 'claimed'
    assert instance.obj_what_changed() == {'pci_devices'}


def test_datetimes_are_aware_inside_and_end_in_z_outside() -> None:
    service = Service(last_seen_up=datetime.datetime.fromisoformat('2030-01-02T03:04:05.678'))
    assert service.last_seen_up.tzinfo is datetime.UTC
    assert service.primitive_data() == {'last_seen_up': '2030-01-02T03:04:05Z'}
    service.last_seen_up = '2030-01-02T05:04:05+02:00'
    assert service.primitive_data() == {'last_seen_up': '2030-01-02T03:04:05Z'}


def test_naive_is_what_a_database_holds() -> None:
    aware = datetime.datetime(2030, 1, 2, 5, 0, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    assert base.naive(aware) == datetime.datetime.fromisoformat('2030-01-02T03:00')
    assert base.naive(None) is None


@pytest.mark.parametrize('value', ['', 'none', '123', UUID + '0'])
def test_something_else_than_a_uuid_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match='A UUID is required in field uuid'):
        Service(uuid=value)


def test_enums_know_other_spellings_and_refuse_the_rest() -> None:
    field = fields.ArchitectureField()
    assert [field.coerce(None, 'arch', word) for word in ('amd64', 'X86_64', 'i386', 'arm64')] == [
        'x86_64',
        'x86_64',
        'i686',
        'aarch64',
    ]
    with pytest.raises(ValueError, match='of arch is invalid'):
        field.coerce(None, 'arch', 'abacus')
    assert fields.PciDeviceTypeField.TYPE_PF == 'type-PF'
    assert fields.PciDeviceTypeField().coerce(None, 'dev_type', 'type-PF') == 'type-PF'


def test_what_is_stored_carries_no_change_marks() -> None:
    instance = Instance(uuid=UUID, flavor=Flavor(id=1, name='small', extra_specs={'a': 'b'}))
    text = instance.to_json()
    assert 'nova_object.changes' not in text
    again = Instance.from_json(text)
    assert again.flavor.extra_specs == {'a': 'b'}
    assert again.obj_what_changed() == set()


@pytest.mark.parametrize('text', [None, '', 'null'])
def test_an_empty_column_is_none(text: str | None) -> None:
    assert Flavor.from_json(text) is None


def test_replaced_shares_values_but_not_change_marks() -> None:
    flavor = Flavor.loaded(None, (('id', 1), ('name', 'small'), ('extra_specs', {'a': 'b'})))
    other = flavor.replaced(name='big')
    assert (flavor.name, other.name) == ('small', 'big')
    assert other.extra_specs is flavor.extra_specs
    assert (flavor.obj_what_changed(), other.obj_what_changed()) == (set(), {'name'})


def test_a_clone_shares_nothing() -> None:
    flavor = Flavor.loaded(None, (('id', 1), ('extra_specs', {'a': 'b'})))
    clone = flavor.obj_clone()
    clone.extra_specs['a'] = 'c'
    assert flavor.extra_specs == {'a': 'b'}
    assert clone.obj_what_changed() == set()


# -- remote calls -------------------------------------------------------------------------------------
def test_an_orphan_cant_call() -> None:
    """A remotable method of an object without a context raises OrphanedObjectError."""
    with pytest.raises(OrphanedObjectError, match=r'Cannot call save on orphaned Service object'):
        Service(id=1).save()


def test_a_call_goes_where_the_context_says(plain: RequestContext) -> None:
    """A remotable method goes through the indirection API. Its updates are applied, and the answer says which
    fields are still changed."""
    api = Recorder(({'report_count': 6, 'last_seen_up': '2030-01-02T03:04:05Z', 'obj_what_changed': ['topic']}, 'ok'))
    plain.indirection = api
    service = Service(plain, id=1, report_count=5, topic='x')
    assert service.save() == 'ok'
    assert service.report_count == 6
    assert service.last_seen_up == datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert service.obj_what_changed() == {'topic'}
    assert api.calls == [('object_action', {'objinst': service, 'objmethod': 'save', 'args': (), 'kwargs': {}})]


def test_updates_may_hold_objects_and_fields_that_are_not_ours(plain: RequestContext) -> None:
    flavor = Flavor.loaded(plain, (('id', 1),))
    plain.indirection = Recorder(
        [{'flavor': flavor, 'new_flavor': flavor.obj_to_primitive(), 'later': 1, 'obj_what_changed': []}, None]
    )
    instance = Instance(plain, uuid=UUID)
    instance.save(expected_task_state=[None])
    assert instance.flavor is flavor
    assert instance.new_flavor.id == 1
    assert instance.obj_what_changed() == set()
    assert plain.indirection.calls[0][1]['kwargs'] == {'expected_task_state': [None]}


def test_the_process_default_counts_when_the_context_has_none(plain: RequestContext) -> None:
    default, own = Recorder('default'), Recorder('own')
    base.set_indirection(default)
    assert Service.get_by_args(plain, 'host1', 'nova-compute') == 'default'
    plain.indirection = own
    assert Service.get_by_args(plain, 'host1', 'nova-compute') == 'own'


def test_a_class_call_tells_the_versions_that_are_known_here(plain: RequestContext) -> None:
    plain.indirection = Recorder()
    Service.get_by_args(plain, 'host1', binary='nova-compute')
    ((name, call),) = plain.indirection.calls
    assert name == 'object_class_action_versions'
    assert call == {
        'objname': 'Service',
        'objmethod': 'get_by_args',
        'args': ('host1',),
        'kwargs': {'binary': 'nova-compute'},
        'object_versions': {
            'Service': '1.22',
            'ComputeNode': '1.19',
            'HVSpec': '1.2',
            'PciDevicePoolList': '1.1',
            'PciDevicePool': '1.1',
        },
    }


# -- the serializer -----------------------------------------------------------------------------------
def test_objects_travel_at_any_depth(plain: RequestContext) -> None:
    tags = TagList.from_words(plain, UUID, ['blue', 'red'])
    entity = {'tags': tags, 'list': [tags[0], 1], 'pair': (tags[1], None), 'words': {'only'}}
    wire = json.loads(json.dumps(Serializer().serialize_entity(plain, entity)))
    got = Serializer().deserialize_entity(plain, wire)
    assert [tag.tag for tag in got['tags']] == ['blue', 'red']
    assert got['list'][0].tag == 'blue'
    assert got['list'][1] == 1
    assert got['pair'][0].tag == 'red'
    assert got['words'] == ['only']
    assert got['tags']._context is got['list'][0]._context is plain


def test_change_marks_travel(plain: RequestContext) -> None:
    serializer = Serializer()
    service = Service.loaded(plain, (('id', 1), ('report_count', 5)))
    service.report_count += 1
    got = serializer.deserialize_entity(plain, serializer.serialize_entity(plain, service))
    assert got.obj_what_changed() == {'report_count'}


def _newer(version: str) -> dict[str, Any]:
    return {
        'nova_object.name': 'Tag',
        'nova_object.namespace': 'nova',
        'nova_object.version': version,
        'nova_object.data': {'resource_id': UUID, 'tag': 'blue', 'shade': 'dark'},
    }


def test_a_third_part_of_a_version_is_understood(plain: RequestContext) -> None:
    got = Serializer().deserialize_entity(plain, _newer('1.1.4'))
    assert got.tag == 'blue'
    assert 'shade' not in got.primitive_data()


def test_an_older_minor_version_is_understood_and_kept(plain: RequestContext) -> None:
    primitive = Tag(resource_id=UUID, tag='blue').obj_to_primitive()
    got = Serializer().deserialize_entity(plain, {**primitive, 'nova_object.version': '1.0'})
    assert got.obj_to_primitive()['nova_object.version'] == '1.0'


def test_a_newer_object_is_sent_to_be_backported(plain: RequestContext) -> None:
    answer = Tag(resource_id=UUID, tag='blue')
    plain.indirection = Recorder(answer)
    assert Serializer().deserialize_entity(plain, [_newer('1.2')]) == [answer]
    assert plain.indirection.calls == [
        ('object_backport_versions', {'objinst': _newer('1.2'), 'object_versions': {'Tag': '1.1'}})
    ]


def test_a_newer_object_is_refused_where_nobody_can_be_asked(plain: RequestContext) -> None:
    with pytest.raises(IncompatibleObjectVersion, match='Tag is not supported'):
        Serializer().deserialize_entity(plain, _newer('2.0'))
