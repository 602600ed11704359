"""The states of servers, and the only table of their transitions.

``TRANSITIONS['stop.start']`` says in which vm and task states an event is allowed, and to which states it leads. The
compare-and-swap in ``db.queries.instances`` (the only code that writes states), the API's checks and the documentation
read this table. The names of the states are those of OpenStack Nova.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class VmState(enum.StrEnum):
    """A server's stable state, column ``vm_state``."""

    ACTIVE = 'active'
    BUILDING = 'building'
    PAUSED = 'paused'
    SUSPENDED = 'suspended'
    STOPPED = 'stopped'
    RESCUED = 'rescued'
    RESIZED = 'resized'
    SOFT_DELETED = 'soft-delete'
    DELETED = 'deleted'
    ERROR = 'error'
    SHELVED = 'shelved'
    SHELVED_OFFLOADED = 'shelved_offloaded'


class TaskState(enum.StrEnum):
    """The work that is being done on a server, column ``task_state``. None means no work."""

    SCHEDULING = 'scheduling'
    BLOCK_DEVICE_MAPPING = 'block_device_mapping'
    NETWORKING = 'networking'
    SPAWNING = 'spawning'
    RESIZE_PREP = 'resize_prep'
    RESIZE_MIGRATED = 'resize_migrated'
    RESIZE_FINISH = 'resize_finish'
    RESIZE_REVERTING = 'resize_reverting'
    REBUILDING = 'rebuilding'
    REBUILD_SPAWNING = 'rebuild_spawning'
    MIGRATING = 'migrating'
    REBOOTING = 'rebooting'
    REBOOT_PENDING = 'reboot_pending'
    REBOOT_STARTED = 'reboot_started'
    REBOOTING_HARD = 'rebooting_hard'
    PAUSING = 'pausing'
    UNPAUSING = 'unpausing'
    SUSPENDING = 'suspending'
    RESUMING = 'resuming'
    RESCUING = 'rescuing'
    UNRESCUING = 'unrescuing'
    UPDATING_PASSWORD = 'updating_password'  # noqa: S105 - no password: a state
    POWERING_OFF = 'powering-off'
    POWERING_ON = 'powering-on'
    IMAGE_SNAPSHOT_PENDING = 'image_snapshot_pending'
    IMAGE_SNAPSHOT = 'image_snapshot'
    IMAGE_UPLOADING = 'image_uploading'
    IMAGE_BACKUP = 'image_backup'
    SHELVING = 'shelving'
    SHELVING_IMAGE_PENDING_UPLOAD = 'shelving_image_pending_upload'
    SHELVING_IMAGE_UPLOADING = 'shelving_image_uploading'
    SHELVING_OFFLOADING = 'shelving_offloading'
    UNSHELVING = 'unshelving'
    SOFT_DELETING = 'soft-deleting'
    RESTORING = 'restoring'
    DELETING = 'deleting'


class PowerState(enum.IntEnum):
    """The state of a server's guest as its hypervisor reports it, column ``power_state``."""

    NOSTATE = 0
    RUNNING = 1
    PAUSED = 3
    SHUTDOWN = 4
    CRASHED = 6
    SUSPENDED = 7


# Names of the power states in diagnostics and notifications.
POWER_WORDS = {
    PowerState.NOSTATE: 'pending',
    PowerState.RUNNING: 'running',
    PowerState.PAUSED: 'paused',
    PowerState.SHUTDOWN: 'shutdown',
    PowerState.CRASHED: 'crashed',
    PowerState.SUSPENDED: 'suspended',
}

_V, _T = VmState, TaskState
ANY: frozenset[str | None] = frozenset(['*'])
# The allowed states of an event that creates the server, which has no states before the event.
NEW: frozenset[str | None] = frozenset()
IDLE = frozenset([None])
# In these vm states, metadata and tags of a server may be changed, whatever its task state is.
EDITABLE = frozenset([_V.ACTIVE, _V.PAUSED, _V.SUSPENDED, _V.STOPPED])
REBUILDABLE = frozenset([_V.ACTIVE, _V.STOPPED, _V.ERROR])
REBUILDING = frozenset([_T.REBUILDING, _T.REBUILD_SPAWNING])
RESIZING = frozenset([_T.RESIZE_PREP, _T.RESIZE_MIGRATED, _T.RESIZE_FINISH])
SNAPSHOTTING = frozenset([_T.IMAGE_SNAPSHOT_PENDING, _T.IMAGE_SNAPSHOT, _T.IMAGE_BACKUP, _T.IMAGE_UPLOADING])
SHELVING = frozenset([_T.SHELVING, _T.SHELVING_IMAGE_PENDING_UPLOAD, _T.SHELVING_IMAGE_UPLOADING])
UNSHELVING = frozenset([_T.UNSHELVING, _T.SPAWNING])
STARTING = frozenset([_T.UNSHELVING, _T.POWERING_ON])
# The server is being deleted. In these task states neither a soft delete nor an evacuation is accepted.
ENDING = frozenset([_T.DELETING, _T.SOFT_DELETING])
# In these task states no console is opened, because the guest is about to end or to move to another host.
NO_CONSOLE = ENDING | {_T.MIGRATING}
NOT_DELETING = frozenset([None, *_T]) - ENDING
KEPT = frozenset(state for state in _V if state not in (_V.BUILDING, _V.SOFT_DELETED, _V.DELETED))


@dataclass(frozen=True)
class Rule:
    """One transition of a server's states.

    ``vm`` and ``task`` are the states in which the transition is allowed. ANY means all states, NEW means that the
    server does not exist yet. ``to_vm`` and ``to_task`` are the states afterwards; ``to_vm`` None keeps the vm state.
    ``method`` is the name of the action in the text of error 409.
    """

    vm: frozenset[str | None]
    task: frozenset[str | None]
    to_vm: VmState | None
    to_task: TaskState | None
    method: str

    def allows(self, vm_state: str | None, task_state: str | None) -> bool:
        """Return whether a server in these states may make the transition."""
        return (self.vm is ANY or vm_state in self.vm) and (self.task is ANY or task_state in self.task)


# The type of a parameter for allowed states: one state, a tuple of states or a set of states.
_Some = str | None | tuple[str | None, ...] | frozenset[str | None]


def _rule(vm: _Some, task: _Some, to_vm: VmState | None, to_task: TaskState | None, method: str) -> Rule:
    def as_set(value: _Some) -> frozenset[str | None]:
        if isinstance(value, frozenset):
            return value
        return frozenset(value) if isinstance(value, tuple) else frozenset([value])

    return Rule(as_set(vm), as_set(task), to_vm, to_task, method)


_BUILD = (_T.SCHEDULING, _T.BLOCK_DEVICE_MAPPING, _T.NETWORKING, _T.SPAWNING, None)
_OFF_ON = (_V.ACTIVE, _V.STOPPED)

# For each event: allowed vm states, allowed task states, new vm state (None: unchanged), new task state, action name.
TRANSITIONS: dict[str, Rule] = {
    'build.start': _rule(NEW, NEW, _V.BUILDING, _T.SCHEDULING, 'build'),
    # If no host fits, the server is recorded in cell0, where its user can see it.
    'build.buried': _rule(NEW, NEW, _V.ERROR, None, 'build'),
    'build.claim': _rule(_V.BUILDING, _BUILD, None, _T.SPAWNING, 'build'),
    'build.done': _rule(_V.BUILDING, _BUILD, _V.ACTIVE, None, 'build'),
    'build.failed': _rule(_V.BUILDING, _BUILD, _V.ERROR, None, 'build'),
    'delete.start': _rule(ANY, ANY, None, _T.DELETING, 'delete'),
    'delete.done': _rule(ANY, ANY, _V.DELETED, None, 'delete'),
    'soft_delete.start': _rule(KEPT, NOT_DELETING, None, _T.SOFT_DELETING, 'soft_delete'),
    # Task state None is allowed, because the soft delete completes even if the state is reset meanwhile.
    'soft_delete.done': _rule(ANY, (_T.SOFT_DELETING, None), _V.SOFT_DELETED, None, 'soft_delete'),
    'reclaim.start': _rule(_V.SOFT_DELETED, IDLE, None, _T.DELETING, 'delete'),
    'restore.start': _rule(_V.SOFT_DELETED, IDLE, None, _T.RESTORING, 'restore'),
    'restore.done': _rule(_V.SOFT_DELETED, _T.RESTORING, _V.ACTIVE, None, 'restore'),
    'restore.failed': _rule(ANY, _T.RESTORING, None, None, 'restore'),
    'stop.start': _rule((_V.ACTIVE, _V.ERROR), IDLE, None, _T.POWERING_OFF, 'stop'),
    'stop.done': _rule(ANY, _T.POWERING_OFF, _V.STOPPED, None, 'stop'),
    'stop.failed': _rule(ANY, _T.POWERING_OFF, None, None, 'stop'),
    'start.start': _rule(_V.STOPPED, IDLE, None, _T.POWERING_ON, 'start'),
    'start.done': _rule(ANY, _T.POWERING_ON, _V.ACTIVE, None, 'start'),
    'start.failed': _rule(ANY, _T.POWERING_ON, None, None, 'start'),
    'reboot.start': _rule(_V.ACTIVE, IDLE, None, _T.REBOOTING, 'reboot'),
    'reboot_hard.start': _rule(
        (_V.ACTIVE, _V.STOPPED, _V.PAUSED, _V.SUSPENDED, _V.ERROR), IDLE, None, _T.REBOOTING_HARD, 'reboot'
    ),
    'reboot.done': _rule(ANY, (_T.REBOOTING, _T.REBOOTING_HARD), _V.ACTIVE, None, 'reboot'),
    'reboot.failed': _rule(ANY, (_T.REBOOTING, _T.REBOOTING_HARD), None, None, 'reboot'),
    'pause.start': _rule(_V.ACTIVE, IDLE, None, _T.PAUSING, 'pause'),
    'pause.done': _rule(ANY, _T.PAUSING, _V.PAUSED, None, 'pause'),
    'pause.failed': _rule(ANY, _T.PAUSING, None, None, 'pause'),
    'unpause.start': _rule(_V.PAUSED, IDLE, None, _T.UNPAUSING, 'unpause'),
    'unpause.done': _rule(ANY, _T.UNPAUSING, _V.ACTIVE, None, 'unpause'),
    'unpause.failed': _rule(ANY, _T.UNPAUSING, None, None, 'unpause'),
    'suspend.start': _rule(_V.ACTIVE, IDLE, None, _T.SUSPENDING, 'suspend'),
    'suspend.done': _rule(ANY, _T.SUSPENDING, _V.SUSPENDED, None, 'suspend'),
    'suspend.failed': _rule(ANY, _T.SUSPENDING, None, None, 'suspend'),
    'resume.start': _rule(_V.SUSPENDED, IDLE, None, _T.RESUMING, 'resume'),
    'resume.done': _rule(ANY, _T.RESUMING, _V.ACTIVE, None, 'resume'),
    'resume.failed': _rule(ANY, _T.RESUMING, None, None, 'resume'),
    # A crash dump changes no state: it only sends an interrupt to the guest, which decides what to do.
    'trigger_crash_dump.start': _rule(
        (_V.ACTIVE, _V.PAUSED, _V.RESCUED, _V.RESIZED, _V.ERROR), IDLE, None, None, 'trigger_crash_dump'
    ),
    'trigger_crash_dump.done': _rule(ANY, IDLE, None, None, 'trigger_crash_dump'),
    'trigger_crash_dump.failed': _rule(ANY, IDLE, None, None, 'trigger_crash_dump'),
    # Attaching and detaching an interface changes no state.
    'attach_interface.start': _rule((_V.ACTIVE, _V.PAUSED, _V.STOPPED), IDLE, None, None, 'attach_interface'),
    'detach_interface.start': _rule((_V.ACTIVE, _V.PAUSED, _V.STOPPED), IDLE, None, None, 'detach_interface'),
    # Attaching, detaching, extending and replacing a volume changes no state.
    'attach_volume.start': _rule(
        (_V.ACTIVE, _V.PAUSED, _V.STOPPED, _V.SHELVED_OFFLOADED), IDLE, None, None, 'attach_volume'
    ),
    'detach_volume.start': _rule(
        (_V.ACTIVE, _V.PAUSED, _V.STOPPED, _V.SHELVED_OFFLOADED), IDLE, None, None, 'detach_volume'
    ),
    'swap_volume.start': _rule((_V.ACTIVE, _V.PAUSED), IDLE, None, None, 'swap_volume'),
    # Not for suspended servers: their saved memory refers to the current file of the volume, which a snapshot replaces.
    'volume_snapshot_create.start': _rule(
        (_V.ACTIVE, _V.PAUSED, _V.STOPPED), IDLE, None, None, 'volume_snapshot_create'
    ),
    'volume_snapshot_delete.start': _rule(
        (_V.ACTIVE, _V.PAUSED, _V.STOPPED), IDLE, None, None, 'volume_snapshot_delete'
    ),
    'rescue.start': _rule((_V.ACTIVE, _V.STOPPED, _V.ERROR), IDLE, None, _T.RESCUING, 'rescue'),
    'rescue.done': _rule(ANY, _T.RESCUING, _V.RESCUED, None, 'rescue'),
    'rescue.failed': _rule(ANY, _T.RESCUING, None, None, 'rescue'),
    'unrescue.start': _rule(_V.RESCUED, IDLE, None, _T.UNRESCUING, 'unrescue'),
    'unrescue.done': _rule(ANY, _T.UNRESCUING, _V.ACTIVE, None, 'unrescue'),
    'unrescue.failed': _rule(ANY, _T.UNRESCUING, None, None, 'unrescue'),
    'set_admin_password.start': _rule(_V.ACTIVE, IDLE, None, _T.UPDATING_PASSWORD, 'changePassword'),
    'set_admin_password.done': _rule(ANY, _T.UPDATING_PASSWORD, None, None, 'changePassword'),
    'set_admin_password.failed': _rule(ANY, _T.UPDATING_PASSWORD, None, None, 'changePassword'),
    'snapshot.start': _rule(
        (_V.ACTIVE, _V.STOPPED, _V.PAUSED, _V.SUSPENDED), IDLE, None, _T.IMAGE_SNAPSHOT_PENDING, 'createImage'
    ),
    'backup.start': _rule(
        (_V.ACTIVE, _V.STOPPED, _V.PAUSED, _V.SUSPENDED), IDLE, None, _T.IMAGE_BACKUP, 'createBackup'
    ),
    'backup.copying': _rule(ANY, SNAPSHOTTING, None, _T.IMAGE_BACKUP, 'createBackup'),
    'snapshot.copying': _rule(ANY, SNAPSHOTTING, None, _T.IMAGE_SNAPSHOT, 'createImage'),
    'snapshot.uploading': _rule(ANY, SNAPSHOTTING, None, _T.IMAGE_UPLOADING, 'createImage'),
    'snapshot.done': _rule(ANY, SNAPSHOTTING, None, None, 'createImage'),
    'snapshot.failed': _rule(ANY, SNAPSHOTTING, None, None, 'createImage'),
    # An evacuation is allowed in any task state except deletes: the host is down, so other operations are cancelled.
    'evacuate.start': _rule(REBUILDABLE, NOT_DELETING, None, _T.REBUILDING, 'evacuate'),
    # Task state None is allowed: an operation that ended after evacuate.start may have set the task state to None.
    'evacuate.begin': _rule(REBUILDABLE, (None, *REBUILDING), None, _T.REBUILDING, 'evacuate'),
    'rebuild.start': _rule(REBUILDABLE, IDLE, None, _T.REBUILDING, 'rebuild'),
    # After this event the server's disks are discarded.
    'rebuild.spawning': _rule(REBUILDABLE, REBUILDING, None, _T.REBUILD_SPAWNING, 'rebuild'),
    'rebuild.active': _rule(REBUILDABLE, REBUILDING, _V.ACTIVE, None, 'rebuild'),
    'rebuild.stopped': _rule(REBUILDABLE, REBUILDING, _V.STOPPED, None, 'rebuild'),
    'rebuild.failed': _rule(ANY, REBUILDING, None, None, 'rebuild'),
    'rebuild.lost': _rule(ANY, REBUILDING, _V.ERROR, None, 'rebuild'),
    'shelve.start': _rule((_V.ACTIVE, _V.STOPPED, _V.PAUSED, _V.SUSPENDED), IDLE, None, _T.SHELVING, 'shelve'),
    'shelve.copying': _rule(ANY, SHELVING, None, _T.SHELVING_IMAGE_PENDING_UPLOAD, 'shelve'),
    'shelve.uploading': _rule(ANY, SHELVING, None, _T.SHELVING_IMAGE_UPLOADING, 'shelve'),
    'shelve.done': _rule(ANY, SHELVING, _V.SHELVED, None, 'shelve'),
    'shelve.offload': _rule(ANY, SHELVING, _V.SHELVED, _T.SHELVING_OFFLOADING, 'shelve'),
    # A paused or suspended server becomes STOPPED if its shelving fails, because the memory of its guest is lost.
    'shelve.stopped': _rule((_V.PAUSED, _V.SUSPENDED), SHELVING, _V.STOPPED, _T.SHELVING, 'shelve'),
    'shelve.failed': _rule(ANY, SHELVING, None, None, 'shelve'),
    'shelve_offload.start': _rule(_V.SHELVED, IDLE, None, _T.SHELVING_OFFLOADING, 'shelve_offload'),
    # Task state None is allowed, so that the offload ends with SHELVED_OFFLOADED even after a reset of the state.
    'shelve_offload.done': _rule(
        (_V.SHELVED, _V.ACTIVE, _V.ERROR), (_T.SHELVING_OFFLOADING, None), _V.SHELVED_OFFLOADED, None, 'shelve_offload'
    ),
    'shelve_offload.failed': _rule(ANY, _T.SHELVING_OFFLOADING, None, None, 'shelve_offload'),
    'unshelve_start.start': _rule(_V.SHELVED, IDLE, None, _T.UNSHELVING, 'unshelve'),
    'unshelve_start.starting': _rule(_V.SHELVED, STARTING, None, _T.POWERING_ON, 'unshelve'),
    'unshelve_start.done': _rule(_V.SHELVED, STARTING, _V.ACTIVE, None, 'unshelve'),
    'unshelve_start.failed': _rule(_V.SHELVED, STARTING, None, None, 'unshelve'),
    'unshelve.start': _rule(_V.SHELVED_OFFLOADED, IDLE, None, _T.UNSHELVING, 'unshelve'),
    'unshelve.claim': _rule(_V.SHELVED_OFFLOADED, UNSHELVING, None, _T.SPAWNING, 'unshelve'),
    'unshelve.done': _rule(_V.SHELVED_OFFLOADED, UNSHELVING, _V.ACTIVE, None, 'unshelve'),
    # Task state None is allowed, so that a failed unshelve ends with SHELVED_OFFLOADED even after a reset of the state.
    'unshelve.failed': _rule(
        (_V.SHELVED_OFFLOADED, _V.ACTIVE, _V.ERROR), (*UNSHELVING, None), _V.SHELVED_OFFLOADED, None, 'unshelve'
    ),
    'resize.start': _rule(_OFF_ON, IDLE, None, _T.RESIZE_PREP, 'resize'),
    'migrate.start': _rule(_OFF_ON, IDLE, None, _T.RESIZE_PREP, 'migrate'),
    'resize.migrated': _rule(_OFF_ON, (_T.RESIZE_PREP, _T.RESIZE_MIGRATED), None, _T.RESIZE_MIGRATED, 'resize'),
    'resize.finishing': _rule(_OFF_ON, (_T.RESIZE_MIGRATED, _T.RESIZE_FINISH), None, _T.RESIZE_FINISH, 'resize'),
    'resize.done': _rule(_OFF_ON, RESIZING, _V.RESIZED, None, 'resize'),
    'resize.failed': _rule(_OFF_ON, RESIZING, None, None, 'resize'),
    'live_migrate.start': _rule((_V.ACTIVE, _V.PAUSED), IDLE, None, _T.MIGRATING, 'os-migrateLive'),
    'live_migrate.done': _rule(ANY, _T.MIGRATING, None, None, 'os-migrateLive'),
    'live_migrate.failed': _rule(ANY, _T.MIGRATING, None, None, 'os-migrateLive'),
    # Forcing or aborting a live migration changes no state, because the migration must still end or be rolled back.
    'live_migrate.force': _rule(_V.ACTIVE, _T.MIGRATING, None, _T.MIGRATING, 'force_complete'),
    'live_migrate.abort': _rule(ANY, _T.MIGRATING, None, _T.MIGRATING, 'abort live migration'),
    'confirm.start': _rule(_V.RESIZED, IDLE, None, None, 'confirmResize'),
    'confirm.active': _rule(_V.RESIZED, IDLE, _V.ACTIVE, None, 'confirmResize'),
    'confirm.stopped': _rule(_V.RESIZED, IDLE, _V.STOPPED, None, 'confirmResize'),
    'revert.start': _rule(_V.RESIZED, IDLE, None, _T.RESIZE_REVERTING, 'revertResize'),
    'revert.active': _rule(_V.RESIZED, _T.RESIZE_REVERTING, _V.ACTIVE, None, 'revertResize'),
    'revert.stopped': _rule(_V.RESIZED, _T.RESIZE_REVERTING, _V.STOPPED, None, 'revertResize'),
    'revert.refused': _rule(_V.RESIZED, _T.RESIZE_REVERTING, None, None, 'revertResize'),
    'reset.active': _rule(ANY, ANY, _V.ACTIVE, None, 'reset_state'),
    'reset.error': _rule(ANY, ANY, _V.ERROR, None, 'reset_state'),
    'host.stopped': _rule((_V.ACTIVE, _V.PAUSED, _V.SUSPENDED), IDLE, _V.STOPPED, None, 'host boot'),
    'host.resumed': _rule((_V.ACTIVE, _V.RESIZED, _V.RESCUED), IDLE, None, None, 'host boot'),
}

Event = str

_STATUS_DEFAULT = {
    'active': 'ACTIVE',
    'building': 'BUILD',
    'stopped': 'SHUTOFF',
    'resized': 'VERIFY_RESIZE',
    'paused': 'PAUSED',
    'suspended': 'SUSPENDED',
    'rescued': 'RESCUE',
    'error': 'ERROR',
    'deleted': 'DELETED',
    'soft-delete': 'SOFT_DELETED',
    'shelved': 'SHELVED',
    'shelved_offloaded': 'SHELVED_OFFLOADED',
}
_RESIZE = dict.fromkeys(('resize_prep', 'resize_migrating', 'resize_migrated', 'resize_finish'), 'RESIZE')
_REBUILD = dict.fromkeys(('rebuilding', 'rebuild_block_device_mapping', 'rebuild_spawning'), 'REBUILD')
_STATUS_TASK = {
    'active': {
        'rebooting': 'REBOOT',
        'reboot_pending': 'REBOOT',
        'reboot_started': 'REBOOT',
        'rebooting_hard': 'HARD_REBOOT',
        'reboot_pending_hard': 'HARD_REBOOT',
        'reboot_started_hard': 'HARD_REBOOT',
        'updating_password': 'PASSWORD',
        'migrating': 'MIGRATING',
        **_RESIZE,
        **_REBUILD,
    },
    'stopped': {**_RESIZE, **_REBUILD},
    'resized': {'resize_reverting': 'REVERT_RESIZE'},
    'paused': {'migrating': 'MIGRATING'},
    'error': _REBUILD,
}


def status(vm_state: str | None, task_state: str | None) -> str:
    """Return the REST status of a server with this vm and task state, 'UNKNOWN' for an unknown vm state."""
    special = _STATUS_TASK.get(vm_state or '', {}).get(task_state or '')
    return special or _STATUS_DEFAULT.get(vm_state or '', 'UNKNOWN')


def from_status(wanted: str) -> list[tuple[str, set[str] | None]]:
    """Return the pairs (vm state, task states) that the API shows as REST status ``wanted``.

    If the task states are None, all task states of this vm state are shown with this status, except task states with a
    status of their own. The list is empty if the status is unknown.
    """
    wanted = wanted.upper()
    found: list[tuple[str, set[str] | None]] = [(vm, None) for vm, name in _STATUS_DEFAULT.items() if name == wanted]
    for vm, tasks in _STATUS_TASK.items():
        names = {task for task, name in tasks.items() if name == wanted}
        if names:
            found.append((vm, names))
    return found
