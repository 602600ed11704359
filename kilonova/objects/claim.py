"""What a host writes while it works on an operation: a claim takes a place, a save tells what a step came to.

``db.queries.claims`` says what each field does. Fields that aren't set change nothing. Times in columns travel as ISO
text, columns of ``instance_extra`` as JSON text.
"""
from __future__ import annotations

from typing import Any, ClassVar

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register


class _Written(KilonovaObject):
    """Of both: ``transition``: the event by which the server's state moves, ``expect`` {column: value(s)} what it must
    be like before, ``values`` {column of instances: value}, ``extra`` {column of instance_extra: JSON text},
    ``devices`` [{id, address, from, to, instance_uuid, request_id}], ``usage`` {compute_node_id, columns of
    compute_nodes}, ``migration`` {uuid, columns of migrations}."""

    @property
    def given(self) -> dict[str, Any]:
        """{field: value} of what is set."""
        return self.primitive_data()


_BOTH = {
    'instance_uuid': fields.UUIDField(nullable=True),
    'key': fields.StringField(nullable=True),
    'request_id': fields.StringField(nullable=True),
    'transition': fields.StringField(nullable=True),
    'expect': fields.JsonField(nullable=True),
    'values': fields.JsonField(nullable=True),
    'extra': fields.JsonField(nullable=True),
    'devices': fields.JsonField(nullable=True),
    'usage': fields.JsonField(nullable=True),
    'migration': fields.JsonField(nullable=True),
}


def _none() -> None:
    return None


@register
class Claim(_Written):
    """``host`` claims; ``group`` {uuid, host}: the policy of this server group is looked at once more."""

    VERSION = '1.0'
    fields = {
        **_BOTH,
        'host': fields.StringField(nullable=True),
        'group': fields.JsonField(nullable=True),
    }
    _empty: ClassVar = dict.fromkeys(fields, _none)


@register
class Save(_Written):
    """``event`` of the instance action, ``fault`` columns, ``message`` the action's, ``end``: with this the operation
    ends, ``undo``: it gives back, ``undone``: why the host took back what it did under the key, ``mark``: tells
    several saves under one key apart, ``system_metadata`` {key: value|None}."""

    VERSION = '1.0'
    fields = {
        **_BOTH,
        'system_metadata': fields.JsonField(nullable=True),
        'event': fields.JsonField(nullable=True),
        'fault': fields.JsonField(nullable=True),
        'message': fields.StringField(nullable=True),
        'end': fields.BooleanField(),
        'undo': fields.BooleanField(),
        'undone': fields.StringField(nullable=True),
        'mark': fields.IntegerField(nullable=True),
    }
    _empty: ClassVar = {**dict.fromkeys(fields, _none), 'end': bool, 'undo': bool}
