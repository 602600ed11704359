"""Create servers: check everything that can be checked, then write all of it in one transaction, then wake a conductor.

Statements: one for the flavor, one for zones or hosts if asked for, one or two for limits, one a database for what is
used, and the four of ``accept_create``, whatever the number of servers.
"""
from __future__ import annotations

import logging
import re
import secrets
import string
from dataclasses import dataclass, field
from typing import Any

from oslo_utils import uuidutils

from kilonova import states
from kilonova.api.services import images, quota
from kilonova.api.services.backend import Backend
from kilonova.db.queries import cells, compute_nodes, flavors, instances, operations, zones
from kilonova.errors import FlavorNotFound, Invalid
from kilonova.objects import (
    BlockDeviceMappingList,
    BuildRequest,
    Destination,
    Flavor,
    Instance,
    InstancePCIRequests,
    RequestSpec,
    SecurityGroupList,
    TagList,
)
from kilonova.pci import request as pci_request

LOG = logging.getLogger(__name__)

MAX_USER_DATA = 65535
_ALPHABET = string.ascii_letters + string.digits
_RESERVATION = string.ascii_lowercase + string.digits
MAX_HOSTNAME = 63


class NoNetworkService(Invalid):
    msg_fmt = ("There is no network service in this cloud: networks must be 'none', 'auto' or left out, not "
               '%(wanted)s.')


class NoVolumeService(Invalid):
    msg_fmt = 'There is no volume service in this cloud: a server cannot have a %(wanted)s.'


class InvalidBlockDevice(Invalid):
    msg_fmt = 'Block Device Mapping is Invalid: %(reason)s'


class ZoneUnavailable(Invalid):
    msg_fmt = 'The requested availability zone is not available'


class HostUnknown(Invalid):
    msg_fmt = 'Compute host %(host)s could not be found.'


@dataclass(frozen=True, kw_only=True)
class CreateRequest:
    """What a user asks for. ``zone``, ``force_host`` and ``force_node`` are what ``parse_zone`` made of it;
    ``host`` and ``hypervisor_hostname`` a destination that the scheduler must agree with."""

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
    personality: list[dict[str, Any]] = field(default_factory=list)
    config_drive: bool = False
    user_data: str | None = None
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


@dataclass(frozen=True)
class Created:
    """The servers' first facts, the id of the whole request, and the password that was given or made."""

    rows: list[dict[str, Any]]
    reservation_id: str
    admin_password: str = field(repr=False)


@dataclass(frozen=True)
class _Plan:
    """What all servers of one request share."""

    request: CreateRequest
    flavor: Flavor
    image: dict[str, Any]
    pci_requests: list[Any]
    zone: str | None
    destination: Destination | None
    reservation_id: str
    count: int


def parse_zone(text: str | None) -> tuple[str | None, str | None, str | None]:
    """'zone:host:node' as (zone, host, node); empty parts are None. Invalid: more than three."""
    parts = (text or '').split(':')
    if len(parts) > 3:
        raise Invalid('Unable to parse availability zone: it must be ZONE, ZONE:HOST or ZONE:HOST:NODE')
    zone, host, node = ([part or None for part in parts] + [None, None])[:3]
    return zone, host, node


def create(backend: Backend, ctxt: Any, request: CreateRequest) -> Created:
    """Accept a request for servers. They are BUILD afterwards; what fails later is in their faults."""
    # 1. What needs nobody's answer.
    check_request(request)
    # 2. What it is made of.
    flavor = find_flavor(backend, ctxt, request.flavor_ref)
    image = images.find(backend, ctxt, root_image(request))
    images.check_fits(image, flavor, request.zero_disk_allowed)
    pci_requests = pci_requests_of(backend, flavor['extra_specs'], image)
    # 3. Where it may go.
    zone, destination = _place(backend, ctxt, request)
    # 4. Whether so much is allowed.
    allowed = quota.limits(backend, ctxt.project_id)
    quota.check_metadata(allowed, request.metadata)
    count = quota.check_create(backend, ctxt.project_id, allowed, flavor, request.min_count, request.max_count)
    plan = _Plan(request, Flavor.from_row(ctxt, flavor), image, pci_requests, zone, destination,
                 'r-' + _random(8, _RESERVATION), count)
    # 5. Write and wake.
    password = request.admin_password or _random(backend.options.password_length, _ALPHABET)
    return _accept(backend, ctxt, plan, password)


# --- checks ----------------------------------------------------------------------------------------------------------
def check_request(request: CreateRequest) -> None:
    """What no database is needed for."""
    if request.min_count > request.max_count:
        raise Invalid('min_count must be <= max_count')
    if request.key_name is not None:
        raise Invalid('Invalid key_name provided.')
    if len(request.user_data or '') > MAX_USER_DATA:
        raise Invalid(f'User data too large. User data must be no larger than {MAX_USER_DATA} bytes once base64 '
                      f'encoded. Your data is {len(request.user_data or "")} bytes')
    if 'group' in request.hints:
        raise Invalid(f'Instance group {request.hints["group"]} could not be found.')
    if request.certificates:
        raise Invalid('Trusted image certificates are not supported: image signatures are not verified here.')
    if request.personality:
        raise Invalid('Files cannot be injected: use user_data or a config drive instead of personality.')
    if (request.host or request.hypervisor_hostname) and (request.force_host or request.force_node):
        raise Invalid('Unable to specify both the host in availability_zone and host or hypervisor_hostname.')
    _check_networks(request.networks)
    _check_devices(request)


def _check_networks(networks: Any) -> None:
    if isinstance(networks, list) and networks:
        named = [f'port {network["port"]}' if network.get('port') else f'network {network.get("uuid")}'
                 for network in networks]
        raise NoNetworkService(wanted=', '.join(named))


def _check_devices(request: CreateRequest) -> None:
    if request.old_block_devices and request.block_devices:
        raise Invalid('Using different block_device_mapping syntaxes is not allowed in the same request.')
    if request.old_block_devices:
        raise NoVolumeService(wanted='volume (block_device_mapping)')
    for device in request.block_devices:
        source, destination = device.get('source_type'), device.get('destination_type')
        if is_volume(device):
            raise NoVolumeService(wanted=f'block device from {source} on {destination or "volume"}')
        if source != 'image' or int(device.get('boot_index') or 0) != 0 or 'boot_index' not in device:
            raise InvalidBlockDevice(reason='only the root disk from an image is supported here; swap and ephemeral '
                                            'disks come with the flavor.')
        unsupported = sorted(name for name in ('tag', 'disk_bus', 'device_type', 'guest_format') if device.get(name))
        if unsupported:
            raise InvalidBlockDevice(reason=f'{unsupported[0]} is not supported for the root disk.')
    if len(request.block_devices) > 1:
        raise InvalidBlockDevice(reason='Boot sequence for the instance and image/block device mapping combination is '
                                        'not valid: there can be one root disk.')


def is_volume(device: dict[str, Any]) -> bool:
    """Whether a block device needs a volume service."""
    return device.get('source_type') in ('volume', 'snapshot') or device.get('destination_type') == 'volume'


def root_image(request: CreateRequest) -> str:
    """The image's id, given as imageRef, as the root block device, or as both."""
    device = request.block_devices[0] if request.block_devices else {}
    of_device = device.get('uuid') or device.get('image_id')
    if device and not of_device:
        raise InvalidBlockDevice(reason='Missing device UUID.')
    if request.image_ref and of_device and request.image_ref != of_device:
        raise InvalidBlockDevice(reason='the image of the root disk is not imageRef.')
    image_id = request.image_ref or of_device
    if not image_id or not uuidutils.is_uuid_like(image_id):
        raise Invalid('Invalid imageRef provided.')
    return image_id


def find_flavor(backend: Backend, ctxt: Any, flavor_ref: str) -> dict[str, Any]:
    """The flavor's row with extra specs; Invalid where there is none that the user may take."""
    with backend.api_db.read() as conn:
        flavor = flavors.get(conn, flavor_ref, None if ctxt.is_admin else ctxt.project_id)
    if flavor is None or flavor['disabled']:
        raise Invalid(FlavorNotFound(flavor_id=flavor_ref).message)
    return flavor


def pci_requests_of(backend: Backend, extra_specs: dict[str, str], image: dict[str, Any]) -> list[Any]:
    """The flavor's requests for passthrough devices. Raises Invalid for unknown aliases and malformed values."""
    policy = pci_request.numa_affinity_policy(extra_specs, image.get('properties') or {})
    return pci_request.requests_from_flavor(extra_specs, backend.aliases, policy)


def _place(backend: Backend, ctxt: Any, request: CreateRequest) -> tuple[str | None, Destination | None]:
    """The zone to ask for, and the destination that was asked for. Invalid: there is no such zone or host."""
    zone = request.zone or backend.options.schedule_zone
    asked = request.host or request.force_host
    if not (asked or request.hypervisor_hostname or request.force_node):
        if zone is not None and zone != backend.options.default_zone:
            with backend.api_db.read() as conn:
                if zone not in zones.zones(conn):
                    raise ZoneUnavailable
        return zone, None
    if asked:
        with backend.api_db.read() as conn:
            if cells.get_host(conn, asked) is None:
                raise HostUnknown(host=asked)
    if not (request.host or request.hypervisor_hostname):
        return zone, None
    host = request.host or _host_of_node(backend, request.hypervisor_hostname)
    return zone, Destination(ctxt, host=host, node=request.hypervisor_hostname)


def _host_of_node(backend: Backend, node: str | None) -> str:
    for cell in backend.compute_cells():
        with cell.read() as conn:
            found = compute_nodes.get(conn, hypervisor_hostname=node)
        if found is not None:
            return found['host']
    raise HostUnknown(host=node)


# --- writing ---------------------------------------------------------------------------------------------------------
def _accept(backend: Backend, ctxt: Any, plan: _Plan, password: str) -> Created:
    servers = [_server(ctxt, plan, index) for index in range(plan.count)]
    specs = [_spec(ctxt, plan, server) for server in servers]
    tags = [TagList.from_words(ctxt, server.uuid, plan.request.tags) for server in servers]
    requests = [BuildRequest(ctxt, instance_uuid=server.uuid, project_id=ctxt.project_id, instance=server,
                             block_device_mappings=BlockDeviceMappingList(ctxt, objects=[]), tags=words)
                for server, words in zip(servers, tags, strict=True)]
    context = ctxt.stored()
    rows = [{'uuid': uuidutils.generate_uuid(), 'kind': 'boot', 'instance_uuid': server.uuid, 'context': context,
             'request_id': ctxt.request_id, 'args': {
                 'request_spec': spec.obj_to_primitive(), 'instance': server.obj_to_primitive(), 'image': plan.image,
                 'admin_password': password, 'injected_files': [], 'requested_networks': None, 'bdms': [],
                 'tags': plan.request.tags}} for server, spec in zip(servers, specs, strict=True)]
    operations.accept_create(
        backend.api_db, specs=[(spec.instance_uuid, spec.to_json()) for spec in specs],
        requests=[request.to_row() for request in requests],
        mappings=[{'instance_uuid': server.uuid, 'project_id': ctxt.project_id, 'user_id': ctxt.user_id,
                   'cell_id': None, 'queued_for_delete': False} for server in servers],
        operations=rows)
    backend.conductor.schedule_and_build_instances(
        ctxt, build_requests=requests, request_specs=specs, image=plan.image, admin_password=password,
        injected_files=[], requested_networks=None, block_device_mapping=None, tags=None,
        operations=[row['uuid'] for row in rows])
    return Created([{'uuid': server.uuid, 'auto_disk_config': server.auto_disk_config} for server in servers],
                   plan.reservation_id, password)


def _server(ctxt: Any, plan: _Plan, index: int) -> Instance:
    request, flavor, uuid = plan.request, plan.flavor, uuidutils.generate_uuid()
    suffix = f'-{index + 1}' if plan.count > 1 else ''
    name = request.name[:255 - len(suffix)] + suffix
    hostname = request.hostname + suffix if request.hostname else hostname_of(name, uuid)
    return Instance(
        ctxt, uuid=uuid, user_id=ctxt.user_id, project_id=ctxt.project_id, display_name=name,
        display_description=request.description, hostname=hostname, image_ref=plan.image['id'], kernel_id='',
        ramdisk_id='', launch_index=index, key_name=None, key_data=None, power_state=int(states.PowerState.NOSTATE),
        vm_state=states.VmState.BUILDING.value, task_state=states.TaskState.SCHEDULING.value,
        memory_mb=flavor.memory_mb, vcpus=flavor.vcpus, root_gb=flavor.root_gb, ephemeral_gb=flavor.ephemeral_gb,
        instance_type_id=flavor.id, flavor=flavor, old_flavor=None, new_flavor=None, user_data=request.user_data,
        reservation_id=plan.reservation_id, availability_zone=plan.zone, locked=False, progress=0, hidden=False,
        root_device_name=plan.image['properties'].get('root_device_name'), config_drive='True' * request.config_drive,
        access_ip_v4=request.access_ip_v4, access_ip_v6=request.access_ip_v6,
        auto_disk_config=request.disk_config == 'AUTO', shutdown_terminate=False, disable_terminate=False,
        metadata=request.metadata, system_metadata=_system_metadata(ctxt, plan.image), numa_topology=None,
        pci_requests=_pci_requests(plan, uuid), created_at=instances.utcnow(),
        os_type=plan.image['properties'].get('os_type'), architecture=plan.image['properties'].get('architecture'),
        vm_mode=plan.image['properties'].get('vm_mode'))


def _pci_requests(plan: _Plan, uuid: str) -> InstancePCIRequests:
    # Servers of one request share the ids: one answer of the scheduler maps them to providers for all.
    return InstancePCIRequests(instance_uuid=uuid, requests=plan.pci_requests)


def _spec(ctxt: Any, plan: _Plan, server: Instance) -> RequestSpec:
    request = plan.request
    return RequestSpec.from_components(
        ctxt, instance_uuid=server.uuid, flavor=plan.flavor, image=plan.image, scheduler_hints=request.hints,
        num_instances=plan.count, availability_zone=plan.zone, pci_requests=server.pci_requests,
        security_groups=SecurityGroupList.from_names(ctxt, request.security_groups),
        force_hosts=[request.force_host] if request.force_host else None,
        force_nodes=[request.force_node] if request.force_node else None, requested_destination=plan.destination)


def _system_metadata(ctxt: Any, image: dict[str, Any]) -> dict[str, str]:
    about = {'boot_roles': ','.join(ctxt.roles), 'owner_user_name': ctxt.user_name,
             'owner_project_name': ctxt.project_name}
    return {**images.stored(image), **{name: value[:255] for name, value in about.items() if value}}


def hostname_of(name: str, uuid: str) -> str:
    """A host name made of a server's name, or of its uuid where nothing of the name can stand in one."""
    text = re.sub(r'[\s_]', '-', name)
    text = re.sub(r'[^a-zA-Z0-9.-]+', '', text).lower().strip('.-')
    return text[:MAX_HOSTNAME].rstrip('.-') or f'server-{uuid}'


def _random(length: int, alphabet: str) -> str:
    return ''.join(secrets.choice(alphabet) for _ in range(length))
