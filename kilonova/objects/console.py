"""ConsoleOffer: the console of a server, as its host describes it."""

from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register


@register
class ConsoleOffer(KilonovaObject):
    """A console of a server.

    ``host``, ``port`` and ``tls_port`` are the address to which console proxies connect. ``access_url_base`` is the URL
    for users, without the token that gives access.
    """

    VERSION = '1.0'
    fields = {
        'console_type': fields.StringField(),
        'host': fields.StringField(),
        'port': fields.IntegerField(),
        'tls_port': fields.IntegerField(nullable=True),
        'access_url_base': fields.StringField(),
    }
