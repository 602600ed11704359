"""Body of createImage (rest-api.md §2.2)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop

CREATE_IMAGE = Obj(Prop('createImage', Obj(Prop('name', t.NAME, required=True), Prop('metadata', t.METADATA)),
                        required=True))
