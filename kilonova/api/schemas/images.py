"""What may be said about images and their metadata (rest-api.md §3)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Query

# Any other parameter is let through: properties are asked for by names of their own.
INDEX = Query.of(
    Prop('limit', t.NUMBER_TEXT), Prop('marker', t.ANY_TEXT), Prop('changes-since', t.DATE_TEXT),
    *(Prop(name, t.ANY_TEXT) for name in ('name', 'status', 'server', 'type')),
    *(Prop(name, t.NUMBER_TEXT) for name in ('minRam', 'minDisk')))

METADATA = Obj(Prop('metadata', t.METADATA, required=True))
META = Obj(Prop('meta', {**t.METADATA, 'minProperties': 1, 'maxProperties': 1}, required=True))
