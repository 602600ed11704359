"""NetworkRequest: one interface that a server asks for."""
from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, register


@register
class NetworkRequest(KilonovaObject):
    """``network_id`` may be 'auto' or 'none': the user leaves the choice to us, or wants no interface."""

    VERSION = '1.3'
    fields = {
        'network_id': fields.StringField(nullable=True),
        'address': fields.IPAddressField(nullable=True),
        'port_id': fields.UUIDField(nullable=True),
        'pci_request_id': fields.UUIDField(nullable=True),
        'tag': fields.StringField(nullable=True),
        'arq_uuid': fields.UUIDField(nullable=True),
        'device_profile': fields.StringField(nullable=True),
    }

    @property
    def no_allocate(self) -> bool:
        return 'network_id' in self and self.network_id == 'none'

    @property
    def auto_allocate(self) -> bool:
        return 'network_id' in self and self.network_id == 'auto'


@register
class NetworkRequestList(ListBase, KilonovaObject):
    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('NetworkRequest')}

    @property
    def no_allocate(self) -> bool:
        """Whether the user wants no interface at all."""
        return len(self.objects) == 1 and self.objects[0].no_allocate
