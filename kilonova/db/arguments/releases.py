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
    """Base class of the arguments of releases.

    A release is an operation that later frees or updates something in another service or on a host. This class itself
    is used for a row whose JSON has none of the keys in ``_BY_KEY``.
    """

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Return the arguments from the JSON object ``stored`` of a row.

        The class of the result belongs to the first key in ``_BY_KEY`` that ``stored`` has.
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
    """Arguments of the operation that removes resources of ports from a server's allocation in Placement.

    Such resources are a port's ``resource_request``, for example its QoS minimum bandwidth.

    Attributes:
        resources_of: Id of the detached port. None to remove all resources that no port of the server requests now.
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
        volume_swapped: (id of the old volume, id of the new volume, whether the guest uses the new volume).
    """

    identity = ('volumes_of', 'volume_swapped')
    volumes_of: str
    volume_swapped: tuple[str, str, bool]


@dataclass(frozen=True, kw_only=True)
class VolumesRelease(ReleaseArguments):
    """Arguments of the release of a server's volumes.

    Attributes:
        volumes_of: Uuid of the server. The operation deletes each attachment of the server in Cinder that is not in one
            of the server's rows in block_device_mapping.
        volumes_deleted: Ids of volumes that the operation deletes after these attachments.
        volumes_made: True if the operation also deletes all volumes that Kilonova created for the server.
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
    """Arguments of the operation that reports the status of an assisted volume snapshot to Cinder.

    ``snapshot_told`` is the report: (id of the snapshot, its status, its progress such as '90%' or None).
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
