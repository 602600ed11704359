"""Protocols for guests' own disks, for the images from which they are created, and for images made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Protocol

from kilonova import errors, objects

# An image's record: a dict with id, disk_format, min_disk, size, properties {} and other attributes of the image
# service.
ImageMeta = Mapping[str, Any]
ImageFetch = Callable[[str, IO[bytes]], object]
# A function that long operations call often. An exception that it raises ends the operation.
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
    """Servers' files on this host's disk, and cached images."""

    def list_directories(self) -> list[str]:
        """Return the names of the servers' directories on this host.

        Names are '<uuid>', '<uuid>_resize', '<uuid>_del' and others.
        """

    def clean_image_cache(self, min_age: float | None) -> list[str]:
        """Delete cached images that no disk uses and that were unused for ``min_age`` seconds, and return their names.

        If ``min_age`` is None, nothing is deleted, and only the time of the last use is recorded. On shared storage, an
        image is in use if a disk of any host that shares the storage reads from it. A deleted image is downloaded again
        when it is needed. If a disk cannot be read (OSError) or another error is raised, nothing was deleted.
        """

    def fetch_base(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Download the image from which the root disk reads, so that the source of a move need not copy the image.

        Raises the errors of ``Guests.spawn`` about the image. No files are left after an error.
        """


class Snapshots(Protocol):
    """Images made from guests' root disks."""

    def snapshot(self, instance: objects.Instance, image_id: str, check: Check, copied: Check) -> None:
        """Upload the current root disk (qcow2, without backing file) to an image that has no data yet.

        The disk is first copied. A running guest continues to run meanwhile. If the hypervisor does not support this,
        the guest is paused while the file of its disk is copied. ``copied()`` is called when the copy is complete and
        the guest runs again. A repeated call uploads the existing copy, and does nothing if the image has its data. If
        the upload fails because the image service does not answer, the copy is kept for the next call.

        Raises errors.ImageNotFound, errors.ImageUnacceptable, errors.Unanswered, GuestFailed, and exceptions of
        ``check``.
        """

    def forget_snapshot(self, instance: objects.Instance, image_id: str) -> None:
        """Continue the guest if it is paused, and delete the copy, if there is one. The image is not changed."""
