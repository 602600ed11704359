"""Create and bind accelerator requests of Cyborg in flows before a host builds the guest, and delete them afterwards.

    accelerators.make(work, profile)                 # in a saved step; ``work.outputs`` is an AcceleratorOutputs
    accelerators.bind(work, profile, host, holder)   # in a later step, or in one step together with ``make``
    accelerators.unbind(work)                        # in the undo of the step that calls ``bind``

The uuids of the requests are stored in the operation row before the requests are bound, so that another conductor that
takes the row finds them. An undo doesn't wait for an accelerator service that doesn't answer. The undo adds an
operation row instead (a pending release), and a conductor deletes the requests later. The same is done for requests on
a host that doesn't answer and may still run the guest.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from oslo_log import log as logging

from kilonova import objects
from kilonova.accel import holder as holders
from kilonova.accel import profile as device_profile
from kilonova.accel import request as accel_request
from kilonova.accel.client import AcceleratorRequestBindingFailed, AcceleratorRequestOpFailed
from kilonova.conductor.environment import Environment
from kilonova.conductor.flows import releases
from kilonova.conductor.row import ChosenHost, Outputs
from kilonova.conductor.work import HostNotFenced, Work
from kilonova.db import engine, envelopes
from kilonova.db.arguments.releases import AcceleratorRequestsRelease, AcceleratorsRelease, ReleaseArguments
from kilonova.db.queries import operations
from kilonova.errors import KilonovaError, Unanswered

LOG = logging.getLogger(__name__)

# Age after which an accelerator request that is not bound counts as abandoned.
# Normally a request is bound within seconds. It may take hours if Cyborg does not answer between create and bind.
ABANDONED = datetime.timedelta(hours=6)


@dataclass
class AcceleratorOutputs(Outputs):
    """Stored results about accelerator requests.

    Attributes:
        accelerators: The requests created in this attempt, or None if there are none. A dict from the request's uuid
            to the number of its group in the device profile.
        accelerated: The requests created in this attempt for ports. A dict from the request's uuid to the port's id.
    """

    accelerators: dict[str, int] | None = None
    accelerated: dict[str, str] = field(default_factory=dict)


def make(work: Work[Any], profile: str | None, ports: Mapping[str, str] = MappingProxyType({})) -> None:
    """Create accelerator requests for a server, which ``bind`` binds later, and store their uuids in the outputs.

    ``profile`` is the device profile of the server's flavor, or None. ``ports`` is a dict from port id to device
    profile. A repeated call does nothing.
    """
    if work.outputs.accelerators is None:
        wanted = [*([(None, profile)] if profile is not None else []), *ports.items()]
        made: dict[str, int] = {}
        of_ports: dict[str, str] = {}
        for port, name in wanted:
            work.before_sending()
            LOG.debug('Creating ARQs for device profile %s', name, instance_uuid=work.instance_uuid)
            try:
                new = work.env.accelerators.create(name)
            except KilonovaError:
                # Delete the requests that were created so far, because a retry of the step creates all requests again.
                _forget(work, sorted(made))
                raise
            made.update((one.uuid, one.group) for one in new)
            if port is not None:
                of_ports.update((one.uuid, port) for one in new)
        work.outputs.accelerators, work.outputs.accelerated = made, of_ports
        work.unbound = True


def _forget(work: Work[Any], uuids: Sequence[str]) -> None:
    """Delete accelerator requests that no operation will bind.

    If the accelerator service does not answer or refuses, an operation row is added (a pending release), and a
    conductor deletes the requests later.
    """
    if uuids:
        releases.now_or_later(
            work,
            'Deleting accelerator requests',
            lambda: work.env.accelerators.delete(uuids),
            lambda: releases.add_release(work, AcceleratorRequestsRelease(accelerator_requests=list(uuids))),
        )


def bind(
    work: Work[Any], profile: str | None, host: ChosenHost, holder: str, ports: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Bind accelerator requests to the devices that Placement chose on ``host``.

    If there are no requests yet, they are created first for ``profile`` and ``ports`` (see ``make``). ``holder`` is the
    uuid to which Cyborg binds the requests: the server's or a migration's (see ``accel.holder``). Repeated calls are
    safe. Raises AcceleratorRequestBindingFailed if the server can't have the accelerators.
    """
    client, outputs, uuid = work.env.accelerators, work.outputs, holder
    if outputs.accelerators is None:
        make(work, profile, ports)
        # Store the uuids before the requests are bound, so that another conductor that takes the row can delete them.
        work.decide({})
    # Query Cyborg for accelerator requests that are already bound to ``holder``.
    # In the first attempt, skip the query if this process has just created the requests: no request can be bound yet.
    look, work.unbound = not work.unbound or work.attempt > 1, False
    ours, bound = outputs.accelerators, client.of_instance(uuid) if look else []
    # Delete other requests bound to ``holder``. An earlier attempt has bound them and could not delete them.
    client.delete(one.uuid for one in bound if one.uuid not in ours)
    there = {one.uuid: one for one in bound if one.uuid in ours}
    if not there:
        work.before_sending()
        LOG.debug('Binding ARQs.', instance_uuid=work.instance_uuid)
        client.bind(
            {request: _provider(host, group, outputs.accelerated.get(request, '')) for request, group in ours.items()},
            instance_uuid=uuid,
            hostname=host.node or host.host,
            project_id=work.ctxt.project_id,
        )
    elif there.keys() != ours.keys() or any(one.state in accel_request.FAILED for one in there.values()):
        # An earlier call to bind the requests got no reply, and Cyborg has bound only some of the requests.
        raise AcceleratorRequestBindingFailed(instance_uuid=uuid, msg='Cyborg did not bind all of the requests')


def await_releases(work: Work[Any], holder: str) -> None:
    """Raise Unanswered if the accelerator requests of the uuid ``holder`` are still to be deleted (a pending release).

    Call this before ``bind`` binds new requests to a uuid that had requests before. A pending release is an operation
    row that a conductor runs later. The conductor would delete the new requests as well.
    """
    if work.outputs.accelerators is not None:
        return
    with engine.silence(), work.db.read() as conn:
        rows = operations.of_instance(conn, work.instance_uuid)
    pending = [row.arguments(ReleaseArguments) for row in rows if row.kind == operations.RELEASE]
    if any(isinstance(args, AcceleratorsRelease) and args.accelerators_of == holder for args in pending):
        raise Unanswered(f'Earlier accelerator requests of server {work.instance_uuid} must be deleted first')


def _provider(host: ChosenHost, group: int, port: str) -> str:
    providers = host.mappings.get(device_profile.group_name(group, port))
    if not providers:
        of = f'of port {port}' if port else 'of the flavor'
        raise AcceleratorRequestOpFailed(
            op='bind',
            msg=f'Placement allocated nothing for group {group} of the device '
            f'profile {of}; the profile was changed meanwhile',
        )
    return providers[0]


def unbind(work: Work[Any]) -> None:
    """Delete the accelerator requests that this attempt created, so that their devices are free.

    If the accelerator service does not answer or refuses, or if the host may still run the guest, an operation row is
    added (a pending release), and a conductor deletes the requests later.
    """
    if work.outputs.accelerators is None:
        return
    uuids, host = sorted(work.outputs.accelerators), work.chosen().host
    try:
        if host in releases.hosts_left(work):
            raise HostNotFenced(host=host)
        work.env.accelerators.delete(uuids)
    except (Unanswered, AcceleratorRequestOpFailed) as error:
        LOG.info(
            'Failed to delete ARQs %s; an operation of kind release will retry this later: %s',
            ', '.join(uuids),
            error,
            instance_uuid=work.instance_uuid,
        )
        releases.add_release(work, AcceleratorRequestsRelease(accelerator_requests=uuids, accelerators_at=host))
    work.outputs.accelerators, work.outputs.accelerated = None, {}


def profile_of(flavor: Mapping[str, Any]) -> str | None:
    """Return the name of the flavor's device profile, or None if it has none. ``flavor`` is a serialized object."""
    return device_profile.name_of(envelopes.extra_specs(flavor))


def drop_abandoned(env: Environment) -> int:
    """Delete abandoned accelerator requests, which were created and never bound, and return their number.

    A request is abandoned if the reply to its creation was lost, or if the conductor ended before it stored the uuid.
    Raises the errors of the accelerator client.
    """
    found = [one.uuid for one in env.accelerators.abandoned(ABANDONED)]
    for uuid in found:
        LOG.warning('Deleting ARQ %s, which was created but never bound', uuid)
    env.accelerators.delete(found)
    return len(found)


def drop(work: Work[Any], holder: str) -> None:
    """Delete all accelerator requests that are bound to the uuid ``holder``.

    If the accelerator service does not answer or refuses, or if a host may still run the guest, an operation row is
    added (a pending release), and a conductor deletes the requests later.
    """
    try:
        # If a host may still run the guest, the accelerator requests are not deleted now.
        # The ``except`` clause catches HostNotFenced and adds an operation row. A conductor deletes the requests later.
        if left := releases.hosts_left(work):
            raise HostNotFenced(host=', '.join(left))
        work.env.accelerators.delete_of_instance(holder)
    except (Unanswered, AcceleratorRequestOpFailed) as error:
        LOG.info(
            'Failed to delete ARQs of %s; an operation of kind release will retry this later: %s',
            holder,
            error,
            instance_uuid=work.instance_uuid,
        )
        releases.add_release(work, AcceleratorsRelease(accelerators_of=holder))


def drop_all(work: Work[Any], instance: objects.Instance, moves: Iterable[str] = ()) -> None:
    """Delete all accelerator requests of a server that is deleted.

    ``moves`` are the uuids of the server's unfinished migrations, to which requests may be bound.
    """
    metadata = instance.system_metadata
    if not holders.has_ports(instance.uuid, metadata) and not any(
        wanted_by(flavor) for flavor in (instance.flavor, instance.old_flavor, instance.new_flavor)
    ):
        return
    for uuid in dict.fromkeys((holders.of(instance.uuid, metadata), holders.before(instance.uuid, metadata), *moves)):
        drop(work, uuid)


def wanted_by(flavor: objects.Flavor | None) -> bool:
    """Return whether servers of the flavor have accelerators."""
    return flavor is not None and device_profile.name_of(flavor.extra_specs) is not None
