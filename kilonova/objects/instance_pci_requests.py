"""InstancePCIRequests: the passthrough devices that a server asks for."""
from __future__ import annotations

import json
from typing import Any, Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register


@register
class InstancePCIRequest(KilonovaObject):
    """``count`` devices, each matching one of ``spec``. Without an alias name the request comes from a port."""

    VERSION = '1.4'
    fields = {
        'count': fields.IntegerField(),
        'spec': fields.ListOfDictOfNullableStringsField(),
        'alias_name': fields.StringField(nullable=True),
        'is_new': fields.BooleanField(default=False),
        'request_id': fields.UUIDField(nullable=True),
        'requester_id': fields.StringField(nullable=True),
        'numa_policy': fields.PCINUMAAffinityPolicyField(nullable=True),
    }
    FLAVOR_ALIAS = 0
    NEUTRON_PORT = 1

    @property
    def source(self) -> int:
        """FLAVOR_ALIAS or NEUTRON_PORT."""
        return self.FLAVOR_ALIAS if 'alias_name' in self and self.alias_name is not None else self.NEUTRON_PORT


# A request that says nothing, as it is stored.
_UNSET = {'count': None, 'spec': None, 'alias_name': None, 'is_new': False, 'numa_policy': None, 'request_id': None,
          'requester_id': None}


@register
class InstancePCIRequests(KilonovaObject):
    """All requests of one server."""

    VERSION = '1.1'
    fields = {
        'instance_uuid': fields.UUIDField(),
        'requests': fields.ListOfObjectsField('InstancePCIRequest'),
    }

    @classmethod
    def from_list(cls, requests: list[dict[str, Any]], instance_uuid: str, ctxt: RequestContext | None = None) -> Self:
        """From the stored form, a plain list of dicts (``instance_extra.pci_requests``)."""
        self = cls(ctxt)
        made = []
        for request in requests:
            one = InstancePCIRequest(ctxt)
            one.load((name, value) for name, value in request.items() if name in one.fields)
            made.append(one)
        self.load((('instance_uuid', instance_uuid), ('requests', made)))
        return self

    @classmethod
    def from_column(cls, text: str | None, instance_uuid: str, ctxt: RequestContext | None = None) -> Self | None:
        """From ``instance_extra.pci_requests``; an empty column is None."""
        return cls.from_list(json.loads(text), instance_uuid, ctxt) if text else None

    def to_column(self) -> str:
        """For ``instance_extra.pci_requests``: the stored form, every field of each request, unset ones as null."""
        return json.dumps([{**_UNSET, **request.primitive_data()} for request in self.requests])

    def without_providers(self) -> InstancePCIRequests:
        """A copy whose specs name no Placement provider: what a RequestSpec stores."""
        return self.replaced(requests=[request.replaced(spec=[
            {key: value for key, value in spec.items() if key != 'rp_uuids'} for spec in request.spec])
            for request in self.requests])
