"""``ObjectCalls``, the RPC methods by which processes without a database call methods of versioned objects.

The caller is ``objects.base.remotable``:

    class Endpoint(ObjectCalls): ...           # or: calls = ObjectCalls(); calls.object_action(ctxt, …)

Only methods that are marked remotable can be called. Objects in replies are serialized in the versions that the calling
process understands (its version manifest).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kilonova import errors
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.objects.base import KilonovaObject, object_versions


class ObjectActionRefused(errors.Forbidden):
    """The method of the object is not marked remotable."""

    msg_fmt = 'Object action %(method)s of %(objname)s is refused: it is not remotable'


def _remotable(holder: object, objname: str, objmethod: str) -> Callable[..., Any]:
    method: Any = getattr(holder, objmethod, None)
    if not getattr(method, 'remotable', False):
        raise ObjectActionRefused(method=objmethod, objname=objname)
    found: Callable[..., Any] = method
    return found


def _reply(result: Any, versions: dict[str, str]) -> Any:
    """Return a result with its objects serialized in the versions that the calling process understands.

    ``versions`` is a dict from the name of an object to the version that the calling process has. Objects in lists are
    serialized, too. All results that are not objects are returned unchanged.
    """
    if isinstance(result, KilonovaObject):
        name = result.obj_name()
        older = {
            other: versions[other]
            for other, version in object_versions(name).items()
            if other in versions and _key(versions[other]) < _key(version)
        }
        if not older:
            # The caller knows the same or newer versions of all objects in the result, as is usual.
            # Return the result without a conversion of objects to older versions.
            return result.obj_to_primitive()
        return result.obj_to_primitive(target_version=older.get(name), version_manifest=object_versions(name) | older)
    if isinstance(result, (list, tuple)):
        return [_reply(item, versions) for item in result]
    return result


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split('.'))


class ObjectCalls:
    """The three RPC methods by which processes without a database call methods of objects.

    If ``databases`` is given, objects are read and written in the main database of ``databases``. If it is None, they
    are read and written in the database of the caller's context.
    The methods hold no lock and keep no state between calls.
    """

    def __init__(self, databases: engine.Databases | None = None) -> None:
        self._databases = databases

    @engine.silence()
    def object_class_action_versions(
        self,
        ctxt: RequestContext,
        objname: str,
        objmethod: str,
        object_versions: dict[str, str],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call a class method of an object class, and return its result, serialized for the calling process.

        ``object_versions`` is a dict from the name of an object to the version that the calling process knows. Raises
        ObjectActionRefused if the method is not marked remotable.
        """
        self._be_at_home(ctxt)
        cls = KilonovaObject.obj_class_from_name(objname, object_versions[objname])
        result = _remotable(cls, objname, objmethod)(ctxt, *args, **kwargs)
        return _reply(result, object_versions)

    @engine.silence()
    def object_action(
        self, ctxt: RequestContext, objinst: KilonovaObject, objmethod: str, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], Any]:
        """Call a method of the object ``objinst``.

        Returns a tuple of the changed fields and the method's result. The fields are a dict from name to primitive,
        with ``obj_what_changed``, the list of fields that are still marked as changed. Raises ObjectActionRefused if
        the method is not marked remotable.
        """
        self._be_at_home(ctxt)
        method = _remotable(objinst, objinst.obj_name(), objmethod)
        before = objinst.primitive_data()
        result = method(*args, **kwargs)
        updates = {
            name: value
            for name, value in objinst.primitive_data().items()
            if name not in before or before[name] != value
        }
        updates['obj_what_changed'] = sorted(objinst.obj_what_changed())
        return updates, _reply(result, {})

    def _be_at_home(self, ctxt: RequestContext) -> None:
        if self._databases is not None:
            ctxt.cell = self._databases.main()

    def object_backport_versions(
        self, ctxt: RequestContext, objinst: KilonovaObject, object_versions: dict[str, str]
    ) -> dict[str, Any]:
        """Return the object serialized in the versions that the calling process knows.

        ``object_versions`` is a dict from the name of an object to the version that the calling process knows.
        """
        return objinst.obj_to_primitive(
            target_version=object_versions[objinst.obj_name()], version_manifest=object_versions
        )
