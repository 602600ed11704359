"""Delete guests and files of deleted servers that are still on a host, and images that are no longer used.

When a server is deleted, its guest and files are removed. If the host was down, they are removed when the host is back.
The periodic checks of this module are for other cases: a domain that was restored manually, or files that could not be
removed. Only servers that the database calls deleted, and that have no operation, are processed. A check makes no call
to the conductor if every guest and file belongs to a server that the tracker knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from oslo_log import log as logging

from kilonova import objects
from kilonova.compute import records
from kilonova.compute.host import ComputeHost
from kilonova.context import RequestContext
from kilonova.virt.driver import guest_name

LOG = logging.getLogger(__name__)

# Number of servers in one call to the conductor.
BATCH = 200
_UUID_LENGTH = 36
_SAID = {
    'log': "Detected instance with name label '%s' which is marked as DELETED but still present on host.",
    'shutdown': "Powering off instance with name label '%s' which is marked as DELETED but still present on host.",
    'reap': "Destroying instance with name label '%s' which is marked as DELETED but still present on host.",
}


class Leftovers:
    """The remains of deleted servers on one host.

    ``attempts`` is a dict from server uuid to the number of tries to remove the server's files.
    """

    def __init__(self, host: ComputeHost, ctxt: Callable[[], RequestContext]) -> None:
        self._host, self._ctxt = host, ctxt
        self.attempts: Counter[str] = Counter()

    def reap(self) -> None:
        """Log, stop or destroy guests of deleted servers, as ``[DEFAULT]running_deleted_instance_action`` says."""
        host, action = self._host, self._host.conf.running_deleted_instance_action
        if action == 'noop':
            return
        for instance in self._deleted(
            host.driver.guests.list_instance_uuids(), host.conf.running_deleted_instance_timeout
        ):
            level = LOG.warning if action == 'log' else LOG.info
            level(_SAID[action], guest_name(host.conf, instance), instance_uuid=instance.uuid)
            try:
                with host.locks.hold(instance.uuid):
                    if action == 'shutdown':
                        host.driver.power.power_off(instance)
                    elif action == 'reap':
                        host.driver.guests.destroy(instance)
            except Exception:
                # An error with one server is only logged, and the other servers are processed.
                LOG.exception(
                    'Could not process a deleted instance that is still present on the host',
                    instance_uuid=instance.uuid,
                )

    def remove_files(self) -> None:
        """Remove files of deleted servers that have no guest.

        After ``[DEFAULT]maximum_instance_delete_attempts`` failed attempts for a server, its files are kept until the
        service restarts.
        """
        host, most = self._host, self._host.conf.maximum_instance_delete_attempts
        with_guests = set(host.driver.guests.list_instance_uuids())
        owners = {name[:_UUID_LENGTH] for name in host.driver.disks.list_directories()} - with_guests
        for instance in self._deleted([uuid for uuid in owners if self.attempts[uuid] < most], 0):
            self.attempts[instance.uuid] += 1
            LOG.info('Deleting files of deleted instance', instance_uuid=instance.uuid)
            try:
                with host.locks.hold(instance.uuid):
                    host.driver.guests.destroy(instance)
            except Exception:
                LOG.exception(
                    'Attempt %d of %d to delete the files failed',
                    self.attempts[instance.uuid],
                    most,
                    instance_uuid=instance.uuid,
                )
            else:
                del self.attempts[instance.uuid]

    def clean_image_cache(self) -> None:
        """Remove cached images that have not been used for a long time."""
        options = self._host.conf.image_cache
        self._host.driver.disks.clean_image_cache(
            options.remove_unused_original_minimum_age_seconds if options.remove_unused_base_images else None
        )

    def _deleted(self, uuids: Iterable[str], seconds: float) -> Iterator[objects.Instance]:
        """Yield the servers among ``uuids`` that were deleted at least ``seconds`` ago.

        A server with a claim in the tracker is not deleted. Such servers are skipped without a query.
        """
        strangers = sorted(uuid for uuid in uuids if not self._host.tracker.sides(uuid))
        for begin in range(0, len(strangers), BATCH):
            yield from records.deleted(self._ctxt(), strangers[begin : begin + BATCH], seconds)
