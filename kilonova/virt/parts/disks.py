"""Guests' own disks: the images that they are made from, and the images that are made of them."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Protocol

from kilonova import errors, objects

# An image's record: id, disk_format, min_disk, size, properties {} and what else the image service says.
ImageMeta = Mapping[str, Any]
ImageFetch = Callable[[str, IO[bytes]], object]
# Called often by what takes long; what it raises ends that.
Check = Callable[[], None]


class FlavorDiskSmallerThanImage(errors.Invalid):
    """The image needs more root disk than the flavor has (both sizes in bytes)."""

    msg_fmt = ("Flavor's disk is too small for requested image. Flavor disk is %(flavor_size)i bytes, "
               'image is %(image_size)i bytes.')


class ImageClient(Protocol):
    """Where images come from (``kilonova.clients.image.ImageClient``, or a test's)."""

    def get(self, image_id: str) -> ImageMeta:
        """The image's record: id, status …; errors.ImageNotFound."""

    def download(self, image_id: str, file: IO[bytes]) -> object:
        """Write the image's bytes to ``file`` and check them against the image's checksum; raise else. errors.NoRoom:
        they don't fit where the file is."""

    def update(self, image_id: str, changes: Sequence[Mapping[str, Any]]) -> None:
        """Change the image's record, as in JSON patch (op, path, value)."""

    def upload(self, image_id: str, file: IO[bytes], check: Check) -> None:
        """Send ``file`` as the data of an image that has none; ``check()`` is called all the time."""


class Disks(Protocol):
    """What servers have on this host's disk."""

    def list_directories(self) -> list[str]:
        """Names of the servers' directories on this host: '<uuid>', '<uuid>_resize', '<uuid>_del' …"""

    def clean_image_cache(self, min_age: float | None) -> list[str]:
        """Remove cached images that no disk reads from and nobody has taken for ``min_age`` seconds; their names.

        None: remove nothing, only note which are in use. What hosts share is in use where any of their disks reads from
        it. An image that is wanted again is fetched again. Errors (OSError: a disk can't be read): nothing was removed.
        """

    def fetch_base(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Have the image at hand that the root disk reads from, so that the source of a move need not carry it.

        Errors: as ``spawn`` has them for the image; nothing is left then.
        """


class Snapshots(Protocol):
    """Images of guests."""

    def snapshot(self, instance: objects.Instance, image_id: str, check: Check, copied: Check) -> None:
        """Send the root disk as it stands now (qcow2, without backing file) to an image that has no data yet.

        A running guest runs on meanwhile; where the hypervisor can't do that it is held still while its own file is
        copied, and goes on before ``copied()`` is called, when that is done. A repeated call sends what was copied, and
        does nothing for an image that has its data.
        What it raised with the copy made (the image service is silent) leaves the copy for the next call. Errors:
        errors.ImageNotFound, errors.ImageUnacceptable, errors.Unanswered, GuestFailed, whatever ``check`` raises.
        """

    def forget_snapshot(self, instance: objects.Instance, image_id: str) -> None:
        """Let a guest that is held go on and delete the copy; fine if there is none. The image isn't touched."""
