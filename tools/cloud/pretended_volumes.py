"""A back end of Cinder that stores nothing: a volume is what Cinder says of it.

    [pretended]
    volume_driver = tools.cloud.pretended_volumes.Driver

A connection is of the kind that the volume's type says (``connection:kind``; rbd if nothing): one of KINDS, for rbd in
the pool ``connection:pool``. Nothing is
at its other end: libvirt's test driver doesn't look. Metadata ``fail`` of a volume names a step that fails for it:
create, connect, disconnect or delete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cinder import exception
from cinder.volume import driver


def rbd(volume: Any) -> dict[str, Any]:
    """Return the connection of a volume in Ceph."""
    pool = volume.volume_type.extra_specs.get('connection:pool', 'volumes')
    return {
        'name': f'{pool}/{volume.name}',
        'hosts': ['192.0.2.1', '192.0.2.2'],
        'ports': ['6789', '6789'],
        'cluster_name': 'ceph',
        'auth_enabled': True,
        'auth_username': 'cinder',
        'secret_type': 'ceph',
        'secret_uuid': '457eb676-33da-42ec-9a8c-9293d545c337',
        'volume_id': volume.id,
        'discard': True,
    }


def iscsi(volume: Any) -> dict[str, Any]:
    """Return the connection of a volume by iSCSI."""
    return {
        'target_discovered': False,
        'target_iqn': f'iqn.2010-10.org.openstack:{volume.name}',
        'target_portal': '192.0.2.1:3260',
        'target_lun': 0,
        'volume_id': volume.id,
        'auth_method': 'CHAP',
        'auth_username': 'pretended',
        'auth_password': 'secret',
    }


KINDS = {'rbd': rbd, 'iscsi': iscsi}


class Driver(driver.VolumeDriver):  # type: ignore[misc]  # Cinder comes without types.
    """A back end of Cinder that stores nothing."""

    VERSION = '1'

    def check_for_setup_error(self) -> None:
        """Do nothing: there is nothing to be wrong."""

    def create_volume(self, volume: Any) -> None:
        """Pretend to create a volume."""
        _step(volume, 'create')

    def delete_volume(self, volume: Any) -> None:
        """Pretend to delete a volume."""
        _step(volume, 'delete')

    def extend_volume(self, volume: Any, new_size: int) -> None:
        """Do nothing: the volume has the size that Cinder says."""

    def create_snapshot(self, snapshot: Any) -> None:
        """Pretend to create a snapshot."""

    def delete_snapshot(self, snapshot: Any) -> None:
        """Pretend to delete a snapshot."""

    def create_volume_from_snapshot(self, volume: Any, snapshot: Any) -> None:
        """Pretend to create a volume from a snapshot."""
        _step(volume, 'create')

    def create_cloned_volume(self, volume: Any, source: Any) -> None:
        """Pretend to create a volume from another one."""
        _step(volume, 'create')

    def clone_image(
        self, context: Any, volume: Any, image_location: Any, image_meta: Any, image_service: Any
    ) -> tuple[dict[str, Any], bool]:
        """Say that the image is in the volume, so that none is fetched."""
        _step(volume, 'create')
        return {}, True

    def copy_image_to_volume(
        self, context: Any, volume: Any, image_service: Any, image_id: str, disable_sparse: bool = False
    ) -> None:
        """Pretend to write an image to a volume that exists."""
        _step(volume, 'reimage')

    def ensure_export(self, context: Any, volume: Any) -> None:
        """Do nothing: nothing is exported."""

    def create_export(self, context: Any, volume: Any, connector: Mapping[str, Any]) -> None:
        """Do nothing: nothing is exported."""

    def remove_export(self, context: Any, volume: Any) -> None:
        """Do nothing: nothing is exported."""

    def initialize_connection(self, volume: Any, connector: Mapping[str, Any]) -> dict[str, Any]:
        """Return a connection of the kind that the volume's type names."""
        _step(volume, 'connect')
        kind = (volume.volume_type.extra_specs or {}).get('connection:kind', 'rbd')
        return {'driver_volume_type': kind, 'data': KINDS[kind](volume)}

    def terminate_connection(self, volume: Any, connector: Mapping[str, Any] | None, **_: Any) -> None:
        """Pretend to end a connection."""
        _step(volume, 'disconnect')

    def _update_volume_stats(self) -> None:
        self._stats = {
            'volume_backend_name': self.configuration.safe_get('volume_backend_name'),
            'vendor_name': 'pretended',
            'driver_version': self.VERSION,
            'storage_protocol': 'pretended',
            'multiattach': True,
            'online_extend_support': True,
            'total_capacity_gb': 'infinite',
            'free_capacity_gb': 'infinite',
            'reserved_percentage': 0,
        }


def _step(volume: Any, name: str) -> None:
    """Do what a back end does, which is nothing, unless the volume's metadata says that it fails."""
    if (volume.metadata or {}).get('fail') == name:
        raise exception.VolumeBackendAPIException(data=f'the volume says that it fails to {name}')
