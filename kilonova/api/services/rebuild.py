"""Rebuild: a server's disks made anew where it is, from its image or another one; devices and allocation stay.

All checks come first. What the request changes of the server is written as it is accepted; what it was before travels
in the row, and is written back where the disks were never touched.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kilonova.api.services import accept, create, images, keypairs, passwords, quota
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.db.queries import instances, metadata, rebuilds, request_specs
from kilonova.db.queries.operations import Operation
from kilonova.errors import Invalid
from kilonova.objects import ImageMeta, Instance, RequestSpec
from kilonova.objects.image_meta import SYSMETA_PREFIX
from kilonova.pci import request as pci_request

# Members of a request that stand in a column of the server as they are.
COLUMNS = {'name': 'display_name', 'description': 'display_description', 'access_ip_v4': 'access_ip_v4',
           'access_ip_v6': 'access_ip_v6', 'hostname': 'hostname', 'user_data': 'user_data'}


class ImageNotFoundForRebuild(Invalid):
    msg_fmt = 'Cannot find image for rebuild'


class NumaTopologyChanges(Invalid):
    msg_fmt = ("An instance's NUMA topology cannot be changed as part of a rebuild. The image provided is invalid for "
               'this instance.')


class RebuildOfVolume(Invalid):
    msg_fmt = ('Unable to rebuild a volume-backed server: in this cloud the volume that a server boots from is not '
               'written anew.')


class PciPolicyChanges(Invalid):
    msg_fmt = ("An instance's PCI NUMA policy cannot be changed as part of a rebuild. The image provided is invalid "
               'for this instance.')


@dataclass(frozen=True, kw_only=True)
class RebuildRequest:
    """``given``: of ``COLUMNS`` and of key_name, metadata and disk_config those that the user named; None as a value
    takes away what the server has."""

    image_ref: str
    given: dict[str, Any] = field(default_factory=dict, repr=False)
    admin_password: str | None = field(default=None, repr=False)
    personality: list[dict[str, Any]] = field(default_factory=list, repr=False)
    certificates: list[str] = field(default_factory=list)
    preserve_ephemeral: bool = False


def rebuild(backend: Backend, ctxt: RequestContext, server: Found, request: RebuildRequest) -> str | None:
    """Accept a rebuild. Returns the guest's new password (None: without keys nobody gets one)."""
    # 1. What needs nobody's answer.
    accept.check(ctxt, server, 'rebuild.start')
    create.check_certificates(request.certificates)
    create.check_user_data(request.given.get('user_data'))
    # 2. What it is made of.
    instance = _instance(ctxt, server)
    if instance.is_from_volume:
        raise RebuildOfVolume
    image = _image(backend, ctxt, request.image_ref)
    _check_image(backend, instance, image)
    kernels = images.find_kernels(backend, ctxt, image, instance.flavor.memory_mb)
    # 3. Whether so much is allowed.
    allowed = quota.limits(backend, server.row['project_id'], server.row['user_id'])
    quota.check_metadata(allowed, request.given.get('metadata') or {})
    files = passwords.read_files(request.personality, allowed)
    keys = passwords.keys(backend, request.admin_password or request.personality)
    # 4. Write and wake.
    new = _changed(backend, ctxt, instance, request, image, create.columns_of_image(image, kernels))
    if files:
        # They come by no other way.
        new['values']['config_drive'] = 'True'
    old = _before(server.row, instance, new)
    spec, old_spec = _specs(backend, ctxt, server, image)
    password = passwords.choose(backend, keys, request.admin_password)
    row = Operation.new(ctxt, 'rebuild', server.uuid, {
        'image': image, 'old': old, 'preserve_ephemeral': request.preserve_ephemeral,
        'sealed': passwords.seal(keys, password, files, server.uuid),
        'check_host': image['id'] != instance.image_ref,
        'request_spec': spec.obj_to_primitive() if spec is not None else None,
        'old_request_spec': old_spec.obj_to_primitive() if old_spec is not None else None})
    accept.accept(ctxt, server, 'rebuild.start', row, 'rebuild',
                  write=lambda conn: rebuilds.write(conn, server.uuid, new))
    backend.conductor.rebuild_instance(ctxt, operation=row.uuid)
    return password


def _instance(ctxt: RequestContext, server: Found) -> Instance:
    """With both metadata."""
    row, extra = instances.split(server.row)
    with server.cell.read() as conn:
        return Instance.from_row(ctxt, row, extra, system_metadata=instances.get_system_metadata(conn, server.uuid),
                                 metadata=metadata.get(conn, server.uuid))


def _image(backend: Backend, ctxt: RequestContext, image_ref: str) -> dict[str, Any]:
    try:
        return images.find(backend, ctxt, image_ref)
    except images.NoSuchImage:
        raise ImageNotFoundForRebuild from None


def _check_image(backend: Backend, instance: Instance, image: dict[str, Any]) -> None:
    """The server keeps its place and its devices: the image may ask for nothing else. FlavorMemoryTooSmall and the
    like, NumaTopologyChanges, PciPolicyChanges."""
    flavor = instance.flavor
    images.check_fits(image, {'memory_mb': flavor.memory_mb, 'root_gb': flavor.root_gb}, zero_disk_allowed=True)
    create.check_board(flavor, image)
    before = images.of_server(instance.system_metadata, instance.image_ref)
    old, new = (create.numa_topology_of(flavor, each) for each in (before, image))
    if (None if old is None else old.stored_primitive()) != (None if new is None else new.stored_primitive()):
        raise NumaTopologyChanges
    policies = {pci_request.numa_affinity_policy(flavor.extra_specs, each.get('properties') or {})
                for each in (before, image)}
    if len(policies) > 1 and create.pci_requests_of(backend, flavor.extra_specs, image):
        raise PciPolicyChanges


def _changed(backend: Backend, ctxt: RequestContext, instance: Instance, request: RebuildRequest,
             image: dict[str, Any], values: dict[str, Any]) -> rebuilds.Changed:
    """``values``: columns that follow the image."""
    given = request.given
    extra: dict[str, str | None] = {}
    values = {**values, 'progress': 0, **{column: given[name] for name, column in COLUMNS.items() if name in given}}
    if 'disk_config' in given:
        values['auto_disk_config'] = images.disk_config(image['properties'], image['id'], given['disk_config'])
    if 'key_name' in given:
        key = keypairs.for_server(backend, ctxt, given['key_name'])
        values.update(create.columns_of_key(key))
        extra = {'keypairs': create.keys_of(ctxt, key).to_json()}
    kept = images.stored(image)
    gone = {name: None for name in instance.system_metadata if name.startswith(SYSMETA_PREFIX) and name not in kept}
    return {'values': values, 'extra': extra, 'system_metadata': {**gone, **kept}, 'metadata': given.get('metadata')}


def _before(row: dict[str, Any], instance: Instance, new: rebuilds.Changed) -> rebuilds.Changed:
    """The same as it is now."""
    _, extra = instances.split(row)
    return {'values': {name: row[name] for name in new['values']},
            'extra': {name: extra[name] for name in new['extra']},
            'system_metadata': {name: instance.system_metadata.get(name) for name in new['system_metadata']},
            'metadata': dict(instance.metadata) if new['metadata'] is not None else None}


def _specs(backend: Backend, ctxt: RequestContext, server: Found,
           image: dict[str, Any]) -> tuple[RequestSpec | None, RequestSpec | None]:
    """The request spec with the image, and as it is stored now; a server that lost it has none to change."""
    with backend.api_db.read() as conn:
        stored = request_specs.get(conn, server.uuid)
    old = RequestSpec.from_json(stored['spec'], ctxt) if stored else None
    if old is None:
        return None, None
    spec = old.obj_clone()
    spec.image = ImageMeta.from_dict(image)
    return spec, old
