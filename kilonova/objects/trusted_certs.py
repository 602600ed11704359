"""TrustedCerts: ids of the certificates that may sign a server's image (``instance_extra.trusted_certs``)."""
from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register


@register
class TrustedCerts(KilonovaObject):
    VERSION = '1.0'
    fields = {'ids': fields.ListOfStringsField()}
