"""Accelerators (Cyborg) of servers: the resources that device profiles request, and actions that accelerators prevent.

The create, resize, shelve and live migration services call these functions. The services put the request groups of the
device profiles into the request spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kilonova.accel import holder
from kilonova.accel import profile as device_profile
from kilonova.accel.client import AcceleratorRequestOpFailed, NoAccelerators
from kilonova.accel.request import BOUND, MOVES_LIVE
from kilonova.api.services import server_operations
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import ServerRef
from kilonova.context import RequestContext
from kilonova.db.queries import instances
from kilonova.errors import Invalid
from kilonova.objects import Instance, RequestGroup


class AcceleratorsRefused(Invalid):
    """Error 400: an accelerator of the server prevents the requested action."""

    msg_fmt = 'Feature not supported with instances that have accelerators: accelerator request %(request)s %(reason)s.'


def groups(
    backend: Backend,
    ctxt: RequestContext,
    extra_specs: Mapping[str, str],
    ports: Mapping[str, str] = MappingProxyType({}),
) -> list[RequestGroup] | None:
    """Return the Placement request groups of the device profiles that the flavor and the ports name.

    ``ports`` is a dict from port id to the name of its device profile. Return None if neither the flavor nor a port
    names a profile. Sends one request to Cyborg for all profiles.

    Raises:
        NoAccelerators: There are profiles, but this cloud has no accelerator service.
        DeviceProfileError: A profile does not exist, or requests devices or traits that a server can't get.
    """
    name, client = device_profile.name_of(extra_specs), backend.accelerators
    if name is None and not ports:
        return None
    if client is None:
        raise NoAccelerators
    profiles = client.profiles([*([] if name is None else [name]), *ports.values()], ctxt)
    found = [] if name is None else profiles[name].request_groups()
    return found + [group for port, profile in ports.items() for group in profiles[profile].of_port(port)]


def specs_of(ctxt: RequestContext, server: ServerRef) -> dict[str, str]:
    """Return the extra specs of the server's current flavor."""
    row, extra = instances.split(server.row)
    found: dict[str, str] = Instance.from_row(ctxt, row, extra).flavor.extra_specs
    return found


def may_be_bound(ctxt: RequestContext, server: ServerRef) -> bool:
    """Return whether Cyborg may bind accelerator requests (ARQs) to the server.

    This is true if the server's flavor names a device profile, or if a port of the server has a vnic_type of Cyborg
    (accelerator-direct, accelerator-direct-physical).
    """
    return server_operations.has_accelerated_ports(server) or are_wanted(specs_of(ctxt, server))


def are_wanted(extra_specs: Mapping[str, str]) -> bool:
    """Return whether a flavor with these extra specs asks for accelerators."""
    return device_profile.name_of(extra_specs) is not None


def check_moves_live(backend: Backend, instance: Instance) -> None:
    """Check that a live migration can move all accelerators of the server.

    Do nothing if the server's flavor asks for no accelerators.

    Raises:
        AcceleratorsRefused: An accelerator request (ARQ) of the server is not in the state Bound, or its accelerator is
            not a mediated device. A PCI function of the host cannot be live migrated.
        NoAccelerators: The cloud has no accelerator service.
        AcceleratorRequestOpFailed: Cyborg returned an error, or has no accelerator request for the server.
    """
    if not are_wanted(instance.flavor.extra_specs):
        return
    if backend.accelerators is None:
        raise NoAccelerators
    bound_to = holder.of(instance.uuid, instance.system_metadata)
    found = backend.accelerators.of_instance(bound_to)
    if not found:
        raise AcceleratorRequestOpFailed(op='get', msg=f'no accelerator is bound to {bound_to}')
    for one in found:
        if one.state != BOUND:
            raise AcceleratorsRefused(request=one.uuid, reason=f'is in the state {one.state}, not {BOUND}')
        if one.handle_kind not in MOVES_LIVE:
            raise AcceleratorsRefused(
                request=one.uuid,
                reason=f'has an attach handle of type {one.handle_kind}, which cannot be live '
                f'migrated; only those of types {" and ".join(MOVES_LIVE)} can',
            )
