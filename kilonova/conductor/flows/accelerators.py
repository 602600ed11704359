"""Accelerators of Cyborg in flows: requests are made and bound before a host is asked, and deleted when it is done with
the server.

    accelerators.make(work, profile)                 # in a step that is saved, ``work.outputs`` an AcceleratorOutputs
    accelerators.bind(work, profile, host, holder)   # in a later one, or in one that does both
    accelerators.unbind(work)                        # in its undo

The uuids of requests stand in the row before they are bound, so that whoever takes it over finds them. An accelerator
service that is silent doesn't hold an unwinding up: what is still to delete becomes a pending release. So does what a
host that is silent may still have in a running guest.
"""
from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kilonova import objects
from kilonova.accel import holder as holders
from kilonova.accel import profile as device_profile
from kilonova.accel import request as accel_request
from kilonova.accel.client import WHO, AcceleratorRequestBindingFailed, AcceleratorRequestOpFailed
from kilonova.conductor.environment import Environment
from kilonova.conductor.flows import beside
from kilonova.conductor.row import Choice, Outputs
from kilonova.conductor.work import GuestMayRun, Work
from kilonova.db import engine
from kilonova.db.queries import operations
from kilonova.errors import KilonovaError, Unanswered

LOG = logging.getLogger(__name__)

# A request is bound moments after it was made, or when an accelerator service that was silent is back.
ABANDONED = datetime.timedelta(hours=6)


@dataclass
class AcceleratorOutputs(Outputs):
    """``accelerators``: {uuid of a request that was made in this attempt: the number of its device profile's group};
    None: none was made. ``accelerated``: those among them that are for a port, {uuid: port}."""

    accelerators: dict[str, int] | None = None
    accelerated: dict[str, str] = field(default_factory=dict)


def make(work: Work[Any], profile: str | None, ports: Mapping[str, str] = MappingProxyType({})) -> None:
    """Make requests for what the device profile says, and those of ``ports``, {port: profile}; they are bound to no
    server yet. May be repeated."""
    if work.outputs.accelerators is None:
        wanted = [*([(None, profile)] if profile is not None else []), *ports.items()]
        made: dict[str, int] = {}
        of_ports: dict[str, str] = {}
        for port, name in wanted:
            work.before_sending()
            LOG.debug('Creating ARQs for device profile %s', name)
            try:
                new = work.env.accelerators.create(name)
            except KilonovaError:
                # All are made anew by the next try, if there is one.
                _forget(work, sorted(made))
                raise
            made.update((one.uuid, one.group) for one in new)
            if port is not None:
                of_ports.update((one.uuid, port) for one in new)
        work.outputs.accelerators, work.outputs.accelerated = made, of_ports
        work.unbound = True


def _forget(work: Work[Any], uuids: Sequence[str]) -> None:
    """Requests that nobody binds any more go; later, while the accelerator service is silent."""
    if uuids:
        beside.now_or_later(work, 'Accelerator requests', lambda: work.env.accelerators.delete(uuids),
                            lambda: beside.add_release(work, {beside.ACCELERATOR_REQUESTS: list(uuids)},
                                                       (beside.ACCELERATOR_REQUESTS,)))


def bind(work: Work[Any], profile: str | None, host: Choice, holder: str,
         ports: Mapping[str, str] = MappingProxyType({})) -> None:
    """The server has what the device profile says, and those of ``ports``, on the devices that Placement chose, bound
    to the uuid ``holder`` (``accel.holder``). May be repeated.

    AcceleratorRequestBindingFailed: it can't have them.
    """
    client, outputs, uuid = work.env.accelerators, work.outputs, holder
    if outputs.accelerators is None:
        make(work, profile, ports)
        # Before they are anybody's: whoever goes on here finds them.
        work.decide({})
    # Of requests that were just made, and of a first attempt, nothing can be bound yet.
    look, work.unbound = not work.unbound or work.attempt > 1, False
    ours, bound = outputs.accelerators, client.of_instance(uuid) if look else []
    # What an attempt before this one could not delete.
    client.delete(one.uuid for one in bound if one.uuid not in ours)
    there = {one.uuid: one for one in bound if one.uuid in ours}
    if not there:
        work.before_sending()
        LOG.debug('Binding ARQs.')
        client.bind({request: _provider(host, group, outputs.accelerated.get(request, ''))
                     for request, group in ours.items()}, instance_uuid=uuid, hostname=host.node or host.host,
                    project_id=work.ctxt.project_id)
    elif there.keys() != ours.keys() or any(one.state in accel_request.FAILED for one in there.values()):
        # A binding whose answer did not arrive.
        raise AcceleratorRequestBindingFailed(instance_uuid=uuid, msg='not all of them were bound')


def await_releases(work: Work[Any], holder: str) -> None:
    """Before ``bind`` to a uuid that had requests once. Unanswered: some of those are still to be deleted, and that
    takes all that are bound to it."""
    if work.outputs.accelerators is not None:
        return
    with engine.silence(), work.db.read() as conn:
        rows = operations.of_instance(conn, work.instance_uuid)
    if any(row.kind == 'release' and row.args.get(beside.ACCELERATORS_OF) == holder for row in rows):
        raise Unanswered(who=WHO, reason='accelerators that the server had before are not given back yet')


def _provider(host: Choice, group: int, port: str) -> str:
    providers = host.mappings.get(device_profile.group_name(group, port))
    if not providers:
        of = f'of port {port}' if port else 'of the flavor'
        raise AcceleratorRequestOpFailed(op='bind', msg=f'Placement allocated nothing for group {group} of the device '
                                                        f'profile {of}; it was changed meanwhile')
    return providers[0]


def unbind(work: Work[Any]) -> None:
    """The requests of this attempt are deleted, and their devices free; later, while the accelerator service is silent
    or refuses, or the host may still run the guest."""
    if work.outputs.accelerators is None:
        return
    uuids, host = sorted(work.outputs.accelerators), work.outputs.hosts[work.attempt - 1].host
    try:
        if host in beside.hosts_left(work):
            raise GuestMayRun(host=host)
        work.env.accelerators.delete(uuids)
    except (Unanswered, AcceleratorRequestOpFailed) as error:
        LOG.info('Failed to delete ARQs %s of %s now: %s', ', '.join(uuids), work.instance_uuid, error)
        beside.add_release(work, {beside.ACCELERATOR_REQUESTS: uuids, beside.ACCELERATORS_AT: host},
                           (beside.ACCELERATOR_REQUESTS,))
    work.outputs.accelerators, work.outputs.accelerated = None, {}


def profile_of(flavor: Mapping[str, Any]) -> str | None:
    """The device profile of a flavor as it stands in an operation's arguments; None: it has none."""
    return device_profile.name_of(flavor['nova_object.data'].get('extra_specs') or {})


def drop_abandoned(env: Environment) -> int:
    """Requests that were made, and that no flow binds any more: the answer was lost, or the conductor ended before it
    wrote their uuids. How many; errors: as the client has them."""
    found = [one.uuid for one in env.accelerators.abandoned(ABANDONED)]
    for uuid in found:
        LOG.warning('Deleting ARQ %s, which was made and never bound', uuid)
    env.accelerators.delete(found)
    return len(found)


def drop(work: Work[Any], holder: str) -> None:
    """All requests that are bound to this uuid are deleted, likewise."""
    try:
        # Which of them are there the release finds out.
        if left := beside.hosts_left(work):
            raise GuestMayRun(host=', '.join(left))
        work.env.accelerators.delete_of_instance(holder)
    except (Unanswered, AcceleratorRequestOpFailed) as error:
        LOG.info('Failed to delete ARQs of %s now: %s', holder, error)
        beside.add_release(work, {beside.ACCELERATORS_OF: holder}, (beside.ACCELERATORS_OF,))


def drop_all(work: Work[Any], instance: objects.Instance, moves: Iterable[str] = ()) -> None:
    """A server that is deleted gives all its accelerators back; ``moves``: uuids of those that haven't ended."""
    metadata = instance.system_metadata
    if not holders.has_ports(instance.uuid, metadata) and not any(
            wanted_by(flavor) for flavor in (instance.flavor, instance.old_flavor, instance.new_flavor)):
        return
    for uuid in dict.fromkeys((holders.of(instance.uuid, metadata), holders.before(instance.uuid, metadata), *moves)):
        drop(work, uuid)


def wanted_by(flavor: objects.Flavor | None) -> bool:
    """Whether servers of the flavor have accelerators."""
    return flavor is not None and device_profile.name_of(flavor.extra_specs) is not None
