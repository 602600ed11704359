"""KeyPair: a user's public key (API table ``key_pairs``; each server has a copy in ``instance_extra.keypairs``)."""

from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register


@register
class KeyPair(PersistentObject, KilonovaObject):
    """A user's public key; ``type`` is ssh or x509."""

    VERSION = '1.4'
    fields = {
        'id': fields.IntegerField(),
        'name': fields.StringField(),
        'user_id': fields.StringField(nullable=True),
        'fingerprint': fields.StringField(nullable=True),
        'public_key': fields.StringField(nullable=True),
        'type': fields.StringField(),
    }


@register
class KeyPairList(ListBase, KilonovaObject):
    """A list of key pairs."""

    VERSION = '1.3'
    fields = {'objects': fields.ListOfObjectsField('KeyPair')}
