"""The arguments of operations on one server that stays on its host, or that gets its first host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kilonova.db.arguments.base import (
    LEFT_OUT,
    Arguments,
    Envelope,
    Image,
    ImageArguments,
    NewImageArguments,
    SpecArguments,
)
from kilonova.db.queries.rebuilds import RebuildChanges


# --- create and rebuild ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class BootArguments(SpecArguments):
    """Arguments of the boot of a new server.

    Attributes:
        instance: The server as the user requested it.
        image: Metadata of the image, or None.
        sealed: Password and files of the guest, encrypted with the keys of the deployment, or None.
        bdms: Rows of block_device_mapping.
        tags: Tags of the server.
    """

    instance: Envelope
    image: Image | None
    sealed: str | None = None
    bdms: list[dict[str, Any]] | None = None
    tags: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class RebuildArguments(ImageArguments):
    """Arguments of a rebuild.

    Attributes:
        old: The former values of the columns that the API changed when it accepted the rebuild. An undo restores them.
        preserve_ephemeral: Whether the ephemeral disks are kept.
        sealed: Password and files of the guest, encrypted with the keys of the deployment, or None.
        check_host: Whether the scheduler must check that the host fits the new image.
        request_spec: The request spec with the new image, or None if the server has no request spec.
        old_request_spec: The request spec with the old image, or None.
    """

    old: RebuildChanges
    preserve_ephemeral: bool
    sealed: str | None = None
    check_host: bool
    request_spec: Envelope | None
    old_request_spec: Envelope | None

    def on_volume(self, image_id: str) -> ReimageArguments:
        """Return these arguments as ``ReimageArguments``, for a server whose root disk is a volume.

        ``image_id`` is the id of the image that is written to the root volume.
        """
        return ReimageArguments(**vars(self), reimage=image_id)


@dataclass(frozen=True, kw_only=True)
class ReimageArguments(RebuildArguments):
    """Arguments of a rebuild of a server whose root disk is a volume.

    ``reimage`` is the id of the image that is written to the root volume.
    """

    reimage: str


# --- power, rescue, password -----------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class StopArguments(Arguments):
    """Arguments of a stop. ``clean_shutdown`` is False if the guest gets no time to shut down."""

    clean_shutdown: bool = field(default=True, metadata=LEFT_OUT)


@dataclass(frozen=True, kw_only=True)
class RebootArguments(Arguments):
    """Arguments of a reboot. ``reboot_type`` is 'SOFT' or 'HARD'."""

    reboot_type: str


@dataclass(frozen=True, kw_only=True)
class RescueArguments(Arguments):
    """Arguments of a rescue.

    ``image`` is the metadata of the rescue image that the user requested, or None if the user requested none.
    ``sealed`` is the encrypted password of the rescue system, or None if it gets no password.
    """

    image: Image | None
    sealed: str | None


@dataclass(frozen=True, kw_only=True)
class PasswordArguments(Arguments):
    """Arguments of the operation that sets the administrator's password. ``sealed`` is the encrypted password."""

    sealed: str | None


@dataclass(frozen=True, kw_only=True)
class HostBootArguments(Arguments):
    """Arguments of the operation that starts a server after its host ``host`` was down."""

    host: str


# --- images of servers, shelve, soft delete --------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class SnapshotArguments(NewImageArguments):
    """Arguments of the operation that creates an image from a server. ``image_id`` is the id of the image."""

    image_id: str


@dataclass(frozen=True, kw_only=True)
class BackupArguments(NewImageArguments):
    """Arguments of a backup. Of the images with the type ``backup_type``, the newest ``rotation`` are kept."""

    image_id: str
    backup_type: str
    rotation: int


@dataclass(frozen=True, kw_only=True)
class ShelveArguments(NewImageArguments):
    """Arguments of a shelve. ``image_id`` is None if the server boots from a volume."""


@dataclass(frozen=True, kw_only=True)
class ShelveOffloadArguments(Arguments):
    """Arguments of an offload. ``shelving`` is True if the offload is the end of a shelve and not a user's request."""

    shelving: bool = field(default=False, metadata=LEFT_OUT)
