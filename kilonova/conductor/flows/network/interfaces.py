"""Flows that attach an interface to an existing server, or detach one.

The steps of an attach are allocate_port_resources, claim_function, create_or_bind_port and plug. First, Placement
allocates the port's QoS resources (such as minimum bandwidth). If the port is a function of a PCI device (SR-IOV), the
host claims a function from the allocated resource provider. Then a new port is created, or the user's own port is
bound, and the host plugs the port into the guest. A failure undoes all steps.

The steps of a detach are unplug and free_port. If the guest does not release the interface, the operation ends and
nothing is changed. After the guest has released the interface, nothing is undone: the port is deleted, or unbound if
the user created it, and its device and its resources are released.

The server gets no task state. The last transaction of each operation writes the info cache and the PCI requests.

A detach also releases the device and the resources of a port that was deleted in Neutron (``network_changed``). If a
move has removed the deleted port from the info cache, nothing is unplugged, and the argument ``vif`` is None.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oslo_log import log as logging

from kilonova import objects
from kilonova.conductor.ending import Ending
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import releases
from kilonova.conductor.flows.network import guarantees, port_releases, ports, requested_ports
from kilonova.conductor.row import Outputs, OutputsT
from kilonova.conductor.work import HostDown, Step, Work
from kilonova.db import engine
from kilonova.db.arguments.attachments import AttachInterfaceArguments, DetachInterfaceArguments
from kilonova.db.queries import info_caches, instances
from kilonova.errors import Unanswered
from kilonova.objects.port_resources import PortResources
from kilonova.objects.vif import Vif
from kilonova.pci import ports as pci_ports
from kilonova.pci import request as pci_request
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)

# Interfaces in the form in which the info cache stores them.
Vifs = list[dict[str, Any]]


def _end(work: Work[Any], event: str, change: Callable[[Vifs], Vifs], left: str | None = None) -> None:
    """End the operation: write the info cache, the PCI requests, the event and the action in one transaction.

    ``event`` is the name of the action's event. ``change(vifs)`` gets the interfaces in the info cache and returns the
    list to write. If a port was detached, ``left`` is its id, and the port's PCI requests are deleted.

    If the info cache was changed since this function read it, nothing is written and Unanswered is raised. The step is
    then run again, and reads the changed info cache.
    """
    forget = _forget(work, left)
    row = work.instance_row(fresh=True)
    seen = row['extra_network_info']
    vifs = change(json.loads(seen or '[]'))

    def write(conn: engine.Connection) -> None:
        if not info_caches.replace(conn, work.instance_uuid, seen, vifs):
            raise Unanswered(f'The ports of server {work.instance_uuid} were changed meanwhile; this will be retried')
        forget(conn)

    Ending(before=write, events=[work.event(event, host=row['host'])]).end(work)


def _forget(work: Work[Any], port_id: str | None) -> Callable[[engine.Connection], None]:
    """Return a function ``write(conn)`` that deletes the PCI requests of a port from the server's row.

    The function does nothing if ``port_id`` is None. Call ``_forget`` before the transaction begins, because it reads
    the database itself.
    """
    left = pci_ports.without(work.instance(fresh=True).pci_requests, port_id) if port_id is not None else None
    extra = {'pci_requests': left.to_column()} if left is not None else {}
    return lambda conn: instances.update_extra(conn, work.instance_uuid, extra)


class _Interfaces(Flow[OutputsT]):
    """Base class of the operations on one interface. If an operation fails, the server is unchanged.

    ``event`` is the name of the event that is added to the instance action and has the reason of a failure.
    """

    event: str

    def came_for(self, work: Work[OutputsT]) -> str | None:
        """Return the id of the port whose PCI request must be deleted from the server's row after a failure, or None.

        By default no PCI request must be deleted, and the result is None.
        """
        return None

    def ended_badly(self, work: Work[OutputsT]) -> None:
        """End the operation with the result Error.

        After a failed attach, also delete the PCI request of the port from the server's row.
        """
        forget = _forget(work, self.came_for(work))
        host = work.instance_row()['host']
        Ending(before=forget, events=[work.event(self.event, 'Error', host)], failed=True).end(work)


# --- attach ----------------------------------------------------------------------------------------------------------
@dataclass
class AttachOutputs(Outputs):
    """Stored results of an attach.

    Attributes:
        vif: The new interface as the info cache stores it, or None while there is no port.
        profile: Part of the port's binding that names the claimed device; None if the port is not a function of a PCI
        device.
        mappings: Resource providers for the port's QoS resource request, as a dict from request group to uuids.
    """

    vif: dict[str, Any] | None = None
    profile: dict[str, Any] | None = None
    mappings: dict[str, list[str]] | None = None


def _request(work: Work[AttachOutputs]) -> objects.InstancePCIRequest | None:
    """Return the PCI request that the API made for an SR-IOV port, from the arguments, or None for other ports."""
    request = work.arguments(AttachInterfaceArguments).request
    return objects.base.Serializer().deserialize_entity(work.ctxt, request) if request is not None else None


def _port_id(work: Work[AttachOutputs]) -> str:
    """Return the id of the user's own port, or '' if a port is to be created."""
    return work.arguments(AttachInterfaceArguments).wish['port_id'] or ''


def _wanted(work: Work[AttachOutputs]) -> PortResources | None:
    """Return the port's QoS resource request (minimum bandwidth or packet rate), or None if the port has none."""
    return PortResources.read(_port_id(work), work.arguments(AttachInterfaceArguments).resources)


def allocate_port_resources(work: Work[AttachOutputs]) -> None:
    """Add the resources of the port's QoS resource request, such as bandwidth, to the server's allocation."""
    wanted = _wanted(work)
    if wanted is not None:
        work.outputs.mappings = guarantees.add(work, _port_id(work), wanted, _request(work))


def undo_allocate_port_resources(work: Work[AttachOutputs]) -> None:
    """Remove the resources of the port's QoS resource request, such as bandwidth, from the server's allocation."""
    port_releases.drop_guarantees(work, _port_id(work), _wanted(work))


def claim_function(work: Work[AttachOutputs]) -> None:
    """If the port must be a function of a PCI device (SR-IOV), ask the server's host to claim a function."""
    request = _request(work)
    if request is not None:
        (chosen,) = pci_request.with_allocation([request], work.outputs.mappings).requests
        work.outputs.profile = work.call_host(
            work.instance_row()['host'], Compute.claim_function, instance=work.instance(), request=chosen
        )['profile']
        work.changed()


def undo_claim_function(work: Work[AttachOutputs]) -> None:
    """If the port is a function of a PCI device, ask the server's host to free the claimed function.

    If the host is down, an operation row is added (a pending release). A conductor calls the host when it is up again.
    """
    request = _request(work)
    if request is not None:
        releases.ask_to_undo(
            work,
            work.instance_row()['host'],
            Compute.undo_claim_function,
            instance=work.instance(fresh=True),
            request_id=request.request_id,
        )


def create_or_bind_port(work: Work[AttachOutputs]) -> None:
    """Create a port for the server and bind it to the server's host, or bind the user's own port."""
    wish = work.arguments(AttachInterfaceArguments).wish
    port = requested_ports.RequestedPort(
        wish['network_id'], wish.get('port_id'), wish.get('address'), wish.get('device'), wish.get('tag')
    )
    work.outputs.vif = ports.bind_one(work, port, work.outputs.profile, work.outputs.mappings or {}).stored()


def undo_create_or_bind_port(work: Work[AttachOutputs]) -> None:
    """Delete the port that the step created, or unbind the user's own port.

    All ports in the server's info cache are kept. The new port is not in the info cache yet.
    """
    given = _port_id(work)
    port_releases.drop(work, [given] if given else [], [vif.id for vif in work.vifs(fresh=True)])


def plug(work: Work[AttachOutputs]) -> None:
    """Ask the host to plug the interface into the guest. Add the interface to the info cache."""
    vif = work.outputs.vif or {}
    work.call_host(work.instance_row()['host'], Compute.attach_interface, instance=work.instance(), vif=vif)
    _end(work, AttachInterface.event, lambda vifs: [*vifs, vif])


def undo_plug(work: Work[AttachOutputs]) -> None:
    """Ask the host to unplug the interface from the guest.

    If the host is down, an operation row is added (a pending release). A conductor calls the host when it is up again.
    """
    if work.outputs.vif is not None:
        releases.ask_to_undo(
            work,
            work.instance_row()['host'],
            Compute.undo_attach_interface,
            instance=work.instance(),
            vif=work.outputs.vif,
        )


class AttachInterface(_Interfaces[AttachOutputs]):
    """The operation that attaches an interface to an existing server."""

    name, outputs, event = 'attach_interface', AttachOutputs, 'compute_attach_interface'
    steps = (
        # ``saved``: the end of this step is written to the operation row before the next step calls the host.
        # A host rejects the call of a step that is not the current step in the operation row.
        Step(
            'allocate_port_resources',
            allocate_port_resources,
            undo_allocate_port_resources,
            saved=lambda work: work.outputs.mappings is not None or _request(work) is not None,
            formerly='allocate',
        ),
        Step(
            'claim_function',
            claim_function,
            undo_claim_function,
            saved=lambda work: work.outputs.profile is not None,
            formerly='claim',
        ),
        Step('create_or_bind_port', create_or_bind_port, undo_create_or_bind_port, formerly='port'),
        Step('plug', plug, undo_plug),
    )

    def came_for(self, work: Work[AttachOutputs]) -> str | None:
        """Return the port's id if its PCI request must be deleted from the server's row after a failure, else None."""
        request = _request(work)
        return request.requester_id if request is not None else None


# --- detach ----------------------------------------------------------------------------------------------------------
def unplug(work: Work[Outputs]) -> None:
    """Ask the host to unplug the interface. Wait until the guest has released it."""
    vif = work.arguments(DetachInterfaceArguments).vif
    if vif is not None:
        work.call_host(work.instance_row()['host'], Compute.detach_interface, instance=work.instance(), vif=vif)


def undo_unplug(work: Work[Outputs]) -> None:
    """Ask the host to plug the interface into the guest again, unless the guest has already released it.

    If the host is down, an operation row is added (a pending release). A conductor calls the host when it is up again.
    """
    vif = work.arguments(DetachInterfaceArguments).vif
    if not _is_out(work) and vif is not None:
        releases.ask_to_undo(
            work,
            work.instance_row()['host'],
            Compute.undo_detach_interface,
            instance=work.instance(),
            vif=vif,
        )


def _is_out(work: Work[Outputs]) -> bool:
    """Return whether the guest has released the interface. If it has, the detach is completed and not undone."""
    return work.position > DetachInterface().index('unplug')


def free_port(work: Work[Outputs]) -> None:
    """Delete or unbind the port, release the port's device and resources, and remove the port from the info cache."""
    args = work.arguments(DetachInterfaceArguments)
    stored, port_id = args.vif, args.port_id if args.vif is None else args.vif['id']
    if stored is not None:
        vif = Vif.read(stored)
        port_releases.drop_one(work, vif)
        port_releases.drop_guarantees(work, vif.id, PortResources.read(vif.id, vif.resource_request))
    for request in pci_ports.requests_of_ports(work.instance(fresh=True).pci_requests):
        if request.requester_id == port_id:
            _free_function(work, request.request_id)
    _end(work, DetachInterface.event, lambda vifs: [one for one in vifs if one['id'] != port_id], left=port_id)


def _free_function(work: Work[Outputs], request_id: str) -> None:
    """Ask the host to free the device of this PCI request.

    If the host is down, or if the operation is ending after a failure, an operation row is added (a pending release),
    and a conductor calls the host later.
    """
    host, server = work.instance_row()['host'], work.instance()
    if not work.failed:
        try:
            work.call_host(host, Compute.free_function, instance=server, request_id=request_id)
            return
        except HostDown as error:
            LOG.info(
                'Could not free the device of PCI request %s now; the host is called again later: %s',
                request_id,
                error,
                instance_uuid=work.instance_uuid,
            )
    releases.add_pending_release(work, host, Compute.free_function, instance=server, request_id=request_id)


class DetachInterface(_Interfaces[Outputs]):
    """The operation that detaches an interface from a server."""

    name, outputs, event = 'detach_interface', Outputs, 'compute_detach_interface'
    steps = (Step('unplug', unplug, undo_unplug), Step('free_port', free_port))

    def ended_badly(self, work: Work[Outputs]) -> None:
        """Complete the detach if the guest has released the interface, else end the operation with the result Error."""
        if _is_out(work):
            free_port(work)
        else:
            super().ended_badly(work)


FLOWS = (AttachInterface(), DetachInterface())
