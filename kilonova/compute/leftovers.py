"""What a host still has of servers that are deleted, and of images that nobody uses.

Deletes give back everything, and a host that was down does so when it is back (pending releases). These looks are for
what came past them: a domain that somebody restored by hand, files that could not be removed. Only servers that the
database calls deleted, and at which no operation works, are touched. A look at a host that has none such asks nobody.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from oslo_log import log as logging

from kilonova import objects
from kilonova.compute import records
from kilonova.compute.host import Host
from kilonova.context import RequestContext
from kilonova.virt.driver import guest_name

LOG = logging.getLogger(__name__)

# Servers that one question to the conductor names.
BATCH = 200
_UUID_LENGTH = 36
_SAID = {'log': "Detected instance with name label '%s' which is marked as DELETED but still present on host.",
         'shutdown': "Powering off instance with name label '%s' which is marked as DELETED but still present on host.",
         'reap': "Destroying instance with name label '%s' which is marked as DELETED but still present on host."}


class Leftovers:
    """``attempts``: how often the files of a server could not be removed, by its uuid."""

    def __init__(self, host: Host, ctxt: Callable[[], RequestContext]) -> None:
        self._host, self._ctxt = host, ctxt
        self.attempts: Counter[str] = Counter()

    def reap(self) -> None:
        """Guests of deleted servers: what [DEFAULT]running_deleted_instance_action says."""
        host, action = self._host, self._host.conf.running_deleted_instance_action
        if action == 'noop':
            return
        for instance in self._deleted(host.driver.guests.list_instance_uuids(),
                                      host.conf.running_deleted_instance_timeout):
            level = LOG.warning if action == 'log' else LOG.info
            level(_SAID[action], guest_name(host.conf, instance), instance_uuid=instance.uuid)
            try:
                with host.locks.hold(instance.uuid):
                    if action == 'shutdown':
                        host.driver.power.power_off(instance)
                    elif action == 'reap':
                        host.driver.guests.destroy(instance)
            except Exception:
                # The others' turn comes all the same.
                LOG.exception('A deleted instance that is still present on the host', instance_uuid=instance.uuid)

    def remove_files(self) -> None:
        """Files of deleted servers without a guest; a few times, until this process starts again."""
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
                LOG.exception('Attempt %d of %d to delete the files failed', self.attempts[instance.uuid], most,
                              instance_uuid=instance.uuid)
            else:
                del self.attempts[instance.uuid]

    def clean_image_cache(self) -> None:
        """Remove images that nobody has used for long."""
        options = self._host.conf.image_cache
        self._host.driver.disks.clean_image_cache(
            options.remove_unused_original_minimum_age_seconds if options.remove_unused_base_images else None)

    def _deleted(self, uuids: Iterable[str], seconds: float) -> Iterator[objects.Instance]:
        """Of these the deleted servers. The ledger knows those that live here: nobody is asked about them."""
        strangers = sorted(uuid for uuid in uuids if not self._host.tracker.sides(uuid))
        for begin in range(0, len(strangers), BATCH):
            yield from records.deleted(self._ctxt(), strangers[begin:begin + BATCH], seconds)
