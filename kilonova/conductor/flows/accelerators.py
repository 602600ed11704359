"""Accelerators of Cyborg in flows: requests are made and bound before a host is asked, and deleted when it is done with
the server.

    accelerators.bind(work, host)        # in a step, ``work.outputs`` an AcceleratorOutputs
    accelerators.unbind(work)            # in its undo

The uuids of requests stand in the row before they are bound, so that whoever takes it over finds them. An accelerator
service that is silent doesn't hold an unwinding up: what is still to delete becomes a pending release.
"""
from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from kilonova.accel import profile as device_profile
from kilonova.accel import request as accel_request
from kilonova.accel.client import AcceleratorRequestBindingFailed, AcceleratorRequestOpFailed
from kilonova.conductor.flows import beside
from kilonova.conductor.row import Choice, Outputs
from kilonova.conductor.work import Work
from kilonova.errors import Unanswered

LOG = logging.getLogger(__name__)


@dataclass
class AcceleratorOutputs(Outputs):
    """``accelerators``: {uuid of a request that was made in this attempt: the number of its device profile's group};
    None: none was made."""

    accelerators: dict[str, int] | None = None


def bind(work: Work[Any], profile: str, host: Choice) -> None:
    """The server has what the device profile says, on the devices that Placement chose. May be repeated.

    AcceleratorRequestBindingFailed: it can't have them.
    """
    client, outputs, uuid = work.env.accelerators, work.outputs, work.instance_uuid
    if outputs.accelerators is None:
        work.before_sending()
        LOG.debug('Creating ARQs for device profile %s', profile)
        outputs.accelerators = {one.uuid: one.group for one in client.create(profile)}
        # Before they are anybody's: whoever goes on here finds them.
        work.decide({})
    ours, bound = outputs.accelerators, client.of_instance(uuid)
    # What an attempt before this one could not delete.
    client.delete(one.uuid for one in bound if one.uuid not in ours)
    there = {one.uuid: one for one in bound if one.uuid in ours}
    if not there:
        work.before_sending()
        LOG.debug('Binding ARQs.')
        client.bind({request: _provider(host, profile, group) for request, group in ours.items()}, instance_uuid=uuid,
                    hostname=host.node or host.host, project_id=work.ctxt.project_id)
    elif there.keys() != ours.keys() or any(one.state in accel_request.FAILED for one in there.values()):
        # A binding whose answer did not arrive.
        raise AcceleratorRequestBindingFailed(instance_uuid=uuid, msg='not all of them were bound')


def _provider(host: Choice, profile: str, group: int) -> str:
    providers = host.mappings.get(device_profile.group_name(group))
    if not providers:
        raise AcceleratorRequestOpFailed(op='bind', msg=f'Placement allocated nothing for group {group} of device '
                                                        f'profile {profile}; it was changed meanwhile')
    return providers[0]


def unbind(work: Work[Any]) -> None:
    """The requests of this attempt are deleted, and their devices free; later, while the accelerator service is silent
    or refuses."""
    if work.outputs.accelerators is None:
        return
    uuids = sorted(work.outputs.accelerators)
    try:
        work.env.accelerators.delete(uuids)
    except (Unanswered, AcceleratorRequestOpFailed) as error:
        LOG.info('Failed to delete ARQs %s of %s now: %s', ', '.join(uuids), work.instance_uuid, error)
        beside.add_release(work, {beside.ACCELERATOR_REQUESTS: uuids}, (beside.ACCELERATOR_REQUESTS,))
    work.outputs.accelerators = None


def drop(work: Work[Any], extra_specs: dict[str, str]) -> None:
    """A server that is deleted gives all its accelerators back, likewise."""
    if device_profile.name_of(extra_specs) is None:
        return
    try:
        work.env.accelerators.delete_of_instance(work.instance_uuid)
    except (Unanswered, AcceleratorRequestOpFailed) as error:
        LOG.info('Failed to delete ARQs of %s now: %s', work.instance_uuid, error)
        beside.add_release(work, {beside.ACCELERATORS_OF: work.instance_uuid}, (beside.ACCELERATORS_OF,))
