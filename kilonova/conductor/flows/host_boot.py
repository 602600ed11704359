"""Flow with the only step resume_guest: ask a host to start a server that ran before the host went down.

The operation is used if the host could not start the server itself when the host was started. The step is retried until
the server runs or a time limit is over. Other operations of the server may run at the same time and have priority
(``db.queries.resumes``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from oslo_log import log as logging

from kilonova import objects
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import releases
from kilonova.conductor.flows.network import port_moves
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostDown, RetryLater, Step, Work, readable
from kilonova.db import engine
from kilonova.db.arguments.servers import HostBootArguments
from kilonova.db.queries import instances, resumes
from kilonova.errors import Cancelled, Cause, InstanceNotFound, KeyGone, KilonovaError, LeaseLost, Unanswered
from kilonova.rpc.compute import Compute
from kilonova.states import PowerState

LOG = logging.getLogger(__name__)

# Seconds until the next try to start the guest, if another operation had changed the server's state.
LOOK = 1.0


class NotResumed(KilonovaError):
    """The server could not be started after its host went down, and the start is not tried again."""

    msg_fmt = 'The server was not started again after its host went down: %(reason)s'


@dataclass
class ResumeOutputs(Outputs):
    """Stored results of the tries to start a server.

    Attributes:
        told: The reason of the latest failed try, which was written to the instance action; '' if no try has failed.
        failures: Number of failed tries.
    """

    told: str = ''
    failures: int = 0


def resume_guest(work: Work[ResumeOutputs]) -> None:
    """Ask the host to start the guest. End the operation if the guest runs or should no longer run.

    Raises Unanswered if the start failed and is to be retried, and NotResumed if it failed and the time limit is over
    or a retry can't help.
    """
    try:
        server = work.instance(fresh=True)
    except InstanceNotFound:
        work.end()
        return
    host = work.arguments(HostBootArguments).host
    if needless := _needless(server, host):
        _finish(work, needless)
        return
    releases.check_no_running_operation(work)
    try:
        # Bind ports that are not bound yet, because the network agent of the host was down together with the host.
        port_moves.bound_here(work)
        answer = work.call_host(host, Compute.resume_guest, instance=work.instance())
    except (LeaseLost, KeyGone, Cancelled):
        raise
    except HostDown as error:
        # The host is down: retry later without a check of the time limit (``_is_over``).
        # When the host is started again, the time limit for the start of the guest begins anew.
        _tell(work, error)
        raise Unanswered(error.message) from error
    except Unanswered as error:
        _tell(work, error)
        raise
    except KilonovaError as error:
        work.outputs.failures += 1
        if error.cause is Cause.REQUEST or _is_over(work):
            raise NotResumed(reason=error.message) from error
        _tell(work, error)
        raise Unanswered(error.message) from error
    if not answer['is_running']:
        raise RetryLater(f'the start of server {work.instance_uuid}', 'its state was changed meanwhile', LOOK)
    tries = work.outputs.failures
    _finish(
        work,
        f'Started after {tries} failed tries; the last one: {work.outputs.told}'
        if tries
        else f'Runs again. Reason of the delay: {work.outputs.told}'
        if work.outputs.told
        else 'Runs again.',
        lambda conn: instances.transition(
            conn, work.instance_uuid, 'host.resumed', {'power_state': answer['power_state']}, {'host': host}
        ),
    )


def _needless(server: objects.Instance, host: str) -> str | None:
    """Return the reason why the host need not start the server any more, or None if the server should run on it."""
    if server.host != host:
        return f'Not started on this host: the server is now on {"host " + server.host if server.host else "no host"}.'
    if server.vm_state not in resumes.WANTED_RUNNING:
        return f'Not started: the server is now {server.vm_state}.'
    return None


def _is_over(work: Work[ResumeOutputs]) -> bool:
    """Return whether the time limit [conductor]host_boot_resume_timeout is over. If it is, the start isn't retried."""
    longest: int = work.env.conf.conductor.host_boot_resume_timeout
    with engine.silence(), work.db.read() as conn:
        return resumes.age(conn, work.uuid) >= longest


def _tell(work: Work[ResumeOutputs], error: Exception) -> None:
    """Write the reason of a failed try to the server's instance action, unless the action has this reason already."""
    reason = readable(error)
    if reason != work.outputs.told:
        work.outputs.told = reason
        work.decide({}, write=lambda conn: resumes.tell(conn, work.instance_uuid, work.request_id, reason))


def _finish(
    work: Work[ResumeOutputs], details: str, write: Callable[[engine.Connection], object] = lambda conn: None
) -> None:
    """End the operation and its instance action with success, and call ``write(conn)`` in the same transaction.

    ``details`` is a text for users, which is written to the event of the instance action.
    """

    def end(conn: engine.Connection) -> None:
        write(conn)
        resumes.finish(conn, work.instance_uuid, work.request_id, 'Success', details)

    LOG.info('%s', details, instance_uuid=work.instance_uuid)
    work.end(end)


class ResumeOnHostBoot(Flow[ResumeOutputs]):
    """The operation that starts a server after its host went down.

    The server gets no task state, and keeps its vm state while the guest is off.
    """

    name, outputs = resumes.KIND, ResumeOutputs
    steps = (Step('resume_guest', resume_guest, saved=False),)

    def ended_badly(self, work: Work[ResumeOutputs]) -> None:
        """Set the server's power state to SHUTDOWN, add a fault, and end the instance action with the error.

        If another operation works on the server or if the server is on another host, only the instance action is ended.
        """
        fault, host = work.fault(), work.arguments(HostBootArguments).host

        def end(conn: engine.Connection) -> None:
            uuid, off = work.instance_uuid, {'power_state': int(PowerState.SHUTDOWN)}
            if instances.transition(conn, uuid, 'host.stopped', off, {'host': host}):
                instances.add_fault(conn, uuid, fault)
            resumes.finish(conn, uuid, work.request_id, 'Error', fault['message'], fault['details'])

        work.end(end)
