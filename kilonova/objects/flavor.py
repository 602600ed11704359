"""Flavor: sizes and extra specs (API tables ``flavors``, ``flavor_extra_specs`` and ``flavor_projects``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register


@register
class Flavor(PersistentObject, KilonovaObject):
    """A flavor. Memory and swap are in MiB, disks in GiB.

    If sizes, names or extra specs are not set, reading them raises an error. Any other unset field is read as the
    default value of a new flavor. ``projects`` is set only if the flavor's projects were read.
    """

    VERSION = '1.2'
    memory_mb: int
    vcpus: int
    root_gb: int
    ephemeral_gb: int
    swap: int
    fields = {
        'id': fields.IntegerField(),
        'name': fields.StringField(nullable=True),
        'memory_mb': fields.IntegerField(),
        'vcpus': fields.IntegerField(),
        'root_gb': fields.IntegerField(),
        'ephemeral_gb': fields.IntegerField(),
        'flavorid': fields.StringField(),
        'swap': fields.IntegerField(),
        'rxtx_factor': fields.FloatField(nullable=True, default=1.0),
        'vcpu_weight': fields.IntegerField(nullable=True, default=0),
        'disabled': fields.BooleanField(),
        'is_public': fields.BooleanField(),
        'extra_specs': fields.DictOfStringsField(),
        'projects': fields.ListOfStringsField(),
        'description': fields.StringField(nullable=True),
    }

    _empty: ClassVar[Mapping[str, Callable[[], Any]]] = MappingProxyType(
        {
            'rxtx_factor': lambda: 1.0,
            'vcpu_weight': int,
            'disabled': bool,
            'is_public': lambda: True,
            'projects': list,
            'deleted': bool,
            **dict.fromkeys(('description', 'created_at', 'updated_at', 'deleted_at'), type(None)),
        }
    )

    @classmethod
    def from_row(
        cls,
        ctxt: RequestContext | None,
        row: dict[str, Any],
        extra_specs: dict[str, str] | None = None,
        projects: list[str] | None = None,
    ) -> Self:
        """Return the flavor that a row of ``flavors`` describes.

        The flavor's extra specs and projects are arguments, or keys of ``row``.
        """
        values = {'deleted': False, 'deleted_at': None, **row}
        values['extra_specs'] = extra_specs if extra_specs is not None else values.get('extra_specs') or {}
        if projects is not None:
            values['projects'] = projects
        for name in ('root_gb', 'ephemeral_gb'):
            values[name] = values.get(name) or 0
        return cls.loaded(ctxt, ((name, values[name]) for name in cls.fields if name in values))


@register
class FlavorList(ListBase, KilonovaObject):
    """A list of flavors."""

    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('Flavor')}
