"""Create servers: check everything that can be checked, write all rows in one transaction, and wake a conductor.

The number of SQL statements of a request does not depend on the number of servers: one for the flavor, one for zones or
hosts if the request names them, one or two for the quota limits, one in each database to count the usage, and four that
write the rows (``operations.accept_create``).
"""

from __future__ import annotations

import contextlib
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from oslo_log import log as logging
from oslo_utils import uuidutils

from kilonova import sealing, states
from kilonova.accel import holder
from kilonova.api.services import (
    accelerators,
    block_devices,
    delete,
    hosts,
    images,
    keypairs,
    networks,
    passwords,
    quota,
    server_groups,
    unsupported,
    volumes,
)
from kilonova.api.services.backend import Backend
from kilonova.api.services.scatter_gather import first, refuse_if_any
from kilonova.api.services.server_operations import WORK, find_server
from kilonova.context import RequestContext
from kilonova.db.arguments.servers import BootArguments
from kilonova.db.queries import cells, compute_nodes, flavors, instances, operations, owners, withdrawals
from kilonova.errors import FlavorNotFound, InstanceNotFound, InstanceNotReady, Invalid
from kilonova.objects import (
    BlockDeviceMappingList,
    Destination,
    Flavor,
    ImageMeta,
    Instance,
    InstanceNUMATopology,
    InstancePCIRequests,
    KeyPair,
    KeyPairList,
    RequestGroup,
    RequestSpec,
    TagList,
    port_resources,
)
from kilonova.objects.image_meta import system_metadata
from kilonova.pci import request as pci_request
from kilonova.virt import disk_names
from kilonova.virt.hardware import constraints, tuning
from kilonova.virt.hardware import topology as cpu_layout

LOG = logging.getLogger(__name__)

MAX_USER_DATA = 65535
_RESERVATION = string.ascii_lowercase + string.digits
MAX_HOSTNAME, MAX_FQDN = 63, 255


class TooManyServers(Invalid):
    """Error 400: the request asks for more servers than [api]max_servers_per_request allows."""

    msg_fmt = 'One request can create at most %(most)d servers, not %(wanted)d. Send several requests.'


class ZoneUnavailable(Invalid):
    """Error 400: no enabled compute service is in the requested availability zone."""

    msg_fmt = 'The requested availability zone is not available'


class HostUnknown(Invalid):
    """Error 400: no cell has the requested host or node."""

    msg_fmt = 'Compute host %(host)s could not be found.'


@dataclass(frozen=True, kw_only=True)
class CreateRequest:
    """The parameters of one request that creates servers.

    ``zone``, ``force_host`` and ``force_node`` are the parts of the parameter availability_zone (ZONE:HOST:NODE). The
    servers get the forced host without the scheduler's filters. ``host`` and ``hypervisor_hostname`` also request a
    destination, but it must pass the filters. A field ``…_allowed`` is true if the caller's policy rules or the
    microversion permit this feature, for example multiattach volumes from 2.60 on.
    """

    name: str
    flavor_ref: str
    image_ref: str | None
    networks: Any = None
    metadata: dict[str, str] = field(default_factory=dict)
    admin_password: str | None = field(default=None, repr=False)
    zone: str | None = None
    force_host: str | None = None
    force_node: str | None = None
    host: str | None = None
    hypervisor_hostname: str | None = None
    block_devices: list[dict[str, Any]] = field(default_factory=list)
    old_block_devices: list[dict[str, Any]] = field(default_factory=list)
    personality: list[dict[str, Any]] = field(default_factory=list, repr=False)
    config_drive: bool = False
    user_data: str | None = field(default=None, repr=False)
    key_name: str | None = None
    security_groups: list[str] = field(default_factory=list)
    min_count: int = 1
    max_count: int = 1
    disk_config: str | None = None
    access_ip_v4: str | None = None
    access_ip_v6: str | None = None
    description: str | None = None
    tags: list[str] = field(default_factory=list)
    hostname: str | None = None
    hints: dict[str, Any] = field(default_factory=dict)
    certificates: list[str] = field(default_factory=list)
    zero_disk_allowed: bool = False
    external_network_allowed: bool = False
    multiattach_allowed: bool = False
    guarantees_allowed: bool = False


@dataclass(frozen=True)
class Created:
    """The result of a create.

    ``rows`` has the uuid and the auto_disk_config of each new server. ``reservation_id`` is the id of the whole
    request. ``admin_password`` is the given or generated password, or None if no key is configured to encrypt it.
    """

    rows: list[dict[str, Any]]
    reservation_id: str
    admin_password: str | None = field(repr=False)


@dataclass(frozen=True)
class _Shared:
    """The values that all servers of one create request have in common."""

    request: CreateRequest
    flavor: Flavor
    image: dict[str, Any]
    key: KeyPair | None
    disks: block_devices.WantedDisks
    files: list[tuple[str, str]] = field(repr=False)
    pci_requests: list[Any]
    numa_topology: InstanceNUMATopology | None
    zone: str | None
    destination: Destination | None
    reservation_id: str
    count: int
    automatic_disk: bool
    kernels: images.Kernels
    networks: networks.FoundNetworks
    volumes: list[volumes.ChosenVolume]
    group: dict[str, Any] | None = None
    accelerators: list[RequestGroup] | None = None


def parse_zone(text: str | None) -> tuple[str | None, str | None, str | None]:
    """Split 'zone:host:node' and return (zone, host, node), where empty parts are None.

    Raises Invalid if there are more than three parts.
    """
    parts = (text or '').split(':')
    if len(parts) > 3:
        raise Invalid('Unable to parse availability zone: it must be ZONE, ZONE:HOST or ZONE:HOST:NODE')
    zone, host, node = ([part or None for part in parts] + [None, None])[:3]
    return zone, host, node


@quota.settled
def create(backend: Backend, ctxt: RequestContext, request: CreateRequest) -> Created:
    """Accept a request for servers and wake a conductor. The new servers are in the state BUILD.

    Errors that occur later are recorded in the servers' faults. Raises subclasses of Invalid, Forbidden, Conflict and
    Unavailable if a check fails, for example OverQuota, or if a service does not answer.
    """
    # 1. Checks that need no other service.
    check_request(request)
    asked = networks.read(backend, ctxt, request.networks, request.security_groups, request.max_count)
    # 2. Look up and check the flavor, disks, image, devices and networks.
    flavor = find_flavor(backend, ctxt, request.flavor_ref)
    named, devices = _image_of_ref(backend, ctxt, request)
    disks = block_devices.read(
        block_devices.beside_image(request.block_devices, devices, request.image_ref),
        request.old_block_devices,
        flavor,
        backend.options.max_local_block_devices,
        volumes=backend.volumes is not None,
        has_image=named is not None and not block_devices.has_root(devices),
    )
    block_devices.check_count(backend.options.max_disk_devices_to_attach, disks.local + len(disks.volumes))
    chosen = volumes.find(backend, ctxt, disks.volumes, request.max_count, multiattach=request.multiattach_allowed)
    image = _image(backend, ctxt, request, named, disks, chosen, flavor)
    automatic = images.disk_config(image.get('properties') or {}, image.get('id'), request.disk_config)
    pci_requests = pci_requests_of(backend, flavor['extra_specs'], image)
    made = Flavor.from_row(ctxt, flavor)
    numa_topology = numa_topology_of(made, image)
    unsupported.check_flavor(made.extra_specs)
    check_board(made, image)
    kernels = images.find_kernels(backend, ctxt, image, made.memory_mb)
    key = keypairs.for_server(backend, ctxt, request.key_name)
    interfaces = networks.find(backend, ctxt, asked, external=request.external_network_allowed)
    interfaces.check_version(guarantees=request.guarantees_allowed)
    groups = accelerators.groups(backend, ctxt, made.extra_specs, interfaces.profiles)
    pci_requests += interfaces.devices(
        pci_request.numa_affinity_policy(flavor['extra_specs'], image.get('properties') or {})
    )
    # 3. Look up the requested zone, host and server group.
    zone, destination = _zone_and_destination(backend, ctxt, request)
    group = server_groups.asked_for(backend, ctxt, request.hints.get('group'))
    # 4. Check the quotas.
    allowed = quota.limits(backend, ctxt.project_id, ctxt.user_id)
    quota.check_metadata(allowed, request.metadata)
    files = passwords.read_files(request.personality, allowed)
    count = quota.check_create(backend, allowed, quota.sizes(made, image), request.min_count, request.max_count)
    count = networks.fit(backend, ctxt, interfaces, request.min_count, count)
    if count > backend.options.max_servers_per_request:
        raise TooManyServers(wanted=count, most=backend.options.max_servers_per_request)
    if count < request.max_count:
        LOG.info(
            'Max count reduced from %d to %d by the quota of project %s', request.max_count, count, ctxt.project_id
        )
    server_groups.check_members(allowed, group, count)
    shared = _Shared(
        request,
        made,
        image,
        key,
        disks,
        files,
        pci_requests,
        numa_topology,
        zone,
        destination,
        'r-' + passwords.random_text(8, _RESERVATION),
        count,
        automatic,
        kernels,
        interfaces,
        chosen,
        group,
        groups,
    )
    keys = passwords.keys(backend, request.admin_password or request.personality)
    # 5. Write the rows and wake a conductor.
    return _accept(backend, ctxt, shared, allowed, keys)


# --- checks of a create request --------------------------------------------------------------------------------------
def check_request(request: CreateRequest) -> None:
    """Check the parts of the request that need no database and no other service. Raises Invalid if a check fails."""
    if request.min_count > request.max_count:
        raise Invalid('min_count must be <= max_count')
    check_user_data(request.user_data)
    if not (request.image_ref or request.block_devices or request.old_block_devices):
        raise Invalid('Missing imageRef attribute')
    check_certificates(request.certificates)
    if (request.host or request.hypervisor_hostname) and (request.force_host or request.force_node):
        raise Invalid('Unable to specify both the host in availability_zone and host or hypervisor_hostname.')


def check_user_data(text: str | None) -> None:
    """Raise Invalid if the user data is longer than 65,535 characters."""
    if len(text or '') > MAX_USER_DATA:
        raise Invalid(
            f'User data too large. User data must be no larger than {MAX_USER_DATA} bytes once base64 '
            f'encoded. Your data is {len(text or "")} bytes'
        )


def check_certificates(ids: Sequence[str]) -> None:
    """Raise CertificatesUnverified if certificates are given, because this cloud does not verify image signatures."""
    if ids:
        raise unsupported.CertificatesUnverified


def _image_of_ref(
    backend: Backend, ctxt: RequestContext, request: CreateRequest
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the image that imageRef names, and the block devices that the image's properties describe.

    Return (None, []) if the request has no imageRef.
    """
    if not request.image_ref:
        return None, []
    _check_id(request.image_ref)
    return images.find_with_devices(backend, ctxt, request.image_ref)


def _image(
    backend: Backend,
    ctxt: RequestContext,
    request: CreateRequest,
    named: dict[str, Any] | None,
    disks: block_devices.WantedDisks,
    chosen: Sequence[volumes.ChosenVolume],
    flavor: dict[str, Any],
) -> dict[str, Any]:
    """Check the image of the root disk against the flavor or the root volume, and return the image as a dict.

    ``named`` is the image of imageRef, or None. ``disks`` are the requested disks, ``chosen`` the looked-up volumes. If
    the server boots from a volume, the result is ``named`` or, without imageRef, the image that the volume was made
    from. Its id is then None, because volume-backed servers have no image id, as in Nova.

    Raises Invalid or Forbidden if the flavor's memory, or the flavor's root disk or the root volume, is too small.
    Raises InvalidBlockDevice if imageRef and the block device of the root disk name different images.
    """
    root = next((one for one in chosen if one.wish.is_root), None)
    if root is not None:
        image = {**(named if named is not None else root.image or {}), 'id': None}
        images.check_on_volume(image, flavor, root.size)
        return image
    if named is not None and disks.image and request.image_ref != disks.image:
        raise block_devices.InvalidBlockDevice(reason='the image of the root disk differs from imageRef.')
    if named is None:
        _check_id(disks.image)
        raise block_devices.InvalidBlockDevice(
            reason=f'Mapping image {disks.image} to local needs an imageRef with the same image.'
        )
    images.check_fits(named, flavor, request.zero_disk_allowed)
    return named


def _check_id(image_id: str | None) -> None:
    if not image_id or not uuidutils.is_uuid_like(image_id):
        raise Invalid('Invalid imageRef provided.')


def find_flavor(backend: Backend, ctxt: RequestContext, flavor_ref: str) -> dict[str, Any]:
    """Return the flavor's row with its extra specs.

    Raises Invalid if the flavor does not exist, is disabled, or can't be used by the caller.
    """
    flavor = None
    if flavor_id := _flavor_id(flavor_ref):
        with backend.api_db.read() as conn:
            flavor = flavors.get(conn, flavor_id, owners.seen_by(ctxt))
    if flavor is None or flavor['disabled']:
        raise Invalid(FlavorNotFound(flavor_id=flavor_ref).message)
    return flavor


def _flavor_id(ref: str) -> str:
    """Return the flavor id in a flavorRef, which old clients send as a URL.

    Return '' if the text can't be an id.
    """
    if '/' not in ref:
        return ref
    found = unquote(ref.partition('?')[0].rstrip('/').rpartition('/')[2])
    # A database column can't store a NUL character, so a text with NUL is no id.
    return '' if '\x00' in found else found


def pci_requests_of(backend: Backend, extra_specs: dict[str, str], image: dict[str, Any]) -> list[Any]:
    """Return the PCI requests for the passthrough devices that the flavor's extra specs ask for.

    Raises Invalid if a PCI alias does not exist, or if the extra spec is malformed.
    """
    policy = pci_request.numa_affinity_policy(extra_specs, image.get('properties') or {})
    return pci_request.requests_from_flavor(extra_specs, backend.aliases, policy)


def numa_topology_of(flavor: Flavor, image: dict[str, Any]) -> InstanceNUMATopology | None:
    """Return the NUMA topology that flavor and image request, including dedicated CPUs and page sizes.

    Return None if they request no topology. Raises Invalid if the values of flavor and image are not valid or
    contradict each other.
    """
    properties = ImageMeta.from_dict(image).properties
    cpu_layout.choose(flavor.vcpus, cpu_layout.limits_of(flavor.extra_specs, properties))
    return constraints.of(flavor, properties)


def check_board(flavor: Flavor, image: dict[str, Any]) -> None:
    """Check the extra specs and image properties for CPU and disk limits, serial ports, watchdog, firmware and video.

    Raises Invalid if a value is not valid, or if the extra specs of ``flavor`` and the properties of ``image``
    contradict each other.
    """
    tuning.of(flavor.extra_specs, ImageMeta.from_dict(image).properties)


def _zone_and_destination(
    backend: Backend, ctxt: RequestContext, request: CreateRequest
) -> tuple[str | None, Destination | None]:
    """Check the zone, host and node that a request names, and return (availability zone, Destination).

    The zone is [DEFAULT]default_schedule_zone (maybe None) if the request names none. The Destination is the requested
    ``host`` or ``hypervisor_hostname``, or None. A forced host is checked, too, but it is not part of the result.
    Raises ZoneUnavailable or HostUnknown (both subclasses of Invalid) if the zone, host or node does not exist.
    """
    zone = request.zone or backend.options.schedule_zone
    asked, node = request.host or request.force_host, request.hypervisor_hostname or request.force_node
    if not (asked or node):
        if zone is not None:
            check_zone(backend, zone)
        return zone, None
    if asked:
        check_host(backend, asked)
    on = _host_of_node(backend, node) if node else asked
    if asked and asked != on:
        raise HostUnknown(host=node)
    if not (request.host or request.hypervisor_hostname):
        return zone, None
    return zone, Destination(ctxt, host=on, node=request.hypervisor_hostname)


def check_zone(backend: Backend, zone: str) -> None:
    """Check that an availability zone has an enabled compute service.

    Raises ZoneUnavailable if the zone has no such service, and Unanswered if the service may be in a cell that does not
    answer.
    """
    silent: list[Any] = []
    if not any(
        service.row['zone'] == zone and not service.row['disabled']
        for service in hosts.list_services(backend, binary=hosts.COMPUTE, silent=silent)
    ):
        refuse_if_any(silent)
        raise ZoneUnavailable


def check_host(backend: Backend, host: str) -> None:
    """Raise HostUnknown if the host is in no cell."""
    with backend.api_db.read() as conn:
        if cells.get_host(conn, host) is None:
            raise HostUnknown(host=host)


def _host_of_node(backend: Backend, node: str) -> str:
    row = first(
        backend.compute_cells(), lambda conn: compute_nodes.get(conn, hypervisor_hostname=node), HostUnknown(host=node)
    )
    host: str = row['host']
    return host


# --- write the rows of new servers -----------------------------------------------------------------------------------
def _accept(
    backend: Backend, ctxt: RequestContext, shared: _Shared, allowed: quota.UserLimits, keys: sealing.SealingKeys | None
) -> Created:
    password = passwords.choose(backend, keys, shared.request.admin_password)
    servers = [_server(ctxt, shared, index) for index in range(shared.count)]
    uuids, specs = [server.uuid for server in servers], [_spec(ctxt, shared, server) for server in servers]

    def withdraw() -> bool:
        return _withdraw(backend, ctxt, uuids)

    with volumes.made(backend, ctxt, shared.volumes, uuids, multiattach=shared.request.multiattach_allowed) as found:
        devices = [shared.disks.rows(shared.image['id']) + found.rows[uuid] for uuid in uuids]
        rows = _write(
            backend,
            ctxt,
            shared,
            servers,
            specs,
            devices,
            [passwords.seal(keys, password, shared.files, uuid) for uuid in uuids],
            found.notes,
        )
        wanted = quota.of_servers(backend, shared.count, quota.sizes(shared.flavor, shared.image))
        quota.recheck(backend, allowed, wanted, withdraw)
        server_groups.recheck(backend, allowed, shared.group, withdraw)
    server_groups.tell_members(backend, ctxt, shared.group)
    backend.conductor.schedule_and_build_instances(ctxt, operations=rows)
    return Created(
        [{'uuid': server.uuid, 'auto_disk_config': server.auto_disk_config} for server in servers],
        shared.reservation_id,
        password,
    )


def _write(
    backend: Backend,
    ctxt: RequestContext,
    shared: _Shared,
    servers: Sequence[Instance],
    specs: Sequence[RequestSpec],
    devices: Sequence[list[dict[str, Any]]],
    sealed: Sequence[str | None],
    notes: Sequence[str],
) -> list[str]:
    """Write the rows of all servers in one transaction, and return the uuids of the operations that boot the servers.

    ``devices`` has each server's list of block_device_mapping rows, and ``sealed`` its encrypted password and files, or
    None. ``notes`` are the uuids of cleanup operations: they would delete the new volumes, if the servers were not
    accepted. The transaction deletes the cleanup operations, so that the volumes stay.
    """
    requests = [
        {
            'instance_uuid': server.uuid,
            'project_id': ctxt.project_id,
            'instance': server.to_json(),
            'block_device_mappings': BlockDeviceMappingList.of_server(ctxt, server.uuid, disks).to_json(),
            'tags': TagList.from_words(ctxt, server.uuid, shared.request.tags).to_json(),
        }
        for server, disks in zip(servers, devices, strict=True)
    ]
    rows = [
        operations.OperationRow.new(
            ctxt,
            'boot',
            server.uuid,
            BootArguments(
                request_spec=spec.obj_to_primitive(),
                instance=server.obj_to_primitive(),
                image=shared.image,
                sealed=secrets,
                bdms=bdms,
                tags=shared.request.tags,
            ),
        )
        for server, spec, bdms, secrets in zip(servers, specs, devices, sealed, strict=True)
    ]
    with server_groups.refused_as_asked():
        operations.accept_create(
            backend.api_db,
            specs=[(spec.instance_uuid, spec.to_json()) for spec in specs],
            requests=requests,
            mappings=[
                {
                    'instance_uuid': server.uuid,
                    'project_id': ctxt.project_id,
                    'user_id': ctxt.user_id,
                    'cell_id': None,
                    'queued_for_delete': False,
                }
                for server in servers
            ],
            operations=rows,
            group=(shared.group['id'], shared.group['uuid']) if shared.group is not None else None,
            instead_of=notes,
        )
    return [row.uuid for row in rows]


def _withdraw(backend: Backend, ctxt: RequestContext, uuids: list[str]) -> bool:
    """Withdraw the new servers because they exceed a quota. Return True if none of them exists any more.

    If a conductor has already moved some of the servers into a cell, request the deletion of these servers and return
    False.
    """
    gone = withdrawals.create(backend.api_db, uuids)
    for uuid in gone:
        with contextlib.suppress(InstanceNotFound, InstanceNotReady):
            delete.delete(backend, ctxt, find_server(backend, ctxt, uuid, purpose=WORK))
    return not gone


def _server(ctxt: RequestContext, shared: _Shared, index: int) -> Instance:
    request, flavor, uuid = shared.request, shared.flavor, uuidutils.generate_uuid()
    suffix = f'-{index + 1}' if shared.count > 1 else ''
    name = request.name[: 255 - len(suffix)] + suffix
    hostname = numbered(request.hostname, suffix) if request.hostname else hostname_of(request.name, uuid, suffix)
    return Instance(
        ctxt,
        uuid=uuid,
        user_id=ctxt.user_id,
        project_id=ctxt.project_id,
        display_name=name,
        display_description=request.description,
        hostname=hostname,
        launch_index=index,
        **columns_of_image(shared.image, shared.kernels, shared.disks.root),
        **columns_of_key(shared.key),
        power_state=int(states.PowerState.NOSTATE),
        vm_state=states.VmState.BUILDING.value,
        task_state=states.TaskState.SCHEDULING.value,
        memory_mb=flavor.memory_mb,
        vcpus=flavor.vcpus,
        root_gb=flavor.root_gb,
        ephemeral_gb=flavor.ephemeral_gb,
        instance_type_id=flavor.id,
        flavor=flavor,
        old_flavor=None,
        new_flavor=None,
        user_data=request.user_data,
        reservation_id=shared.reservation_id,
        availability_zone=shared.zone,
        locked=False,
        progress=0,
        hidden=False,
        # A request with files needs a config drive, because the guest gets files only from a config drive.
        config_drive='True' if request.config_drive or shared.files else '',
        access_ip_v4=request.access_ip_v4,
        access_ip_v6=request.access_ip_v6,
        auto_disk_config=shared.automatic_disk,
        shutdown_terminate=False,
        disable_terminate=False,
        metadata=request.metadata,
        system_metadata={
            **_system_metadata(ctxt, shared.image),
            **(holder.for_ports(uuid) if shared.networks.profiles else {}),
        },
        numa_topology=shared.numa_topology.replaced(instance_uuid=uuid) if shared.numa_topology is not None else None,
        # All servers of this request have the same PCI request ids, because one query to Placement serves all of them.
        # In the scheduler's query for allocation candidates, the PCI request ids are the names of request groups.
        pci_requests=InstancePCIRequests(instance_uuid=uuid, requests=shared.pci_requests),
        created_at=instances.utcnow(),
        # Certificates are refused (check_request), because signatures are not verified.
        trusted_certs=None,
        keypairs=keys_of(ctxt, shared.key),
    )


def columns_of_image(
    image: dict[str, Any], kernels: images.Kernels, root: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the columns of a server's row that depend on its image, such as image_ref, kernel_id and os_type.

    ``kernels`` are the ids of the kernel and ramdisk images. ``root`` is the request's block device for the root disk,
    or None. The column root_device_name (such as /dev/vda) has the device name of ``root``, or of the image property
    root_device_name, or else the first device name of the disk's bus.
    """
    properties, asked = image['properties'], root or {}
    device = (
        asked.get('device_name')
        or properties.get('root_device_name')
        or disk_names.root(asked.get('disk_bus') or properties.get('hw_disk_bus'))
    )
    return {
        'image_ref': image['id'] or '',
        'kernel_id': kernels.kernel,
        'ramdisk_id': kernels.ramdisk,
        'root_device_name': device,
        **{name: properties.get(name) for name in ('os_type', 'architecture', 'vm_mode')},
    }


def columns_of_key(key: KeyPair | None) -> dict[str, str | None]:
    """Return the columns of a server that depend on its key pair. ``key`` may be None."""
    return {'key_name': key.name if key else None, 'key_data': key.public_key if key else None}


def keys_of(ctxt: RequestContext, key: KeyPair | None) -> KeyPairList:
    """Return the list of key pairs that a server stores, with at most one element."""
    return KeyPairList(ctxt, objects=[key] if key else [])


def _spec(ctxt: RequestContext, shared: _Shared, server: Instance) -> RequestSpec:
    request = shared.request
    spec = RequestSpec.from_components(
        ctxt,
        instance_uuid=server.uuid,
        flavor=shared.flavor,
        image=shared.image,
        scheduler_hints=request.hints,
        num_instances=shared.count,
        availability_zone=shared.zone,
        pci_requests=server.pci_requests,
        numa_topology=server.numa_topology,
        instance_group=server_groups.as_object(ctxt, shared.group),
        security_groups=shared.networks.security_groups(ctxt),
        requested_networks=shared.networks.requests(ctxt),
        force_hosts=[request.force_host] if request.force_host else None,
        force_nodes=[request.force_node] if request.force_node else None,
        requested_destination=shared.destination,
        is_bfv=server.is_from_volume,
        requested_resources=shared.accelerators,
    )
    port_resources.ask(spec, shared.networks.resources)
    return spec


def _system_metadata(ctxt: RequestContext, image: dict[str, Any]) -> dict[str, str]:
    about = {
        'boot_roles': ','.join(ctxt.roles),
        'owner_user_name': ctxt.user_name,
        'owner_project_name': ctxt.project_name,
    }
    return {**system_metadata(image), **{name: value[:255] for name, value in about.items() if value}}


def hostname_of(name: str, uuid: str, suffix: str = '') -> str:
    """Return a hostname without a domain that is made from a server's name, and append ``suffix``.

    Return ``server-UUID`` if the name has no letter or digit. Dots become dashes, because a DNS server would read
    ``ubuntu-24.04`` as the host ``ubuntu-24`` of the domain ``04``.
    """
    text = re.sub(r'[\s_.]', '-', name)
    text = re.sub(r'[^a-zA-Z0-9-]+', '', text).lower().strip('-')
    text = text[: MAX_HOSTNAME - len(suffix)].rstrip('-')
    return text + suffix if text else f'server-{uuid}'


def numbered(hostname: str, suffix: str) -> str:
    """Return the hostname of one of several servers that a request creates with the same ``hostname``.

    ``suffix`` is appended to the first label: 'web.example.org' and '-2' give 'web-2.example.org'. If the first label
    then has more than 63 characters, its end is cut before the suffix.
    """
    label, dot, domain = hostname.partition('.')
    room = min(MAX_HOSTNAME, MAX_FQDN - len(dot + domain)) - len(suffix)
    return label[:room] + suffix + dot + domain if suffix else hostname
