"""Functions that read or write the database objects of this service. Each call goes to the conductor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.context import RequestContext
from kilonova.pci.devices import Changes
from kilonova.rpc.notify import OFF, Notifications
from kilonova.rpc.versions import SERVICE_VERSION

LOG = logging.getLogger(__name__)

BINARY, TOPIC = 'nova-compute', 'compute'


class InvalidNodeConfiguration(errors.Invalid):
    """The node's record in the database belongs to another host, or has another name than this hypervisor's node."""

    msg_fmt = 'Invalid node identity configuration: %(reason)s'


def service(ctxt: RequestContext, host: str, notify: Notifications = OFF) -> objects.Service:
    """Return this host's service record. If it does not exist, create it and send a notification."""
    try:
        record = objects.Service.get_by_args(ctxt, host, BINARY)
    except errors.ServiceNotFound:
        record = objects.Service(
            ctxt,
            host=host,
            binary=BINARY,
            topic=TOPIC,
            report_count=0,
            disabled=False,
            disabled_reason=None,
            forced_down=False,
            version=SERVICE_VERSION,
        )
        record.create()
        notify.emit(ctxt, 'service.create', service=record)
        return record
    if record.version != SERVICE_VERSION:
        record.version = SERVICE_VERSION
        record.save()
    found: objects.Service = record
    return found


def node(ctxt: RequestContext, host: str, resources: dict[str, Any], host_ip: str) -> objects.ComputeNode:
    """Return the record of this host's compute node, found by the node's permanent uuid. Create it if it is missing.

    A record keeps its node name (``hypervisor_hostname``), which may differ from the host's name: computes of Nova name
    their nodes after the machine. Raises InvalidNodeConfiguration if the record belongs to another host.
    """
    values = {'host': host, 'uuid': resources['uuid'], 'hypervisor_hostname': resources['hypervisor_hostname']}
    try:
        record = objects.ComputeNode.get_by_uuid(ctxt, resources['uuid'])
    except errors.ComputeHostNotFound:
        record = objects.ComputeNode(
            ctxt,
            **values,
            mapped=0,
            running_vms=0,
            current_workload=0,
            host_ip=host_ip,
            vcpus_used=0,
            memory_mb_used=0,
            local_gb_used=0,
        )
        record.update_from_virt_driver(without_usage(resources))
        record.create()
        LOG.info('Compute node record created for %s:%s with uuid: %s', host, record.hypervisor_hostname, record.uuid)
    if record.host != host:
        raise InvalidNodeConfiguration(
            reason=f'node {record.uuid} of the compute_id file belongs to host {record.host}, and this is host {host}. '
            'Was [DEFAULT]host changed, or the file copied?'
        )
    found: objects.ComputeNode = record
    return found


def without_usage(resources: dict[str, Any]) -> dict[str, Any]:
    """Return the driver's resources without usage and NUMA topology, because the tracker has the exact values."""
    return {name: value for name, value in resources.items() if not name.endswith('_used') and name != 'numa_topology'}


def devices(ctxt: RequestContext, node_id: int) -> list[objects.PciDevice]:
    """Return the device rows of this node."""
    return list(objects.PciDeviceList.get_by_compute_node(ctxt, node_id))


def save_devices(
    ctxt: RequestContext, node_id: int, changes: Changes, messages: Iterable[tuple[str, str]] = ()
) -> dict[str, int]:
    """Write the changes of device rows, and return a dict from address to row id for the created rows.

    ``messages`` has pairs of server uuid and text, for servers whose device has become unavailable. Each text is added
    to the server's instance actions.
    """
    found: dict[str, int] = objects.PciDeviceList.save_all(
        ctxt,
        node_id,
        {
            'created': changes.created,
            'updated': changes.updated,
            'removed': changes.removed,
            'statuses': changes.statuses,
            'told': [{'instance_uuid': uuid, 'message': text} for uuid, text in messages],
        },
    )
    return found


def instances(ctxt: RequestContext, host: str) -> list[objects.Instance]:
    """Return the servers of this host."""
    return list(objects.InstanceList.get_by_host(ctxt, host))


def busy(ctxt: RequestContext, host: str) -> set[str]:
    """Return the uuids of servers on this host, or moving from or to it, that have a running operation."""
    return set(objects.InstanceList.get_uuids_with_operations(ctxt, host))


def instance(ctxt: RequestContext, uuid: str) -> objects.Instance | None:
    """Return the server with its current values in the database, or None if it has been deleted."""
    try:
        found: objects.Instance | None = objects.Instance.get_by_uuid(ctxt, uuid)
        return found
    except errors.InstanceNotFound:
        return None


def deleted(ctxt: RequestContext, uuids: list[str], seconds: float) -> list[objects.Instance]:
    """Return the servers among ``uuids`` that were deleted ``seconds`` ago or earlier and have no operation."""
    return list(objects.InstanceList.get_deleted(ctxt, uuids, seconds))


def devices_of(ctxt: RequestContext, uuid: str) -> list[objects.PciDevice]:
    """Return the devices that a server holds on all hosts."""
    found = instance(ctxt, uuid)
    return list(found.pci_devices or ()) if found is not None else []


def evacuated(ctxt: RequestContext, host: str) -> list[objects.Migration]:
    """Return the evacuations from this host after which the host has not cleaned up yet."""
    return list(objects.MigrationList.get_evacuated(ctxt, host))


def moves(ctxt: RequestContext, host: str, nodename: str) -> list[objects.Migration]:
    """Return the moves from or to this node that still hold resources on it."""
    return list(objects.MigrationList.get_in_progress_by_host_and_node(ctxt, host, nodename))
