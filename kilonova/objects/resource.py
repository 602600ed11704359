"""Resource: one device-like resource that Placement gave a server (``instance_extra.resources``)."""
from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, register


@register
class ResourceMetadata(KilonovaObject):
    """Base of what a driver knows of a resource."""

    VERSION = '1.0'
    fields = {}


@register
class LibvirtVPMEMDevice(ResourceMetadata):
    VERSION = '1.0'
    fields = {
        'label': fields.StringField(),
        'name': fields.StringField(),
        'size': fields.IntegerField(),
        'devpath': fields.StringField(),
        'align': fields.IntegerField(),
    }


@register
class Resource(KilonovaObject):
    VERSION = '1.0'
    fields = {
        'provider_uuid': fields.UUIDField(),
        'resource_class': fields.ResourceClassField(),
        'identifier': fields.StringField(),
        'metadata': fields.ObjectField('ResourceMetadata', subclasses=True),
    }


@register
class ResourceList(ListBase, KilonovaObject):
    VERSION = '1.0'
    fields = {'objects': fields.ListOfObjectsField('Resource')}
