"""Errors by meaning.

Five kinds (NotFound, Conflict, Invalid, Forbidden, Unavailable) carry the HTTP code that the API answers with; leaves
below them carry the field's text. The flow errors at the end steer operations and never reach a user as they are.

    raise InstanceNotFound(instance_id=uuid)      # str(): "Instance <uuid> could not be found."
"""
from __future__ import annotations

import enum
import re
from collections.abc import Iterable

# An absolute path: not a part of a URL, a relative path or a word with slashes.
_PATH = re.compile(r"(?<![\w.:/~-])(?:/[^\s/'\":,;()]+)*/([^\s/'\":,;()]+)/?")


def without_paths(text: str) -> str:
    """A text for users: of absolute paths, which tell how a host is laid out, only the last name is left.

    >>> without_paths("Could not open '/srv/instances/x/disk': No space left")
    "Could not open 'disk': No space left"
    """
    return _PATH.sub(r'\1', text)


def shortened(text: str, most: int) -> str:
    """Return the text with at most ``most`` characters: a longer one ends at the border of a word, with '…'.

    >>> shortened('the disk is full', 12)
    'the disk is…'
    """
    if len(text) <= most:
        return text
    head = text[:most]
    # A word that takes more than half of the room is cut.
    border = max(head.rfind(' '), head.rfind('\n'))
    return (head[:border] if border >= most // 2 else head[:most - 1]).rstrip(' \n,;:(') + '…'


class Cause(enum.StrEnum):
    """Whose fault it is that a server could not be built or moved. It decides what is tried next.

    HOST: this host can't do it now; the next host is tried. REQUEST: no host can do it; the operation ends at once,
    and no host's count of failed builds grows. DEVICE: a device of this host failed; the next host is tried, and this
    device is not offered again before it was looked at.
    """

    HOST = 'host'
    REQUEST = 'request'
    DEVICE = 'device'


class KilonovaError(Exception):
    """Base of all our errors; ``msg_fmt`` is filled from the keyword fields unless a message is given.

    ``cause``: whose fault it is, where the error ends a build or a move. A cause that nobody knows is the host's.
    """

    msg_fmt = 'An unknown error occurred.'
    code = 500
    safe = False
    cause = Cause.HOST

    def __init__(self, message: str | None = None, **fields: object) -> None:
        self.fields = fields
        self.message = message if message is not None else self.msg_fmt % fields
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


class NotFound(KilonovaError):
    msg_fmt = 'Resource could not be found.'
    code = 404
    safe = True


class Conflict(KilonovaError):
    msg_fmt = 'Resource state conflicts with the request.'
    code = 409
    safe = True


class Invalid(KilonovaError):
    msg_fmt = 'Bad request - invalid parameters'
    code = 400
    safe = True
    cause = Cause.REQUEST


class Forbidden(KilonovaError):
    msg_fmt = 'Forbidden'
    code = 403
    safe = True
    cause = Cause.REQUEST


class Unavailable(KilonovaError):
    msg_fmt = 'Service is unavailable at this time.'
    code = 503
    safe = True


def cause_of(error: BaseException) -> Cause:
    """Return whose fault an error is. What is none of our errors is the host's."""
    return error.cause if isinstance(error, KilonovaError) else Cause.HOST


# NotFound
class InstanceNotFound(NotFound):
    msg_fmt = 'Instance %(instance_id)s could not be found.'


class FlavorNotFound(NotFound):
    msg_fmt = 'Flavor %(flavor_id)s could not be found.'


class FlavorExtraSpecsNotFound(NotFound):
    msg_fmt = 'Flavor %(flavor_id)s has no extra specs with key %(extra_specs_key)s.'


class FlavorAccessNotFound(NotFound):
    msg_fmt = 'Flavor access not found for %(flavor_id)s / %(project_id)s combination.'


class ImageNotFound(NotFound):
    msg_fmt = 'Image %(image_id)s could not be found.'
    cause = Cause.REQUEST


class ServiceNotFound(NotFound):
    msg_fmt = 'Service %(service_id)s could not be found.'


class ComputeHostNotFound(NotFound):
    msg_fmt = 'Compute host %(host)s could not be found.'


class MigrationNotFound(NotFound):
    msg_fmt = 'Migration %(migration_id)s could not be found.'


class CellMappingNotFound(NotFound):
    msg_fmt = 'Cell %(uuid)s has no mapping.'


class ConsoleNotAvailable(NotFound):
    msg_fmt = 'Guest does not have a console available.'


class ConsoleTypeInvalid(Invalid):
    msg_fmt = 'Invalid console type %(console_type)s'


class ConsoleTypeUnavailable(Invalid):
    msg_fmt = 'Unavailable console type %(console_type)s.'


class MarkerNotFound(Invalid):
    msg_fmt = 'marker [%(marker)s] not found'


class UnknownMarker(MarkerNotFound):
    """As younger lists say it: key pairs, migrations, stories and usages."""

    msg_fmt = 'Marker %(marker)s could not be found.'


# Conflict
class InstanceInvalidState(Conflict):
    msg_fmt = "Cannot '%(method)s' instance %(instance_uuid)s while it is in %(attr)s %(state)s"


class InstanceBusy(InstanceInvalidState):
    """Another operation is at work on the server."""


class GuestAgentNotEnabled(Conflict):
    msg_fmt = 'QEMU guest agent is not enabled'


class AdminPasswordNotSupported(Conflict):
    msg_fmt = 'Set admin password is not supported'


class AdminPasswordNotSet(Conflict):
    msg_fmt = 'Failed to set admin password on %(instance)s because %(reason)s'


class InstanceIsLocked(Conflict):
    msg_fmt = 'Instance %(instance_uuid)s is locked'


class InstanceNotReady(Conflict):
    msg_fmt = 'Instance %(instance_id)s is not ready'


class FlavorExists(Conflict):
    msg_fmt = 'Flavor with name %(name)s already exists.'


class FlavorIdExists(Conflict):
    msg_fmt = 'Flavor with ID %(flavor_id)s already exists.'


class PlacementConflict(Conflict):
    """Placement answered 409; ``placement_code`` is its error code (``placement.concurrent_update`` …)."""

    msg_fmt = 'Placement refused the change: %(detail)s'

    def __init__(self, message: str | None = None, placement_code: str = '', **fields: object) -> None:
        super().__init__(message, **fields)
        self.placement_code = placement_code


# Forbidden
class OverQuota(Forbidden):
    msg_fmt = ('Quota exceeded for %(overs)s: Requested %(req)s, but already used %(used)s of %(allowed)s %(overs)s')


class PolicyNotAuthorized(Forbidden):
    msg_fmt = "Policy doesn't allow %(action)s to be performed."


# Scheduling and building
class NoValidHost(KilonovaError):
    msg_fmt = 'No valid host was found. %(reason)s'
    safe = True


class MaxRetriesExceeded(NoValidHost):
    msg_fmt = 'Exceeded maximum number of retries. %(reason)s'


class UnableToMigrateToSelf(Invalid):
    msg_fmt = 'Unable to migrate instance (%(instance_id)s) to current host (%(host)s).'


class ResizeError(KilonovaError):
    msg_fmt = 'Resize error: %(reason)s'
    safe = True


class PciDeviceUnsupportedHypervisor(Invalid):
    msg_fmt = '%(type)s hypervisor does not support PCI devices'


class InstanceNotRescuable(Invalid):
    msg_fmt = 'Instance %(instance_id)s cannot be rescued: %(reason)s'


class ImageUnacceptable(Invalid):
    msg_fmt = 'Image %(image_id)s is unacceptable: %(reason)s'


class DBNotAllowed(KilonovaError):
    msg_fmt = '%(binary)s attempted direct database access which is not allowed by policy'


# Flow errors: what they mean to the one who runs an operation
class ServerUnreadable(KilonovaError):
    """A text of a server's row is cut, or of another form. No other server is concerned."""

    msg_fmt = 'The column %(column)s of server %(uuid)s can not be read (%(reason)s).'
    cause = Cause.REQUEST


class HostRejected(KilonovaError):
    """This host can't take it; an alternate may."""

    msg_fmt = 'Insufficient compute resources: %(reason)s.'
    safe = True


class MigrationPreCheckError(HostRejected):
    """A running guest can't go to this host; an alternate may take it."""

    msg_fmt = 'Migration pre-check error: %(reason)s'


class MigrationError(KilonovaError):
    """A live migration ended and the guest is where it was."""

    msg_fmt = 'Migration error: %(reason)s'
    safe = True


class DisksUnmovable(HostRejected):
    """A server's disks can't go from one host to another; an alternate may be in reach."""

    msg_fmt = 'The disks can not be carried from %(source)s to %(dest)s: %(reason)s'
    safe = True


class NoRoom(HostRejected):
    """A file system has no room for what is about to be written; ``need`` and ``free`` in bytes."""

    msg_fmt = 'There is no room for %(what)s: it needs %(need)d bytes, %(free)d are free'
    safe = True


class DevicesFailed(HostRejected):
    """The hypervisor could not start a guest because of devices that it was given; an alternate may take the server.

    ``addresses``: the PCI addresses, or uuids of mediated devices, that failed. ``reason``: what the hypervisor said.
    A message between daemons carries the text alone: ``addresses`` is empty and ``reason`` is '' there.
    """

    msg_fmt = 'Device(s) %(devices)s can not be used: %(reason)s'
    cause = Cause.DEVICE

    def __init__(self, message: str | None = None, *, addresses: Iterable[str] = (), reason: str = '') -> None:
        self.addresses, self.reason = tuple(addresses), reason
        super().__init__(message, devices=', '.join(self.addresses), reason=reason)


class DevicesMissing(HostRejected):
    """PCI devices that a server holds are no longer on its host: unplugged, or fallen off the bus."""

    cause = Cause.DEVICE
    msg_fmt = 'PCI device(s) %(addresses)s of instance %(uuid)s are not on its host any more.'


class GroupPolicyViolated(HostRejected):
    """The server's group doesn't allow this host: others of the group came first."""

    msg_fmt = '%(policy)s instance group policy was violated.'


class BuildAbort(KilonovaError):
    """No host can take it: no other attempt makes sense."""

    msg_fmt = 'Build of instance %(instance_uuid)s aborted: %(reason)s'
    safe = True
    cause = Cause.REQUEST


class VirtualInterfaceCreateException(KilonovaError):
    """The network service didn't plug a guest's ports in time."""

    msg_fmt = 'Virtual Interface creation failed: %(reason)s'


class Unanswered(KilonovaError):
    """Nobody answered (host, database, Placement, broker): ask again later, undo nothing."""

    msg_fmt = '%(who)s does not answer: %(reason)s'
    code = 503


class Unsent(Unanswered):
    """The message didn't even leave this process: that says nothing about the one it was for."""


class HostIsBeingRemoved(Unanswered):
    """A host of this name was deleted and isn't removed everywhere yet: a compute registers when it is."""

    msg_fmt = ("Host %(host)s can't register yet: the removal of the host that had this name before is not complete "
               '(operation %(operation)s%(reason)s)')


class KeyGone(KilonovaError):
    """The operation row no longer stands at this key: whatever was done under it is to be undone silently."""

    msg_fmt = 'No operation stands at %(key)s.'


class ClaimConflict(Conflict):
    """A device was not in the status that the claim expected."""

    msg_fmt = 'Devices are not free: %(devices)s'


class DeviceBarred(KilonovaError):
    """A server holds a device that is not given out again."""


class Cancelled(KilonovaError):
    """The operation was cancelled by a delete or a reset while it ran."""

    msg_fmt = 'Operation %(key)s was cancelled.'


class LiveMigrationAborted(KilonovaError):
    """A user ended a live migration."""

    msg_fmt = 'The live migration was aborted.'
    safe = True


class BuildTimedOut(KilonovaError):
    """A server was in BUILD for longer than [DEFAULT]instance_build_timeout."""

    msg_fmt = 'Instance build timed out. Set to error state.'


class LeaseLost(KilonovaError):
    """Another conductor owns the operation now."""

    msg_fmt = 'Operation %(operation)s has another owner.'


class ReleasePending(KilonovaError):
    """A host has something of the server still to give back; nothing new is done there before."""

    msg_fmt = 'What an earlier operation left of the server on host %(host)s is still to be given back.'


REMOTE_MODULES = ['kilonova.errors']
