"""Bodies of the actions on servers (rest-api.md §2.2)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Window, Windows

START = Obj(Prop('os-start', t.ANYTHING, required=True))
STOP = Obj(Prop('os-stop', t.ANYTHING, required=True))
REBOOT = Obj(Prop('reboot', Obj(
    Prop('type', t.one_of('HARD', 'Hard', 'hard', 'SOFT', 'Soft', 'soft'), required=True)), required=True))
RESIZE = Obj(Prop('resize', Obj(
    Prop('flavorRef', {'type': ['string', 'integer'], 'minLength': 1, 'maxLength': 255, 'minimum': 0,
                       'maximum': t.MAX_INT}, required=True),
    Prop('OS-DCF:diskConfig', t.DISK_CONFIG)), required=True))
CONFIRM_RESIZE = Obj(Prop('confirmResize', t.ANYTHING, required=True))
REVERT_RESIZE = Obj(Prop('revertResize', t.ANYTHING, required=True))
MIGRATE = Obj(Prop('migrate', Windows(
    Window(t.ANYTHING, until=55),
    Window({'oneOf': [t.NULL, Obj(Prop('host', t.HOST_OR_NONE, required=True))]}, since=56)), required=True))
RESET_STATE = Obj(Prop('os-resetState', Obj(Prop('state', t.one_of('active', 'error'), required=True)),
                       required=True))
