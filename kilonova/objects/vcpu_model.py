"""VirtCPUModel: a guest's CPU as the driver described it (``instance_extra.vcpu_model``)."""
from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register


@register
class VirtCPUTopology(KilonovaObject):
    VERSION = '1.0'
    fields = {
        'sockets': fields.IntegerField(nullable=True, default=1),
        'cores': fields.IntegerField(nullable=True, default=1),
        'threads': fields.IntegerField(nullable=True, default=1),
    }


@register
class VirtCPUFeature(KilonovaObject):
    VERSION = '1.0'
    fields = {'policy': fields.CPUFeaturePolicyField(nullable=True), 'name': fields.StringField()}


@register
class VirtCPUModel(KilonovaObject):
    VERSION = '1.0'
    fields = {
        'arch': fields.ArchitectureField(nullable=True),
        'vendor': fields.StringField(nullable=True),
        'topology': fields.ObjectField('VirtCPUTopology', nullable=True),
        'features': fields.ListOfObjectsField('VirtCPUFeature', default=[]),
        'mode': fields.CPUModeField(nullable=True),
        'model': fields.StringField(nullable=True),
        'match': fields.CPUMatchField(nullable=True),
    }
