"""Protocol for moving guests with their disks to another host: resize, cold migration and evacuation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypedDict

from kilonova import objects
from kilonova.virt.parts.disks import ImageMeta
from kilonova.virt.parts.guests import Plugged

# A function that is called often with (bytes copied, bytes in total) while disks are copied. An exception that the
# function raises ends the copy.
Progress = Callable[[int, int], None]


class MoveOffer(TypedDict, total=False):
    """The destination's address for the disks of a move.

    A flow saves the address as JSON and sends it to the source. ``run`` is the id of the last start of the
    destination's compute (``virt.identity``). ``move`` is a new id for each move. ``pool`` is the storage pool of the
    disks, if they are not files.
    """

    host: str
    address: str
    machine_id: str
    boot_id: str
    instances_path: str
    base_path: str
    storage_id: str
    run: str
    move: str
    pool: str


class DiskInfo(TypedDict):
    """Result of the copy that the source makes: the id of the move, and the names of the disks."""

    move: str
    disks: list[str]


class Moves(Protocol):
    """Resize, cold migration and evacuation of guests with their disks."""

    def prepare_move(self) -> MoveOffer:
        """Return the destination's address for the disks of a move."""

    def check_move(self, instance: objects.Instance, dest: MoveOffer, flavor: objects.Flavor) -> None:
        """Check on the source that the disks can be moved. Nothing is changed.

        ``instance.flavor`` is the old flavor, ``flavor`` the new one. Raises errors.DisksUnmovable if the disks cannot
        be copied to ``dest``, and errors.ResizeError if the new flavor would shrink the disks.
        """

    def migrate_disk_and_power_off(
        self,
        instance: objects.Instance,
        dest: MoveOffer,
        flavor: objects.Flavor,
        timeout: int = 0,
        retry_interval: int = 0,
        progress: Progress | None = None,
    ) -> DiskInfo:
        """Check the move, power the guest off, keep its disks as <uuid>_resize, and copy the disks to ``dest``.

        Called on the source. The method deletes the domain on this host, and returns the argument for
        ``finish_migration``. The undo is ``cleanup_move_dest`` on the destination, and then ``finish_revert_migration``
        on the source, which creates the domain again.
        """

    def discard_copy(self, instance: objects.Instance, dest: MoveOffer) -> None:
        """Delete the copy of the disks that this move has written to ``dest``. Called on the source.

        Nothing is done if ``dest`` is the same host, or if nothing was copied. The method is needed for a move that was
        undone while its disks were being copied, because ``cleanup_move_dest`` may have run before the disks arrived.
        """

    def finish_migration(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        pci_devices: Iterable[objects.PciDevice],
        power_on: bool,
        disk_info: DiskInfo,
        plugged: Plugged | None = None,
    ) -> None:
        """Grow the disks on the destination to ``instance.flavor``, and define the domain.

        The guest is started if ``power_on`` is True. ``plugged`` has the same meaning as in ``Guests.spawn``.
        """

    def take_over(self, instance: objects.Instance, source: str) -> bool:
        """Take over the disks of a server whose host ``source`` is down, on the destination of an evacuation.

        The disks must be on storage that the two hosts share; from now on they belong to this host. Return False if the
        disks are not on this host's storage; nothing is changed in this case.
        """

    def hand_back(self, instance: objects.Instance, source: str) -> bool:
        """Undo ``take_over``: make the disks those of the source again, and delete the domain.

        Return False if the disks were never taken over.
        """

    def confirm_migration(self, instance: objects.Instance, same_host: bool) -> None:
        """Delete the disks that the source kept and, unless ``same_host``, a domain that still exists on the source."""

    def cleanup_move_dest(self, instance: objects.Instance, same_host: bool) -> None:
        """Delete the domain and the copy of the disks on the destination of a reverted or undone move.

        The original disks are never deleted. It is no error if no disk has arrived yet.
        """

    def finish_revert_migration(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        pci_devices: Iterable[objects.PciDevice],
        power_on: bool,
        plugged: Plugged | None = None,
    ) -> None:
        """Restore the kept disks on the source of a reverted or undone move, and define the domain.

        The guest is started if ``power_on`` is True. ``plugged`` has the same meaning as in ``Guests.spawn``. A guest
        that was never moved and is already on or off as requested is not changed.
        """
