"""The conductor's side of objects' remote calls: whoever has no database calls their methods here.

    class Endpoint(ObjectCalls): ...           # or: calls = ObjectCalls(); calls.object_action(ctxt, …)

The caller is ``objects.base.remotable``. Only methods marked remotable can be called. Replies are primitives: the
envelopes that the caller's versions (its manifest) understand.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kilonova import errors
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.objects.base import KilonovaObject, object_versions


class ObjectActionRefused(errors.Forbidden):
    msg_fmt = 'Object action %(method)s of %(objname)s is refused: it is not remotable'


def _remotable(holder: object, objname: str, objmethod: str) -> Callable[..., Any]:
    method: Any = getattr(holder, objmethod, None)
    if not getattr(method, 'remotable', False):
        raise ObjectActionRefused(method=objmethod, objname=objname)
    found: Callable[..., Any] = method
    return found


def _reply(result: Any, versions: dict[str, str]) -> Any:
    """A result as the caller understands it. Objects in lists too; other results as they are."""
    if isinstance(result, KilonovaObject):
        name = result.obj_name()
        older = {other: versions[other] for other, version in object_versions(name).items()
                 if other in versions and _key(versions[other]) < _key(version)}
        if not older:
            # The common case: the caller is of this release (or a newer one, which reads ours).
            return result.obj_to_primitive()
        return result.obj_to_primitive(target_version=older.get(name), version_manifest=object_versions(name) | older)
    if isinstance(result, (list, tuple)):
        return [_reply(item, versions) for item in result]
    return result


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split('.'))


class ObjectCalls:
    """The three methods; they take no lock and keep nothing. ``databases``: the objects' home is
    the main one; None: where the context says."""

    def __init__(self, databases: engine.Databases | None = None) -> None:
        self._databases = databases

    @engine.silence()
    def object_class_action_versions(self, ctxt: RequestContext, objname: str, objmethod: str,
                                     object_versions: dict[str, str], args: Sequence[Any],
                                     kwargs: dict[str, Any]) -> Any:
        """Call a class method; the result as ``object_versions`` (name → the caller's version) says."""
        self._be_at_home(ctxt)
        cls = KilonovaObject.obj_class_from_name(objname, object_versions[objname])
        result = _remotable(cls, objname, objmethod)(ctxt, *args, **kwargs)
        return _reply(result, object_versions)

    @engine.silence()
    def object_action(self, ctxt: RequestContext, objinst: KilonovaObject, objmethod: str, args: Sequence[Any],
                      kwargs: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Call a method of the object that came along.

        Returns ({field: primitive} of what the method changed, with ``obj_what_changed``: the fields that are still
        marked changed; the method's result).
        """
        self._be_at_home(ctxt)
        method = _remotable(objinst, objinst.obj_name(), objmethod)
        before = objinst.primitive_data()
        result = method(*args, **kwargs)
        updates = {name: value for name, value in objinst.primitive_data().items()
                   if name not in before or before[name] != value}
        updates['obj_what_changed'] = sorted(objinst.obj_what_changed())
        return updates, _reply(result, {})

    def _be_at_home(self, ctxt: RequestContext) -> None:
        if self._databases is not None:
            ctxt.cell = self._databases.main()

    def object_backport_versions(self, ctxt: RequestContext, objinst: KilonovaObject,
                                 object_versions: dict[str, str]) -> dict[str, Any]:
        """The object in the versions that the caller knows."""
        return objinst.obj_to_primitive(target_version=object_versions[objinst.obj_name()],
                                        version_manifest=object_versions)
