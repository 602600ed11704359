"""The arguments of operations that later release or update something in another service or on a host.

The kind ``release`` has a class for each resource. ``ReleaseArguments.read`` chooses the class by the keys of the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from kilonova.db.arguments.base import LEFT_OUT, Arguments


# --- hosts and aggregates --------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class HostRemovalArguments(Arguments):
    """Arguments of the removal of the host ``host``. ``nodes`` are the uuids of its nodes."""

    host: str
    nodes: list[str]


@dataclass(frozen=True, kw_only=True)
class SyncAggregateArguments(Arguments):
    """Arguments of the operation that updates the membership of a host in an aggregate in Placement.

    ``aggregate`` is the uuid of the aggregate.
    """

    aggregate: str
    host: str


# --- releases --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class ReleaseArguments(Arguments):
    """Base class of the arguments of releases. This class itself is used if the row names no resource that is known."""

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Return the arguments from the JSON object of a row, as an object of the class in ``_BY_KEY`` that fits.

        If the JSON has several of the keys, the first key in ``_BY_KEY`` decides.
        """
        found = next((made for key, made in _BY_KEY.items() if key in stored), cls)
        return super(ReleaseArguments, found if issubclass(found, cls) else cls).read(stored)


@dataclass(frozen=True, kw_only=True)
class ConsumerRelease(ReleaseArguments):
    """Arguments of the release of the allocations of a consumer in Placement."""

    identity = ('consumer',)
    consumer: str


@dataclass(frozen=True, kw_only=True)
class BackupsRelease(ReleaseArguments):
    """Arguments of the operation that deletes the oldest backup images of a server after a new backup.

    Attributes:
        image_id: Id of the new backup image.
        backup_type: Type of the images that are counted and deleted.
        rotation: Number of backup images that are kept.
    """

    image_id: str
    backup_type: str
    rotation: int


@dataclass(frozen=True, kw_only=True)
class ImageRelease(ReleaseArguments):
    """Arguments of the operation that deletes the image ``image_id``."""

    identity = ('image_id',)
    image_id: str


@dataclass(frozen=True, kw_only=True)
class AcceleratorRequestsRelease(ReleaseArguments):
    """Arguments of the release of accelerator requests.

    Attributes:
        accelerator_requests: Uuids of the requests.
        accelerators_at: Host to which the requests are bound; None if they are not bound.
    """

    identity = ('accelerator_requests',)
    accelerator_requests: list[str]
    accelerators_at: str | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True, kw_only=True)
class PortsRelease(ReleaseArguments):
    """Arguments of the release of a server's ports.

    Attributes:
        ports_of: Uuid of the server.
        ports_given: Ids of the server's ports that the user created. These ports are unbound and not deleted.
    """

    identity = ('ports_of', 'ports_given')
    ports_of: str
    ports_given: list[str]


@dataclass(frozen=True, kw_only=True)
class PortResourcesRelease(ReleaseArguments):
    """Arguments of the operation that releases what a server holds in Placement for a port.

    Attributes:
        resources_of: Id of the port; None to release everything that no present port of the server requests.
        classes: The resource classes of which the server's allocation is changed.
    """

    identity = ('resources_of',)
    resources_of: str | None
    classes: list[str]


@dataclass(frozen=True, kw_only=True)
class SwapRelease(ReleaseArguments):
    """Arguments of the operation that deletes unused volume attachments after a volume swap.

    Attributes:
        volumes_of: Uuid of the server.
        volume_swapped: (id of the first volume, id of the second volume, whether the guest uses the second volume).
    """

    identity = ('volumes_of', 'volume_swapped')
    volumes_of: str
    volume_swapped: tuple[str, str, bool]


@dataclass(frozen=True, kw_only=True)
class VolumesRelease(ReleaseArguments):
    """Arguments of the release of a server's volumes.

    Attributes:
        volumes_of: Uuid of the server. Its attachments in Cinder that none of its volume rows names are deleted.
        volumes_deleted: Ids of the volumes that are deleted after the attachments.
        volumes_made: Whether to delete also all volumes that were created for the server.
    """

    identity = ('volumes_of', 'volumes_deleted')
    volumes_of: str
    volumes_deleted: list[str]
    volumes_made: bool = field(default=False, metadata=LEFT_OUT)


@dataclass(frozen=True, kw_only=True)
class SnapshotsRelease(ReleaseArguments):
    """Arguments of the operation that deletes an image and its volume snapshots, unless the image is active.

    ``snapshots_of`` is the id of the image.
    """

    snapshots_of: str


@dataclass(frozen=True, kw_only=True)
class SnapshotStatusRelease(ReleaseArguments):
    """Arguments of the operation that reports the status of a volume snapshot to the volume service.

    ``snapshot_told`` is (id of the snapshot, its status, its progress or None).
    """

    identity = ('snapshot_told',)
    snapshot_told: tuple[str, str, str | None]


@dataclass(frozen=True, kw_only=True)
class AcceleratorsRelease(ReleaseArguments):
    """Arguments of the release of all accelerator requests that are bound to the uuid ``accelerators_of``."""

    identity = ('accelerators_of',)
    accelerators_of: str


@dataclass(frozen=True, kw_only=True)
class HostRelease(ReleaseArguments):
    """Arguments of a release that a host does when a conductor calls one of its RPC methods.

    Attributes:
        host: Name of the host.
        method: Name of the RPC method (of ``rpc.compute.Compute``).
        kwargs: Arguments of the RPC method, in serialized form.
    """

    identity = ('host', 'method')
    host: str
    method: str
    kwargs: dict[str, Any]


# {key in the JSON of a release: class of its arguments}. If the JSON has several of these keys, the first one decides.
_BY_KEY: dict[str, type[ReleaseArguments]] = {
    'consumer': ConsumerRelease,
    'rotation': BackupsRelease,
    'image_id': ImageRelease,
    'accelerator_requests': AcceleratorRequestsRelease,
    'ports_of': PortsRelease,
    'resources_of': PortResourcesRelease,
    'volume_swapped': SwapRelease,
    'volumes_of': VolumesRelease,
    'snapshots_of': SnapshotsRelease,
    'snapshot_told': SnapshotStatusRelease,
    'accelerators_of': AcceleratorsRelease,
    'host': HostRelease,
}
