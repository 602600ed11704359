"""Flow that follows an event from Neutron about a server's ports.

The steps are refresh_info_cache, which refreshes the server's info cache, and detach_deleted_ports, which releases
devices and resources of ports that were deleted in Neutron.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from oslo_log import log as logging

from kilonova import states
from kilonova.clients.network import NetworkClient
from kilonova.clients.neutron.ports import Port, name_in_dns
from kilonova.clients.neutron.refusals import NetworkInvalid, PortChanged, PortNotFound
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import releases
from kilonova.conductor.flows.network import guarantees, port_vifs
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import RetryLater, Step, Work
from kilonova.context import get_admin_context
from kilonova.db import engine
from kilonova.db.arguments.attachments import DetachInterfaceArguments, NetworkChangedArguments
from kilonova.db.arguments.releases import PortResourcesRelease
from kilonova.db.queries import info_caches, instances, operations
from kilonova.errors import Cancelled, InstanceInvalidState, InstanceNotFound, Unanswered
from kilonova.objects.port_resources import total
from kilonova.objects.vif import ACCELERATED
from kilonova.pci import ports as pci_ports

LOG = logging.getLogger(__name__)
# BUSY: seconds until the next try if another operation works on the server.
# DETACH: name of the state transition that begins a detach.
BUSY, DETACH = 5.0, 'detach_interface.start'


@dataclass
class ChangedOutputs(Outputs):
    """Stored results of a refresh.

    ``gone`` are the ids of ports that do not belong to the server any more, and for which the server may still hold a
    device or resources.
    """

    gone: list[str] = field(default_factory=list)


def refresh_info_cache(work: Work[ChangedOutputs]) -> None:
    """Read the server's ports from Neutron, and write their addresses, floating IPs and groups to the info cache.

    An interface is removed if its port was deleted or belongs to another server. It is kept if the server holds a
    device or resources for the port (see ``detach_deleted_ports``), or if the port is an accelerator, which the server
    keeps until it is deleted. No interface is added, because an attach writes its interface itself. Raises Unanswered
    if the refresh must wait until another operation has ended.
    """
    args = work.arguments(NetworkChangedArguments)
    if args.at_rest is not None:
        releases.check_no_running_operation(work)
    row = work.instance_row(fresh=True)
    vifs, seen, held = work.vifs(), row['extra_network_info'], _held(work)
    if not vifs and not held:
        return
    client = work.env.networks
    there = {port.id: port for port in client.ports(device_id=work.instance_uuid)}
    ports = [there[vif.id] for vif in vifs if vif.id in there]
    if len(ports) < len(vifs) and not row['host']:
        # The server has no host, and one of its ports was deleted: wait until no operation of the server runs.
        # A running move still reads the interfaces of deleted ports in the info cache, to release their resources.
        releases.check_no_running_operation(work)
    if args.renamed:
        _name(client, ports, name_in_dns(row['hostname'] or ''))
    groups = client.security_groups_of(one for port in ports for one in port.security_groups)
    described = {
        vif.id: vif
        for vif in port_vifs.described(
            work,
            ports,
            [vif.id for vif in vifs if vif.preserve_on_delete],
            {port.id: tuple(groups[one].name for one in port.security_groups if one in groups) for port in ports},
            is_new=False,
        )
    }
    left = [
        dataclasses.replace(described.get(vif.id, vif), tag=vif.tag, before=vif.before)
        for vif in vifs
        if vif.id in described or vif.id in held or vif.vnic_type in ACCELERATED
    ]
    with engine.silence(), work.db.write() as conn:
        if args.renamed and (instances.get(conn, work.instance_uuid) or row)['hostname'] != row['hostname']:
            # The server was renamed while this step wrote the ports' DNS names. Write the names again.
            raise RetryLater(f'the DNS names of server {work.instance_uuid}', 'it was renamed meanwhile', 0)
        if info_caches.replace(conn, work.instance_uuid, seen, [vif.stored() for vif in left]):
            work.outputs.gone = [port_id for port_id in held if port_id not in there]
            return
    raise Unanswered(f'The ports of server {work.instance_uuid} were changed meanwhile; this will be retried')


def _name(client: NetworkClient, ports: Iterable[Port], name: str) -> None:
    """Set the DNS name of the ports to ``name``. An empty ``name`` leaves the DNS names unchanged."""
    for port in ports:
        try:
            client.set_name(port, name)
        except PortNotFound:
            continue
        except PortChanged as error:
            raise RetryLater(f'port {port.id}', 'it was changed meanwhile', BUSY) from error
        except NetworkInvalid as error:
            LOG.warning(
                'Could not set the dns_name of port %s, which keeps the old name: %s',
                port.id,
                error,
                instance_uuid=port.device_id,
            )


def _held(work: Work[Any]) -> list[str]:
    """Return the ids of ports for which the server has a PCI request or holds resources in Placement.

    Returns an empty list for a server without a host.
    """
    server = work.instance()
    if not server.host:
        return []
    devices = [request.requester_id for request in pci_ports.requests_of_ports(server.pci_requests)]
    return list(dict.fromkeys([*devices, *(vif.id for vif in server.vifs if vif.held)]))


def port_refresh_operations(work: Work[Any]) -> list[operations.OperationRow]:
    """Return a list of operation rows that refresh the server's info cache after a move was confirmed or reverted.

    The list has one row of kind network_changed. Its operation also releases devices and resources of ports that were
    deleted during the move. The list is empty if the server has no devices or resources for ports.
    """
    return (
        [operations.OperationRow.new(work.ctxt, NetworkChanged.name, work.instance_uuid, beside=True)]
        if _held(work)
        else []
    )


def surplus_release_operations(work: Work[Any]) -> list[operations.OperationRow]:
    """Return operation rows that release surplus port resources, after a revert has restored the former allocation.

    The former allocation may contain resources of ports that were deleted during the move. Returns an empty list if the
    allocation has only resources of the server's present ports.
    """
    held = guarantees.held(work)
    if not held or held == total(vif.held for vif in work.vifs()):
        return []
    classes = sorted({name for amounts in held.values() for name in amounts})
    return [
        operations.OperationRow.new(
            work.ctxt,
            'release',
            work.instance_uuid,
            PortResourcesRelease(resources_of=None, classes=classes),
            beside=True,
        )
    ]


def detach_deleted_ports(work: Work[ChangedOutputs]) -> None:
    """Start a detach for each deleted port for which the server holds a device or resources.

    If the server's state does not allow a detach, the server keeps the device and the resources for now. Raises
    Unanswered if another operation works on the server.
    """
    while work.outputs.gone:
        _detach(work, work.outputs.gone[0])
        del work.outputs.gone[0]


def _detach(work: Work[ChangedOutputs], port_id: str) -> None:
    releases.check_no_running_operation(work)
    row, uuid = work.instance_row(fresh=True), work.instance_uuid
    there = [port for port in work.env.networks.ports(ids=[port_id]) if port.device_id == uuid]
    if there or port_id not in _held(work) or row['vm_state'] not in states.TRANSITIONS[DETACH].vm:
        return
    vif = next((vif.stored() for vif in work.vifs() if vif.id == port_id), None)
    ctxt = get_admin_context()
    args = DetachInterfaceArguments(vif=vif, port_id=port_id)
    detach = operations.OperationRow.new(ctxt, 'detach_interface', uuid, args)

    def check(conn: engine.Connection) -> None:
        # After ``row`` was read, another operation may have changed the info cache, for example by a new attach.
        # If the info cache was changed, RetryLater rolls this transaction back, and the step is retried.
        if operations.instance_or_404(conn, uuid)['extra_network_info'] != row['extra_network_info']:
            raise RetryLater(f'a detach from server {uuid}', 'its ports were changed meanwhile', BUSY)

    try:
        with engine.silence():
            operations.accept(
                work.db,
                instance_uuid=uuid,
                event=DETACH,
                operation=detach,
                write=check,
                action={
                    'action': 'detach_interface',
                    'request_id': ctxt.request_id,
                    'user_id': None,
                    'project_id': None,
                },
            )
    except InstanceInvalidState as error:
        raise RetryLater(f'a detach from server {uuid}', 'another operation works on it', BUSY) from error
    LOG.info(
        'Port %s was deleted; releasing the device and the resources that the server holds for it',
        port_id,
        instance_uuid=uuid,
    )
    work.env.runner.wake(work.db, [detach.uuid])


class NetworkChanged(Flow[ChangedOutputs]):
    """The operation that refreshes a server's info cache after an event from Neutron about the server's ports.

    The operation runs at the same time as the server's other operations.
    """

    name, outputs = 'network_changed', ChangedOutputs
    forward_only = True
    steps = (
        Step(
            'refresh_info_cache',
            refresh_info_cache,
            saved=lambda work: bool(work.outputs.gone),
            formerly='refresh',
        ),
        Step('detach_deleted_ports', detach_deleted_ports, saved=False, formerly='give_back'),
    )

    def may_end(self, work: Work[ChangedOutputs], error: Exception) -> bool:
        """Return whether the operation ends with this error instead of being retried.

        The operation ends if it was cancelled, or if the server does not exist any more.
        """
        return isinstance(error, (Cancelled, InstanceNotFound))
