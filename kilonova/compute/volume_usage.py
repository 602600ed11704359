"""Record how much the guests of a host read from and write to their volumes.

Called every ``volume_usage_poll_interval`` seconds. ``poll(host, ctxt)`` also sends a volume.usage notification for
each volume of a running guest.
"""

from __future__ import annotations

from collections.abc import Iterator

from oslo_log import log as logging

from kilonova import objects
from kilonova.compute import records
from kilonova.compute.host import ComputeHost
from kilonova.context import RequestContext
from kilonova.virt.parts.guests import GuestFailed

LOG = logging.getLogger(__name__)

# Number of volumes in one message to the conductor, and in one transaction.
MOST = 1000


def poll(host: ComputeHost, ctxt: RequestContext) -> int:
    """Write the volume usage of all guests, send notifications, and return the number of volumes."""
    found = [usage for instance in records.instances(ctxt, host.name) for usage in _counted(host, ctxt, instance)]
    told = 0
    for first in range(0, len(found), MOST):
        for usage in objects.VolumeUsage.count(ctxt, found[first : first + MOST]):
            host.notify.emit(ctxt, 'volume.usage', usage=usage)
            told += 1
    return told


def _counted(host: ComputeHost, ctxt: RequestContext, instance: objects.Instance) -> Iterator[objects.VolumeUsage]:
    if not instance.volumes:
        return
    try:
        found = host.driver.volumes.usage(instance)
    except GuestFailed as error:
        LOG.warning('Could not read the volume statistics of the guest: %s', error, instance_uuid=instance.uuid)
        return
    for volume_id, counters in found.items():
        yield objects.VolumeUsage(
            ctxt,
            volume_id=volume_id,
            instance_uuid=instance.uuid,
            project_id=instance.project_id,
            user_id=instance.user_id,
            availability_zone=instance.availability_zone,
            curr_reads=counters.reads,
            curr_read_bytes=counters.read_bytes,
            curr_writes=counters.writes,
            curr_write_bytes=counters.write_bytes,
        )
