"""Base classes of the versioned objects, their remote calls and their serialisation.

Objects are serialised in the form of oslo.versionedobjects: an *envelope*, which is a dict with the members
``nova_object.name``, ``nova_object.version``, ``nova_object.data`` and others. A method marked ``remotable`` must run
where the database is. If the context (``ctxt.indirection``) or the process (``set_indirection``) has an *indirection*,
the call is sent through the indirection to a process that has the database, such as a conductor. Otherwise the method
runs in this process.

    @register
    class Service(PersistentObject, KilonovaObject):
        VERSION = '1.22'
        fields = {'id': fields.IntegerField(), 'report_count': fields.IntegerField()}

        @remotable
        def save(self) -> None: ...

An indirection has three methods, each called with keyword arguments after the context: ``object_action(ctxt, objinst,
objmethod, args, kwargs) -> (updates, result)``, ``object_class_action_versions(ctxt, objname, objmethod,
object_versions, args, kwargs) -> result`` and ``object_backport_versions(ctxt, objinst, object_versions) -> object``.
"""

from __future__ import annotations

import datetime
import functools
import json
import types
from collections.abc import Callable, Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from oslo_messaging import NoOpSerializer
from oslo_versionedobjects import base as ovo
from oslo_versionedobjects import fields as ovo_fields
from oslo_versionedobjects.exception import IncompatibleObjectVersion, OrphanedObjectError

from kilonova.context import RequestContext
from kilonova.objects import fields

__all__ = (
    'IncompatibleObjectVersion',
    'KilonovaObject',
    'ListBase',
    'OrphanedObjectError',
    'PersistentObject',
    'Serializer',
    'UnsetField',
    'indirection',
    'naive',
    'object_versions',
    'register',
    'remotable',
    'remotable_classmethod',
    'set_indirection',
)

_Object = TypeVar('_Object', bound='KilonovaObject')
_NAME, _NAMESPACE, _VERSION, _DATA, _CHANGES = (
    f'nova_object.{key}' for key in ('name', 'namespace', 'version', 'data', 'changes')
)
_process = types.SimpleNamespace(indirection=None)


class UnsetField(AttributeError):
    """A field was read that is not set in the object. Objects never load a missing field implicitly."""


def set_indirection(api: Any) -> None:
    """Set the object through which this process sends remotable calls, or None to run such calls in this process.

    If the context of a call has an object of its own for this purpose, the context's object is used instead.
    """
    _process.indirection = api


def indirection(ctxt: RequestContext) -> Any:
    """Return the object through which remotable calls with this context are sent.

    Return None if such calls run in this process.
    """
    own = getattr(ctxt, 'indirection', None)
    return own if own is not None else _process.indirection


def naive(value: datetime.datetime | None) -> datetime.datetime | None:
    """Convert a datetime to naive UTC, the form in which the databases store datetimes. None is returned unchanged."""
    if value is None or value.tzinfo is None:
        return value
    return value.astimezone(datetime.UTC).replace(tzinfo=None)


def register(cls: type[_Object]) -> type[_Object]:
    """Register a class of versioned objects, and prepare the serialisation of its fields. Used as a class decorator."""
    ovo.VersionedObjectRegistry.register(cls)
    cls._plan()
    return cls


@functools.cache
def object_versions(objname: str) -> dict[str, str]:
    """Return the versions {name: version} of an object and of all objects that it can contain.

    The dict is cached and shared: callers must not change it.
    """
    return ovo.obj_tree_get_versions(objname)


def _writer(field: ovo_fields.Field[Any]) -> Callable[[Any, str, Any], Any] | None:
    """Return the function that converts a field's value to a primitive, or None if the value is a primitive already."""
    if fields.is_plain(field):
        return None
    if fields.holds_plain(field):
        kind = fields.type_of(field)
        make: Callable[[Any], Any] = list
        if isinstance(kind, ovo_fields.Dict):
            make = dict
        elif isinstance(kind, ovo_fields.Set):
            make = sorted
        return lambda obj, name, value: None if value is None else make(value)
    return field.to_primitive


def _reader(field: ovo_fields.Field[Any]) -> Callable[[Any, str, Any], Any]:
    """Return the function that converts a primitive to the field's value and checks it."""
    if fields.is_plain(field):
        return field.coerce
    if fields.holds_plain(field):
        if isinstance(fields.type_of(field), ovo_fields.Set):
            return lambda obj, name, value: field.coerce(obj, name, None if value is None else set(value))
        return field.coerce
    return lambda obj, name, value: field.coerce(obj, name, field.from_primitive(obj, name, value))


class KilonovaObject(ovo.VersionedObject):
    """Base class of all versioned objects.

    It replaces several methods of oslo.versionedobjects by faster methods that have the same results.
    """

    OBJ_SERIAL_NAMESPACE = 'nova_object'
    OBJ_PROJECT_NAMESPACE = 'nova'
    _writers: ClassVar[tuple[tuple[str, str, Callable[..., Any] | None], ...]] = ()
    _readers: ClassVar[dict[str, Callable[..., Any]]] = {}
    _nested: ClassVar[tuple[str, ...]] = ()
    _nullable: ClassVar[frozenset[str]] = frozenset()
    # {field: function that returns the default value} of the fields that can be read without being set.
    _empty: ClassVar[Mapping[str, Callable[[], Any]]] = types.MappingProxyType({})

    if TYPE_CHECKING:
        # Let type checkers accept every attribute, because they do not see the properties that ``register`` creates.
        fields: Any

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    @classmethod
    def _plan(cls) -> None:
        cls._writers = tuple((name, f'_obj_{name}', _writer(field)) for name, field in cls.fields.items())
        cls._readers = {name: _reader(field) for name, field in cls.fields.items()}
        cls._nullable = frozenset(name for name, field in cls.fields.items() if field.nullable)
        cls._nested = tuple(name for name, field in cls.fields.items() if isinstance(field, ovo_fields.ObjectField))

    # -- setting fields without marking them as changed ----------------------------------------------------------------
    @classmethod
    def loaded(cls, ctxt: RequestContext | None, values: Iterable[tuple[str, Any]]) -> Self:
        """Return an object with these field values. No field is marked as changed.

        ``values`` are pairs (field, value), for example from a database row. Values are converted to the fields' types.
        """
        self = cls(ctxt)
        self.load(values)
        self._changed_fields.clear()
        return self

    @classmethod
    def from_row(cls, ctxt: RequestContext | None, row: dict[str, Any]) -> Self:
        """Return the object for a database row. Each field is set from the column of the same name.

        Rows of the API database have no column ``deleted``. The field ``deleted`` of their objects is False.
        """
        values = {'deleted_at': None, **row, 'deleted': bool(row.get('deleted'))}
        return cls.loaded(ctxt, ((name, values[name]) for name in cls.fields if name in values))

    def refresh_from(self, row: dict[str, Any]) -> None:
        """Set the fields from a database row, and mark no field as changed. Fields without a column are not set."""
        fresh = self.from_row(self._context, row)
        self.__dict__.update({name: value for name, value in fresh.__dict__.items() if name.startswith('_obj_')})
        self.obj_reset_changes()

    def load(self, values: Iterable[tuple[str, Any]]) -> None:
        """Set fields without marking them as changed."""
        state, nullable = self.__dict__, self._nullable
        for name, value in values:
            if value is None and name in nullable:
                state[f'_obj_{name}'] = None
            else:
                state[f'_obj_{name}'] = self.fields[name].coerce(self, name, value)

    def replaced(self, **values: Any) -> Self:
        """Return a copy in which the given fields have new values and are marked as changed.

        The other values are not copied: a list in another field, for example, is the same list in both objects.
        """
        other = self.__class__.__new__(self.__class__)
        other.__dict__.update(self.__dict__, _changed_fields=set(self._changed_fields))
        for name, value in values.items():
            setattr(other, name, value)
        return other

    def obj_load_attr(self, attrname: str) -> None:
        """Give an unset field its default value. Called when an unset field is read.

        Raises UnsetField if the field has no default.
        """
        if attrname not in self._empty:
            raise UnsetField(f"field '{attrname}' of this {self.obj_name()} is not set")
        value = self._empty[attrname]()
        if isinstance(value, ovo.VersionedObject):
            value.obj_reset_changes()
        self.load(((attrname, value),))

    # -- which fields are set, and which have changed ------------------------------------------------------------------
    def obj_attr_is_set(self, attrname: str) -> bool:
        """Return whether a field is set; raises AttributeError if there is no such field."""
        if f'_obj_{attrname}' in self.__dict__:
            return True
        if attrname not in self.fields and attrname not in self.obj_extra_fields:
            raise AttributeError(f"{self.obj_name()} object has no attribute '{attrname}'")
        return False

    def obj_what_changed(self) -> set[str]:
        """Return the names of the changed fields, including object fields whose own fields have changed."""
        changes = set(self._changed_fields)
        state = self.__dict__
        for name in self._nested:
            value = state.get(f'_obj_{name}')
            if value is not None and name not in changes and value.obj_what_changed():
                changes.add(name)
        return changes

    # -- conversion to and from the serialised form --------------------------------------------------------------------
    def primitive_data(self) -> dict[str, Any]:
        """Return {field: primitive value} for the fields that are set."""
        found: dict[str, Any] = self.obj_to_primitive()[_DATA]
        return found

    def columns(self, left_out: Set[str], changed_only: bool = False) -> dict[str, Any]:
        """Return {column: value} for the fields that are set, or only for changed fields if ``changed_only`` is True.

        This works for tables whose columns have the names of the fields. ``left_out`` has the names of fields without a
        column.
        """
        data = self.primitive_data()
        names = (self.obj_what_changed() if changed_only else data.keys()) - left_out
        return {name: value for name, value in data.items() if name in names}

    def obj_to_primitive(
        self, target_version: str | None = None, version_manifest: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the object in its serialised form (envelope), in its own version or in ``target_version``."""
        if version_manifest or target_version not in (None, self.VERSION):
            return super().obj_to_primitive(target_version, version_manifest)
        state = self.__dict__
        data = {
            name: state[attr] if write is None else write(self, name, state[attr])
            for name, attr, write in self._writers
            if attr in state
        }
        envelope = {_NAME: self.obj_name(), _NAMESPACE: self.OBJ_PROJECT_NAMESPACE, _VERSION: self.VERSION, _DATA: data}
        changes = self.obj_what_changed() if self._nested else self._changed_fields
        if changes:
            envelope[_CHANGES] = sorted(changes)
        return envelope

    @classmethod
    def _obj_from_primitive(cls, context: RequestContext | None, objver: str, primitive: dict[str, Any]) -> Self:
        self = cls(context)
        if objver != cls.VERSION:
            self.VERSION = objver
        state, readers, nullable = self.__dict__, cls._readers, cls._nullable
        for name, value in primitive[_DATA].items():
            read = readers.get(name)
            if value is None and name in nullable:
                state[f'_obj_{name}'] = None
            elif read is not None:
                state[f'_obj_{name}'] = read(self, name, value)
        self._changed_fields = {name for name in primitive.get(_CHANGES, ()) if name in readers}
        return self

    def to_json(self) -> str:
        """Return the object as JSON text for a database column, without the list of changed fields."""
        return json.dumps(self.stored_primitive())

    def stored_primitive(self) -> dict[str, Any]:
        """Return the serialised object (envelope) without the list of changed fields, which has no meaning in a row."""
        found: dict[str, Any] = _without_changes(self.obj_to_primitive())
        return found

    @classmethod
    def from_json(cls, text: str | None, ctxt: RequestContext | None = None) -> Self | None:
        """Return the object from the JSON text of a column, or None if the column is empty."""
        if not text:
            return None
        primitive = json.loads(text)
        return None if primitive is None else cls.obj_from_primitive(primitive, ctxt)

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def obj_class_from_name(cls, objname: str, objver: str) -> type[ovo.VersionedObject]:
        """Return the registered class of an object name and version."""
        # An object of version 1.2.1 has the fields of version 1.2 and additional fields. Read it as 1.2, without these.
        return super().obj_class_from_name(objname, '.'.join(objver.split('.')[:2]))

    # -- results of remote calls ---------------------------------------------------------------------------------------
    def apply_updates(self, updates: dict[str, Any]) -> None:
        """Set the fields of this object that a conductor changed when it ran a remotable method of the object.

        ``updates`` is the conductor's reply: {field: primitive or object}. Its key ``obj_what_changed`` has the names
        of the fields that are marked as changed from now on; all other fields are not marked.
        """
        readers, state = self._readers, self.__dict__
        for name, value in updates.items():
            if name not in readers:
                continue
            if isinstance(value, ovo.VersionedObject):
                state[f'_obj_{name}'] = self.fields[name].coerce(self, name, value)
            else:
                state[f'_obj_{name}'] = readers[name](self, name, value)
        self.obj_reset_changes()
        self._changed_fields = set(updates.get('obj_what_changed', ()))


def _without_changes(primitive: object) -> Any:
    if isinstance(primitive, dict):
        return {key: _without_changes(value) for key, value in primitive.items() if key != _CHANGES}
    if isinstance(primitive, list):
        return [_without_changes(value) for value in primitive]
    return primitive


def remotable(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method so that its calls run in a process that has a database, such as a conductor.

    A call is sent through the ``indirection`` of the object's context. If there is none, the call runs in this process.
    The method raises OrphanedObjectError if its object has no context.
    """

    @functools.wraps(method)
    def wrapper(self: KilonovaObject, *args: Any, **kwargs: Any) -> Any:
        ctxt = self._context
        if ctxt is None:
            raise OrphanedObjectError(method=method.__name__, objtype=self.obj_name())
        api = indirection(ctxt)
        if api is None:
            return method(self, *args, **kwargs)
        updates, result = api.object_action(ctxt, objinst=self, objmethod=method.__name__, args=args, kwargs=kwargs)
        self.apply_updates(updates)
        return result

    wrapper.remotable = True  # type: ignore[attr-defined]
    wrapper.original_fn = method  # type: ignore[attr-defined]
    return wrapper


def remotable_classmethod(method: Callable[..., Any]) -> Any:
    """Decorate a class method so that its calls run in a process that has a database, such as a conductor.

    The first argument of the method is the context. A call is sent through the ``indirection`` of the context. If there
    is none, the call runs in this process.
    """

    @functools.wraps(method)
    def wrapper(cls: type[KilonovaObject], ctxt: RequestContext, *args: Any, **kwargs: Any) -> Any:
        api = indirection(ctxt)
        if api is None:
            return method(cls, ctxt, *args, **kwargs)
        name = cls.obj_name()
        return api.object_class_action_versions(
            ctxt,
            objname=name,
            objmethod=method.__name__,
            object_versions=object_versions(name),
            args=args,
            kwargs=kwargs,
        )

    wrapper.remotable = True  # type: ignore[attr-defined]
    wrapper.original_fn = method  # type: ignore[attr-defined]
    return classmethod(wrapper)


class PersistentObject(ovo.VersionedObjectMixin):
    """Mixin with the columns that every row of a cell database has.

    In the database, ``deleted`` is 0 or the row's id. In the object, ``deleted`` is a boolean.
    """

    fields: Any = {
        'created_at': fields.DateTimeField(nullable=True),
        'updated_at': fields.DateTimeField(nullable=True),
        'deleted_at': fields.DateTimeField(nullable=True),
        'deleted': fields.BooleanField(default=False),
    }


class ListBase(ovo.ObjectListBase[Any]):
    """Mixin for an object that is a list of objects; its only field is ``objects``."""

    @classmethod
    def of(cls, ctxt: RequestContext | None, objects: Iterable[KilonovaObject]) -> Self:
        """Return a list object that contains these objects, without changed fields."""
        self = cls(ctxt, objects=list(objects))
        self.obj_reset_changes()  # type: ignore[attr-defined]
        return self

    @classmethod
    def from_rows(cls, ctxt: RequestContext | None, rows: Iterable[dict[str, Any]]) -> Self:
        """Return a list with one object for each row.

        Each object is made by the method ``from_row`` of its class.
        """
        held: Any = cls.fields['objects']
        item: Any = ovo.VersionedObjectRegistry.obj_classes()[held.objname][0]
        return cls.of(ctxt, (item.from_row(ctxt, row) for row in rows))


class Serializer(NoOpSerializer):  # type: ignore[misc]  # oslo.messaging has no types
    """A serializer of oslo.messaging for RPC arguments and results, which may contain versioned objects.

    Objects can be nested in dicts, lists, tuples and sets at any depth. A received object may have a newer version than
    this process knows. It is then sent through the indirection to a conductor, which returns it in the known version.
    """

    def serialize_entity(self, ctxt: RequestContext, entity: object) -> Any:
        """Return the entity with objects replaced by their serialised form. Tuples stay tuples, sets become lists."""
        if isinstance(entity, ovo.VersionedObject):
            return entity.obj_to_primitive()
        if isinstance(entity, dict):
            return {key: self.serialize_entity(ctxt, value) for key, value in entity.items()}
        if isinstance(entity, tuple):
            return tuple(self.serialize_entity(ctxt, value) for value in entity)
        if isinstance(entity, (list, set, frozenset)):
            return [self.serialize_entity(ctxt, value) for value in entity]
        return entity

    def deserialize_entity(self, ctxt: RequestContext, entity: object) -> Any:
        """Return the entity with serialised objects replaced by objects.

        Raises IncompatibleObjectVersion for an object of an unknown version if no conductor can convert it, because
        neither context nor process has an indirection.
        """
        if isinstance(entity, dict):
            if _NAME in entity:
                return self._object(ctxt, entity)
            return {key: self.deserialize_entity(ctxt, value) for key, value in entity.items()}
        if isinstance(entity, (list, tuple)):
            return type(entity)(self.deserialize_entity(ctxt, value) for value in entity)
        return entity

    def _object(self, ctxt: RequestContext, primitive: dict[str, Any]) -> Any:
        try:
            return KilonovaObject.obj_from_primitive(primitive, ctxt)
        except IncompatibleObjectVersion:
            api = indirection(ctxt)
            if api is None:
                raise
            return api.object_backport_versions(
                ctxt, objinst=primitive, object_versions=object_versions(primitive[_NAME])
            )
