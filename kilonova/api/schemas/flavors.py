"""What may be said about flavors, their extra specs and access to them (rest-api.md §2.4)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Query
from kilonova.db.queries.flavors import SORT_KEYS

_ID = {'type': ['string', 'integer', 'null'], 'pattern': r'^(?! )[a-zA-Z0-9. _-]+(?<! )$', 'minLength': 1,
       'maxLength': 255, 'minimum': 0, 'maximum': t.MAX_INT}
_FACTOR = {'type': ['number', 'string'], 'pattern': r'^[0-9]+(\.[0-9]+)?$', 'minimum': 1e-10, 'maximum': t.MAX_FLOAT,
           'maxLength': 40}

CREATE = Obj(Prop('flavor', Obj(
    Prop('name', t.NAME, required=True), Prop('id', _ID), Prop('ram', t.integer(1), required=True),
    Prop('vcpus', t.integer(1), required=True), Prop('disk', t.integer(0), required=True),
    Prop('OS-FLV-EXT-DATA:ephemeral', t.integer(0)), Prop('swap', t.integer(0)),
    Prop('rxtx_factor', _FACTOR, until=101), Prop('os-flavor-access:is_public', t.BOOLEAN),
    Prop('description', t.LONG_TEXT, since=55)), required=True))

UPDATE = Obj(Prop('flavor', Obj(Prop('description', t.LONG_TEXT, required=True)), required=True))

_LIST = (Prop('limit', t.NUMBER_TEXT), Prop('marker', t.ANY_TEXT), Prop('is_public', t.ANY_TEXT),
         Prop('minRam', t.ANY_TEXT), Prop('minDisk', t.ANY_TEXT),
         Prop('sort_key', t.one_of(*SORT_KEYS)), Prop('sort_dir', t.one_of('asc', 'desc')))
INDEX = Query.of(*_LIST, Prop('name', t.REGEX_TEXT, since=102))

_KEY = r'^[a-zA-Z0-9-_:. ]{1,255}$'
# Numbers are accepted, and stored as they are written.
_VALUE = {'type': ['string', 'number'], 'maxLength': 255, 'largest': 2 ** 63}
_PAIRS = {'type': 'object', 'additionalProperties': False, 'maxProperties': t.MAX_PAIRS,
          'patternProperties': {_KEY: _VALUE}}

SPECS_CREATE = Obj(Prop('extra_specs', _PAIRS, required=True))
SPECS_UPDATE = Obj(additional=False, patternProperties={_KEY: _VALUE}, minProperties=1, maxProperties=1)

_TENANT = Obj(Prop('tenant', t.PROJECT_ID, required=True))
ADD_ACCESS = Obj(Prop('addTenantAccess', _TENANT, required=True))
REMOVE_ACCESS = Obj(Prop('removeTenantAccess', _TENANT, required=True))
