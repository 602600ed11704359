"""Consoles of servers, as their hosts offer them."""
from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register


@register
class ConsoleOffer(KilonovaObject):
    """Where a console is reached behind the proxies (``host``, ``port``, ``tls_port``), and the address that users get,
    without the token that opens it."""

    VERSION = '1.0'
    fields = {
        'console_type': fields.StringField(),
        'host': fields.StringField(),
        'port': fields.IntegerField(),
        'tls_port': fields.IntegerField(nullable=True),
        'access_url_base': fields.StringField(),
    }
