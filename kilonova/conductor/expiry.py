"""``Expiry``, which starts operations on servers whose time limit is over, and runs other periodic tasks.

Each conductor process has one object:

    expiry = Expiry(env, conf)
    expiry.start()              # runs the tasks periodically until stop()

``EXPIRES`` lists the time limits, for example of soft-deleted servers. A check of one time limit runs one SQL statement
in each cell, which returns a limited number of servers. For each server an operation is accepted like a user's request.
The state of the server is changed by a compare-and-swap, so only one of several conductors or users succeeds.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass

from oslo_config import cfg
from oslo_log import log as logging

from kilonova.conductor.environment import Environment
from kilonova.conductor.flows import accelerators
from kilonova.context import get_admin_context
from kilonova.db import engine
from kilonova.db.arguments.moves import ConfirmArguments
from kilonova.db.queries import console_tokens, device_history, expired, info_caches, operations
from kilonova.db.queries.expired import Due
from kilonova.errors import BuildTimedOut, InstanceInvalidState, InstanceNotFound, Invalid, Unanswered
from kilonova.timers import Timers

LOG = logging.getLogger(__name__)

# Maximum number of servers that one check of a time limit reads from a database. The next check reads further servers.
BATCH = 200
# Longest time between two checks of a time limit, in seconds.
PERIOD = 60.0
# Nova's name of the task that deletes expired console tokens.
TOKENS = 'cleanup_expired_console_auth_tokens'
# Name of the task that deletes accelerator requests which no operation uses, and the seconds between two runs.
ACCELERATORS, HOUR = 'cleanup_abandoned_accelerator_requests', 3600.0
# Nova's name of the task that refreshes the info caches of servers, one server at a time.
HEALING = 'heal_instance_info_cache'
# Name of the task that deletes old entries of the device history.
HISTORY = 'purge_device_history'


@dataclass(frozen=True)
class Expires:
    """One kind of time limit, and the operation that is started when the time limit is over.

    Attributes:
        name: Nova's name of the periodic task.
        option: Option of [DEFAULT] with the seconds after which the limit is over; 0 or less means never.
        find: ``find(conn, seconds, limit)`` returns up to ``limit`` servers whose time limit is over, oldest first.
        accept: ``accept(env, db, due)`` accepts an operation for one server of ``find``. Returns the uuid of the
            operation that the runner must run, or None.
        urgent: Whether the operation that ``accept`` returns is urgent.
        spacing: Option of [DEFAULT] with the seconds between two checks. If None, ``PERIOD`` seconds pass between two
            checks, or the time limit itself if it is shorter.
        everywhere: Whether the API database is checked as well as the cells.
    """

    name: str
    option: str
    find: Callable[[engine.Connection, float, int], list[Due]]
    accept: Callable[[Environment, engine.Database, Due], str | None]
    urgent: bool = True
    spacing: str | None = None
    everywhere: bool = False


def reclaim(env: Environment, db: engine.Database, due: Due) -> str | None:
    """Create the operation that deletes a soft-deleted server after the time limit, and return the operation's uuid.

    ``due`` names the server. Returns None if the server has a delete operation already.
    """
    ctxt = get_admin_context()
    uuid: str | None = operations.accept_delete(
        db,
        instance_uuid=due.server,
        event='reclaim.start',
        action=_action('delete', ctxt.request_id),
        operation=operations.OperationRow.new(ctxt, 'delete', due.server),
    )
    LOG.info('Reclaiming deleted instance %s', due.server, instance_uuid=due.server)
    return uuid


def confirm(env: Environment, db: engine.Database, due: Due) -> str:
    """Create the operation that confirms a resize or cold migration, because the user did not confirm it in time.

    ``due.row`` is the uuid of the migration. Returns the uuid of the operation.
    """
    ctxt = get_admin_context()
    row = operations.OperationRow.new(ctxt, 'confirm', due.server, ConfirmArguments(migration_uuid=due.row))
    operations.accept(
        db,
        instance_uuid=due.server,
        event='confirm.start',
        operation=row,
        action=_action('confirmResize', ctxt.request_id),
        migration=(due.row, 'finished', 'confirming'),
    )
    LOG.info('Automatically confirming migration %s for instance %s', due.row, due.server, instance_uuid=due.server)
    return row.uuid


def asked(kind: str, event: str, action: str) -> Callable[[Environment, engine.Database, Due], str]:
    """Return a function that creates an operation for a server whose time limit is over.

    The created function returns the uuid of the operation, and is used as ``Expires.accept``. ``kind`` is the kind of
    the operation, which has no arguments. ``event`` is the name of the state transition (``states.TRANSITIONS``), and
    ``action`` the name of the instance action.
    """

    def accept(env: Environment, db: engine.Database, due: Due) -> str:
        ctxt = get_admin_context()
        row = operations.OperationRow.new(ctxt, kind, due.server)
        operations.accept(
            db, instance_uuid=due.server, event=event, operation=row, action=_action(action, ctxt.request_id)
        )
        LOG.info('A time limit of the server is over; starting action %s', action, instance_uuid=due.server)
        return row.uuid

    return accept


def end_build(env: Environment, db: engine.Database, due: Due) -> None:
    """Cancel the boot operation of a server whose build takes too long. ``due.row`` is the operation's uuid.

    The conductor that runs the operation releases all resources, and the server gets the state ERROR.
    """
    error = BuildTimedOut(instance_uuid=due.server)
    reason = {'class': type(error).__name__, 'message': str(error), 'code': error.code, 'details': None}
    if operations.cancel_with(db, due.row, reason):
        LOG.warning('%s', error, instance_uuid=due.server)
        env.runner.was_cancelled(db, due.row)


def _action(name: str, request_id: str) -> dict[str, str | None]:
    """Return the columns of an instance action that no user has requested, as a dict."""
    return {'action': name, 'request_id': request_id, 'user_id': None, 'project_id': None}


EXPIRES = (
    Expires('reclaim_queued_deletes', 'reclaim_instance_interval', expired.soft_deleted, reclaim),
    Expires('poll_unconfirmed_resizes', 'resize_confirm_window', expired.unconfirmed, confirm),
    Expires(
        'poll_rescued_instances', 'rescue_timeout', expired.rescued, asked('unrescue', 'unrescue.start', 'unrescue')
    ),
    Expires(
        'poll_shelved_instances',
        'shelved_offload_time',
        expired.shelved,
        asked('shelve_offload', 'shelve_offload.start', 'shelveOffload'),
        spacing='shelved_poll_interval',
    ),
    Expires('check_instance_build_time', 'instance_build_timeout', expired.builds, end_build, everywhere=True),
)


class Expiry:
    """The periodic tasks of one conductor process, such as deletes of servers whose time limit is over.

    ``conf`` contains the time limits and the intervals between two runs of a task.
    """

    def __init__(self, env: Environment, conf: cfg.ConfigOpts) -> None:
        self._env, self._stopping = env, threading.Event()
        self._enabled = conf.periodic_enable
        self._history_days: int = conf.devices.history_days
        self._healing: int = conf.heal_instance_info_cache_interval
        # {name of a cell's database: id of the row in instance_info_caches that was refreshed last}
        self._healed: dict[str, int] = {}
        self._after: dict[str, float] = {expires.name: getattr(conf, expires.option) for expires in EXPIRES}
        self._spacing: dict[str, float] = {
            expires.name: getattr(conf, expires.spacing) for expires in EXPIRES if expires.spacing
        }
        self.timers = Timers(self._stopping)

    def start(self) -> None:
        """Start a thread for each periodic task that the configuration enables."""
        for expires in EXPIRES:
            after = self._after[expires.name]
            spacing = self._spacing.get(expires.name, min(after, PERIOD))
            self.timers.every(
                spacing if after > 0 and self._enabled else -1, functools.partial(self.look, expires), expires.name
            )
        self.timers.every(PERIOD if self._enabled else -1, self.purge_tokens, TOKENS)
        self.timers.every(PERIOD if self._enabled else -1, self.purge_history, HISTORY)
        self.timers.every(HOUR if self._enabled else -1, self.drop_accelerators, ACCELERATORS)
        self.timers.every(self._healing if self._enabled else -1, self.heal, HEALING)

    def stop(self) -> None:
        """Stop all periodic tasks."""
        self._stopping.set()

    def run(self, name: str) -> int:
        """Check one time limit once, and return the number of accepted operations. ``name`` is ``Expires.name``."""
        return self.look(next(expires for expires in EXPIRES if expires.name == name))

    def look(self, expires: Expires) -> int:
        """Check one time limit once in all databases that it concerns, and return the number of accepted operations.

        A database that does not answer is skipped with a warning.
        """
        accepted = 0
        for db in self._env.all_databases() if expires.everywhere else self._env.cells.databases():
            try:
                accepted += self._of(db, expires)
            except Exception as error:  # noqa: BLE001 - a failure in one database must not stop the check of the others
                LOG.warning(
                    'Periodic task %s failed in database %s; the next run tries again: %s', expires.name, db.name, error
                )
        return accepted

    def purge_tokens(self) -> int:
        """Delete expired console tokens with one SQL statement in each cell, and return their number."""
        return self._in_cells(TOKENS, console_tokens.purge)

    def purge_history(self) -> int:
        """Delete old entries of the device history, and return their number.

        Entries older than [devices]history_days are deleted, oldest first, at most one batch in each cell.
        """
        return self._in_cells(HISTORY, lambda cell: device_history.purge(cell, self._history_days))

    def drop_accelerators(self) -> int:
        """Delete accelerator requests that no operation will bind, and return their number.

        Returns 0 if the accelerator service does not answer or refuses the request.
        """
        try:
            return accelerators.drop_abandoned(self._env)
        except (Unanswered, Invalid) as error:
            LOG.debug('Periodic task %s failed; the next run tries again: %s', ACCELERATORS, error)
            return 0

    def heal(self) -> int:
        """Begin to refresh the info cache of one server with ports in each cell, and return the number of servers.

        The next call takes the next server of each cell. The refresh is an operation of kind ``network_changed``, the
        same as after an event from Neutron.
        """
        return self._in_cells(HEALING, self._heal)

    def _heal(self, cell: engine.Database) -> int:
        with cell.read() as conn:
            found = info_caches.after(conn, self._healed.get(cell.name, 0)) or info_caches.after(conn, 0)
        if found is None:
            return 0
        self._healed[cell.name], server = found
        row = operations.OperationRow.new(get_admin_context(), 'network_changed', server, beside=True)
        self._env.runner.wake(cell, [operations.add_beside(cell, row)])
        return 1

    def _in_cells(self, name: str, act: Callable[[engine.Database], int]) -> int:
        done = 0
        for cell in self._env.cells.databases():
            try:
                done += act(cell)
            except Exception as error:  # noqa: BLE001 - a failure in one cell must not stop the task in the others
                LOG.warning(
                    'Periodic task %s failed in database %s; the next run tries again: %s', name, cell.name, error
                )
        return done

    def _of(self, db: engine.Database, expires: Expires) -> int:
        with db.read() as conn:
            found = expires.find(conn, self._after[expires.name], BATCH)
        accepted = 0
        for due in found:
            try:
                uuid = expires.accept(self._env, db, due)
            except (InstanceInvalidState, InstanceNotFound) as error:
                LOG.debug(
                    'Periodic task %s leaves the server unchanged: %s', expires.name, error, instance_uuid=due.server
                )
                continue
            accepted += 1
            if uuid is not None:
                self._env.runner.wake(db, [uuid], urgent=expires.urgent)
        return accepted
