"""Diagnostics: measurements of a guest by its hypervisor, in a format that is the same for all hypervisors."""

from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register


@register
class CpuDiagnostics(KilonovaObject):
    """The measurements of one guest CPU: ``time`` in nanoseconds, ``utilisation`` in percent."""

    VERSION = '1.0'
    fields = {
        'id': fields.IntegerField(nullable=True),
        'time': fields.IntegerField(nullable=True),
        'utilisation': fields.IntegerField(nullable=True),
    }


@register
class NicDiagnostics(KilonovaObject):
    """The counters of one network card of a guest."""

    VERSION = '1.0'
    fields = {
        'mac_address': fields.MACAddressField(nullable=True),
        **{
            f'{way}_{what}': fields.IntegerField(nullable=True)
            for way in ('rx', 'tx')
            for what in ('octets', 'errors', 'drop', 'packets', 'rate')
        },
    }


@register
class DiskDiagnostics(KilonovaObject):
    """The counters of one disk of a guest."""

    VERSION = '1.0'
    fields = {
        name: fields.IntegerField(nullable=True)
        for name in ('read_bytes', 'read_requests', 'write_bytes', 'write_requests', 'errors_count')
    }


@register
class MemoryDiagnostics(KilonovaObject):
    """The maximum and the used memory of a guest in MiB."""

    VERSION = '1.0'
    fields = {'maximum': fields.IntegerField(nullable=True), 'used': fields.IntegerField(nullable=True)}


@register
class Diagnostics(KilonovaObject):
    """The measurements of one guest; ``uptime`` is in seconds."""

    VERSION = '1.0'
    fields = {
        'state': fields.InstancePowerStateField(),
        'driver': fields.HypervisorDriverField(),
        'hypervisor': fields.StringField(nullable=True),
        'hypervisor_os': fields.StringField(nullable=True),
        'uptime': fields.IntegerField(nullable=True),
        'config_drive': fields.BooleanField(),
        'memory_details': fields.ObjectField('MemoryDiagnostics'),
        'cpu_details': fields.ListOfObjectsField('CpuDiagnostics'),
        'nic_details': fields.ListOfObjectsField('NicDiagnostics'),
        'disk_details': fields.ListOfObjectsField('DiskDiagnostics'),
        'num_cpus': fields.IntegerField(),
        'num_nics': fields.IntegerField(),
        'num_disks': fields.IntegerField(),
    }
