"""Protocols for guests' own disks, for the images from which they are created, and for images made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Protocol

from kilonova import errors, objects

# An image's record in the image service: a dict with id, disk_format, min_disk, size, properties {} and more.
ImageMeta = Mapping[str, Any]
ImageFetch = Callable[[str, IO[bytes]], object]
# A function that a long operation calls again and again. An exception that it raises ends the operation.
Check = Callable[[], None]


class FlavorDiskSmallerThanImage(errors.Invalid):
    """The image needs a larger root disk than the flavor has (both sizes in bytes)."""

    msg_fmt = (
        "Flavor's disk is too small for requested image. Flavor disk is %(flavor_size)i bytes, "
        'image is %(image_size)i bytes.'
    )


class ImageSource(Protocol):
    """Client of the image service (``kilonova.clients.image.ImageClient``, or a fake of tests)."""

    def get(self, image_id: str) -> ImageMeta:
        """Return the image's record with id, status and more. Raises errors.ImageNotFound if no such image exists."""

    def download(self, image_id: str, file: IO[bytes]) -> object:
        """Write the image's data to ``file``, and compare it with the image's checksum.

        Raises errors.NoRoom if the data does not fit on the file's storage, and another error if the checksum differs.
        """

    def update(self, image_id: str, changes: Sequence[Mapping[str, Any]]) -> None:
        """Change the image's record by JSON patch operations (op, path, value)."""

    def upload(self, image_id: str, file: IO[bytes], check: Check) -> None:
        """Send ``file`` as the data of an image that has no data yet. ``check()`` is called often during the upload."""


class Disks(Protocol):
    """The part of a driver for servers' files on this host, and for cached images."""

    def list_directories(self) -> list[str]:
        """Return the names of the servers' directories on this host.

        Names are '<uuid>', '<uuid>_resize', '<uuid>_del' and others.
        """

    def clean_image_cache(self, min_age: float | None) -> list[str]:
        """Delete cached images that no disk uses and that were unused for ``min_age`` seconds, and return their names.

        If ``min_age`` is None, only record the time of the last use, and delete nothing. On shared storage, an image is
        also in use if disks of other hosts read from it. If an error is raised, for example OSError because a disk
        cannot be read, nothing was deleted.
        """

    def fetch_base(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Download the image that the root disk reads from, so that the source of a move need not copy it to this host.

        Raises the errors of ``Guests.spawn`` about the image. After an error no files are left.
        """


class Snapshots(Protocol):
    """Images made from guests' root disks."""

    def snapshot(self, instance: objects.Instance, image_id: str, check: Check, copied: Check) -> None:
        """Upload the current root disk (qcow2, without backing file) to an image that has no data yet.

        The disk is first copied. The guest runs meanwhile, or is paused if the hypervisor cannot copy the disk of a
        running guest. When the copy is complete, ``copied()`` is called, and then the copy is uploaded. A repeated call
        uploads an existing copy, and does nothing if the image has its data. If the image service does not answer, the
        copy is kept for the next call.

        Raises errors.ImageNotFound, errors.ImageUnacceptable, errors.Unanswered, GuestFailed, and exceptions of
        ``check``.
        """

    def forget_snapshot(self, instance: objects.Instance, image_id: str) -> None:
        """Resume the guest if a snapshot has paused it, and delete the copy of its disk. Do not change the image."""
