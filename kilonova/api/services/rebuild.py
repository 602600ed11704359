"""Rebuild: recreate a server's disks on its host, from the server's image or from another image.

The server keeps its devices and its allocation. If the server boots from a volume, the image is written to the volume,
unless the request forbids that.

All checks come first. The changes of the server's row are written when the request is accepted. The operation row
stores the old values, which are written back if the rebuild fails before it has changed the disks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kilonova.api.services import block_devices, create, images, keypairs, passwords, quota, server_operations
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import ServerRef
from kilonova.clients.volume import Volume
from kilonova.context import RequestContext
from kilonova.db.arguments.servers import RebuildArguments
from kilonova.db.engine import Connection
from kilonova.db.queries import instances, metadata, operations, rebuilds, request_specs
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import Conflict, Invalid
from kilonova.objects import ImageMeta, Instance, RequestSpec
from kilonova.objects.image_meta import SYSMETA_PREFIX, system_metadata
from kilonova.pci import request as pci_request
from kilonova.pci.request import as_list

# Members of a rebuild request whose values are stored unchanged, with the columns of the server that store them.
COLUMNS = {
    'name': 'display_name',
    'description': 'display_description',
    'access_ip_v4': 'access_ip_v4',
    'access_ip_v6': 'access_ip_v6',
    'hostname': 'hostname',
    'user_data': 'user_data',
}


# The kind of operation that rebuilds a server by writing the image to the server's root volume.
REIMAGE = 'reimage'


class ImageNotFoundForRebuild(Invalid):
    """Error 400: the requested image does not exist."""

    msg_fmt = 'Cannot find image for rebuild'


class NumaTopologyChanges(Invalid):
    """Error 400: the new image would give the server another NUMA topology."""

    msg_fmt = (
        "An instance's NUMA topology cannot be changed as part of a rebuild. The image provided is invalid for "
        'this instance.'
    )


class OtherImageOfVolume(Invalid):
    """Error 400: the requested image is not the image from which the server's root volume was made.

    Before microversion 2.93 a rebuild can't write another image to the root volume.
    """

    msg_fmt = 'Unable to rebuild with a different image for a volume-backed server: this needs API 2.93.'


class RootVolumeShared(Conflict):
    """Error 409: the root volume, which should get the image, is attached to other servers too."""

    msg_fmt = 'Unable to rebuild: root volume %(volume)s is attached to other servers, too: %(servers)s'


class PciPolicyChanges(Invalid):
    """Error 400: the new image would change the NUMA policy of the server's PCI devices."""

    msg_fmt = (
        "An instance's PCI NUMA policy cannot be changed as part of a rebuild. The image provided is invalid "
        'for this instance.'
    )


@dataclass(frozen=True, kw_only=True)
class RebuildRequest:
    """The parameters of a rebuild.

    ``given`` is a dict with the optional members of the request, such as ``name``, ``metadata`` or ``key_name``. If a
    member is missing, the server keeps its value. If a member is None, the server's value is removed.

    ``reimage`` has an effect only if the server boots from a volume. True (from microversion 2.93 on) writes the image
    to the volume. With False the volume keeps its content, and ``image_ref`` must be the image that the volume was made
    from.
    """

    image_ref: str
    reimage: bool = True
    given: dict[str, Any] = field(default_factory=dict, repr=False)
    admin_password: str | None = field(default=None, repr=False)
    personality: list[dict[str, Any]] = field(default_factory=list, repr=False)
    certificates: list[str] = field(default_factory=list)
    preserve_ephemeral: bool = False


def rebuild(backend: Backend, ctxt: RequestContext, server: ServerRef, request: RebuildRequest) -> str | None:
    """Accept a rebuild, wake a conductor, and return the guest's new password.

    Return None if no key is configured to encrypt a password: the guest then gets no new password.

    Raises the errors of ``server_operations.check`` and ``server_operations.accept``, ImageNotFoundForRebuild,
    NumaTopologyChanges, PciPolicyChanges, OtherImageOfVolume, RootVolumeShared, and other subclasses of Invalid,
    Forbidden or Unavailable if the image does not fit, a quota is exceeded, or a service is missing.
    """
    # 1. Checks that need no other service.
    server_operations.check(ctxt, server, 'rebuild.start')
    create.check_certificates(request.certificates)
    create.check_user_data(request.given.get('user_data'))
    # 2. Look up and check the image, the root volume and the kernel.
    instance = _instance(ctxt, server)
    image = _image(backend, ctxt, request.image_ref)
    root = _root_volume(backend, ctxt, server) if instance.is_from_volume else None
    was, reimaged = instance.image_ref, None
    if root is not None:
        was, reimaged = root.image_metadata.get('image_id'), image['id'] if request.reimage else None
        _check_volume(server, root, image, reimaged)
    check_host = image['id'] != was
    if root is not None:
        # From here on, ``image`` becomes the server's stored image.
        # A server that boots from a volume has no image id: its column image_ref is empty, as in Nova.
        image = {**image, 'id': None}
    _check_image(backend, instance, image, root)
    kernels = images.find_kernels(backend, ctxt, image, instance.flavor.memory_mb)
    # 3. Check the quotas, and read the keys that encrypt password and files.
    allowed = quota.limits(backend, server.row['project_id'], server.row['user_id'])
    quota.check_metadata(allowed, request.given.get('metadata') or {})
    files = passwords.read_files(request.personality, allowed)
    keys = passwords.keys(backend, request.admin_password or request.personality)
    # 4. Write the rows and wake a conductor.
    new = _changed(backend, ctxt, instance, request, image, create.columns_of_image(image, kernels))
    if files:
        # The server needs a config drive, because the guest gets files only from a config drive.
        new['values']['config_drive'] = 'True'
    old = _before(server.row, instance, new)
    spec, old_spec = _specs(backend, ctxt, server, image)
    password = passwords.choose(backend, keys, request.admin_password)
    args = RebuildArguments(
        image=image,
        old=old,
        preserve_ephemeral=request.preserve_ephemeral,
        sealed=passwords.seal(keys, password, files, server.uuid),
        check_host=check_host,
        request_spec=spec.obj_to_primitive() if spec is not None else None,
        old_request_spec=old_spec.obj_to_primitive() if old_spec is not None else None,
    )
    row = (
        OperationRow.new(ctxt, REIMAGE, server.uuid, args.on_volume(reimaged))
        if reimaged
        else OperationRow.new(ctxt, 'rebuild', server.uuid, args)
    )
    renaming = server_operations.Renaming(backend, ctxt, server)

    def write(conn: Connection) -> None:
        rebuilds.write(conn, server.uuid, new)
        if 'hostname' in request.given:
            renaming.write(conn)

    server_operations.accept(ctxt, server, 'rebuild.start', row, 'rebuild', write=write)
    backend.conductor.rebuild_instance(ctxt, operation=row.uuid)
    renaming.wake()
    return password


def _instance(ctxt: RequestContext, server: ServerRef) -> Instance:
    """Return the server as an Instance, with its metadata and system metadata."""
    row, extra = instances.split(server.row)
    with server.cell.read() as conn:
        return Instance.from_row(
            ctxt,
            row,
            extra,
            system_metadata=instances.get_system_metadata(conn, server.uuid),
            metadata=metadata.get(conn, server.uuid),
        )


def look_again(backend: Backend, ctxt: RequestContext, server: ServerRef) -> None:
    """Wake a conductor for a rebuild that waits until Cinder has written the image to the server's root volume.

    Called when Cinder sends the event volume-reimaged. The conductor then reads the volume's status again. Do nothing
    if no such rebuild of the server waits.
    """
    if waiting := operations.hurry(server.cell, server.uuid, REIMAGE):
        backend.conductor.run_operation(ctxt, operation=waiting)


def _root_volume(backend: Backend, ctxt: RequestContext, server: ServerRef) -> Volume:
    """Return the volume that the server boots from, read with the user's token.

    Raises NoVolumeService if this cloud has no volume service, and VolumeNotFound if the volume does not exist.
    """
    (row,) = (row for row in server.row['extra_volumes'] if row['boot_index'] == 0)
    if backend.volumes is None:
        raise block_devices.NoVolumeService(wanted=f'root volume {row["volume_id"]}')
    return backend.volumes.volume(ctxt, row['volume_id'])


def _check_volume(server: ServerRef, root: Volume, image: dict[str, Any], reimaged: str | None) -> None:
    """Check the root volume of a server for a rebuild with ``image``.

    ``reimaged`` is the id of the image that the rebuild writes to the volume (from microversion 2.93 on), or None if
    the volume keeps its content.

    Raises:
        OtherImageOfVolume: ``reimaged`` is None, and the volume was not made from ``image``.
        RootVolumeShared: The image is written to the volume, and the volume is attached to other servers, too.
        VolumeTooSmall: The image is written to the volume, and is larger than the volume.
    """
    if reimaged is None:
        if image['id'] != root.image_metadata.get('image_id'):
            raise OtherImageOfVolume
        return
    others = sorted(one.server_id for one in root.attachments if one.server_id != server.uuid)
    if others:
        raise RootVolumeShared(volume=root.id, servers=', '.join(others))
    images.check_size(image, root.size)


def _image(backend: Backend, ctxt: RequestContext, image_ref: str) -> dict[str, Any]:
    try:
        return images.find(backend, ctxt, image_ref)
    except images.ImageRefInvalid:
        raise ImageNotFoundForRebuild from None


def _check_image(backend: Backend, instance: Instance, image: dict[str, Any], root: Volume | None) -> None:
    """Check that the server can get the image and keep its flavor, NUMA topology and PCI devices, as a rebuild must.

    ``root`` is the volume that the server boots from, or None.

    Raises:
        FlavorMemoryTooSmall, other subclasses of Invalid: The image needs more memory or a larger disk.
        NumaTopologyChanges: The image's properties request another NUMA topology.
        PciPolicyChanges: The image's properties request another NUMA affinity policy for the server's PCI devices.
    """
    flavor = instance.flavor
    sizes = {'memory_mb': flavor.memory_mb, 'root_gb': flavor.root_gb}
    if root is None:
        images.check_fits(image, sizes, zero_disk_allowed=True)
    else:
        images.check_on_volume(image, sizes, root.size)
    create.check_board(flavor, image)
    before = images.of_server(instance.system_metadata, instance.image_ref)
    old, new = (create.numa_topology_of(flavor, each) for each in (before, image))
    if (None if old is None else old.stored_primitive()) != (None if new is None else new.stored_primitive()):
        raise NumaTopologyChanges
    policies = {
        pci_request.numa_affinity_policy(flavor.extra_specs, each.get('properties') or {}) for each in (before, image)
    }
    has_devices = any(request.source == request.FLAVOR_ALIAS for request in as_list(instance.pci_requests))
    if len(policies) > 1 and has_devices:
        raise PciPolicyChanges


def _changed(
    backend: Backend,
    ctxt: RequestContext,
    instance: Instance,
    request: RebuildRequest,
    image: dict[str, Any],
    values: dict[str, Any],
) -> rebuilds.RebuildChanges:
    """Return the changes of the server's rows that this rebuild makes.

    ``values`` are the new values of the columns that depend on the image.
    """
    given = request.given
    extra: dict[str, str | None] = {}
    values = {**values, 'progress': 0, **{column: given[name] for name, column in COLUMNS.items() if name in given}}
    if 'disk_config' in given:
        values['auto_disk_config'] = images.disk_config(image['properties'], image['id'], given['disk_config'])
    if 'key_name' in given:
        key = keypairs.for_server(backend, ctxt, given['key_name'])
        values.update(create.columns_of_key(key))
        extra = {'keypairs': create.keys_of(ctxt, key).to_json()}
    kept = system_metadata(image)
    gone = {name: None for name in instance.system_metadata if name.startswith(SYSMETA_PREFIX) and name not in kept}
    return {'values': values, 'extra': extra, 'system_metadata': {**gone, **kept}, 'metadata': given.get('metadata')}


def _before(row: dict[str, Any], instance: Instance, new: rebuilds.RebuildChanges) -> rebuilds.RebuildChanges:
    """Return the server's current values of everything that the rebuild changes, as RebuildChanges.

    ``new`` are the changes of the rebuild. If the rebuild fails before it changes the disks, a conductor writes the
    returned values to the server's rows again.
    """
    _, extra = instances.split(row)
    return {
        'values': {name: row[name] for name in new['values']},
        'extra': {name: extra[name] for name in new['extra']},
        'system_metadata': {name: instance.system_metadata.get(name) for name in new['system_metadata']},
        'metadata': dict(instance.metadata) if new['metadata'] is not None else None,
    }


def _specs(
    backend: Backend, ctxt: RequestContext, server: ServerRef, image: dict[str, Any]
) -> tuple[RequestSpec | None, RequestSpec | None]:
    """Return two request specs: a copy of the server's stored spec with the new image, and the stored spec itself.

    The stored spec is written back if the rebuild fails. Return (None, None) if the server has no stored request spec.
    """
    with backend.api_db.read() as conn:
        stored = request_specs.get(conn, server.uuid)
    old = RequestSpec.from_json(stored['spec'], ctxt) if stored else None
    if old is None:
        return None, None
    spec = old.obj_clone()
    spec.image = ImageMeta.from_dict(image)
    return spec, old
