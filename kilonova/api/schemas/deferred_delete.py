"""Bodies of restore and forceDelete (rest-api.md §2.2)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop

RESTORE = Obj(Prop('restore', t.ANYTHING, required=True))
FORCE_DELETE = Obj(Prop('forceDelete', t.ANYTHING, required=True))
