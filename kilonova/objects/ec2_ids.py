"""EC2Ids: the short ids that a server's metadata contain in the EC2 form."""

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
