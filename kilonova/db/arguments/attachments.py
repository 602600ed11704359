"""The arguments of operations on one network interface, on one volume, or on all ports of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from kilonova.db.arguments.base import LEFT_OUT, Arguments, Envelope


# --- interfaces ------------------------------------------------------------------------------------------------------
class InterfaceWish(TypedDict):
    """The interface that a user requested, as the operation row stores it.

    ``port_id`` is the id of the user's own port, ``address`` the requested IP address, and ``tag`` the tag by which the
    guest identifies the interface. ``device`` is the request_id of the InstancePCIRequest if the port is an SR-IOV
    port, else None.
    """

    network_id: str
    port_id: str | None
    address: str | None
    device: str | None
    tag: str | None


@dataclass(frozen=True, kw_only=True)
class AttachInterfaceArguments(Arguments):
    """Arguments of the attach of an interface.

    Attributes:
        wish: The interface that the user requested: network, port, address and tag.
        request: The serialized InstancePCIRequest if the port is an SR-IOV port, else None.
        resources: The port's attribute ``resource_request`` in Neutron (the resources that the port needs), or None.
    """

    wish: InterfaceWish
    request: Envelope | None = None
    resources: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class DetachInterfaceArguments(Arguments):
    """Arguments of the detach of an interface.

    Attributes:
        vif: The interface as the info cache stores it; None if the info cache does not have it any more.
        port_id: Id of the port; None if ``vif`` contains it.
    """

    vif: dict[str, Any] | None
    port_id: str | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True, kw_only=True)
class NetworkChangedArguments(Arguments):
    """Arguments of the operation that refreshes a server's info cache.

    Attributes:
        renamed: True if the server's new hostname must be written to the DNS names of its ports.
        at_rest: Id of a deleted port whose device the server still holds, or None. If it is set, the conductor runs
            this operation only when no other operation of the server runs, and then inserts an operation that detaches
            the interface and frees the device.
    """

    identity = ('at_rest',)
    renamed: bool = field(default=False, metadata=LEFT_OUT)
    at_rest: str | None = field(default=None, metadata=LEFT_OUT)


# --- volumes ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class VolumeArguments(Arguments):
    """Arguments of an operation on the volume ``volume_id``: a detach, or a change of the volume's size."""

    volume_id: str


@dataclass(frozen=True, kw_only=True)
class AttachVolumeArguments(VolumeArguments):
    """Arguments of the attach of a volume. ``row`` is the uuid of the volume's row in block_device_mapping."""

    row: str


@dataclass(frozen=True, kw_only=True)
class SwapVolumeArguments(VolumeArguments):
    """Arguments of a volume swap.

    Attributes:
        copy: Id of the new volume, which replaces the volume ``volume_id``.
        row: Uuid of the row in block_device_mapping.
        attachment: Id of the old volume's attachment in this row.
        columns: {column: value} for the new volume, to be written to the row when the guest uses the new volume.
    """

    copy: str
    row: str
    attachment: str | None
    columns: dict[str, Any]


class SnapshotFiles(TypedDict):
    """Files of a volume when a snapshot is created.

    The file ``name`` has the data up to the snapshot, in the format ``format``. The guest writes new data to the file
    ``new``.
    """

    name: str
    format: str
    new: str


class MergedFiles(TypedDict):
    """Names of the files of a volume that are merged when a snapshot is deleted.

    If ``into`` is given, ``file`` is committed into its backing file ``into`` (block commit). If ``into`` is None,
    backing files are pulled into the active file, to which the guest writes (block pull): the files between the active
    file and ``file``, or all backing files if ``file`` is None.
    """

    file: str | None
    into: str | None


@dataclass(frozen=True, kw_only=True)
class VolumeSnapshotArguments(VolumeArguments):
    """Base class of the arguments of operations on a snapshot of a volume in use."""

    snapshot_id: str


@dataclass(frozen=True, kw_only=True)
class CreateSnapshotArguments(VolumeSnapshotArguments):
    """Arguments of a snapshot of a volume in use."""

    files: SnapshotFiles


@dataclass(frozen=True, kw_only=True)
class DeleteSnapshotArguments(VolumeSnapshotArguments):
    """Arguments of the delete of a snapshot of a volume in use."""

    merge: MergedFiles
