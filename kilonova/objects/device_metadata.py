"""InstanceDeviceMetadata: tags of a guest's devices with the place where the guest sees them."""
from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register


@register
class DeviceBus(KilonovaObject):
    VERSION = '1.0'
    fields = {}


@register
class PCIDeviceBus(DeviceBus):
    VERSION = '1.0'
    fields = {'address': fields.PCIAddressField()}


@register
class DeviceMetadata(KilonovaObject):
    VERSION = '1.0'
    fields = {
        'bus': fields.ObjectField('DeviceBus', subclasses=True),
        'tags': fields.ListOfStringsField(),
    }


@register
class NetworkInterfaceMetadata(DeviceMetadata):
    VERSION = '1.2'
    fields = {
        'mac': fields.MACAddressField(),
        'vlan': fields.IntegerField(),
        'vf_trusted': fields.BooleanField(default=False),
    }


@register
class DiskMetadata(DeviceMetadata):
    VERSION = '1.0'
    fields = {'serial': fields.StringField(nullable=True), 'path': fields.StringField(nullable=True)}


@register
class InstanceDeviceMetadata(KilonovaObject):
    VERSION = '1.0'
    fields = {'devices': fields.ListOfObjectsField('DeviceMetadata', subclasses=True)}
