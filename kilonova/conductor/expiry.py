"""What has its time and is over then: one list of what expires, at which conductors look from time to time.

    expiry = Expiry(env)
    expiry.start()              # looks until stop()

A look is one bounded statement a cell; what it finds is accepted as if somebody had asked for it. Compare-and-swap
decides between several conductors, and between this and what users ask for at the same moment.
"""
from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from oslo_config import cfg

from kilonova.conductor.environment import Environment
from kilonova.conductor.flows import accelerators
from kilonova.context import get_admin_context
from kilonova.db import engine
from kilonova.db.queries import console_tokens, device_history, expired, info_caches, operations
from kilonova.db.queries.expired import Due
from kilonova.errors import BuildTimedOut, InstanceInvalidState, InstanceNotFound, Invalid, Unanswered
from kilonova.timers import Timers

LOG = logging.getLogger(__name__)

# Servers that one look takes from a database; the next look takes the next ones.
BATCH = 200
# Longest time between two looks, in seconds.
PERIOD = 60.0
# The field's name of the task that deletes tokens of consoles.
TOKENS = 'cleanup_expired_console_auth_tokens'
# The name of the one that deletes accelerator requests that were made for nothing, and seconds between two looks.
ACCELERATORS, HOUR = 'cleanup_abandoned_accelerator_requests', 3600.0
# The field's name of the one that looks at servers' ports, in turn.
HEALING = 'heal_instance_info_cache'
# The name of the one that deletes what is old of who held devices.
HISTORY = 'purge_device_history'


@dataclass(frozen=True)
class Expires:
    """One thing that expires. ``name``: the field's name of its task; ``option``: of [DEFAULT], the seconds after which
    it is over, 0 or less: never.

    ``find(conn, seconds, limit)``: what is over, the oldest first. ``accept(env, db, due)``: the uuid of the operation
    that somebody is to be woken for, None: there is none. ``spacing``: the option of [DEFAULT] with the seconds between
    two looks, as often as useful without. ``everywhere``: in the api database, too.
    """

    name: str
    option: str
    find: Callable[[engine.Connection, float, int], list[Due]]
    accept: Callable[[Environment, engine.Database, Due], str | None]
    urgent: bool = True
    spacing: str | None = None
    everywhere: bool = False


def reclaim(env: Environment, db: engine.Database, due: Due) -> str | None:
    """Delete a soft-deleted server."""
    ctxt = get_admin_context()
    uuid: str | None = operations.accept_delete(
        db, instance_uuid=due.server, event='reclaim.start', action=_action('delete', ctxt.request_id),
        operation=operations.Operation.new(ctxt, 'delete', due.server, {}))
    LOG.info('Reclaiming deleted instance %s', due.server)
    return uuid


def confirm(env: Environment, db: engine.Database, due: Due) -> str:
    """Confirm a move that nobody answered; ``due.row`` is its migration."""
    ctxt = get_admin_context()
    row = operations.Operation.new(ctxt, 'confirm', due.server, {'migration_uuid': due.row})
    operations.accept(db, instance_uuid=due.server, event='confirm.start', operation=row,
                      action=_action('confirmResize', ctxt.request_id), migration=(due.row, 'finished', 'confirming'))
    LOG.info('Automatically confirming migration %s for instance %s', due.row, due.server)
    return row.uuid


def asked(kind: str, event: str, action: str) -> Callable[[Environment, engine.Database, Due], str]:
    """What accepts an operation without arguments, as the user's request for it does."""
    def accept(env: Environment, db: engine.Database, due: Due) -> str:
        ctxt = get_admin_context()
        row = operations.Operation.new(ctxt, kind, due.server, {})
        operations.accept(db, instance_uuid=due.server, event=event, operation=row,
                          action=_action(action, ctxt.request_id))
        LOG.info('%s of instance %s, its time is over', action, due.server)
        return row.uuid
    return accept


def end_build(env: Environment, db: engine.Database, due: Due) -> None:
    """Cancel the boot ``due.row``: whoever has it gives everything back, and the server is ERROR."""
    error = BuildTimedOut(instance_uuid=due.server)
    reason = {'class': type(error).__name__, 'message': str(error), 'code': error.code, 'details': None}
    if operations.cancel_with(db, due.row, reason):
        LOG.warning('%s Instance %s', error, due.server)
        env.runner.was_cancelled(db, due.row)


def _action(name: str, request_id: str) -> dict[str, str | None]:
    """Of an action that no user asked for."""
    return {'action': name, 'request_id': request_id, 'user_id': None, 'project_id': None}


EXPIRES = (
    Expires('reclaim_queued_deletes', 'reclaim_instance_interval', expired.soft_deleted, reclaim),
    Expires('poll_unconfirmed_resizes', 'resize_confirm_window', expired.unconfirmed, confirm),
    Expires('poll_rescued_instances', 'rescue_timeout', expired.rescued,
            asked('unrescue', 'unrescue.start', 'unrescue')),
    Expires('poll_shelved_instances', 'shelved_offload_time', expired.shelved,
            asked('shelve_offload', 'shelve_offload.start', 'shelveOffload'), spacing='shelved_poll_interval'),
    Expires('check_instance_build_time', 'instance_build_timeout', expired.builds, end_build, everywhere=True),
)


class Expiry:
    """The looks of one conductor process; ``conf`` says when what is over."""

    def __init__(self, env: Environment, conf: cfg.ConfigOpts) -> None:
        self._env, self._stopping = env, threading.Event()
        self._enabled = conf.periodic_enable
        self._history_days: int = conf.devices.history_days
        self._healing: int = conf.heal_instance_info_cache_interval
        # Of each cell's database, the info cache that was looked at last.
        self._healed: dict[str, int] = {}
        self._after: dict[str, float] = {expires.name: getattr(conf, expires.option) for expires in EXPIRES}
        self._spacing: dict[str, float] = {
            expires.name: getattr(conf, expires.spacing) for expires in EXPIRES if expires.spacing}
        self.timers = Timers(self._stopping)

    def start(self) -> None:
        """Look from time to time at what expires at all; each in a thread of its own."""
        for expires in EXPIRES:
            after = self._after[expires.name]
            spacing = self._spacing.get(expires.name, min(after, PERIOD))
            self.timers.every(spacing if after > 0 and self._enabled else -1,
                              functools.partial(self.look, expires), expires.name)
        self.timers.every(PERIOD if self._enabled else -1, self.purge_tokens, TOKENS)
        self.timers.every(PERIOD if self._enabled else -1, self.purge_history, HISTORY)
        self.timers.every(HOUR if self._enabled else -1, self.drop_accelerators, ACCELERATORS)
        self.timers.every(self._healing if self._enabled else -1, self.heal, HEALING)

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()

    def run(self, name: str) -> int:
        """One look at what this name expires; how many were accepted."""
        return self.look(next(expires for expires in EXPIRES if expires.name == name))

    def look(self, expires: Expires) -> int:
        """One look at all databases where it may be; how many were accepted."""
        accepted = 0
        for db in self._env.all_databases() if expires.everywhere else self._env.cells.databases():
            try:
                accepted += self._of(db, expires)
            except Exception as error:  # noqa: BLE001 - a database that is silent holds up no other
                LOG.warning('%s: not done in %s now: %s', expires.name, db.name, error)
        return accepted

    def purge_tokens(self) -> int:
        """Delete the tokens of consoles that open nothing any more: one statement a cell; how many."""
        return self._in_cells(TOKENS, console_tokens.purge)

    def purge_history(self) -> int:
        """Delete the oldest entries of who held devices, where they are older than [devices]history_days; how many."""
        return self._in_cells(HISTORY, lambda cell: device_history.purge(cell, self._history_days))

    def drop_accelerators(self) -> int:
        """Delete accelerator requests that nobody binds any more; how many."""
        try:
            return accelerators.drop_abandoned(self._env)
        except (Unanswered, Invalid) as error:
            LOG.debug('%s: not done now: %s', ACCELERATORS, error)
            return 0

    def heal(self) -> int:
        """The next server with ports of each cell gets its info cache anew, as after an event; how many."""
        return self._in_cells(HEALING, self._heal)

    def _heal(self, cell: engine.Database) -> int:
        with cell.read() as conn:
            found = info_caches.after(conn, self._healed.get(cell.name, 0)) or info_caches.after(conn, 0)
        if found is None:
            return 0
        self._healed[cell.name], server = found
        row = operations.Operation.new(get_admin_context(), 'network_changed', server, {}, beside=True)
        self._env.runner.wake(cell, [operations.add_beside(cell, row)])
        return 1

    def _in_cells(self, name: str, act: Callable[[engine.Database], int]) -> int:
        done = 0
        for cell in self._env.cells.databases():
            try:
                done += act(cell)
            except Exception as error:  # noqa: BLE001 - as above
                LOG.warning('%s: not done in %s now: %s', name, cell.name, error)
        return done

    def _of(self, db: engine.Database, expires: Expires) -> int:
        with db.read() as conn:
            found = expires.find(conn, self._after[expires.name], BATCH)
        accepted = 0
        for due in found:
            try:
                uuid = expires.accept(self._env, db, due)
            except (InstanceInvalidState, InstanceNotFound) as error:
                LOG.debug('%s: server %s is left as it is: %s', expires.name, due.server, error)
                continue
            accepted += 1
            if uuid is not None:
                self._env.runner.wake(db, [uuid], urgent=expires.urgent)
        return accepted
