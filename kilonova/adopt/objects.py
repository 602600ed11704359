"""Convert the versioned objects in Nova's rows to the versions that Kilonova reads, and back.

    objects.convert(json.loads(text))        # a copy in which each object has a version that Kilonova reads
    objects.give_back(json.loads(text), '34')  # with versions that this release of Nova reads

``convert`` raises NotConvertible if this is impossible. Objects of Kilonova's version or of an older version keep their
version. An object of a newer version is converted only if its minor version is not above the number in ``NEWER``. A
field that Kilonova does not know must be empty. If it is not empty, an error names the field, because the meaning of
the field would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oslo_versionedobjects.base import VersionedObjectRegistry

import kilonova.objects  # noqa: F401 - registers the objects
from kilonova import errors
from kilonova.objects.base import KilonovaObject

NAME, NAMESPACE, VERSION, DATA, CHANGES = (
    f'nova_object.{key}' for key in ('name', 'namespace', 'version', 'data', 'changes')
)
# The maximum number of levels of nested objects. Objects that Nova writes have fewer levels.
DEEPEST = 40
# JSON columns with objects of Nova, by table.
COLUMNS: Mapping[str, Sequence[str]] = {
    'request_specs': ('spec',),
    'instance_extra': (
        'flavor',
        'numa_topology',
        'pci_requests',
        'migration_context',
        'keypairs',
        'vcpu_model',
        'device_metadata',
        'trusted_certs',
        'resources',
    ),
}
# NEWER is a dict from object name to the newest minor version of Nova's object that Kilonova can convert.
# Compared with Kilonova's version of the object, a newer version in NEWER has only additional fields.
# An additional field must be empty (``_fields`` checks this), because Kilonova would lose its value.
NEWER: Mapping[str, int] = {'ImageMetaProps': 44}
# OLDER is a dict from object name to {release of Nova: minor version of the object that the release reads}.
# OLDER has the objects whose version in Kilonova is newer than in one of Nova's releases 27 to 34.
# A release that is missing in OLDER reads Kilonova's version. A release ignores fields that it does not know.
OLDER: Mapping[str, Mapping[str, int]] = {
    'ImageMetaProps': {'27': 34, '28': 34, '29 and 30': 37, '31 to 33': 39},
    'PciDevice': dict.fromkeys(('27', '28', '29 and 30', '31 to 33', '34'), 7),
    'RequestSpec': {'27': 14, '28': 14},
}
# Since version PCPUSET_SINCE, a NUMA cell of a guest has its dedicated CPUs in ``pcpuset``.
# Before version PCPUSET_SINCE, a NUMA cell had its dedicated CPUs in ``cpuset``.
PCPUSET_SINCE = (1, 5)


class NotConvertible(errors.Invalid):
    """A stored object has a version, a field or a form that Kilonova can't read."""

    msg_fmt = '%(where)s: %(reason)s'


def convert(value: Any) -> Any:
    """Return the JSON value with each object in it converted. Raises NotConvertible, which names the object.

    The value itself is not changed. The lists of changed fields, which have no meaning in a row, are left out.
    """
    return _convert(value, '', 0)


def give_back(value: Any, release: str) -> Any:
    """Return the JSON value with each object in it in a version that a release of Nova reads.

    ``release`` is one of the values of ``source.REVISIONS['cell']``. The value itself is not changed.
    """
    if isinstance(value, list):
        return [give_back(item, release) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: give_back(item, release) for key, item in value.items()}
    if VERSION in found:
        older = OLDER.get(found.get(NAME, ''), {}).get(release)
        major, minor = _numbers(found[VERSION], str(found.get(NAME)))
        if older is not None and minor > older:
            found[VERSION] = f'{major}.{older}'
    return found


def _convert(value: Any, where: str, depth: int) -> Any:
    if depth > DEEPEST:
        raise NotConvertible(where=where, reason=f'objects are nested more than {DEEPEST} times')
    if isinstance(value, list):
        return [_convert(item, where, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if NAME in value:
        return _object(value, depth)
    return {key: _convert(item, where, depth + 1) for key, item in value.items()}


def _object(envelope: Mapping[str, Any], depth: int) -> dict[str, Any]:
    name, version, data = envelope[NAME], envelope.get(VERSION), envelope.get(DATA)
    where = f'{name} {version}'
    if envelope.get(NAMESPACE) != KilonovaObject.OBJ_PROJECT_NAMESPACE or not isinstance(data, dict):
        raise NotConvertible(where=where, reason='this is no object of Nova')
    known: Any = next(iter(VersionedObjectRegistry.obj_classes().get(name, ())), None)
    if known is None:
        raise NotConvertible(where=where, reason='Kilonova has no such object')
    found = _fields(known, where, data)
    ours = _numbers(known.VERSION, where)
    theirs = _numbers(version, where)
    if theirs[0] != ours[0] or theirs[1] > max(ours[1], NEWER.get(name, 0)):
        raise NotConvertible(where=where, reason=f'Kilonova reads versions up to {known.VERSION}')
    rewrite = _REWRITTEN.get(name)
    if rewrite is not None:
        theirs = rewrite(found, theirs)
    number = '.'.join(map(str, min(theirs, ours)))
    return {
        NAME: name,
        NAMESPACE: KilonovaObject.OBJ_PROJECT_NAMESPACE,
        VERSION: number,
        DATA: {key: _convert(item, f'{where}, field {key}', depth + 1) for key, item in found.items()},
    }


def _fields(known: type[KilonovaObject], where: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return those fields of ``data`` (the fields of an object of Nova) that Kilonova's class ``known`` has, too.

    Empty fields that ``known`` lacks are left out. Raises NotConvertible if such a field is not empty.
    """
    found = {}
    for key, value in data.items():
        if key in known.fields:
            found[key] = value
        elif value not in (None, '', [], {}):
            raise NotConvertible(where=where, reason=f'Kilonova has no field {key}, which is {value!r:.100} here')
    return found


def _numbers(version: object, where: str) -> tuple[int, int]:
    try:
        major, minor = map(int, str(version).split('.')[:2])
    except ValueError:
        raise NotConvertible(where=where, reason='the version is no pair of numbers') from None
    return major, minor


def _numa_cell(data: dict[str, Any], version: tuple[int, int]) -> tuple[int, int]:
    """Move the dedicated CPUs of an old NUMA cell of a guest to ``pcpuset``, the field for them since version 1.5."""
    if version >= PCPUSET_SINCE or 'pcpuset' in data:
        return version
    dedicated = data.get('cpu_policy') == 'dedicated'
    data['pcpuset'] = data.get('cpuset', []) if dedicated else []
    data['cpuset'] = [] if dedicated else data.get('cpuset', [])
    return PCPUSET_SINCE


# A dict from object name to function(fields, version), which changes the fields of an old object in place.
# The function returns the version (major, minor) of the object that the fields then have.
_REWRITTEN: Mapping[str, Callable[[dict[str, Any], tuple[int, int]], tuple[int, int]]] = {
    'InstanceNUMACell': _numa_cell
}
