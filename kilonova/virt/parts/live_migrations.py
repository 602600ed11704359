"""Protocol for live migrations, and the dicts that source and destination exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NotRequired, Protocol, TypedDict

from kilonova import objects
from kilonova.virt.parts.disks import ImageMeta
from kilonova.virt.parts.moves import MoveOffer


class LiveDisk(TypedDict):
    """A disk of a running guest.

    Sizes are in bytes; ``used`` is the size on the source's storage. If ``copied`` is True, QEMU copies the disk while
    the guest writes to it. If it is False, the disk is copied as a file before the migration, because the guest only
    reads it, like a config drive. Disks in a storage pool (``format`` rbd) are not copied: both hosts use the pool.
    """

    name: str
    format: str
    size: int
    used: int
    copied: bool


class LiveDevice(TypedDict):
    """A mediated device of a running guest, with the properties that the guest sees.

    ``address`` is its uuid. ``vendor_id`` and ``product_id`` are the ids of its PCI function.
    """

    address: str
    vendor_id: str
    product_id: str
    mdev_type: str


class LiveGuest(TypedDict):
    """Description of a running guest, which the source sends to a destination.

    Attributes:
        host: The source host.
        storage_id: Id of the source's storage.
        instances_path: The source's instances_path.
        disks: The guest's local disks and its disks in a storage pool, without volumes.
        arch: CPU architecture.
        machine: Machine type.
        virt_type: Virtualization type.
        cpu: The CPU that the guest sees, as XML; None for any CPU.
        asked: A dict from disk name to the properties that the user requested.
        mdevs: Whether the guest has mediated devices.
        accelerators: Mediated devices that Cyborg has assigned to the guest. The compute service adds this key to the
            result of ``LiveMigrations.describe``.
        volumes: Ids of the guest's volumes.
        pool: The storage pool that contains disks of the guest; without the key, there are none.
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
    """The CPUs and memory of a host that a guest uses on this host.

    ``cpuset`` is a text with the host CPUs that the guest may use, or None for any. ``cputune`` and ``numatune`` are
    the domain's XML elements of these names, or None if the domain does not have them.
    """

    cpuset: str | None
    cputune: str | None
    numatune: str | None


class LiveOffer(MoveOffer):
    """The data that the destination of a live migration returns to the source.

    If ``block`` is True, the disks are copied; otherwise the two hosts use them on shared storage. ``uri`` is the
    address of the destination's hypervisor, ``data_uri`` the address to which the guest's memory is sent. ``listen`` is
    {'vnc' or 'spice': address of the guest's display on the destination}.
    """

    block: bool
    uri: str
    data_uri: str
    listen: dict[str, str]


class PlacedOffer(LiveOffer):
    """The data of a destination after it has claimed the guest's resources.

    ``place`` has the CPUs and memory that the guest will use on the destination. ``hostdevs`` is a dict from the
    address of each of the guest's devices on the source to the address of the device claimed for it on the
    destination. ``volumes`` is a dict from volume id to the XML element ``source`` of the volume on the destination.
    """

    place: LivePlace
    hostdevs: NotRequired[dict[str, str]]
    volumes: NotRequired[dict[str, str]]


class LiveProgress(TypedDict):
    """Progress of a live migration. All values are in bytes."""

    memory_total: int
    memory_processed: int
    memory_remaining: int
    disk_total: int
    disk_processed: int
    disk_remaining: int


# A function that is called periodically with the progress of a live migration.
# If a function of type LiveTold raises an exception, the migration is aborted, and ``migrate`` raises the exception.
LiveTold = Callable[[LiveProgress], None]


class LiveMigrations(Protocol):
    """Migration of guests to another host while they run or are paused.

    The order of calls is: ``describe`` on the source; ``offer``, ``place`` and ``prepare`` on the destination;
    ``migrate`` on the source; ``receive`` on the destination; ``leave`` on the source. To undo a migration, callers
    call ``abort`` on the source, ``Moves.cleanup_move_dest`` on the destination, and ``go_on`` on the source. The guest
    never runs on the two hosts at the same time.
    """

    def describe(self, instance: objects.Instance) -> LiveGuest:
        """Return a description of the guest for a destination.

        Called on the source. Raises GuestFailed if the guest is off.
        """

    def offer(self, instance: objects.Instance, guest: LiveGuest, block: bool | None, over_commit: bool) -> LiveOffer:
        """Check whether the guest can be migrated to this host. Return the data that the source needs to migrate it.

        Nothing is changed. ``block`` says whether the disks must be copied. If it is None, they are copied unless the
        two hosts share storage. With ``over_commit``, unused parts of sparse disks need no free space. Raises
        errors.MigrationPreCheckError if this host's CPU, storage or free space is not suitable.
        """

    def place(self, instance: objects.Instance, image_meta: ImageMeta) -> LivePlace:
        """Return the CPUs and memory that ``instance.numa_topology`` assigns to the guest on the destination.

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
        """Prepare this host, the destination. Return {volume id: XML element ``source`` of the volume on this host}.

        The method creates empty disks, other files that the guest needs to start, and the mediated devices among
        ``pci_devices``. It connects the volumes that have an attachment to this host, and plugs the guest's ports.
        ``Moves.cleanup_move_dest`` undoes this call.

        Raises:
            MdevUnavailable: A mediated device cannot be created.
            VolumeUnsupported: This host does not support a volume's kind of connection or encryption.
            InterfaceFailed: This host could not connect a port.
        """

    def migrate(self, instance: objects.Instance, offer: PlacedOffer, report: LiveTold) -> None:
        """Migrate the guest to the host of ``offer``. Return when the guest runs there. Called on the source.

        A repeated call continues to wait for a running migration, and does nothing if the migration is complete.
        ``report`` is called periodically with the progress, and an exception that it raises aborts the migration. If
        this method raises MigrationError or the exception of ``report``, the guest is still on this host.

        Raises:
            errors.DisksUnmovable: Files cannot be copied to the destination. Nothing was done.
            errors.MigrationError: The migration failed, for example because the destination has not connected a volume.
        """

    def force_complete(self, instance: objects.Instance) -> None:
        """Force a running migration to complete. Called on the source while ``migrate`` runs.

        With post-copy, the guest runs at the destination at once and the rest of its memory follows. Without it, the
        guest is paused until all its memory is at the destination. Raises errors.MigrationError if no migration of the
        guest runs.
        """

    def abort(self, instance: objects.Instance) -> bool:
        """Abort a running migration on the source, and wait for its end.

        Return whether the guest is active on this host afterwards.
        """

    def has_switched(self, instance: objects.Instance) -> bool:
        """Return whether the migration is in post-copy mode.

        The guest then runs at the destination while a part of its memory is still on the source, so it cannot return to
        the source. If the rest of its memory is never transferred, the guest must be started again from its disks.
        """

    def go_on(self, instance: objects.Instance) -> None:
        """Resume a guest on the source if a migration that did not complete has left the guest paused there.

        A migration pauses the guest when it is forced to complete. If the user has paused the server, the guest stays
        paused. Callers must be sure that the guest does not run on another host.
        """

    def has_arrived(self, instance: objects.Instance) -> bool:
        """Return whether the guest already runs on this host, the destination.

        After a switch to post-copy the result is True, although a part of the guest's memory may still be on the
        source.
        """

    def receive(self, instance: objects.Instance) -> None:
        """Complete the migration on the destination: define the guest, and make this host the owner of its disks.

        The guest is off afterwards if it has not arrived, or if a part of its memory was lost in a failed post-copy. It
        can then be started from its disks.
        """

    def leave(self, instance: objects.Instance, offer: LiveOffer) -> None:
        """Delete a migrated guest on the source. Also delete its disks unless they are on shared storage.

        The guest's volumes are disconnected from this host. After a switch to post-copy, the method first waits until
        the rest of the guest's memory is transferred. Raises VolumeFailed if a volume cannot be disconnected.
        """
