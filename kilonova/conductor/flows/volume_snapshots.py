"""Snapshots of volumes that are files of a share, while a server has them: the volume service has made a file, or is to
remove one, and asks for what only the guest's host can do.

Create: take · tell. The guest writes to the new file, which reads from the one before, and so does the server's row;
then the volume service hears so. Whatever the guest wrote is in the new file, which is as good as the other where
nobody can say which one it has: from there on it goes on to the end. Where the volume service doesn't want it any more
the host puts all into the file before, and the snapshot has failed.
Delete: merge · tell. Two files become one, not the one to which the guest writes: the row stays as it is.
Neither has a task state.
"""
from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kilonova.clients.volume import SnapshotNotFound
from kilonova.conductor.flows import beside
from kilonova.conductor.flows.attachments import OneVolume, end_with, volume_of
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import GuestMayRun, HostGone, NotYet, Step, Work
from kilonova.db import engine
from kilonova.db.queries import volumes as rows
from kilonova.errors import Cancelled, KeyGone, KilonovaError, LeaseLost, Unanswered
from kilonova.objects.volume import QCOW2, SNAPSHOT_TOLD
from kilonova.rpc.interface import VersionCapError

LOG = logging.getLogger(__name__)

# The progress at which the volume service goes on, and seconds between two looks at what it does.
DONE, LOOK = '90%', 1.0


class SnapshotRefused(KilonovaError):
    msg_fmt = 'The volume service does not want snapshot %(snapshot)s any more: %(reason)s'


@dataclass
class SnapshotOutputs(Outputs):
    """``asked``: the host may have been asked for the snapshot; ``done``: the guest writes to the new file, or the
    files are one; ``kept``: it writes to the one before, as is known; ``refused``: the volume service doesn't want the
    snapshot any more."""

    asked: bool = False
    done: bool = False
    kept: bool = False
    refused: bool = False


def _ask(work: Work[SnapshotOutputs], method: str, what: str) -> None:
    """The server's host. GuestMayRun: it is down, and nobody knows what its guest has; HostGone: it is off."""
    volume_of(work)
    server = work.instance()
    try:
        work.ask(server.host, method, instance=server, **_args(work, what))
    except HostGone:
        _check_off(work, server.host)
        raise


def _check_off(work: Work[SnapshotOutputs], host: str) -> None:
    """GuestMayRun: a host that is down was not forced to be."""
    if not work.env.hearing.is_fenced(work.db, host):
        raise GuestMayRun(host=host) from None


def _args(work: Work[SnapshotOutputs], what: str) -> dict[str, Any]:
    return {what: {**work.args[what], 'volume_id': work.args['volume_id']}}


def _look(work: Work[SnapshotOutputs], method: str, what: str) -> Any:
    """What the host says of it behind a failure; None: it is down."""
    server = work.instance(fresh=True)
    return beside.ask_to_undo(work, server.host, method, instance=server, **_args(work, what))


# --- create ----------------------------------------------------------------------------------------------------------
def take(work: Work[SnapshotOutputs]) -> None:
    """The guest writes to the new file."""
    if not work.outputs.asked:
        _plan(work)
    try:
        _ask(work, 'snapshot_volume', 'files')
    except VersionCapError:
        # It was never sent.
        work.outputs.kept = True
        raise
    except HostGone as error:
        LOG.warning('Volume %s of %s goes on in file %s: %s', work.args['volume_id'], work.instance_uuid,
                    work.args['files']['new'], error)
    work.outputs.done = True
    work.together(_is_in(work, work.args['files']['new'], QCOW2))
    work.changed()


def _plan(work: Work[SnapshotOutputs]) -> None:
    """From here on a host that is off may have taken it. HostGone: it is off already, and its guest has the first
    file."""
    host = work.instance().host
    with engine.silence():
        is_down = work.env.hearing.is_down(work.db, host)
    if is_down:
        _check_off(work, host)
        work.outputs.kept = True
        raise HostGone(host=host)
    work.outputs.asked = True
    work.decide({})


def _is_in(work: Work[SnapshotOutputs], name: str, format_: str) -> Callable[[engine.Connection], object]:
    """What writes to the server's row that the volume is in that file."""
    volume = volume_of(work).in_file(name, format_)
    connector = volume.known_at.get(volume.host or '', {}).get('connector')
    text = volume.connection_info(work.instance_uuid, volume.host, volume.connection, connector)
    return lambda conn: rows.change(conn, volume.uuid, volume.attachment_id, {'connection_info': text})


def undo_take(work: Work[SnapshotOutputs]) -> None:
    """What its host has done stays, and goes on to its end."""
    if not work.outputs.done and not work.outputs.kept:
        answer = _look(work, 'undo_snapshot_volume', 'files')
        work.outputs.done = answer is None or answer['taken']
    if work.outputs.done:
        work.decide({}, cancelled=True, write=_is_in(work, work.args['files']['new'], QCOW2))
        work.changed()


def tell(work: Work[SnapshotOutputs]) -> None:
    """The volume service goes on with the snapshot. Until it knows the new file, which is some seconds later, a host
    that the server came to would get the one before. SnapshotRefused: it didn't, and the guest has the first file."""
    reason = beside.tell_snapshot(work, work.args['snapshot_id'], 'creating', DONE)
    if not _is_taken(work):
        work.outputs.refused = True
        _withdraw(work)
        raise SnapshotRefused(snapshot=work.args['snapshot_id'], reason=reason or 'it could not make it')
    end_with(work, Create.event)


def _withdraw(work: Work[SnapshotOutputs]) -> None:
    """The guest has the first file again, and so has the row. Unanswered: the host can't yet; elsewhere the volume
    service would give the server that file as it is."""
    files = work.args['files']
    try:
        _ask(work, 'withdraw_volume_snapshot', 'files')
    except HostGone:
        _say_where(work, 'its host is off')
        raise
    except (Unanswered, LeaseLost, KeyGone, Cancelled):
        raise
    except KilonovaError as error:
        raise Unanswered(who=f'host {work.instance().host}', reason=str(error)) from error
    work.outputs.done, work.outputs.kept = False, True
    work.decide({}, write=_is_in(work, files['name'], files['format']))
    work.changed()


def _say_where(work: Work[SnapshotOutputs], why: str) -> None:
    """To operators, who have to bring it to where the volume service looks for it (docs/admin/volumes.md)."""
    LOG.error('What %s wrote to volume %s is in file %s, of which the volume service does not know: %s',
              work.instance_uuid, work.args['volume_id'], work.args['files']['new'], why)


def _is_taken(work: Work[SnapshotOutputs]) -> bool:
    """Whether the volume service has the snapshot, of which it heard. NotYet: it is at work on it, or is deleting it,
    and nobody can say so."""
    try:
        status = work.env.volumes.snapshot(None, work.args['snapshot_id']).status
    except SnapshotNotFound:
        return False
    if status in ('creating', 'deleting'):
        raise NotYet(who=f"snapshot {work.args['snapshot_id']}", reason=f'it is {status}', pause=LOOK)
    return status != 'error'


class Create(OneVolume[SnapshotOutputs]):
    name, outputs, event = 'volume_snapshot_create', SnapshotOutputs, 'compute_volume_snapshot_create'
    steps = (Step('take', take, undo_take), Step('tell', tell))

    def ended_badly(self, work: Work[SnapshotOutputs]) -> None:
        """A guest that writes to the new file goes on so, and nothing else begins until the volume service knows that;
        whoever deletes the server waits for nobody."""
        taken = work.outputs.done and not work.outputs.refused
        if not work.outputs.refused:
            _tell_or_note(work, *(('creating', DONE) if taken else ('error', None)))
        if taken and not work.cancelled and not _is_taken(work):
            # No host is asked for anything but to undo by now.
            _say_where(work, 'its host has failed before')
            taken = False
        if taken:
            end_with(work, self.event)
        else:
            super().ended_badly(work)


def _tell_or_note(work: Work[SnapshotOutputs], status: str, progress: str | None) -> None:
    """Later, while the volume service is silent: nobody waits for it to unwind a server."""
    told = [work.args['snapshot_id'], status, progress]
    beside.now_or_later(work, 'Snapshots', lambda: beside.tell_snapshot(work, *told),
                        lambda: beside.add_release(work, {SNAPSHOT_TOLD: told}, (SNAPSHOT_TOLD,)))


# --- delete ----------------------------------------------------------------------------------------------------------
def merge(work: Work[SnapshotOutputs]) -> None:
    """Two of the files are one."""
    _ask(work, 'merge_volume', 'merge')
    work.outputs.done = True


def undo_merge(work: Work[SnapshotOutputs]) -> None:
    """Nothing is at work on them. What has been done stays."""
    if not work.outputs.done:
        answer = _look(work, 'undo_merge_volume', 'merge')
        work.outputs.done = answer is not None and answer['merged']


def tell_merged(work: Work[SnapshotOutputs]) -> None:
    """The volume service removes the file of which nothing is left. Where it doesn't take that, it has done so before,
    or is asked to delete the snapshot once more, and finds it done."""
    beside.tell_snapshot(work, work.args['snapshot_id'], 'deleting', DONE)
    end_with(work, Delete.event)


class Delete(OneVolume[SnapshotOutputs]):
    name, outputs, event = 'volume_snapshot_delete', SnapshotOutputs, 'compute_volume_snapshot_delete'
    steps = (Step('merge', merge, undo_merge), Step('tell', tell_merged))

    def ended_badly(self, work: Work[SnapshotOutputs]) -> None:
        """Files that are one stay so."""
        _tell_or_note(work, *(('deleting', DONE) if work.outputs.done else ('error_deleting', None)))
        if work.outputs.done:
            end_with(work, self.event)
        else:
            super().ended_badly(work)


FLOWS = (Create(), Delete())
