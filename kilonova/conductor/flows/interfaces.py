"""A server that is there gets an interface, or gives one up.

Attach: allocate · claim · port · plug. Placement allocates what the port guarantees, the host claims the function of a
PCI device that the port is (SR-IOV), of what guarantees it, the port is made, or its user's own is bound, then the
guest is plugged in; what fails leaves none of it. Detach: unplug · free_port. A guest that keeps its card ends it, and
all is as it was; once the card is out, it goes to its end: the port is deleted, or unbound where its user made it, and
the host has its device back, and what it guaranteed. Neither has a task state; both end with what the info cache and
the server's PCI requests say from then on.

Detach also gives back what a server has for a port that is gone in the network service (``ports.NetworkChanged``);
where a move has left that port behind, there is nothing to unplug: ``vif`` is None.
"""
from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kilonova import objects
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import beside, guarantees, port_releases, port_wishes, ports
from kilonova.conductor.row import Outputs, OutputsT
from kilonova.conductor.work import HostGone, Step, Work
from kilonova.db import engine
from kilonova.db.queries import info_caches, instances
from kilonova.errors import Unanswered
from kilonova.objects.port_resources import PortResources
from kilonova.objects.vif import Vif
from kilonova.pci import ports as pci_ports
from kilonova.pci import request as pci_request

LOG = logging.getLogger(__name__)

# Interfaces as the info cache has them.
Vifs = list[dict[str, Any]]


def _end(work: Work[Any], event: str, change: Callable[[Vifs], Vifs], left: str | None = None) -> None:
    """The operation is over: the info cache, the PCI requests (without those of the port that has ``left``), the event
    and the action, together. Unanswered: somebody else has just written the cache."""
    forget = _forget(work, left)
    row = work.instance_row(fresh=True)
    seen = row['extra_network_info']
    vifs = change(json.loads(seen or '[]'))

    def end(conn: engine.Connection) -> None:
        uuid = work.instance_uuid
        if not info_caches.replace(conn, uuid, seen, vifs):
            raise Unanswered(who=f'server {uuid}', reason='its ports were changed meanwhile')
        forget(conn)
        instances.add_events(conn, uuid, work.request_id, [work.event(event, host=row['host'])])
        instances.finish_action(conn, uuid, work.request_id, 'Error' if work.failed else None)
    work.end(end)


def _forget(work: Work[Any], port_id: str | None) -> Callable[[engine.Connection], None]:
    """The server asks for no device for this port any more. ``write(conn)``; it must be made before the transaction."""
    left = pci_ports.without(work.instance(fresh=True).pci_requests, port_id) if port_id is not None else None
    extra = {'pci_requests': left.to_column()} if left is not None else {}
    return lambda conn: instances.update_extra(conn, work.instance_uuid, extra)


class _Interfaces(Flow[OutputsT]):
    """``event``: of the action. A failure leaves the server as it was, with the reason in the event."""

    event: str

    def came_for(self, work: Work[OutputsT]) -> str | None:
        """The port for which the server may ask for a device that it hasn't got after a failure."""
        return None

    def ended_badly(self, work: Work[OutputsT]) -> None:
        forget = _forget(work, self.came_for(work))
        host = work.instance_row()['host']

        def end(conn: engine.Connection) -> None:
            forget(conn)
            instances.add_events(conn, work.instance_uuid, work.request_id, [work.event(self.event, 'Error', host)])
            instances.finish_action(conn, work.instance_uuid, work.request_id, 'Error')
        work.end(end)


# --- attach ----------------------------------------------------------------------------------------------------------
@dataclass
class AttachOutputs(Outputs):
    """``vif``: the new interface in the form of the info cache; None: it has no port yet. ``profile``: what its binding
    says of the device that was claimed for it; ``mappings``: the providers of what it guarantees, by group."""

    vif: dict[str, Any] | None = None
    profile: dict[str, Any] | None = None
    mappings: dict[str, list[str]] | None = None


def _request(work: Work[AttachOutputs]) -> objects.InstancePCIRequest | None:
    """For the device that the port is; None: it is none."""
    request = work.args.get('request')
    return objects.base.Serializer().deserialize_entity(work.ctxt, request) if request is not None else None


def _wanted(work: Work[AttachOutputs]) -> PortResources | None:
    """What the port asks of Placement."""
    return PortResources.read(work.args['wish']['port_id'] or '', work.args.get('resources'))


def allocate(work: Work[AttachOutputs]) -> None:
    """The server holds in Placement what the port guarantees."""
    wanted = _wanted(work)
    if wanted is not None:
        work.outputs.mappings = guarantees.add(work, work.args['wish']['port_id'], wanted, _request(work))


def undo_allocate(work: Work[AttachOutputs]) -> None:
    """And no more."""
    port_releases.drop_guarantees(work, work.args['wish']['port_id'], _wanted(work))


def claim(work: Work[AttachOutputs]) -> None:
    """The server's host claims the device that the port is."""
    request = _request(work)
    if request is not None:
        (chosen,) = pci_request.with_allocation([request], work.outputs.mappings).requests
        work.outputs.profile = work.ask(work.instance_row()['host'], 'claim_function', instance=work.instance(),
                                        request=chosen)['profile']
        work.changed()


def undo_claim(work: Work[AttachOutputs]) -> None:
    """The device is free; its host does that later if it is down."""
    request = _request(work)
    if request is not None:
        beside.ask_to_undo(work, work.instance_row()['host'], 'undo_claim_function', instance=work.instance(fresh=True),
                           request_id=request.request_id)


def port(work: Work[AttachOutputs]) -> None:
    """A port is made, or the user's own is bound to the server and its host."""
    work.outputs.vif = ports.bind_one(work, port_wishes.Wish(**work.args['wish']), work.outputs.profile,
                                      work.outputs.mappings or {}).stored()


def undo_port(work: Work[AttachOutputs]) -> None:
    """The server has the ports of its info cache, and no others."""
    given = work.args['wish']['port_id']
    port_releases.drop(work, [given] if given else [], [vif.id for vif in work.vifs(fresh=True)])


def plug(work: Work[AttachOutputs]) -> None:
    """The host plugs the guest in; then the server has the interface."""
    vif = work.outputs.vif or {}
    work.ask(work.instance_row()['host'], 'attach_interface', instance=work.instance(), vif=vif)
    _end(work, Attach.event, lambda vifs: [*vifs, vif])


def undo_plug(work: Work[AttachOutputs]) -> None:
    """The guest isn't plugged in; its host does that later if it is down."""
    if work.outputs.vif is not None:
        beside.ask_to_undo(work, work.instance_row()['host'], 'undo_attach_interface', instance=work.instance(),
                           vif=work.outputs.vif)


class Attach(_Interfaces[AttachOutputs]):
    name, outputs, event = 'attach_interface', AttachOutputs, 'compute_attach_interface'
    steps = (
        # The host compares its key with the row.
        Step('allocate', allocate, undo_allocate,
             saved=lambda work: work.outputs.mappings is not None or _request(work) is not None),
        Step('claim', claim, undo_claim, saved=lambda work: work.outputs.profile is not None),
        Step('port', port, undo_port),
        Step('plug', plug, undo_plug),
    )

    def came_for(self, work: Work[AttachOutputs]) -> str | None:
        request = _request(work)
        return request.requester_id if request is not None else None


# --- detach ----------------------------------------------------------------------------------------------------------
def unplug(work: Work[Outputs]) -> None:
    """The guest lets the interface go."""
    if work.args['vif'] is not None:
        work.ask(work.instance_row()['host'], 'detach_interface', instance=work.instance(),
                 vif=work.args['vif'])


def undo_unplug(work: Work[Outputs]) -> None:
    """The guest has it again; its host does that later if it is down."""
    if not _is_out(work) and work.args['vif'] is not None:
        beside.ask_to_undo(work, work.instance_row()['host'], 'undo_detach_interface', instance=work.instance(),
                           vif=work.args['vif'])


def _is_out(work: Work[Outputs]) -> bool:
    """Whether the guest has let it go: from then on there is no way back."""
    return work.position > Detach().index('unplug')


def free_port(work: Work[Outputs]) -> None:
    """The port is deleted, or its user's again, and its device is free, and what it guaranteed; then the server has one
    interface less."""
    stored = work.args['vif']
    port_id = stored['id'] if stored is not None else work.args['port_id']
    if stored is not None:
        vif = Vif.read(stored)
        port_releases.drop_one(work, vif)
        port_releases.drop_guarantees(work, vif.id, PortResources.read(vif.id, vif.resource_request))
    for request in pci_ports.requests_of_ports(work.instance(fresh=True).pci_requests):
        if request.requester_id == port_id:
            _free_function(work, request.request_id)
    _end(work, Detach.event, lambda vifs: [one for one in vifs if one['id'] != port_id], left=port_id)


def _free_function(work: Work[Outputs], request_id: str) -> None:
    """The device of this request is there for others; its host does that later if it is down."""
    host, server = work.instance_row()['host'], work.instance()
    if not work.failed:
        try:
            work.ask(host, 'free_function', instance=server, request_id=request_id)
            return
        except HostGone as error:
            LOG.info('Device of request %s of %s is freed later: %s', request_id, work.instance_uuid, error)
    beside.pend(work, host, 'free_function', instance=server, request_id=request_id)


class Detach(_Interfaces[Outputs]):
    name, outputs, event = 'detach_interface', Outputs, 'compute_detach_interface'
    steps = (Step('unplug', unplug, undo_unplug), Step('free_port', free_port))

    def ended_badly(self, work: Work[Outputs]) -> None:
        """Cancelled behind that point it goes to its end."""
        if _is_out(work):
            free_port(work)
        else:
            super().ended_badly(work)


FLOWS = (Attach(), Detach())
