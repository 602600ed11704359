"""What holds for every object, whatever its values: the wire is JSON and gives back what went in."""

from __future__ import annotations

import datetime
import functools
import json
import string
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oslo_versionedobjects import base as ovo
from oslo_versionedobjects import fields as ovo_fields

from kilonova import objects
from kilonova.objects import fields
from kilonova.objects.base import Serializer

TEXT = st.text(string.ascii_letters + string.digits + 'äß€ "\\', max_size=12)
PLAIN = [
    (fields.WordList, lambda kind: st.sampled_from(kind.valid_values)),
    (ovo_fields.VersionPredicate, lambda kind: st.sampled_from(['>=1.0', '==2.1,<3'])),
    (fields.ResourceClass, lambda kind: st.sampled_from(['VCPU', 'CUSTOM_A1'])),
    (ovo_fields.PCIAddress, lambda kind: st.just('0000:81:00.1')),
    (ovo_fields.MACAddress, lambda kind: st.just('52:54:00:00:00:01')),
    ((ovo_fields.UUID, fields.UUID), lambda kind: st.uuids().map(str)),
    (ovo_fields.IPV6Address, lambda kind: st.ip_addresses(v=6).map(str)),
    (ovo_fields.IPAddress, lambda kind: st.ip_addresses(v=4).map(str)),
    (
        ovo_fields.DateTime,
        lambda kind: st.datetimes(datetime.datetime.fromisoformat('1990-01-01')).map(
            lambda value: value.replace(microsecond=0)
        ),
    ),
    (ovo_fields.Boolean, lambda kind: st.booleans()),
    ((ovo_fields.Integer, ovo_fields.NonNegativeInteger), lambda kind: st.integers(0, 2**31)),
    (ovo_fields.Float, lambda kind: st.floats(allow_nan=False, allow_infinity=False, width=32)),
    (fields.NetworkModel, lambda kind: st.lists(st.dictionaries(TEXT, TEXT, max_size=2), max_size=2)),
    (ovo_fields.String, lambda kind: TEXT),
    (fields.Json, lambda kind: st.dictionaries(TEXT, st.lists(TEXT | st.integers(), max_size=2), max_size=2)),
]


def values_of(kind: Any, depth: int) -> st.SearchStrategy:
    """Values of a field's type."""
    if isinstance(kind, ovo_fields.Object):
        return instances_of(kind._obj_name, depth - 1)
    for cls, make in PLAIN:
        if isinstance(kind, cls):
            return make(kind)
    element = field_values(kind._element_type, depth)
    if isinstance(kind, ovo_fields.Dict):
        return st.dictionaries(TEXT, element, max_size=3)
    if isinstance(kind, ovo_fields.Set):
        return st.sets(element, max_size=3)
    return st.lists(element, max_size=3)


def field_values(field: Any, depth: int) -> st.SearchStrategy:
    """Values of a field, None among them where it may be."""
    found = values_of(field._type, depth)
    return st.none() | found if field.nullable else found


@functools.cache
def instances_of(name: str, depth: int) -> st.SearchStrategy:
    """Objects with some of their fields set."""
    cls = ovo.VersionedObjectRegistry.obj_classes()[name][0]
    chosen = {
        field_name: field_values(field, depth)
        for field_name, field in cls.fields.items()
        if depth > 0 or not isinstance(field, (ovo_fields.ObjectField, ovo_fields.ListOfObjectsField))
    }
    if depth <= 0 and 'objects' in cls.fields:
        return st.builds(cls)
    return st.fixed_dictionaries({}, optional=chosen).map(lambda values: cls(None, **values))


@pytest.mark.parametrize('name', objects.__all__)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_wire_gives_back_what_went_in(name: str, data: st.DataObject) -> None:
    made = data.draw(instances_of(name, 2))
    serializer = Serializer()
    wire = serializer.serialize_entity(None, made)
    text = json.dumps(wire)
    again = serializer.deserialize_entity(None, json.loads(text))
    assert type(again) is type(made)
    assert json.loads(json.dumps(serializer.serialize_entity(None, again))) == json.loads(text)
    assert again.obj_what_changed() == made.obj_what_changed()


# A RequestSpec leaves things out on purpose: see test_request_spec.
@pytest.mark.parametrize('name', [name for name in objects.__all__ if name != 'RequestSpec'])
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_storage_gives_back_what_went_in(name: str, data: st.DataObject) -> None:
    made = data.draw(instances_of(name, 1))
    again = type(made).from_json(made.to_json())
    assert again.obj_what_changed() == set()
    assert again.stored_primitive() == made.stored_primitive()


@pytest.mark.parametrize('name', objects.__all__)
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_our_envelope_is_the_librarys(name: str, data: st.DataObject) -> None:
    made = data.draw(instances_of(name, 2))
    ours, theirs = made.obj_to_primitive(), ovo.VersionedObject.obj_to_primitive(made)
    assert sorted(theirs.pop('nova_object.changes', [])) == ours.pop('nova_object.changes', [])
    assert _sorted(ours) == _sorted(theirs)


def _sorted(value: Any) -> Any:
    """Sets leave as lists or tuples in any order."""
    if isinstance(value, dict):
        return {key: _sorted(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return sorted((_sorted(item) for item in value), key=repr)
    return value


def test_a_set_goes_in_one_order() -> None:
    """In whatever order it was filled: the same object is always the same text."""
    one, other = (objects.NUMACell(id=0, cpuset=set(order), pcpuset=set()) for order in ((0, 8, 16), (16, 8, 0)))
    assert list(one.cpuset) != list(other.cpuset)
    assert one.stored_primitive() == other.stored_primitive()
    assert list(one.obj_to_primitive()['nova_object.data']['cpuset']) == [0, 8, 16]
