"""Guests that go to another host with their disks."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypedDict

from kilonova import objects
from kilonova.virt.parts.disks import ImageMeta
from kilonova.virt.parts.guests import Plugged

# Called often with (bytes done, bytes in all) by what carries disks; what it raises ends that.
Progress = Callable[[int, int], None]


class MoveOffer(TypedDict, total=False):
    """Where a destination wants the disks of a move; saved by the flow as JSON and given to the source. ``run``: of
    this compute; ``move``: a new id each time; ``pool``: that its disks are in, where they are no files."""

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
    """What a source has carried: the id of the move, and the names of the disks."""

    move: str
    disks: list[str]


class Moves(Protocol):
    """Guests that go to another host with their disks: resize, cold migrate."""

    def prepare_move(self) -> MoveOffer:
        """Destination: where disks for it shall go."""

    def check_move(self, instance: objects.Instance, dest: MoveOffer, flavor: objects.Flavor) -> None:
        """Source: raise errors.DisksUnmovable if the disks can't go there, errors.ResizeError if the flavor would
        shrink them.

        Changes nothing. ``instance.flavor`` is the old flavor, ``flavor`` the new one.
        """

    def migrate_disk_and_power_off(self, instance: objects.Instance, dest: MoveOffer, flavor: objects.Flavor,
                                   timeout: int = 0, retry_interval: int = 0,
                                   progress: Progress | None = None) -> DiskInfo:
        """Source: check_move, power off, keep the disks as <uuid>_resize, carry a copy to ``dest``.

        The domain is forgotten here; revert makes it anew. Returns what ``finish_migration`` wants. Undo:
        ``cleanup_move_dest`` there, then ``finish_revert_migration``.
        """

    def discard_copy(self, instance: objects.Instance, dest: MoveOffer) -> None:
        """Source: what this very move carried to ``dest`` goes again; nothing if it is the same host, or nothing came.

        For a move that ended while its disks were on their way: ``cleanup_move_dest`` was there before them.
        """

    def finish_migration(self, instance: objects.Instance, image_meta: ImageMeta,
                         pci_devices: Iterable[objects.PciDevice], power_on: bool, disk_info: DiskInfo,
                         plugged: Plugged | None = None) -> None:
        """Destination: grow the disks to ``instance.flavor``, define the domain, start it if asked; ``plugged`` as in
        ``Guests.spawn``."""

    def take_over(self, instance: objects.Instance, source: str) -> bool:
        """Destination of an evacuation: the disks of a server of the dead host ``source`` are on storage that is this
        host's, too, and this host's from now on. False: they aren't here, nothing is changed."""

    def hand_back(self, instance: objects.Instance, source: str) -> bool:
        """Undo of ``take_over``: the disks are the source's again, the domain goes. False: they were never taken
        over."""

    def confirm_migration(self, instance: objects.Instance, same_host: bool) -> None:
        """Source: delete the kept disks (and, unless ``same_host``, a domain that is still there)."""

    def cleanup_move_dest(self, instance: objects.Instance, same_host: bool) -> None:
        """Destination, revert or undo: forget the domain and the copy of the disks; never the originals.

        Safe if nothing had arrived yet.
        """

    def finish_revert_migration(self, instance: objects.Instance, image_meta: ImageMeta,
                                pci_devices: Iterable[objects.PciDevice], power_on: bool,
                                plugged: Plugged | None = None) -> None:
        """Source, revert or undo: bring back the kept disks, define the domain, start it if asked; ``plugged`` as in
        ``Guests.spawn``.

        A guest that was never moved and already is as asked stays untouched.
        """
