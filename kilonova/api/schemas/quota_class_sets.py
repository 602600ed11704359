"""What may be said about quota classes (rest-api.md §2.10)."""
from __future__ import annotations

from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.schemas.quota_sets import LIMIT, NETWORK, RESOURCES

UPDATE = Obj(Prop('quota_class_set', Obj(*RESOURCES, *(Prop(name, LIMIT, until=49) for name in NETWORK)),
                  required=True))
