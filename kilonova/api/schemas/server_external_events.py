"""The body of events that other services tell (rest-api.md §2.11)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop

_FIRST = ('network-changed', 'network-vif-plugged', 'network-vif-unplugged', 'network-vif-deleted')
_VOLUMES = (*_FIRST, 'volume-extended')
_POWER = (*_VOLUMES, 'power-update')
_ACCELERATORS = (*_POWER, 'accelerator-request-bound')
_REIMAGED = (*_ACCELERATORS, 'volume-reimaged')

CREATE = Obj(Prop('events', {'type': 'array', 'minItems': 1, 'maxItems': 1000, 'items': Obj(
    Prop('name', t.one_of(*_FIRST), required=True, until=50),
    Prop('name', t.one_of(*_VOLUMES), required=True, since=51, until=75),
    Prop('name', t.one_of(*_POWER), required=True, since=76, until=81),
    Prop('name', t.one_of(*_ACCELERATORS), required=True, since=82, until=92),
    Prop('name', t.one_of(*_REIMAGED), required=True, since=93),
    Prop('server_uuid', t.UUID, required=True),
    Prop('status', t.one_of('failed', 'completed', 'in-progress')),
    Prop('tag', {'type': 'string', 'maxLength': 255}))}, required=True))
