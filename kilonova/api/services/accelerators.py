"""Accelerators that a flavor asks for by a device profile: what of them travels with a request, and what servers that
have them can't do."""
from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kilonova.accel import holder
from kilonova.accel import profile as device_profile
from kilonova.accel.client import AcceleratorRequestOpFailed, NoAccelerators
from kilonova.accel.request import BOUND, MOVES_LIVE
from kilonova.api.services import accept
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.db.queries import instances
from kilonova.errors import Invalid
from kilonova.objects import Instance, RequestGroup


class AcceleratorsRefused(Invalid):
    msg_fmt = 'Feature not supported with instances that have accelerators: accelerator request %(request)s %(reason)s.'


def groups(backend: Backend, ctxt: RequestContext, extra_specs: Mapping[str, str],
           ports: Mapping[str, str] = MappingProxyType({})) -> list[RequestGroup] | None:
    """Return what the flavor's device profile and those of ``ports``, {port: profile}, ask of Placement.

    Return None if there are no profiles. Sends one request to Cyborg for all of them. Raises NoAccelerators, and what
    ``AcceleratorClient.profiles`` raises.
    """
    name, client = device_profile.name_of(extra_specs), backend.accelerators
    if name is None and not ports:
        return None
    if client is None:
        raise NoAccelerators
    profiles = client.profiles([*([] if name is None else [name]), *ports.values()], ctxt)
    found = [] if name is None else profiles[name].request_groups()
    return found + [group for port, profile in ports.items() for group in profiles[profile].of_port(port)]


def specs_of(ctxt: RequestContext, server: Found) -> dict[str, str]:
    """The extra specs of a server's flavor."""
    row, extra = instances.split(server.row)
    found: dict[str, str] = Instance.from_row(ctxt, row, extra).flavor.extra_specs
    return found


def may_be_bound(ctxt: RequestContext, server: Found) -> bool:
    """Whether a server has accelerators, of its flavor or as ports."""
    return accept.has_accelerated_ports(server) or are_wanted(specs_of(ctxt, server))


def are_wanted(extra_specs: Mapping[str, str]) -> bool:
    """Whether servers of the flavor have accelerators."""
    return device_profile.name_of(extra_specs) is not None


def check_moves_live(backend: Backend, instance: Instance) -> None:
    """AcceleratorsRefused: something of a running server's accelerators stays with its host. Other errors: as
    ``AcceleratorClient.of_instance`` has them."""
    if not are_wanted(instance.flavor.extra_specs):
        return
    if backend.accelerators is None:
        raise NoAccelerators
    bound_to = holder.of(instance.uuid, instance.system_metadata)
    found = backend.accelerators.of_instance(bound_to)
    if not found:
        raise AcceleratorRequestOpFailed(op='get', msg=f'none are bound to {bound_to}')
    for one in found:
        if one.state != BOUND:
            raise AcceleratorsRefused(request=one.uuid, reason=f'is {one.state}, not {BOUND}')
        if one.handle_kind not in MOVES_LIVE:
            raise AcceleratorsRefused(
                request=one.uuid, reason=f'has an attach handle of type {one.handle_kind}, which stays with its host '
                                         f"while the guest runs; those of types {' and '.join(MOVES_LIVE)} do not")
