"""Tag: a word on a server (table ``tags``)."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, register


@register
class Tag(KilonovaObject):
    VERSION = '1.1'
    fields = {'resource_id': fields.StringField(), 'tag': fields.StringField()}


@register
class TagList(ListBase, KilonovaObject):
    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('Tag')}

    @classmethod
    def from_words(cls, ctxt: RequestContext, resource_id: str, words: Iterable[str]) -> Self:
        """A server's tags from the plain words."""
        return cls.of(ctxt, (Tag.loaded(ctxt, (('resource_id', resource_id), ('tag', word))) for word in words))
