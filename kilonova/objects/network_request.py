"""The networks and security groups that a request for a server names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register


# --- network interfaces that a request asks for ----------------------------------------------------------------------
@register
class NetworkRequest(KilonovaObject):
    """One requested interface.

    ``network_id`` may be 'auto' (Kilonova chooses the network) or 'none' (the server gets no interface).
    """

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
        """True if this element of a request is the word 'none' and not a network: the server gets no interface."""
        return 'network_id' in self and self.network_id == 'none'


@register
class NetworkRequestList(ListBase, KilonovaObject):
    """The requested interfaces of a server."""

    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('NetworkRequest')}

    @property
    def no_allocate(self) -> bool:
        """True if the whole request is the word 'none': the server gets no interface at all."""
        return len(self.objects) == 1 and self.objects[0].no_allocate


# -- security groups: only names or uuids are set; the network service has all other data ------------------------------
@register
class SecurityGroup(PersistentObject, KilonovaObject):
    """A security group of the network service, known by its name or uuid."""

    VERSION = '1.2'
    fields = {
        'id': fields.IntegerField(),
        'name': fields.StringField(),
        'description': fields.StringField(),
        'user_id': fields.StringField(),
        'project_id': fields.StringField(),
        'uuid': fields.UUIDField(),
    }


@register
class SecurityGroupList(ListBase, KilonovaObject):
    """The security groups of a server."""

    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('SecurityGroup')}

    @classmethod
    def from_names(cls, ctxt: RequestContext, names: Iterable[str]) -> Self:
        """Return the list of security groups with these names."""
        return cls.of(ctxt, (SecurityGroup.loaded(ctxt, (('name', name),)) for name in names))

    def names(self) -> list[str]:
        """Return the name of each group, or its uuid if the name is not set."""
        return [group.name if 'name' in group else group.uuid for group in self]
