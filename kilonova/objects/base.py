"""Base of the versioned objects, their remote calls and their serialisation.

Objects carry oslo.versionedobjects' envelopes (``nova_object.name`` …). A method marked
``remotable`` runs where the database is: if the context (``ctxt.indirection``) or the process (``set_indirection``) has
an indirection, the call travels there, else it runs here.

    @register
    class Service(PersistentObject, KilonovaObject):
        VERSION = '1.22'
        fields = {'id': fields.IntegerField(), 'report_count': fields.IntegerField()}

        @remotable
        def save(self) -> None: ...

An indirection has three methods, each called with keywords after the context: ``object_action(ctxt, objinst, objmethod,
args, kwargs) -> (updates, result)``, ``object_class_action_versions(ctxt, objname, objmethod, object_versions, args,
kwargs) -> result`` and ``object_backport_versions(ctxt, objinst, object_versions) -> object``.
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

__all__ = ('IncompatibleObjectVersion', 'KilonovaObject', 'ListBase', 'OrphanedObjectError', 'PersistentObject',
           'Serializer', 'UnsetField', 'indirection', 'naive', 'object_versions', 'register', 'remotable',
           'remotable_classmethod', 'set_indirection')

_Object = TypeVar('_Object', bound='KilonovaObject')
_NAME, _NAMESPACE, _VERSION, _DATA, _CHANGES = (
    f'nova_object.{key}' for key in ('name', 'namespace', 'version', 'data', 'changes'))
_process = types.SimpleNamespace(indirection=None)


class UnsetField(AttributeError):
    """A field was read that this object doesn't carry: objects never load anything behind one's back."""


def set_indirection(api: Any) -> None:
    """The process's default: where remotable calls go when the context doesn't say (None = run here)."""
    _process.indirection = api


def indirection(ctxt: RequestContext) -> Any:
    """Where a remotable call with this context goes, or None."""
    own = getattr(ctxt, 'indirection', None)
    return own if own is not None else _process.indirection


def naive(value: datetime.datetime | None) -> datetime.datetime | None:
    """The databases' form of a datetime: naive UTC."""
    if value is None or value.tzinfo is None:
        return value
    return value.astimezone(datetime.UTC).replace(tzinfo=None)


def register(cls: type[_Object]) -> type[_Object]:
    """Class decorator: put the class in the registry and work out how its fields travel."""
    ovo.VersionedObjectRegistry.register(cls)
    cls._plan()
    return cls


@functools.cache
def object_versions(objname: str) -> dict[str, str]:
    """Manifest {name: version} of the object and all that it may hold. Shared: don't change it."""
    return ovo.obj_tree_get_versions(objname)


def _writer(field: ovo_fields.Field[Any]) -> Callable[[Any, str, Any], Any] | None:
    """How a field's value becomes a primitive; None = it is one."""
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
    """How a primitive becomes the field's value, checked."""
    if fields.is_plain(field):
        return field.coerce
    if fields.holds_plain(field):
        if isinstance(fields.type_of(field), ovo_fields.Set):
            return lambda obj, name, value: field.coerce(obj, name, None if value is None else set(value))
        return field.coerce
    return lambda obj, name, value: field.coerce(obj, name, field.from_primitive(obj, name, value))


class KilonovaObject(ovo.VersionedObject):
    """Base of all objects. The overridden methods do what the library's do, without its quadratic scans."""

    OBJ_SERIAL_NAMESPACE = 'nova_object'
    OBJ_PROJECT_NAMESPACE = 'nova'
    _writers: ClassVar[tuple[tuple[str, str, Callable[..., Any] | None], ...]] = ()
    _readers: ClassVar[dict[str, Callable[..., Any]]] = {}
    _nested: ClassVar[tuple[str, ...]] = ()
    _nullable: ClassVar[frozenset[str]] = frozenset()
    # {field: makes what it is when it is read and wasn't set}; other fields raise UnsetField then.
    _empty: ClassVar[Mapping[str, Callable[[], Any]]] = types.MappingProxyType({})

    if TYPE_CHECKING:
        # Fields become properties when the class is registered.
        fields: Any

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    @classmethod
    def _plan(cls) -> None:
        cls._writers = tuple((name, f'_obj_{name}', _writer(field)) for name, field in cls.fields.items())
        cls._readers = {name: _reader(field) for name, field in cls.fields.items()}
        cls._nullable = frozenset(name for name, field in cls.fields.items() if field.nullable)
        cls._nested = tuple(name for name, field in cls.fields.items()
                            if isinstance(field, ovo_fields.ObjectField))

    # -- loading -------------------------------------------------------------------------------------------------------
    @classmethod
    def loaded(cls, ctxt: RequestContext | None, values: Iterable[tuple[str, Any]]) -> Self:
        """An object with these fields set, coerced, and nothing changed: what comes from a database."""
        self = cls(ctxt)
        self.load(values)
        self._changed_fields.clear()
        return self

    @classmethod
    def from_row(cls, ctxt: RequestContext | None, row: dict[str, Any]) -> Self:
        """From a row's dict: the columns that are fields. Rows of the API database aren't soft-deleted."""
        values = {'deleted_at': None, **row, 'deleted': bool(row.get('deleted'))}
        return cls.loaded(ctxt, ((name, values[name]) for name in cls.fields if name in values))

    def refresh_from(self, row: dict[str, Any]) -> None:
        """Become what the row says; fields that are no columns stay, nothing is changed afterwards."""
        fresh = self.from_row(self._context, row)
        self.__dict__.update({name: value for name, value in fresh.__dict__.items() if name.startswith('_obj_')})
        self.obj_reset_changes()

    def load(self, values: Iterable[tuple[str, Any]]) -> None:
        """Set fields without marking them changed."""
        state, nullable = self.__dict__, self._nullable
        for name, value in values:
            if value is None and name in nullable:
                state[f'_obj_{name}'] = None
            else:
                state[f'_obj_{name}'] = self.fields[name].coerce(self, name, value)

    def replaced(self, **values: Any) -> Self:
        """A copy that shares every value but these (which are marked changed)."""
        other = self.__class__.__new__(self.__class__)
        other.__dict__.update(self.__dict__, _changed_fields=set(self._changed_fields))
        for name, value in values.items():
            setattr(other, name, value)
        return other

    def obj_load_attr(self, attrname: str) -> None:
        if attrname not in self._empty:
            raise UnsetField(f"{self.obj_name()} has no '{attrname}' here")
        value = self._empty[attrname]()
        if isinstance(value, ovo.VersionedObject):
            value.obj_reset_changes()
        self.load(((attrname, value),))

    # -- what is set, what changed -------------------------------------------------------------------------------------
    def obj_attr_is_set(self, attrname: str) -> bool:
        if f'_obj_{attrname}' in self.__dict__:
            return True
        if attrname not in self.fields and attrname not in self.obj_extra_fields:
            raise AttributeError(f"{self.obj_name()} object has no attribute '{attrname}'")
        return False

    def obj_what_changed(self) -> set[str]:
        changes = set(self._changed_fields)
        state = self.__dict__
        for name in self._nested:
            value = state.get(f'_obj_{name}')
            if value is not None and name not in changes and value.obj_what_changed():
                changes.add(name)
        return changes

    # -- primitives ----------------------------------------------------------------------------------------------------
    def primitive_data(self) -> dict[str, Any]:
        """{field: primitive} of the fields that are set."""
        found: dict[str, Any] = self.obj_to_primitive()[_DATA]
        return found

    def columns(self, left_out: Set[str], changed_only: bool = False) -> dict[str, Any]:
        """{column: value} of the fields that are set (or changed), for a table whose columns are its fields."""
        data = self.primitive_data()
        names = (self.obj_what_changed() if changed_only else data.keys()) - left_out
        return {name: value for name, value in data.items() if name in names}

    def obj_to_primitive(self, target_version: str | None = None,
                         version_manifest: dict[str, str] | None = None) -> dict[str, Any]:
        if version_manifest or target_version not in (None, self.VERSION):
            return super().obj_to_primitive(target_version, version_manifest)
        state = self.__dict__
        data = {name: state[attr] if write is None else write(self, name, state[attr])
                for name, attr, write in self._writers if attr in state}
        envelope = {_NAME: self.obj_name(), _NAMESPACE: self.OBJ_PROJECT_NAMESPACE, _VERSION: self.VERSION,
                    _DATA: data}
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
        """The envelope as text, for a column; without change marks."""
        return json.dumps(self.stored_primitive())

    def stored_primitive(self) -> dict[str, Any]:
        """The envelope as it is stored: what changed since is of no interest to who reads it."""
        found: dict[str, Any] = _without_changes(self.obj_to_primitive())
        return found

    @classmethod
    def from_json(cls, text: str | None, ctxt: RequestContext | None = None) -> Self | None:
        """The object of a column's text; None for an empty column."""
        if not text:
            return None
        primitive = json.loads(text)
        return None if primitive is None else cls.obj_from_primitive(primitive, ctxt)

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def obj_class_from_name(cls, objname: str, objver: str) -> type[ovo.VersionedObject]:
        # A third part is additive by contract (a stable branch's fix): such an object needs no backport.
        return super().obj_class_from_name(objname, '.'.join(objver.split('.')[:2]))

    # -- remote calls --------------------------------------------------------------------------------------------------
    def apply_updates(self, updates: dict[str, Any]) -> None:
        """What a remote call changed: {field: primitive or object} and ``obj_what_changed``."""
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
    """Method decorator: runs at the indirection if there is one. Without a context: OrphanedObjectError."""
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
    """The same for a class method; its first argument is the context."""
    @functools.wraps(method)
    def wrapper(cls: type[KilonovaObject], ctxt: RequestContext, *args: Any, **kwargs: Any) -> Any:
        api = indirection(ctxt)
        if api is None:
            return method(cls, ctxt, *args, **kwargs)
        name = cls.obj_name()
        return api.object_class_action_versions(ctxt, objname=name, objmethod=method.__name__,
                                                object_versions=object_versions(name), args=args, kwargs=kwargs)

    wrapper.remotable = True  # type: ignore[attr-defined]
    wrapper.original_fn = method  # type: ignore[attr-defined]
    return classmethod(wrapper)


class PersistentObject(ovo.VersionedObjectMixin):
    """Mixin: the columns that every row of a cell database has. ``deleted`` is the row's id there, a boolean here."""

    fields: Any = {
        'created_at': fields.DateTimeField(nullable=True),
        'updated_at': fields.DateTimeField(nullable=True),
        'deleted_at': fields.DateTimeField(nullable=True),
        'deleted': fields.BooleanField(default=False),
    }


class ListBase(ovo.ObjectListBase[Any]):
    """Mixin: an object that is a list of objects (its one field is ``objects``)."""

    @classmethod
    def of(cls, ctxt: RequestContext | None, objects: Iterable[KilonovaObject]) -> Self:
        """A list with nothing changed."""
        self = cls(ctxt, objects=list(objects))
        self.obj_reset_changes()  # type: ignore[attr-defined]
        return self

    @classmethod
    def from_rows(cls, ctxt: RequestContext | None, rows: Iterable[dict[str, Any]]) -> Self:
        """One object a row, each by its class's ``from_row``."""
        held: Any = cls.fields['objects']
        item: Any = ovo.VersionedObjectRegistry.obj_classes()[held.objname][0]
        return cls.of(ctxt, (item.from_row(ctxt, row) for row in rows))


class Serializer(NoOpSerializer):  # type: ignore[misc]  # oslo.messaging has no types
    """Objects ↔ envelopes in the arguments and results of RPC, in dicts, lists, tuples and sets at any depth.

    An object of a newer minor version than ours is sent to the indirection, which gives it back as we know it.
    """

    def serialize_entity(self, ctxt: RequestContext, entity: object) -> Any:
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
            return api.object_backport_versions(ctxt, objinst=primitive,
                                                object_versions=object_versions(primitive[_NAME]))
