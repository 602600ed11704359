"""Bodies of host aggregates (rest-api.md §2.6)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import FORMATS, Obj, Prop


@FORMATS.checks('zone_name', raises=ValueError)
def _zone_name(value: object) -> bool:
    # In a create ZONE:HOST:NODE forces a host.
    if isinstance(value, str) and ':' in value:
        raise ValueError('Availability zone names must not contain a colon.')
    return True


_ZONE = {'anyOf': [t.NULL, {'allOf': [t.ZONE, {'type': 'string', 'format': 'zone_name', 'maxLength': 255}]}]}
_METADATA = {'type': 'object', 'additionalProperties': False, 'maxProperties': t.MAX_PAIRS,
             'properties': {'availability_zone': _ZONE},
             'patternProperties': {r'^[a-zA-Z0-9-_:. ]{1,255}$': {'type': ['string', 'null'], 'maxLength': 255}}}
_NAME_AND_ZONE = (Prop('name', t.NAME), Prop('availability_zone', _ZONE))

CREATE = Obj(Prop('aggregate', Obj(Prop('name', t.NAME, required=True), Prop('availability_zone', _ZONE)),
                  required=True))
UPDATE = Obj(Prop('aggregate', Obj(*_NAME_AND_ZONE, minProperties=1), required=True))
ADD_HOST = Obj(Prop('add_host', Obj(Prop('host', t.HOST, required=True)), required=True))
REMOVE_HOST = Obj(Prop('remove_host', Obj(Prop('host', t.HOST, required=True)), required=True))
SET_METADATA = Obj(Prop('set_metadata', Obj(Prop('metadata', _METADATA, required=True)), required=True))
