"""What a host still has of servers that were evacuated from it while it was down: guests, disks, devices.

``clean_all`` runs when the compute starts, before anything of servers is looked at and before it reports up; ``clean``
is the same for one server, for a host that never restarted (``ops.evacuate``). Disks on storage that the new host has
taken over aren't this host's any more.
"""
from __future__ import annotations

from oslo_log import log as logging

from kilonova import objects
from kilonova.compute import records
from kilonova.compute.host import Host
from kilonova.compute.keys import Work
from kilonova.compute.operation import Operation
from kilonova.compute.ops import move
from kilonova.context import RequestContext

LOG = logging.getLogger(__name__)


def clean_all(host: Host, ctxt: RequestContext) -> None:
    """Once, at start. Unanswered, HypervisorUnavailable: nothing is lost, start again."""
    for migration in records.evacuated(ctxt, host.name):
        instance = objects.Instance(ctxt, uuid=migration.instance_uuid)
        with host.locks.hold(instance.uuid):
            # No operation's: there is no row that it could stand at.
            clean(Operation(host, Work(''), ctxt, instance), migration)


def clean(op: Operation, migration: objects.Migration) -> None:
    """The guest, its disks and what it holds here go; the migration is completed. Hold the server's lock."""
    LOG.info('Deleting instance as it has been evacuated from this host', instance_uuid=op.instance.uuid)
    op.host.driver.guests.destroy(op.instance)
    op.give_back(move.of_source(migration), undo=True, migration={'uuid': migration.uuid, 'status': 'completed'})
