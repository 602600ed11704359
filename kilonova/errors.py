"""The error classes of all of Kilonova, arranged by meaning.

Five base classes (NotFound, Conflict, Invalid, Forbidden, Unavailable) have the HTTP status code that the API returns.
Their subclasses have the error texts of OpenStack Nova. The errors at the end of the file occur while an operation
runs. They decide how the operation continues, and users never see them unchanged.

    raise InstanceNotFound(instance_id=uuid)      # str(): "Instance <uuid> could not be found."
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable

# Matches an absolute path. Does not match a URL, a relative path, or slashes inside a word.
_PATH = re.compile(r"(?<![\w.:/~-])(?:/[^\s/'\":,;()]+)*/([^\s/'\":,;()]+)/?")


def without_paths(text: str) -> str:
    """Return an error text for users, in which each absolute path is reduced to its last name.

    A full path would show how a host's file systems are arranged.

    >>> without_paths("Could not open '/srv/instances/x/disk': No space left")
    "Could not open 'disk': No space left"
    """
    return _PATH.sub(r'\1', text)


def shortened(text: str, most: int) -> str:
    """Return the text, cut off after at most ``most`` characters.

    If the text is cut, the result ends with '…', after a whole word if possible.

    >>> shortened('the disk is full', 12) 'the disk is…'
    """
    if len(text) <= most:
        return text
    head = text[:most]
    # Cut the text at the last space or line break, unless less than half of the allowed length would be left.
    border = max(head.rfind(' '), head.rfind('\n'))
    return (head[:border] if border >= most // 2 else head[: most - 1]).rstrip(' \n,;:(') + '…'


class Cause(enum.StrEnum):
    """The cause of a failed build or move, which decides whether another host is tried.

    HOST means that this host can't take the server now, and the next host is tried. REQUEST means that no host can
    fulfil the request: the operation ends at once, and the host's count of failed builds does not grow. DEVICE means
    that a device of this host failed: the next host is tried, and no server gets the device until it has been checked.
    """

    HOST = 'host'
    REQUEST = 'request'
    DEVICE = 'device'


class KilonovaError(Exception):
    """The base class of all errors of Kilonova.

    The message is ``msg_fmt``, filled from the keyword fields, unless a message is given. ``code`` is the HTTP status
    code. If the error ends a build or a move, ``cause`` says whether another host is tried. By default, an error counts
    as a failure of the host.
    """

    msg_fmt = 'An unknown error occurred.'
    code = 500
    cause = Cause.HOST

    def __init__(self, message: str | None = None, **fields: object) -> None:
        self.fields = fields
        self.message = message if message is not None else self.msg_fmt % fields
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


class NotFound(KilonovaError):
    """An object does not exist (404)."""

    msg_fmt = 'Resource could not be found.'
    code = 404


class Conflict(KilonovaError):
    """A request conflicts with the current state (409)."""

    msg_fmt = 'Resource state conflicts with the request.'
    code = 409


class Invalid(KilonovaError):
    """A request is invalid (400)."""

    msg_fmt = 'Bad request - invalid parameters'
    code = 400
    cause = Cause.REQUEST


class Forbidden(KilonovaError):
    """A request is not allowed (403)."""

    msg_fmt = 'Forbidden'
    code = 403
    cause = Cause.REQUEST


class Unavailable(KilonovaError):
    """A service is not available at present (503)."""

    msg_fmt = 'Service is unavailable at this time.'
    code = 503


def cause_of(error: BaseException) -> Cause:
    """Return the cause of an error, which is Cause.HOST for exceptions that are not a KilonovaError."""
    return error.cause if isinstance(error, KilonovaError) else Cause.HOST


# NotFound
class InstanceNotFound(NotFound):
    """No such server exists."""

    msg_fmt = 'Instance %(instance_id)s could not be found.'


class FlavorNotFound(NotFound):
    """No such flavor exists."""

    msg_fmt = 'Flavor %(flavor_id)s could not be found.'


class FlavorExtraSpecsNotFound(NotFound):
    """The flavor has no such extra spec."""

    msg_fmt = 'Flavor %(flavor_id)s has no extra specs with key %(extra_specs_key)s.'


class FlavorAccessNotFound(NotFound):
    """The project has no access entry for the flavor."""

    msg_fmt = 'Flavor access not found for %(flavor_id)s / %(project_id)s combination.'


class ImageNotFound(NotFound):
    """No such image exists."""

    msg_fmt = 'Image %(image_id)s could not be found.'
    cause = Cause.REQUEST


class ServiceNotFound(NotFound):
    """No such service is registered."""

    msg_fmt = 'Service %(service_id)s could not be found.'


class ComputeHostNotFound(NotFound):
    """No such compute host exists."""

    msg_fmt = 'Compute host %(host)s could not be found.'


class MigrationNotFound(NotFound):
    """No such migration exists."""

    msg_fmt = 'Migration %(migration_id)s could not be found.'


class CellMappingNotFound(NotFound):
    """No such cell is mapped."""

    msg_fmt = 'Cell %(uuid)s has no mapping.'


class ConsoleNotAvailable(NotFound):
    """The guest has no console log that can be read."""

    msg_fmt = 'Guest does not have a console available.'


class ConsoleTypeInvalid(Invalid):
    """The console type does not exist for the requested protocol."""

    msg_fmt = 'Invalid console type %(console_type)s'


class ConsoleTypeUnavailable(Invalid):
    """The console type exists, but this guest or its host does not offer it."""

    msg_fmt = 'Unavailable console type %(console_type)s.'


class MarkerNotFound(Invalid):
    """The marker of a paged list does not exist."""

    msg_fmt = 'marker [%(marker)s] not found'


class UnknownMarker(MarkerNotFound):
    """The marker of a list of key pairs, migrations, server actions or usages does not exist.

    As in Nova, its text differs from the text of MarkerNotFound, which other lists raise.
    """

    msg_fmt = 'Marker %(marker)s could not be found.'


# Conflict
class InstanceInvalidState(Conflict):
    """The server's state does not allow the request."""

    msg_fmt = "Cannot '%(method)s' instance %(instance_uuid)s while it is in %(attr)s %(state)s"


class InstanceBusy(InstanceInvalidState):
    """The server's state does not allow the request, because another operation of the server is running."""


class HostNotAdopted(InstanceInvalidState):
    """The server's host was copied from Nova and still runs nova-compute: kilonova-compute never started on it."""

    msg_fmt = 'Instance %(instance_uuid)s cannot be changed: its host %(host)s has not been adopted from Nova yet.'


class GuestAgentNotEnabled(Conflict):
    """The server's image does not enable the QEMU guest agent, which the request needs."""

    msg_fmt = 'QEMU guest agent is not enabled'


class AdminPasswordNotSupported(Conflict):
    """The guest can't change its administrator's password."""

    msg_fmt = 'Set admin password is not supported'


class AdminPasswordNotSet(Conflict):
    """The guest did not change its administrator's password."""

    msg_fmt = 'Failed to set admin password on %(instance)s because %(reason)s'


class InstanceIsLocked(Conflict):
    """The server is locked."""

    msg_fmt = 'Instance %(instance_uuid)s is locked'


class InstanceNotReady(Conflict):
    """The server has no host or no cell yet, and the request needs one."""

    msg_fmt = 'Instance %(instance_id)s is not ready'


class FlavorExists(Conflict):
    """A flavor with this name exists."""

    msg_fmt = 'Flavor with name %(name)s already exists.'


class FlavorIdExists(Conflict):
    """A flavor with this id exists."""

    msg_fmt = 'Flavor with ID %(flavor_id)s already exists.'


class PlacementConflict(Conflict):
    """Placement answered 409. ``placement_code`` is its error code, for example ``placement.concurrent_update``."""

    msg_fmt = 'Placement refused the change: %(detail)s'

    def __init__(self, message: str | None = None, placement_code: str = '', **fields: object) -> None:
        super().__init__(message, **fields)
        self.placement_code = placement_code


# Forbidden
class OverQuota(Forbidden):
    """The request would exceed a quota."""

    msg_fmt = 'Quota exceeded for %(overs)s: Requested %(req)s, but already used %(used)s of %(allowed)s %(overs)s'


class PolicyNotAuthorized(Forbidden):
    """The policy does not allow the request."""

    msg_fmt = "Policy doesn't allow %(action)s to be performed."


# Scheduling and building
class NoValidHost(KilonovaError):
    """No host fits the request."""

    msg_fmt = 'No valid host was found. %(reason)s'


class MaxRetriesExceeded(NoValidHost):
    """No host was found in the allowed number of attempts."""

    msg_fmt = 'Exceeded maximum number of retries. %(reason)s'


class UnableToMigrateToSelf(Invalid):
    """The destination of a move is the server's current host."""

    msg_fmt = 'Unable to migrate instance (%(instance_id)s) to current host (%(host)s).'


class ResizeError(KilonovaError):
    """A resize can't be carried out."""

    msg_fmt = 'Resize error: %(reason)s'


class PciDeviceUnsupportedHypervisor(Invalid):
    """The hypervisor type can't pass PCI devices to guests."""

    msg_fmt = '%(type)s hypervisor does not support PCI devices'


class InstanceNotRescuable(Invalid):
    """The server can't be rescued."""

    msg_fmt = 'Instance %(instance_id)s cannot be rescued: %(reason)s'


class ImageUnacceptable(Invalid):
    """The content or the properties of an image can't be used."""

    msg_fmt = 'Image %(image_id)s is unacceptable: %(reason)s'


class DBNotAllowed(KilonovaError):
    """A daemon that must not open a database tried to open one."""

    msg_fmt = '%(binary)s attempted direct database access which is not allowed by policy'


# --- errors that end or delay an operation ---------------------------------------------------------------------------
class ServerUnreadable(KilonovaError):
    """A text in a server's row can't be read, because it is cut off or does not have the expected form.

    Other servers are not affected.
    """

    msg_fmt = 'The column %(column)s of server %(uuid)s cannot be read (%(reason)s).'
    cause = Cause.REQUEST


class HostRejected(KilonovaError):
    """This host can't take the server. An alternate host may be able to."""

    msg_fmt = 'Insufficient compute resources: %(reason)s.'


class MigrationPreCheckError(HostRejected):
    """A running guest can't be moved to this host. An alternate host may be able to take the guest."""

    msg_fmt = 'Migration pre-check error: %(reason)s'


class MigrationError(KilonovaError):
    """A live migration failed. The guest is still on the source host."""

    msg_fmt = 'Migration error: %(reason)s'


class DisksUnmovable(HostRejected):
    """A server's disks can't be moved from its host to the chosen host. Another destination may be reachable."""

    msg_fmt = 'The disks cannot be moved from %(source)s to %(dest)s: %(reason)s'


class NoRoom(HostRejected):
    """A file system has too little space for a file. ``need`` and ``free`` are in bytes."""

    msg_fmt = 'Not enough disk space for %(what)s: it needs %(need)d bytes, %(free)d are free'


class DevicesFailed(HostRejected):
    """The hypervisor could not start a guest because of its devices. An alternate host may take the server.

    ``addresses`` are the PCI addresses, or the uuids of mediated devices, that failed. ``reason`` is the text that the
    hypervisor reported. A message between daemons contains only the text of the error. So after the error was sent to
    another daemon, ``addresses`` is empty and ``reason`` is ''.
    """

    msg_fmt = 'Device(s) %(devices)s cannot be used: %(reason)s'
    cause = Cause.DEVICE

    def __init__(self, message: str | None = None, *, addresses: Iterable[str] = (), reason: str = '') -> None:
        self.addresses, self.reason = tuple(addresses), reason
        super().__init__(message, devices=', '.join(self.addresses), reason=reason)


class DevicesMissing(HostRejected):
    """PCI devices of a server are no longer on its host, because they were unplugged or disappeared from the bus."""

    cause = Cause.DEVICE
    msg_fmt = 'PCI device(s) %(addresses)s of instance %(uuid)s are no longer on its host.'


class GroupPolicyViolated(HostRejected):
    """The policy of the server's group does not allow this host, because of the hosts of other members."""

    msg_fmt = '%(policy)s instance group policy was violated.'


class BuildAbort(KilonovaError):
    """No host can build the server. No further host is tried."""

    msg_fmt = 'Build of instance %(instance_uuid)s aborted: %(reason)s'
    cause = Cause.REQUEST


class VirtualInterfaceCreateException(KilonovaError):
    """The network service did not plug a guest's ports in time."""

    msg_fmt = 'Virtual Interface creation failed: %(reason)s'


class Unanswered(KilonovaError):
    """A host, a database, Placement or the message broker did not answer, or cannot do now what was requested.

    The caller must retry later, and undo nothing. If there was an answer, the message is given instead of fields.
    """

    msg_fmt = '%(who)s does not answer: %(reason)s'
    code = 503


class Unsent(Unanswered):
    """This process could not send a message. It is not known whether the receiver is running."""


class HostIsBeingRemoved(Unanswered):
    """A host can't register, because the removal of a deleted host with the same name is not complete.

    The compute service must try again later.
    """

    msg_fmt = (
        "Host %(host)s can't register yet: the removal of the host that had this name before is not complete "
        '(operation %(operation)s%(reason)s)'
    )


class KeyGone(KilonovaError):
    """The operation is no longer at the step and attempt for which a conductor called the host.

    The host must undo its work for this step, and must not report an error.
    """

    msg_fmt = 'Operation step %(key)s is no longer current'


class ClaimConflict(Conflict):
    """A claim failed because a device does not have the expected status. Another server may have the device."""

    msg_fmt = 'Devices are not free: %(devices)s'


class DeviceBarred(KilonovaError):
    """A device of a server is withdrawn, for example after a failed health check. Notifications contain this error."""


class Cancelled(KilonovaError):
    """The operation was cancelled by a delete or a reset while it was running."""

    msg_fmt = 'Operation %(key)s was cancelled.'


class LiveMigrationAborted(KilonovaError):
    """A user aborted a live migration."""

    msg_fmt = 'The live migration was aborted.'


class BuildTimedOut(KilonovaError):
    """A server was in status BUILD for longer than [DEFAULT]instance_build_timeout."""

    msg_fmt = 'Instance build timed out. Set to error state.'


class LeaseLost(KilonovaError):
    """Another conductor owns the operation now."""

    msg_fmt = 'Operation %(operation)s belongs to another conductor now.'


class ReleasePending(KilonovaError):
    """The host can't start new work for the server, because it must first clean up after an earlier operation.

    A host that an operator has forced down gets the same error until ``forced_down`` is unset.
    """

    msg_fmt = 'Host %(host)s must first clean up an earlier operation of this server (pending release)'


REMOTE_MODULES = ['kilonova.errors']
