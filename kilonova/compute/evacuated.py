"""Remove guests, disks and devices of servers that were evacuated from this host while it was down.

``clean_all`` runs when the compute service starts, before servers are read and before the service is reported as up.
``clean`` does the same for one server, on a host that was never restarted (``ops.evacuate``). Disks on shared storage
that the new host has taken over are not removed.
"""

from __future__ import annotations

from oslo_log import log as logging

from kilonova import objects
from kilonova.compute import records
from kilonova.compute.host import ComputeHost
from kilonova.compute.keys import RunningTask
from kilonova.compute.operation import HostTask
from kilonova.compute.ops import move
from kilonova.context import RequestContext

LOG = logging.getLogger(__name__)


def clean_all(host: ComputeHost, ctxt: RequestContext) -> None:
    """Clean up after all evacuations from this host. Called once, at the start of the service.

    Raises Unanswered or HypervisorUnavailable if a service does not answer. The function can then be called again.
    """
    for migration in records.evacuated(ctxt, host.name):
        instance = objects.Instance(ctxt, uuid=migration.instance_uuid)
        with host.locks.hold(instance.uuid):
            # The task has an empty operation key, because no operation row belongs to this cleanup.
            clean(HostTask(host, RunningTask(''), ctxt, instance), migration)


def clean(op: HostTask, migration: objects.Migration) -> None:
    """Destroy an evacuated server's guest and disks on this host, free its devices, and complete the migration.

    The caller must hold the server's lock.
    """
    LOG.info('Deleting instance as it has been evacuated from this host', instance_uuid=op.instance.uuid)
    op.host.driver.guests.destroy(op.instance)
    op.give_back(move.of_source(migration), undo=True, migration={'uuid': migration.uuid, 'status': 'completed'})
