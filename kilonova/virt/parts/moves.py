"""Protocol for moving guests with their disks to another host: resize, cold migration and evacuation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypedDict

from kilonova import objects
from kilonova.virt.parts.disks import ImageMeta
from kilonova.virt.parts.guests import Plugged

# A function that is called often with (bytes copied, bytes in total) while disks are copied.
# If a function of type Progress raises an exception, the copy of the disks ends.
Progress = Callable[[int, int], None]


class MoveOffer(TypedDict, total=False):
    """The destination's description of where and how it receives the disks of a move.

    The conductor saves it as JSON and sends it to the source. ``run`` is the id of the last start of the destination's
    compute service. ``move`` is a new id for each move. ``pool`` is the storage pool of the disks, if they are not
    files.
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
    """A record of the disks of one move, which the source host returns when the disks are at the destination.

    ``move`` is the id of the move, and ``disks`` are the names of the disks.
    """

    move: str
    disks: list[str]


class Moves(Protocol):
    """Resize, cold migration and evacuation of guests with their disks."""

    def prepare_move(self) -> MoveOffer:
        """Return the description of where and how this host, the destination, receives the disks of a move."""

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

        Called on the source. The domain on this host is deleted. Return the argument for ``finish_migration``. To undo
        this call, callers call ``cleanup_move_dest`` on the destination, and then ``finish_revert_migration`` on the
        source.
        """

    def discard_copy(self, instance: objects.Instance, dest: MoveOffer) -> None:
        """Delete the copy of the disks that this move has written to ``dest``. Called on the source.

        Do nothing if ``dest`` is this host, or if nothing was copied. This method is needed if a move is undone while
        its disks are being copied: ``cleanup_move_dest`` may run on the destination before the disks arrive there.
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

        The guest is started if ``power_on`` is True. ``plugged`` is called to wait for the network.
        """

    def take_over(self, instance: objects.Instance, source: str) -> bool:
        """Take over the disks of a server whose host ``source`` is down, on the destination of an evacuation.

        The disks must be on storage that the two hosts share. This host is recorded there as their owner, so that the
        host ``source`` does not use them after its restart. Return False, without a change, if this host's storage does
        not have the disks.
        """

    def hand_back(self, instance: objects.Instance, source: str) -> bool:
        """Undo ``take_over``: record the host ``source`` as the owner of the disks again, and delete the domain.

        Return False if the disks were never taken over.
        """

    def confirm_migration(self, instance: objects.Instance, same_host: bool) -> None:
        """Delete the disks that this source host kept.

        Unless ``same_host`` is True, also delete a domain of the server that still exists on this host.
        """

    def cleanup_move_dest(self, instance: objects.Instance, same_host: bool) -> None:
        """Delete the domain and the copy of the disks on the destination of a reverted or undone move.

        The original disks are never deleted. Do nothing if no disk has arrived yet.
        """

    def finish_revert_migration(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        pci_devices: Iterable[objects.PciDevice],
        power_on: bool,
        plugged: Plugged | None = None,
    ) -> None:
        """Restore the disks that the source has kept as <uuid>_resize, and define the domain. Used if a move is undone.

        The guest is started if ``power_on`` is True. ``plugged`` is a function that waits for the network, as in
        ``Guests.spawn``. The domain is left as it is if no disk is kept as <uuid>_resize (the move did not begin or is
        undone already) and the guest is on or off as requested.
        """
