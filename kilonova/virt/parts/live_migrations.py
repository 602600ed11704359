"""Guests that go to another host while they run: what hosts tell each other of it, and the calls."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NotRequired, Protocol, TypedDict

from kilonova import objects
from kilonova.virt.parts.disks import ImageMeta
from kilonova.virt.parts.moves import MoveOffer


class LiveDisk(TypedDict):
    """A disk of a guest that runs: sizes in bytes, ``used`` on the source's storage. ``copied``: QEMU carries it while
    the guest writes; the others never change, and go as files, or are in a pool (``format`` rbd) and stay there."""

    name: str
    format: str
    size: int
    used: int
    copied: bool


class LiveDevice(TypedDict):
    """A mediated device of a guest that runs, by its uuid, and what a guest sees of it: its type, and the ids of the
    function that it is on."""

    address: str
    vendor_id: str
    product_id: str
    mdev_type: str


class LiveGuest(TypedDict):
    """What a destination must know of a guest that runs: where its disks are, what they are, which CPU it sees (XML,
    None: any), what its user asked of its disks ({name: wish}), whether it has mediated devices, which of its
    devices are accelerators (of no ledger; the compute adds them), ids of the volumes that it has, and the pool
    that it has disks in."""

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
    """Where on its host a guest runs: the host CPUs that it is kept on as text (None: any), and the domain's elements
    of these names (XML, None: it has none)."""

    cpuset: str | None
    cputune: str | None
    numatune: str | None


class LiveOffer(MoveOffer):
    """How a running guest gets to a destination. ``block``: its disks go along, else both hosts use them where they
    are; ``uri``: of the hypervisor there, ``data_uri``: where the memory goes;
    ``listen``: the address of its display by type, 'vnc' or 'spice'."""

    block: bool
    uri: str
    data_uri: str
    listen: dict[str, str]


class PlacedOffer(LiveOffer):
    """The offer of a destination that has claimed; ``place``: where the guest will run there; ``hostdevs``: which of
    the devices there each of its own becomes, by address; ``volumes``: what ``LiveMigrations.prepare`` said."""

    place: LivePlace
    hostdevs: NotRequired[dict[str, str]]
    volumes: NotRequired[dict[str, str]]


class LiveProgress(TypedDict):
    """How far a live migration is, in bytes."""

    memory_total: int
    memory_processed: int
    memory_remaining: int
    disk_total: int
    disk_processed: int
    disk_remaining: int


# Called now and then; what it raises aborts the migration, and is raised once the guest is known to have stayed.
LiveTold = Callable[[LiveProgress], None]


class LiveMigrations(Protocol):
    """Guests that go to another host while they run, or are paused.

    Source: ``describe``; destination: ``offer``, ``place``, ``prepare``; source: ``migrate``; destination: ``receive``;
    source: ``leave``. On the way back: source ``abort``, destination ``Moves.cleanup_move_dest``, source ``go_on``. At
    no time do both hosts run the guest.
    """

    def describe(self, instance: objects.Instance) -> LiveGuest:
        """Source: what a destination must know. GuestFailed: it is off."""

    def offer(self, instance: objects.Instance, guest: LiveGuest, block: bool | None,
              over_commit: bool) -> LiveOffer:
        """Destination: how the guest gets here; changes nothing.

        ``block`` None: its disks go along unless both hosts use them where they are. ``over_commit``: their holes need
        no room. errors.MigrationPreCheckError: CPU, storage or room aren't what it needs.
        """

    def place(self, instance: objects.Instance, image_meta: ImageMeta) -> LivePlace:
        """Destination: where the guest will run here, by ``instance.numa_topology``; changes nothing.
        errors.MigrationPreCheckError: a guest of this flavor and image can't be here."""

    def prepare(self, instance: objects.Instance, guest: LiveGuest, offer: LiveOffer,
                pci_devices: Iterable[objects.PciDevice] = ()) -> dict[str, str]:
        """Destination: empty disks, what the guest starts from, the mediated devices among those that it will have, and
        those of its volumes that are coming here are connected: {id: how its guest finds it here}, for ``migrate``;
        ports that the host connects are, too. MdevUnavailable, VolumeUnsupported, InterfaceFailed. Undo:
        ``Moves.cleanup_move_dest``."""

    def migrate(self, instance: objects.Instance, offer: PlacedOffer, told: LiveTold) -> None:
        """Source: returns when the guest is at the destination, at the offer's place; a repeated call attaches to the
        migration that runs, and does nothing when it is over.

        errors.DisksUnmovable: files can't be carried there, nothing was done. errors.MigrationError (the destination
        hasn't connected one of its volumes, too), or what ``told`` raised: the guest is still here.
        """

    def force_complete(self, instance: objects.Instance) -> None:
        """Source: beside ``migrate``: the guest runs at the destination at once, and the rest of its memory follows
        (post-copy), or it stands still until it is there. errors.MigrationError: no migration of it runs."""

    def abort(self, instance: objects.Instance) -> bool:
        """Source: end a migration that runs and wait for its end; whether the guest is (still) active here."""

    def has_switched(self, instance: objects.Instance) -> bool:
        """Source: whether the guest runs at the destination though a part of its memory is still here. It can't come
        back then, and if that part never gets there it is lost."""

    def go_on(self, instance: objects.Instance) -> None:
        """Source: let a guest that a failed migration, or one forced to its end, left held go on; one of a server that
        is paused stays paused. Only when no other host has it."""

    def has_arrived(self, instance: objects.Instance) -> bool:
        """Destination: whether the guest is here, and not only on its way. From the switch to post-copy on it is."""

    def receive(self, instance: objects.Instance) -> None:
        """Destination: the guest that has arrived, with its disks, is this host's; one that isn't there is off, and so
        is one of whose memory a part never came."""

    def leave(self, instance: objects.Instance, offer: LiveOffer) -> None:
        """Source: forget a guest that has gone, and its disks unless the destination uses them where they are; its
        volumes are disconnected. Of one that was switched to post-copy the rest goes after it first. VolumeFailed."""
