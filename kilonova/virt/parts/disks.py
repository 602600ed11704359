"""Protocols for guests' own disks: the images that they are created from, and the images that are made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Protocol

from kilonova import errors, objects

# An image's record with id, disk_format, min_disk, size, properties {} and other attributes of the image service.
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
        """Return the image's record with id, status and others. Raises errors.ImageNotFound if it does not exist."""

    def download(self, image_id: str, file: IO[bytes]) -> object:
        """Write the image's data to ``file``, and compare it with the image's checksum.

        Raises errors.NoRoom if the data does not fit on the file's storage, and another error if the checksum differs.
        """

    def update(self, image_id: str, changes: Sequence[Mapping[str, Any]]) -> None:
        """Change the image's record by JSON patch operations (op, path, value)."""

    def upload(self, image_id: str, file: IO[bytes], check: Check) -> None:
        """Send ``file`` as the data of an image that has none. ``check()`` is called often meanwhile."""


class Disks(Protocol):
    """Servers' files on this host's disk, and cached images."""

    def list_directories(self) -> list[str]:
        """Return the names of the servers' directories on this host.

        They are '<uuid>', '<uuid>_resize', '<uuid>_del' and others.
        """

    def clean_image_cache(self, min_age: float | None) -> list[str]:
        """Delete cached images that no disk uses and that were unused for ``min_age`` seconds, and return their names.

        With None, nothing is deleted, and only the time of use is noted. An image on shared storage is in use if a disk
        of any of these hosts reads from it. An image that is needed again is downloaded again. If a disk cannot be read
        (OSError) or another error is raised, nothing was deleted.
        """

    def fetch_base(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Download the image that the root disk reads from, so that the source of a move need not copy it.

        Raises the errors of ``Guests.spawn`` about the image, and leaves no files then.
        """


class Snapshots(Protocol):
    """Images made from guests' root disks."""

    def snapshot(self, instance: objects.Instance, image_id: str, check: Check, copied: Check) -> None:
        """Upload the current root disk (qcow2, without backing file) to an image that has no data yet.

        A running guest continues to run meanwhile. If the hypervisor cannot do that, the guest is paused while its own
        file is copied, and continues before ``copied()`` is called, which is when the copy is complete. A repeated call
        uploads the existing copy, and does nothing if the image has its data. If the copy was made but the upload fails
        because the image service does not answer, the copy is kept for the next call.

        Raises errors.ImageNotFound, errors.ImageUnacceptable, errors.Unanswered, GuestFailed, and exceptions of
        ``check``.
        """

    def forget_snapshot(self, instance: objects.Instance, image_id: str) -> None:
        """Continue a paused guest and delete the copy, if there is one. The image is not changed."""
