"""VolumeUsage: how much servers read from a volume and wrote to it (table ``volume_usage_cache``).

Example:
    found = [VolumeUsage(ctxt, volume_id=…, instance_uuid=…, curr_reads=7, …)]
    for usage in VolumeUsage.count(ctxt, found):
        usage.total('reads')
"""

from __future__ import annotations

from kilonova.context import RequestContext
from kilonova.objects import fields, storage
from kilonova.objects.base import KilonovaObject, PersistentObject, register, remotable_classmethod

# The fields of VolumeUsage that a host reports. The fields ``tot_*`` are computed when a report is stored.
TOLD = (
    'volume_id',
    'instance_uuid',
    'project_id',
    'user_id',
    'availability_zone',
    'curr_reads',
    'curr_read_bytes',
    'curr_writes',
    'curr_write_bytes',
)


@register
class VolumeUsage(PersistentObject, KilonovaObject):
    """The counters of one volume.

    ``curr_*`` counts since the last start of the guest. ``tot_*`` is the sum of all earlier counts, including servers
    that had the volume earlier. The sum of both is the total. ``*_reads`` and ``*_writes`` are numbers of requests, the
    other counters are bytes.
    """

    VERSION = '1.0'
    fields = {
        'id': fields.IntegerField(),
        'volume_id': fields.UUIDField(),
        'instance_uuid': fields.UUIDField(nullable=True),
        'project_id': fields.StringField(nullable=True),
        'user_id': fields.StringField(nullable=True),
        'availability_zone': fields.StringField(nullable=True),
        'tot_last_refreshed': fields.DateTimeField(nullable=True),
        'tot_reads': fields.IntegerField(),
        'tot_read_bytes': fields.IntegerField(),
        'tot_writes': fields.IntegerField(),
        'tot_write_bytes': fields.IntegerField(),
        'curr_last_refreshed': fields.DateTimeField(nullable=True),
        'curr_reads': fields.IntegerField(),
        'curr_read_bytes': fields.IntegerField(),
        'curr_writes': fields.IntegerField(),
        'curr_write_bytes': fields.IntegerField(),
    }

    @remotable_classmethod
    def count(cls, ctxt: RequestContext, found: list[VolumeUsage]) -> list[VolumeUsage]:
        """Store the counters that a host reports, and return the stored rows of volume_usage_cache with all counters.

        Each element of ``found`` has the ids of a volume and of a server, and the counters ``curr_*``. An element is
        ignored, and not in the result, if the volume is no longer attached to this server. Runs in one transaction.
        """
        told = [{name: getattr(one, name) for name in TOLD} for one in found]
        with storage.database(ctxt).write() as conn:
            return [cls.from_row(ctxt, row) for row in storage.queries('volume_usage').count(conn, told)]

    def total(self, counter: str) -> int:
        """Return the total of a counter ('reads', 'read_bytes', 'writes' or 'write_bytes'), ``tot_*`` + ``curr_*``.

        It includes the traffic of all servers that have had the volume.
        """
        before, since = getattr(self, f'tot_{counter}'), getattr(self, f'curr_{counter}')
        return int(before + since)
