"""Protocol for live migrations, and the data that source and destination exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NotRequired, Protocol, TypedDict

from kilonova import objects
from kilonova.virt.parts.disks import ImageMeta
from kilonova.virt.parts.moves import MoveOffer


class LiveDisk(TypedDict):
    """A disk of a running guest.

    Sizes are in bytes; ``used`` is the size on the source's storage. If ``copied`` is True, QEMU copies the disk while
    the guest writes to it. Other disks never change: they are copied as files, or are in a pool (``format`` rbd) and
    stay there.
    """

    name: str
    format: str
    size: int
    used: int
    copied: bool


class LiveDevice(TypedDict):
    """A mediated device of a running guest.

    It has its uuid as ``address``, and the properties that the guest sees: its type, and the ids of its PCI function.
    """

    address: str
    vendor_id: str
    product_id: str
    mdev_type: str


class LiveGuest(TypedDict):
    """Description of a running guest for a destination.

    Attributes:
        host: The source.
        storage_id: Id of the source's storage.
        instances_path: The source's path.
        disks: The guest's own disks.
        arch: Architecture.
        machine: Machine type.
        virt_type: Virtualization type.
        cpu: The CPU that the guest sees, as XML; None for any CPU.
        asked: The properties of disks that the user requested, by the disk's name.
        mdevs: Whether the guest has mediated devices.
        accelerators: Devices that are accelerators, which no ledger has; the compute adds them.
        volumes: Ids of the guest's volumes.
        pool: The pool that has some of its disks.
    """

    host: str
    storage_id: str
    instances_path: str
    disks: list[LiveDisk]
    arch: str
    machine: str | None
    virt_type: str
    cpu: str | None
    asked: dict[str, Any]
    mdevs: NotRequired[bool]
    accelerators: NotRequired[list[LiveDevice]]
    volumes: NotRequired[list[str]]
    pool: NotRequired[str]


class LivePlace(TypedDict):
    """Host CPUs and memory that a guest uses on its host.

    ``cpuset`` has the host CPUs that the guest may use as text, or None for any. ``cputune`` and ``numatune`` are the
    domain's XML elements of these names, or None if it does not have them.
    """

    cpuset: str | None
    cputune: str | None
    numatune: str | None


class LiveOffer(MoveOffer):
    """Conditions of a destination for a live migration.

    With ``block``, the disks are copied; otherwise both hosts use them on shared storage. ``uri`` is the address of the
    destination's hypervisor, ``data_uri`` the address for the memory. ``listen`` has the address of the guest's display
    by its type, 'vnc' or 'spice'.
    """

    block: bool
    uri: str
    data_uri: str
    listen: dict[str, str]


class PlacedOffer(LiveOffer):
    """Offer of a destination that has claimed the guest's resources.

    ``place`` has the host CPUs and memory that the guest will use there. ``hostdevs`` is {address of a device on the
    source: address of the device that replaces it}. ``volumes`` is the result of ``LiveMigrations.prepare``.
    """

    place: LivePlace
    hostdevs: NotRequired[dict[str, str]]
    volumes: NotRequired[dict[str, str]]


class LiveProgress(TypedDict):
    """Progress of a live migration in bytes."""

    memory_total: int
    memory_processed: int
    memory_remaining: int
    disk_total: int
    disk_processed: int
    disk_remaining: int


# A function that is called periodically. An exception that it raises aborts the migration, and is raised again when it
# is certain that the guest has stayed on the source.
LiveTold = Callable[[LiveProgress], None]


class LiveMigrations(Protocol):
    """Migration of guests to another host while they run or are paused.

    The order of calls is: ``describe`` on the source; ``offer``, ``place`` and ``prepare`` on the destination;
    ``migrate`` on the source; ``receive`` on the destination; ``leave`` on the source. The undo is ``abort`` on the
    source, ``Moves.cleanup_move_dest`` on the destination, and ``go_on`` on the source. The guest never runs on both
    hosts at the same time.
    """

    def describe(self, instance: objects.Instance) -> LiveGuest:
        """Return the source's description of the guest for a destination. Raises GuestFailed if the guest is off."""

    def offer(self, instance: objects.Instance, guest: LiveGuest, block: bool | None, over_commit: bool) -> LiveOffer:
        """Return the destination's conditions for taking the guest. Nothing is changed.

        With ``block`` None, the disks are copied unless both hosts use them on shared storage. With ``over_commit``,
        unused parts of sparse disks need no space. Raises errors.MigrationPreCheckError if the CPU, the storage or the
        free space is not sufficient.
        """

    def place(self, instance: objects.Instance, image_meta: ImageMeta) -> LivePlace:
        """Return the CPUs and memory that the guest will use on the destination by ``instance.numa_topology``.

        Nothing is changed. Raises errors.MigrationPreCheckError if a guest of this flavor and image cannot run on this
        host.
        """

    def prepare(
        self,
        instance: objects.Instance,
        guest: LiveGuest,
        offer: LiveOffer,
        pci_devices: Iterable[objects.PciDevice] = (),
    ) -> dict[str, str]:
        """Prepare the destination, and return {volume id: how the guest finds the volume on this host} for ``migrate``.

        It creates empty disks, the files that the guest starts from, and the mediated devices among ``pci_devices``. It
        connects the volumes that are attached to this host, and the ports that the host itself has to connect. Raises
        MdevUnavailable, VolumeUnsupported or InterfaceFailed. ``Moves.cleanup_move_dest`` is the undo.
        """

    def migrate(self, instance: objects.Instance, offer: PlacedOffer, told: LiveTold) -> None:
        """Migrate the guest from the source, and return when it runs at the destination on the CPUs of the offer.

        A repeated call continues to wait for a running migration, and does nothing if the migration is complete.
        ``told`` is called periodically with the progress, and its exception aborts the migration.

        Raises:
            errors.DisksUnmovable: If files cannot be copied to the destination. Nothing was done.
            errors.MigrationError: If the migration failed, also because the destination has not connected one of the
                volumes. The guest is still on this host. The same holds for the exception of ``told``.
        """

    def force_complete(self, instance: objects.Instance) -> None:
        """Complete a running migration on the source at once.

        Either the guest runs at the destination at once and the rest of its memory follows (post-copy), or it is paused
        until it is there. The method is called at the same time as ``migrate``. Raises errors.MigrationError if no
        migration of the guest runs.
        """

    def abort(self, instance: objects.Instance) -> bool:
        """End a running migration on the source, and wait for its end.

        Return whether the guest is (still) active on this host.
        """

    def has_switched(self, instance: objects.Instance) -> bool:
        """Return whether the guest runs at the destination while a part of its memory is still on the source.

        Such a guest cannot return to the source. If this part of its memory is never transferred, the guest is lost.
        """

    def go_on(self, instance: objects.Instance) -> None:
        """Continue a guest on the source that a failed or forced migration has left paused.

        A guest whose server is paused stays paused. It must only be called if no other host has the guest.
        """

    def has_arrived(self, instance: objects.Instance) -> bool:
        """Return whether the guest is on the destination, and not only being transferred.

        It is True from the switch to post-copy on.
        """

    def receive(self, instance: objects.Instance) -> None:
        """Take over the guest that has arrived on the destination, with its disks.

        If the guest is not on this host, or if a part of its memory was never transferred, it counts as off.
        """

    def leave(self, instance: objects.Instance, offer: LiveOffer) -> None:
        """Delete a guest that has left the source, and its disks unless the destination uses them on shared storage.

        Its volumes are disconnected. If the guest was switched to post-copy, the rest of its memory is transferred
        first. Raises VolumeFailed if a volume cannot be disconnected.
        """
