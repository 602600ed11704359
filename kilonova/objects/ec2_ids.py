"""EC2Ids: the ids in the short form of EC2 (such as ``i-0000001a``) that the metadata of a server contains."""

from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register


@register
class EC2Ids(KilonovaObject):
    """The EC2 ids of a server and of its image, kernel and ramdisk."""

    VERSION = '1.0'
    fields = {
        'instance_id': fields.StringField(read_only=True),
        'ami_id': fields.StringField(nullable=True, read_only=True),
        'kernel_id': fields.StringField(nullable=True, read_only=True),
        'ramdisk_id': fields.StringField(nullable=True, read_only=True),
    }
