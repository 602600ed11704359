"""Live migrations as the options [libvirt]live_migration_… configure them: start, supervision and forced completion.

    transfers = Transfers(conf)
    transfers.carry(guest, way, told)          # start or continue the migration, and wait for its end
    transfers.hasten(guest)                    # force completion, by post-copy or by pausing the guest

With post-copy a guest runs at the destination before all its memory has arrived, and QEMU fetches a page when the guest
accesses it. From the switch to post-copy on, neither host has the guest's complete memory. If the connection breaks
then, this module opens it again. If that fails, the running guest is lost, and the server is started from its disks at
the destination.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import libvirt
from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors
from kilonova.states import PowerState
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.migration import migration_job
from kilonova.virt.libvirt.migration.migration_job import PostCopy
from kilonova.virt.libvirt.storage import disk
from kilonova.virt.parts.live_migrations import LiveProgress, LiveTold

LOG = logging.getLogger(__name__)

# Seconds between two checks of a migration: LOOK at its beginning, and later up to LATER.
LOOK, LATER = 0.1, 1.0
# Time limits are proportional to the size of the guest in GiB. A smaller guest counts as a guest of LEAST_GIB GiB.
LEAST_GIB = 2
# Seconds for which this module tries to continue a failed post-copy.
MENDING = 60.0
# A migration is aborted if its statistics cannot be read for this number of seconds.
BLIND = 60.0
_NUMBERS = ('memory_total', 'memory_processed', 'memory_remaining', 'disk_total', 'disk_processed', 'disk_remaining')


@dataclass(frozen=True)
class MigrationTarget:
    """The destination of a guest: the URI of its libvirt, and parameters and flags for libvirt's migration call.

    ``Transfers`` adds parameters and flags for the options of the source host. ``post_copy`` is True if the guest may
    run at the destination before all its memory has arrived.
    """

    host: str
    uri: str
    parameters: dict[str, Any]
    flags: int
    post_copy: bool = True


class Transfers:
    """The live migrations of guests from this host to other hosts."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        options = conf.libvirt
        self._bandwidth, self._with_tls = options.live_migration_bandwidth, options.live_migration_with_native_tls
        self._converge, self._post_copy = (
            options.live_migration_permit_auto_converge,
            options.live_migration_permit_post_copy,
        )
        self._seconds_a_gib = options.live_migration_completion_timeout
        self._forces = options.live_migration_timeout_action == 'force_complete'
        self._downtimes = Downtimes(
            options.live_migration_downtime,
            options.live_migration_downtime_steps,
            options.live_migration_downtime_delay,
        )
        # Uuids of guests whose forced completion came too early for post-copy. The next check of ``_look`` repeats it.
        self._in_haste: set[str] = set()

    def carry(self, guest: Guest, way: MigrationTarget, report: LiveTold) -> None:
        """Migrate the guest to the destination ``way``, and return when the guest has arrived.

        A migration that is already running is continued. ``report`` is called with the progress of the migration. The
        migration is aborted if ``report`` raises an exception. After [libvirt]live_migration_completion_timeout seconds
        per GiB, the migration is aborted or forced to complete, as [libvirt]live_migration_timeout_action says. Raises
        errors.MigrationError if the guest stays on this host.
        """
        call = None
        try:
            if migration_job.outgoing(guest) is None and not migration_job.has_switched(guest):
                call = self._begin(guest, way, self._post_copy and way.post_copy)
            try:
                self._follow(guest, report, call)
            except migration_job.PostCopyRefused as error:
                LOG.warning(
                    'Host %s does not support post-copy; migrating the guest without it: %s',
                    way.host,
                    error,
                    instance_uuid=guest.uuid,
                )
                self._follow(guest, report, self._begin(guest, way, False))
        finally:
            self._in_haste.discard(guest.uuid)
        self._mend(guest, way)

    def _begin(self, guest: Guest, way: MigrationTarget, post_copy: bool, more: int = 0) -> migration_job.MigrationCall:
        return migration_job.MigrationCall(
            guest, way.uri, way.parameters | self._limits(), way.flags | self._flags(post_copy) | more
        )

    def _flags(self, post_copy: bool) -> int:
        """Return libvirt's flags for TLS, and for post-copy or auto-converge.

        Auto-converge slows down a guest that writes to its memory faster than the memory is transferred. With
        post-copy, the migration also completes without auto-converge, so only one of them is switched on.
        """
        flags = libvirt.VIR_MIGRATE_TLS if self._with_tls else 0
        if post_copy:
            return int(flags | libvirt.VIR_MIGRATE_POSTCOPY)
        return int(flags | (libvirt.VIR_MIGRATE_AUTO_CONVERGE if self._converge else 0))

    def _limits(self) -> dict[str, Any]:
        return {libvirt.VIR_MIGRATE_PARAM_BANDWIDTH: self._bandwidth} if self._bandwidth else {}

    # -- supervising a migration ----------------------------------------------------------------------

    def _follow(self, guest: Guest, report: LiveTold, call: migration_job.MigrationCall | None) -> None:
        since, pause, watch = time.monotonic(), LOOK, _Watch()
        while True:
            # ``call.ended`` is read first: if the call ends while the statistics are read, the loop runs once more.
            is_over = call is None or call.ended
            job = watch.read(guest)
            # The migration is over if it has no job. If the job could not be read, only the end of ``call`` counts.
            if job is None and is_over and (watch.unread is None or call is not None):
                break
            if watch.unread is not None and call is None and watch.blind > 2 * BLIND:
                raise watch.unread
            if job is not None and watch.reason is None:
                watch.reason = self._look(guest, job, report, time.monotonic() - since, watch)
            if (job is not None or watch.unread is not None) and watch.reason is not None:
                migration_job.abort(guest)
            time.sleep(pause)
            pause = min(pause * 1.5, LATER)
        if migration_job.has_gone(guest) or (call is not None and call.ended and call.error is None):
            LOG.info('Migrating instance to another host finished', instance_uuid=guest.uuid)
            return
        if migration_job.has_switched(guest):
            return
        if watch.reason is not None:
            raise watch.reason
        said = call.error if call is not None else None
        if said is not None and self._post_copy and migration_job.refuses_post_copy(said):
            raise migration_job.PostCopyRefused(str(said))
        raise errors.MigrationError(reason=str(said or 'the migration was aborted'))

    def _look(
        self, guest: Guest, job: dict[str, int], report: LiveTold, took: float, watch: _Watch
    ) -> Exception | None:
        """Check the running migration once. Return the reason if it must be aborted, otherwise None.

        ``job`` has the migration's statistics, ``took`` is its duration until now in seconds, and ``watch`` has the
        state of the supervision. ``report`` is called with the progress.
        """
        numbers = {name: int(job.get(name, 0)) for name in _NUMBERS}
        gib = max((numbers['memory_total'] + numbers['disk_total']) / disk.GIB, LEAST_GIB)
        downtime = self._downtimes.at(took, gib)
        if downtime != watch.downtime:
            migration_job.allow_downtime(guest, downtime)
            watch.downtime = downtime
        if self._seconds_a_gib and took > self._seconds_a_gib * gib and not watch.hastened:
            if not self._forces:
                return errors.MigrationError(
                    reason=f'the migration was not complete after {took:.0f} seconds '
                    '([libvirt]live_migration_completion_timeout)'
                )
            self._in_haste.add(guest.uuid)
        if guest.uuid in self._in_haste:
            watch.hastened = self.hasten(guest)
        try:
            report(LiveProgress(**numbers))  # type: ignore[typeddict-item]
        except Exception as error:  # noqa: BLE001 - the caller raises it after the migration has ended
            return error
        return None

    # -- completing a migration -----------------------------------------------------------------------

    def hasten(self, guest: Guest) -> bool:
        """Force the migration to complete: switch it to post-copy, or pause the guest until its memory is transferred.

        Return False if the disks are still being copied, which is too early for post-copy. In this case the thread that
        supervises the migration calls this method again.
        """
        self._in_haste.discard(guest.uuid)
        if guest.power_state() == PowerState.PAUSED:
            return True
        switched = migration_job.switch(guest) if self._post_copy else PostCopy.IMPOSSIBLE
        if switched == PostCopy.TOO_EARLY:
            self._in_haste.add(guest.uuid)
            return False
        if switched == PostCopy.BEGUN:
            LOG.info(
                'Migration is forced to complete: the guest runs at the destination while the rest of its memory '
                'is transferred',
                instance_uuid=guest.uuid,
            )
            return True
        LOG.info(
            'Migration is forced to complete: the guest is now paused, and runs again when it is at the destination',
            instance_uuid=guest.uuid,
        )
        guest.hold()
        return True

    def _mend(self, guest: Guest, way: MigrationTarget) -> None:
        """Try to continue a migration to ``way`` whose post-copy failed, for at most MENDING seconds."""
        call, pause, until = None, LATER, time.monotonic() + MENDING
        while migration_job.has_switched(guest) and time.monotonic() < until:
            if call is None or call.ended:
                error = call.error if call is not None else None
                if error is not None and migration_job.is_unknown(error):
                    break
                LOG.warning(
                    'Post-copy to host %s was interrupted while a part of the guest memory is still on this host; '
                    'continuing it%s',
                    way.host,
                    f' (the last attempt failed: {error})' if error else '',
                    instance_uuid=guest.uuid,
                )
                call = self._begin(guest, way, True, migration_job.RESUME)
            elif not migration_job.is_broken(guest):
                until = time.monotonic() + MENDING
            time.sleep(pause)
            pause = min(pause * 1.5, LATER * 10)
        if migration_job.has_switched(guest):
            LOG.error(
                'A part of the guest memory could not be transferred to %s; the running guest is lost, but '
                'can be started again from its disks',
                way.host,
                instance_uuid=guest.uuid,
            )


@dataclass
class _Watch:
    """The state of the supervision of one migration.

    Attributes:
        reason: Why the migration must be aborted, or None.
        downtime: The downtime set last, in milliseconds.
        hastened: True if the migration was forced to complete, by post-copy or by pausing the guest.
        unread: Why the statistics could not be read at the last check. None if they were read.
        blind: Number of seconds for which all reads of the statistics have failed. 0 if the last read succeeded.
    """

    reason: Exception | None = None
    downtime: int | None = None
    hastened: bool = False
    unread: libvirt.libvirtError | None = None
    blind: float = 0
    _since: float = 0

    def read(self, guest: Guest) -> dict[str, int] | None:
        """Return the statistics of the migration, or None if no migration is running.

        Also return None if the statistics cannot be read. The attribute ``unread`` is then the error. If all reads fail
        for more than BLIND (60) seconds, the attribute ``reason`` is set to the error, too. The caller aborts a
        migration that has a ``reason``.
        """
        try:
            job = migration_job.outgoing(guest)
        except libvirt.libvirtError as error:
            if self.unread is None:
                self._since = time.monotonic()
            self.unread, self.blind = error, time.monotonic() - self._since
            if self.blind > BLIND and self.reason is None:
                self.reason = error
            return None
        self.unread, self.blind = None, 0
        return job


@dataclass(frozen=True)
class Downtimes:
    """The time in milliseconds that a guest may be stopped at the end of a migration.

    The time grows during the migration, in ``steps`` steps up to the value ``most``. ``delay`` is the number of seconds
    between two steps for each GiB of the guest.
    """

    most: int
    steps: int
    delay: int

    def at(self, took: float, gib: float) -> int:
        """Return the allowed downtime in milliseconds after ``took`` seconds of a migration of ``gib`` GiB.

        The downtime begins with ``most`` / ``steps`` and grows to ``most`` in ``steps`` equal steps, with one step
        every ``delay`` * ``gib`` seconds.
        """
        first = self.most / self.steps
        step = min(int(took / (self.delay * gib)), self.steps)
        return int(first + (self.most - first) / self.steps * step)
