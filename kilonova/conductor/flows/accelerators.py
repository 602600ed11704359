"""Accelerator requests of Cyborg in flows: created and bound before a host builds the guest, deleted when it is gone.

    accelerators.make(work, profile)                 # in a saved step; ``work.outputs`` is an AcceleratorOutputs
    accelerators.bind(work, profile, host, holder)   # in a later step, or in one step that does both
    accelerators.unbind(work)                        # in its undo

The uuids of the requests are stored in the operation row before the requests are bound, so that another conductor that
takes the row finds them. If the accelerator service does not answer, an undo is not delayed: the requests that remain
to be deleted become a pending release. The same holds for requests that a guest may still use on a host which does not
answer.
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
from kilonova.accel.client import WHO, AcceleratorRequestBindingFailed, AcceleratorRequestOpFailed
from kilonova.conductor.environment import Environment
from kilonova.conductor.flows import releases
from kilonova.conductor.row import ChosenHost, Outputs
from kilonova.conductor.work import HostNotFenced, Work
from kilonova.db import engine
from kilonova.db.queries import operations
from kilonova.errors import KilonovaError, Unanswered

LOG = logging.getLogger(__name__)

# Requests older than this that are not bound are abandoned. A request is normally bound moments after its creation, or
# when an accelerator service that did not answer is back.
ABANDONED = datetime.timedelta(hours=6)


@dataclass
class AcceleratorOutputs(Outputs):
    """Stored results about accelerator requests.

    Attributes:
        accelerators: Requests that were created in this attempt, as a dict from uuid to the number of their group in
            the device profile; None if none were created.
        accelerated: Those of them that are for a port, as a dict from uuid to port id.
    """

    accelerators: dict[str, int] | None = None
    accelerated: dict[str, str] = field(default_factory=dict)


def make(work: Work[Any], profile: str | None, ports: Mapping[str, str] = MappingProxyType({})) -> None:
    """Create accelerator requests for a device profile and for ``ports``, a dict from port id to device profile.

    The requests are bound to no server yet. Repeated calls are safe.
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
                # The next try, if there is one, creates all requests again.
                _forget(work, sorted(made))
                raise
            made.update((one.uuid, one.group) for one in new)
            if port is not None:
                of_ports.update((one.uuid, port) for one in new)
        work.outputs.accelerators, work.outputs.accelerated = made, of_ports
        work.unbound = True


def _forget(work: Work[Any], uuids: Sequence[str]) -> None:
    """Delete accelerator requests that no operation will bind.

    A pending release does it if the accelerator service does not answer or refuses.
    """
    if uuids:
        releases.now_or_later(
            work,
            'Deleting accelerator requests',
            lambda: work.env.accelerators.delete(uuids),
            lambda: releases.add_release(
                work, {releases.ACCELERATOR_REQUESTS: list(uuids)}, (releases.ACCELERATOR_REQUESTS,)
            ),
        )


def bind(
    work: Work[Any], profile: str | None, host: ChosenHost, holder: str, ports: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Bind accelerator requests to the devices that Placement chose, under the uuid ``holder``.

    Creates the requests for ``profile`` and ``ports`` first if there are none. ``accel.holder`` explains which uuid is
    used. Repeated calls are safe. Raises AcceleratorRequestBindingFailed if the server can't have the accelerators.
    """
    client, outputs, uuid = work.env.accelerators, work.outputs, holder
    if outputs.accelerators is None:
        make(work, profile, ports)
        # The uuids are stored before the requests are bound, so that another conductor that continues here finds them.
        work.decide({})
    # If the requests were just created in the first attempt, none can be bound yet.
    look, work.unbound = not work.unbound or work.attempt > 1, False
    ours, bound = outputs.accelerators, client.of_instance(uuid) if look else []
    # Requests that an earlier attempt could not delete.
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
        # The reply to the binding request did not arrive.
        raise AcceleratorRequestBindingFailed(instance_uuid=uuid, msg='not all of them were bound')


def await_releases(work: Work[Any], holder: str) -> None:
    """Check that no pending release will delete the requests bound to ``holder``.

    Call it before ``bind`` to a uuid that had requests before. Raises Unanswered if there is such a release, which
    would delete new requests as well.
    """
    if work.outputs.accelerators is not None:
        return
    with engine.silence(), work.db.read() as conn:
        rows = operations.of_instance(conn, work.instance_uuid)
    if any(row.kind == 'release' and row.args.get(releases.ACCELERATORS_OF) == holder for row in rows):
        raise Unanswered(who=WHO, reason='accelerator requests that the server had before are not deleted yet')


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
    """Delete the accelerator requests of this attempt, so that their devices are free.

    A pending release does it if the accelerator service does not answer or refuses, or if the host may still run the
    guest.
    """
    if work.outputs.accelerators is None:
        return
    uuids, host = sorted(work.outputs.accelerators), work.outputs.hosts[work.attempt - 1].host
    try:
        if host in releases.hosts_left(work):
            raise HostNotFenced(host=host)
        work.env.accelerators.delete(uuids)
    except (Unanswered, AcceleratorRequestOpFailed) as error:
        LOG.info(
            'Failed to delete ARQs %s; a pending release will retry it: %s',
            ', '.join(uuids),
            error,
            instance_uuid=work.instance_uuid,
        )
        releases.add_release(
            work,
            {releases.ACCELERATOR_REQUESTS: uuids, releases.ACCELERATORS_AT: host},
            (releases.ACCELERATOR_REQUESTS,),
        )
    work.outputs.accelerators, work.outputs.accelerated = None, {}


def profile_of(flavor: Mapping[str, Any]) -> str | None:
    """Return the device profile of a flavor in the form of operation arguments, or None."""
    return device_profile.name_of(flavor['nova_object.data'].get('extra_specs') or {})


def drop_abandoned(env: Environment) -> int:
    """Delete accelerator requests that were created and that no operation will bind, and return their number.

    Such a request remains if the reply to its creation was lost, or if the conductor ended before it stored the uuid.
    Raises the errors of the accelerator client.
    """
    found = [one.uuid for one in env.accelerators.abandoned(ABANDONED)]
    for uuid in found:
        LOG.warning('Deleting ARQ %s, which was created but never bound', uuid)
    env.accelerators.delete(found)
    return len(found)


def drop(work: Work[Any], holder: str) -> None:
    """Delete all accelerator requests that are bound to the uuid ``holder``.

    A pending release does it if the accelerator service does not answer or refuses, or if a host may still run the
    guest.
    """
    try:
        # The release finds out which requests are on that host.
        if left := releases.hosts_left(work):
            raise HostNotFenced(host=', '.join(left))
        work.env.accelerators.delete_of_instance(holder)
    except (Unanswered, AcceleratorRequestOpFailed) as error:
        LOG.info(
            'Failed to delete ARQs of %s; a pending release will retry it: %s',
            holder,
            error,
            instance_uuid=work.instance_uuid,
        )
        releases.add_release(work, {releases.ACCELERATORS_OF: holder}, (releases.ACCELERATORS_OF,))


def drop_all(work: Work[Any], instance: objects.Instance, moves: Iterable[str] = ()) -> None:
    """Delete all accelerator requests of a server that is deleted.

    ``moves`` are the uuids of its unfinished migrations.
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
