"""What a compute asks of a hypervisor: one object a host, with a part for each subject.

    driver = load(conf, image_client)     # [DEFAULT]compute_driver = libvirt.LibvirtDriver
    driver.host.init_host()
    driver.guests.spawn(instance, image_meta, pci_devices=devices)
    driver.power.power_off(instance, timeout=60)

``ComputeDriver`` is the whole seam between ``kilonova.compute`` and a hypervisor: ``host``, ``guests``, ``power``,
``rescues``, ``disks``, ``moves``, ``live_migrations``, ``snapshots``, ``devices``, ``volumes``, ``volume_snapshots``,
each a small protocol.
``FakeDriver`` and ``LibvirtDriver`` obey the same contract tests. ``load`` takes the class from the entry points of
``kilonova.virt.drivers``. What a driver can't do it says before anybody asks for it: by its ``capabilities``, which
operations look at, and by the traits of its host, by which the scheduler chooses.

Rules that hold for every driver:

- A call may be repeated after a crash at any line: a domain of the same uuid is replaced, files are
  written aside and renamed, and what is gone already is fine.
- A domain that isn't there is a guest that is off.
- The caller serialises the calls of one instance; calls of different instances run in parallel.
- ``instance`` needs the attributes uuid, id, flavor, image_ref, project_id, user_id; display_name, os_type
  and config_drive are used where they are set, and for a config drive hostname, metadata, user_data,
  key_name, key_data, launch_index, availability_zone too.
- ``instance.flavor`` is always the flavor that the domain shall have: the new one in ``finish_migration``,
  the old one in ``finish_revert_migration``.
- ``instance.vifs`` are the domain's interfaces, in that order, whenever it is built.
- ``instance.volumes`` are the domain's volume disks, by the names that they have, whenever it is built; those that
  have no ``connection`` yet are left out. The driver connects them to this host before, and refuses one that it can't
  have (VolumeUnsupported) before a guest is made or stopped. ``Guests.destroy``,
  ``Moves.migrate_disk_and_power_off`` and ``Moves.cleanup_move_dest`` disconnect those that are attached to this host.
  An encrypted one is decrypted by the hypervisor, with a key that the driver gets by its id (``volume.encryption``)
  whenever it connects the volume, and forgets when it disconnects it; what can't be decrypted is refused the same way.
  Only a guest's own disks are carried, grown, copied to images or made anew. Where ``instance.is_from_volume`` (it has
  no image_ref) no root disk is made: the guest boots from the volume that ``is_root``, its first disk.
- ``instance.numa_topology`` (placed, or None) is where on the host's NUMA cells the domain shall be: host CPUs, memory,
  pages.
- ``pci_devices`` (address, dev_type, parent_addr, extra_info are read): exactly those become hostdevs, whatever
  ``instance.pci_devices`` says. One of dev_type MDEV is a mediated device: its address is its uuid, parent_addr the PCI
  function that it is on, extra_info['mdev_type'] its type. The driver makes it before its guest is defined or started
  (MdevUnavailable), and leaves it there when the guest goes.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NotRequired, Protocol, TypedDict

import stevedore
from oslo_config import cfg

from kilonova import errors, objects
from kilonova.objects.vif import Vif
from kilonova.objects.volume import AttachedVolume

LOG = logging.getLogger(__name__)

NAMESPACE = 'kilonova.virt.drivers'
# How and where volumes are decrypted, in the words of the volume service.
LUKS, FRONT_END = 'luks', 'front-end'

# An image's record: id, disk_format, min_disk, size, properties {} and what else the image service says.
ImageMeta = Mapping[str, Any]
ImageFetch = Callable[[str, IO[bytes]], object]
# Called often by what takes long; what it raises ends that.
Check = Callable[[], None]
# Called once, while a guest is there and its CPUs stand still: its interfaces are plugged on this host. Returns when
# the guest may run; what it raises ends the call, and leaves the guest for ``destroy``.
Plugged = Callable[[], None]
# Called often with (bytes done, bytes in all) by what carries disks; what it raises ends that.
Progress = Callable[[int, int], None]
# {resource class: {total, reserved, min_unit, max_unit, step_size, allocation_ratio}}
Inventories = dict[str, dict[str, Any]]


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


class DomainInfo(TypedDict):
    """A domain, for the audit: ``state`` is a power state, ``hostdevs`` are PCI addresses, and uuids of
    mediated devices."""

    uuid: str
    name: str
    state: int
    hostdevs: list[str]


@dataclass(frozen=True)
class ConsoleAddress:
    """Where a guest's console listens on its host; ``tls_port``: where it speaks TLS, if it does."""

    host: str
    port: int
    tls_port: int | None = None


@dataclass(frozen=True)
class VolumeCounters:
    """What a guest has done with a volume since it was started: requests, and bytes."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    write_bytes: int = 0


class HypervisorUnavailable(errors.Unavailable):
    """The hypervisor can't be reached."""

    msg_fmt = 'Connection to the hypervisor is broken on host %(host)s: %(reason)s'


class DriverNotLoaded(errors.Invalid):
    """[DEFAULT]compute_driver names nothing that can be loaded."""

    msg_fmt = "Unable to load the virtualization driver '%(name)s': %(reason)s"


class DriverMisconfigured(errors.Invalid):
    """The host's settings ask for something that this driver can't do; the compute doesn't start."""

    msg_fmt = 'Invalid configuration of the compute driver: %(reason)s'


class GuestFailed(errors.KilonovaError):
    """The hypervisor refused to define, start or stop a guest."""

    msg_fmt = 'The hypervisor could not %(act)s guest %(uuid)s: %(reason)s'


class MdevUnavailable(errors.HostRejected):
    """A guest's mediated device isn't here and can't be made, or is another than planned; an alternate may have it."""

    msg_fmt = ('mdev-capable resource is not available: mediated device %(uuid)s of type %(type)s on %(parent)s: '
               '%(reason)s')


class InterfaceUnsupported(errors.HostRejected):
    """A port is bound to this host in a way that its guests can't be plugged in; on an alternate it may be another."""

    msg_fmt = ('Port %(port)s is bound as %(type)s; guests are plugged into bridges of Open vSwitch (ovs) and of Linux '
               '(bridge) and into sockets (vhostuser), have devices that an agent connects (tap) or that are on an '
               'interface of the host (macvtap, in no VLAN), with vnic_type normal, and get virtual functions (hw_veb '
               'and, in no VLAN, 802.1qbh, with direct or macvtap; ib_hostdev, with direct; ovs, with remote-managed '
               'or vdpa, or with direct and switchdev) and physical ones (hostdev_physical, with direct-physical)')


class InterfaceFailed(errors.HostRejected):
    """This host couldn't connect a port before its guest starts; an alternate may."""

    msg_fmt = 'Port %(port)s could not be plugged into host %(host)s: %(reason)s'


class VolumeUnsupported(errors.HostRejected):
    """A volume is attached to this host in a way that it can't have; on an alternate it may be another."""

    msg_fmt = 'Volume %(volume)s can not be had on host %(host)s: %(reason)s'


class VolumeFailed(errors.KilonovaError):
    """This host still has a volume, as it was."""

    msg_fmt = 'Host %(host)s could not %(act)s volume %(volume)s: %(reason)s'


def why_locked(volume: AttachedVolume) -> str:
    """Why no guest can have an encrypted volume: QEMU itself decrypts, and knows LUKS of version 1. '': it can, or it
    isn't encrypted."""
    encryption = volume.encryption
    if encryption is None:
        return ''
    provider, place = encryption.get('provider'), str(encryption.get('control_location')).lower()
    if not encryption.get('encryption_key_id'):
        return 'it is encrypted, and the volume service tells no key'
    if place != FRONT_END:
        return f"it is encrypted at '{place}'; accepted: {FRONT_END}"
    if provider != LUKS:
        return f"it is encrypted by '{provider}'; accepted: {LUKS}"
    return ''


class UnsupportedHardware(errors.Invalid):
    """A device model or bus that this kind of guest can't have."""

    msg_fmt = "Requested hardware '%(model)s' is not supported by the '%(virt)s' virt driver"


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


@dataclass(frozen=True)
class Capabilities:
    """What the compute may ask of this driver at all."""

    supports_migrate_to_same_host: bool = False


class Listener(Protocol):
    """Whom a driver tells what happened by itself, or by somebody who came past us. Each returns at once."""

    def guest_changed(self, uuid: str) -> None:
        """A guest started, stopped, was paused or went on; our own acts are told, too."""

    def hypervisor_lost(self, reason: str) -> None:
        """The hypervisor has been out of reach for a moment, and still is."""

    def hypervisor_back(self) -> None:
        """It is there again after it was out of reach, however short; guests may have changed meanwhile."""


class Host(Protocol):
    """The host as a whole."""

    def listen(self, listener: Listener) -> None:
        """Tell ``listener`` what happens by itself; called once, before ``init_host``. A hypervisor that tells nothing
        is looked at now and then anyway."""

    def init_host(self) -> None:
        """Connect and check the host's settings, before anything else.

        Raises DriverMisconfigured, and the compute doesn't start; or HypervisorUnavailable, and it is called again.
        Removes what a crash left half deleted, and the XML copies of domains that the hypervisor no longer knows.
        Starts mediated devices that are defined and not active.
        """

    def get_available_resource(self) -> dict[str, Any]:
        """The host as it stands.

        Keys: supported_instances [[arch, hv_type, vm_mode]], vcpus, memory_mb, local_gb, vcpus_used,
        memory_mb_used (both 0: servers are counted by the compute's ledger), local_gb_used,
        hypervisor_type, hypervisor_version (int), hypervisor_hostname (= conf.host), uuid (of the node,
        lasting), cpu_info (JSON string), disk_available_least (GiB), numa_topology (JSON string of a
        NUMATopology envelope in which nothing is used, or None), stats {}, pci_passthrough_devices: a list (not
        JSON) of *all* PCI devices of the host, in address order, as dicts: dev_id, address,
        vendor_id, product_id, numa_node (int or None), label, dev_type, capabilities, and parent_addr for VFs,
        parent_ifname where known (of a PF its own). A function that mediated devices can be made on has mdev_types
        {type: {'available': how many more can be made, 'api': 'vfio-pci' …}}. After the functions come the mediated
        devices that exist, active or only defined: address is the uuid, dev_type MDEV, parent_addr the address of their
        function, mdev_type the type; vendor_id, product_id, numa_node and label are the function's.
        """

    def inventory(self, existing: Inventories | None = None) -> Inventories:
        """Placement inventory of the root provider: VCPU, MEMORY_MB, DISK_GB, and PCPU where there are dedicated CPUs.

        ``existing`` is what Placement has now: its ratio stays where the configuration sets none. The options for it
        (reserved_host_*, *_allocation_ratio, initial_*_allocation_ratio) are in conf/base_virt.py.
        """

    def traits(self) -> set[str]:
        """Traits of the root provider that the driver owns; operators' CUSTOM_ ones aren't among them."""

    def uptime(self) -> str | None:
        """What uptime(1) prints on this host, without the end of line; None where nobody can tell."""


class Guests(Protocol):
    """Guests as they come, go and are looked at. Calls that only look (``get_…``) may come beside others for the same
    instance."""

    def list_instance_uuids(self) -> list[str]:
        """Uuids of all domains, running or not."""

    def describe(self) -> list[DomainInfo]:
        """All domains, for the audit."""

    def get_info(self, instance: objects.Instance) -> int:
        """Its power state (kilonova.states.PowerState); SHUTDOWN when there is no such domain, SUSPENDED when it is off
        and its memory is saved."""

    def spawn(self, instance: objects.Instance, image_meta: ImageMeta, *,
              pci_devices: Iterable[objects.PciDevice] = (), admin_password: str | None = None,
              files: Sequence[tuple[str, str]] = (),
              block_devices: Iterable[objects.BlockDeviceMapping] = (), power_on: bool = True,
              plugged: Plugged | None = None) -> None:
        """Make the disks and the domain and start it, unless it is to stay off; returns when it runs.

        With ``plugged`` it is started paused, and runs when ``plugged()`` has returned: a guest that ran before its
        network is ready would lose its first requests for an address. One that stays off plugs nothing.
        ``files`` are (path, base64 content) for the config drive. ``block_devices``: disks as the user asked for them,
        instead of the flavor's ephemeral and swap disks; the driver keeps what it must know of them with the disks,
        through moves too. Where the guest finds its disks, volumes and interfaces with tags it notes in
        ``instance.device_metadata``; so does whatever else makes the domain, or changes what is in it. Errors:
        errors.ImageUnacceptable, FlavorDiskSmallerThanImage, errors.PciDeviceUnsupportedHypervisor,
        InterfaceUnsupported, InterfaceFailed, VolumeUnsupported, UnsupportedHardware, GuestFailed, whatever the
        download raises; what was made until then stays for ``destroy``.
        """

    def prepare_rebuild(self, instance: objects.Instance, image_meta: ImageMeta,
                        pci_devices: Iterable[objects.PciDevice]) -> None:
        """See to it that ``rebuild`` can't fail for what is known before: the domain can be made, the image is at hand
        and fits. The guest and its disks aren't touched. Errors: as ``spawn`` has them."""

    def rebuild(self, instance: objects.Instance, image_meta: ImageMeta, *, pci_devices: Iterable[objects.PciDevice],
                power_on: bool, preserve_ephemeral: bool = False, admin_password: str | None = None,
                files: Sequence[tuple[str, str]] = ()) -> None:
        """Make the disks anew, as ``spawn`` does, in place of those that the guest has, and its domain; start it if
        asked. What its user asked of the disks goes on. ``preserve_ephemeral``: ephemeral disks stay as they are."""

    def attach_interface(self, instance: objects.Instance, image_meta: ImageMeta, vif: Vif,
                         pci_devices: Iterable[objects.PciDevice] = ()) -> None:
        """Plug the guest into one network more, now if it runs and at its next start; nothing where it is plugged, or
        where there is no domain: it is made with ``instance.vifs``. A port that is a function of a PCI device is one of
        ``pci_devices``, which the server holds here. Where the guest finds it is noted in ``instance.device_metadata``,
        as ``spawn`` does. Undo: ``detach_interface``.

        InterfaceUnsupported, UnsupportedHardware: nothing was done. InterfaceFailed: the host can't connect the port.
        GuestFailed: it has no place for another card, or none of that kind.
        """

    def detach_interface(self, instance: objects.Instance, vif: Vif, check: Check) -> None:
        """Ask the guest to give up an interface and wait until it has; fine if it hasn't got it. Undo:
        ``attach_interface``.

        GuestFailed when it keeps it; what ``check()`` raises ends the waiting. Its definition is as it was then.
        """

    def destroy(self, instance: objects.Instance, destroy_disks: bool = True) -> None:
        """Stop and forget the domain; with ``destroy_disks`` delete all its directories (also _resize)."""

    def set_admin_password(self, instance: objects.Instance, user: str, password: str) -> None:
        """Let an agent in the guest set the password of ``user``. A repeated call sets it again.

        errors.AdminPasswordNotSupported: this hypervisor has no such agents. errors.AdminPasswordNotSet: the guest
        doesn't run, its agent doesn't answer, or it refused; never with words that could hold the password.
        """

    def get_console_output(self, instance: objects.Instance) -> str:
        """The end of what its serial console logged (some 100 KiB); '' when there is nothing.

        Raises errors.ConsoleNotAvailable where there is a log that can't be read.
        """

    def get_console(self, instance: objects.Instance, protocol: str) -> ConsoleAddress | None:
        """Where the console of a running guest is reached by 'vnc', 'spice' or 'serial' (its first port); None where it
        has none of this protocol, or doesn't run."""

    def get_diagnostics(self, instance: objects.Instance) -> dict[str, Any]:
        """What the hypervisor measures of a running guest, by names of its own (numbers).

        Raises errors.KilonovaError when the guest isn't there any more.
        """

    def get_instance_diagnostics(self, instance: objects.Instance) -> objects.Diagnostics:
        """The same in the words that all drivers share; what this one can't tell is None."""


class Power(Protocol):
    """A guest's power."""

    def power_off(self, instance: objects.Instance, timeout: int = 0, retry_interval: int = 0) -> None:
        """Ask the guest to shut down for ``timeout`` seconds (0: don't ask), then cut the power.

        The request is sent again each ``retry_interval`` seconds.
        """

    def define(self, instance: objects.Instance, image_meta: ImageMeta,
               pci_devices: Iterable[objects.PciDevice]) -> None:
        """Build the domain afresh from what is given, and leave it off."""

    def power_on(self, instance: objects.Instance, image_meta: ImageMeta,
                 pci_devices: Iterable[objects.PciDevice] = ()) -> None:
        """Build the domain afresh from what is given, and start it."""

    def reboot(self, instance: objects.Instance, reboot_type: str, image_meta: ImageMeta,
               pci_devices: Iterable[objects.PciDevice] = ()) -> None:
        """'SOFT': let the guest shut down and start it again, turning to HARD when it doesn't go;
        'HARD': cut, build the domain afresh, start."""

    def pause(self, instance: objects.Instance) -> None:
        """Stop its CPUs; memory and devices stay. GuestFailed when it doesn't run."""

    def unpause(self, instance: objects.Instance) -> None:
        """Let a paused guest go on. GuestFailed when it is off."""

    def suspend(self, instance: objects.Instance, check: Check) -> None:
        """Take the host's devices out of the running guest, save its memory, and stop it.

        What a guest has afterwards is its definition, with the devices in it, and the power state SUSPENDED. When the
        guest doesn't give a device up, or its memory can't be saved, it goes on with all it had: GuestFailed, or what
        ``check`` raised.
        """

    def resume(self, instance: objects.Instance, pci_devices: Iterable[objects.PciDevice], check: Check) -> None:
        """Start a suspended guest from its saved memory, and put the devices back into it.

        GuestFailed when nothing was saved, or when a device can't be put back: then it is suspended again, and so it
        stays for MdevUnavailable.
        """

    def trigger_crash_dump(self, instance: objects.Instance) -> None:
        """Send it a non-maskable interrupt. GuestFailed when it doesn't run."""


class Rescues(Protocol):
    """Guests that start from another system, so that somebody can repair their own. ``Power.power_on`` and ``reboot``
    end that: they start a server's own disk, and the other system's files go."""

    def rescue(self, instance: objects.Instance, image_meta: ImageMeta, image: ImageMeta | None,
               pci_devices: Iterable[objects.PciDevice], *, admin_password: str | None = None, timeout: int = 0,
               retry_interval: int = 0) -> None:
        """Stop it as ``Power.power_off`` does, and start it from ``image`` (None: the host's default, else its own)
        with its disks beside.

        An image with hw_rescue_device or hw_rescue_bus comes last and the disks keep their names, any other is the
        first disk. Errors: as ``Guests.spawn`` has them; the guest is as it was then.
        """

    def restart(self, instance: objects.Instance, image_meta: ImageMeta,
                pci_devices: Iterable[objects.PciDevice]) -> None:
        """Start a rescued guest again from the system that it had. GuestFailed: there is none."""


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


class Devices(Protocol):
    """The host's devices. All of them are told by ``Host.get_available_resource``."""

    def missing_devices(self, devices: Iterable[objects.PciDevice]) -> list[str]:
        """Addresses of those of these devices that the host doesn't have now, in order. Asked before a guest is built.

        A mediated device that doesn't exist is missing only if its PCI function isn't there or doesn't offer its type.
        """

    def ids_of(self, addresses: Iterable[str]) -> dict[str, tuple[str, str]]:
        """{address: (vendor id, product id)} of PCI functions; those that the host doesn't have now are left out."""

    def remove_mdevs(self, uuids: Iterable[str]) -> None:
        """Remove these mediated devices, as far as it goes: what can't be removed (a guest has it) stays."""


class Volumes(Protocol):
    """Volumes of the volume service, as this host and its guests have them. A guest knows one by its id."""

    def connector(self) -> dict[str, Any]:
        """What the volume service must know of this host to attach volumes to it: platform, os_type, ip
        ([DEFAULT]my_block_storage_ip), host ([DEFAULT]host), multipath, initiator … as far as the host has them."""

    def names(self, instance: objects.Instance, image_meta: ImageMeta) -> list[str]:
        """'/dev/vdb' … for those of ``instance.volumes`` that have no ``device``, in their order: the next that are
        free behind the guest's own disks and its other volumes, for the bus that each will be on. Changes nothing.

        ``disk_names.TooManyDiskDevices``; UnsupportedHardware: there is no such bus. Of a guest that isn't here yet its
        own disks are those of its flavor.
        """

    def attach(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume) -> None:
        """Connect it to this host and plug it into the guest, now if it runs and at its next start; nothing where it is
        plugged, or where there is no domain: that is made with ``instance.volumes``. Undo: ``detach``.

        VolumeUnsupported, UnsupportedHardware, GuestFailed: neither guest nor host have it.
        """

    def detach(self, instance: objects.Instance, volume: AttachedVolume, check: Check) -> None:
        """Ask the guest to give it up, wait until it has, and disconnect it from this host; fine if the guest hasn't
        got it. Undo: ``attach``.

        GuestFailed when the guest keeps it; what ``check()`` raises ends the waiting. Its definition is as it was then.
        VolumeFailed: this host keeps it.
        """

    def disconnect(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """This host lets go of it, for a server whose guest doesn't use it here: an undo, a move. Other servers keep
        what they have of it. VolumeFailed."""

    def copy(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume, new: AttachedVolume,
             check: Check) -> None:
        """Connect ``new`` to this host and copy the volume to it while the guest uses that; from when this returns what
        the guest writes is written to both, until ``swap`` or ``end_copy``. A copy under way goes on. Undo:
        ``end_copy``.

        VolumeUnsupported, GuestFailed (it doesn't run, or QEMU ended the copy), and what ``check()`` raises: the copy
        may be there, and going on.
        """

    def end_copy(self, instance: objects.Instance, volume: AttachedVolume, new: AttachedVolume) -> None:
        """What ``copy`` did is ended, and this host lets go of ``new``, which the guest hasn't; fine if there is no
        copy. GuestFailed, VolumeFailed."""

    def swap(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume,
             new: AttachedVolume) -> bool:
        """The guest has ``new`` in place of the volume, now and whenever it is started, under the volume's id, and sees
        its size; this host lets go of the volume. Fine if it has it already. False: it has the volume as before, for it
        was stopped or the copy failed before."""

    def extend(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """It has ``volume.size`` GiB now: a guest that runs sees it, one that is off sees it at its start.
        GuestFailed, VolumeFailed."""

    def usage(self, instance: objects.Instance) -> dict[str, VolumeCounters]:
        """{id: counters} of those of ``instance.volumes`` that its guest has now, as far as the hypervisor counts them;
        {} where it doesn't run. GuestFailed: it went meanwhile."""


@dataclass(frozen=True)
class Merge:
    """Two files behind a volume become one. ``file`` becomes part of ``into``, from which it reads; where that is None,
    the file to which the guest writes gets what it reads from others, up to ``file``, from which it reads then (None:
    it reads from none). Names of files of the volume's share."""

    file: str | None
    into: str | None

    def is_done(self, names: Sequence[str]) -> bool:
        """``names``: the file to which the guest writes, the one from which that reads, and so on."""
        if self.into is None:
            return names[1:2] == ([] if self.file is None else [self.file])
        return self.into in names and self.file not in names

    def why_not(self, names: Sequence[str]) -> str:
        """Why files of these names can't be merged so. '': they can."""
        for name in (self.file, self.into):
            if name is not None and name not in names:
                return f'it does not read from {name}, but from {", ".join(names)}'
        if self.into is not None and (self.file is None or names[0] == self.file
                                      or names[names.index(self.file):][1:2] != [self.into]):
            return f'{self.file} can not become part of {self.into}: it has {", ".join(names)}'
        if self.into is None and self.file == names[0]:
            return f'{self.file} is what it writes to'
        return ''


class VolumeSnapshots(Protocol):
    """Snapshots of volumes that are files of a share, by which a guest writes to another file from then on: the volume
    service made it, and it reads from the one before. Two of these files become one when a snapshot is deleted."""

    def take(self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume) -> None:
        """The guest writes to the file of ``new``, now and whenever it is started; nothing where it does so already.
        What it holds back is written before, if it has an agent. Undo: ``withdraw``.

        VolumeUnsupported; GuestFailed: it writes to the file of ``old``.
        """

    def has(self, instance: objects.Instance, new: AttachedVolume) -> bool:
        """Whether the guest writes to that file, or will when it is started."""

    def withdraw(self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume,
                 check: Check) -> None:
        """What ``take`` did is undone, and what the guest has written since is in the file of ``old``. GuestFailed, and
        what ``check()`` raises: it writes to the file of ``new``, and that may be tried again."""

    def merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge, check: Check) -> None:
        """Files behind the volume are one when this returns, while the guest runs or is off; it writes to the same one
        as before. One that is under way goes on; fine if it has been done. Undo: ``end_merge``, of what isn't done.

        GuestFailed, VolumeUnsupported, and what ``check()`` raises: it may be going on.
        """

    def end_merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge) -> bool:
        """No merge is going on when this returns; whether it has been done. GuestFailed."""


class ComputeDriver(Protocol):
    """One hypervisor of one host, by subject."""

    capabilities: Capabilities

    def __init__(self, conf: cfg.ConfigOpts, image_client: ImageClient | None = None) -> None:
        """Keep the settings; no connection yet."""

    @property
    def host(self) -> Host: ...

    @property
    def guests(self) -> Guests: ...

    @property
    def power(self) -> Power: ...

    @property
    def rescues(self) -> Rescues: ...

    @property
    def disks(self) -> Disks: ...

    @property
    def moves(self) -> Moves: ...

    @property
    def live_migrations(self) -> LiveMigrations: ...

    @property
    def snapshots(self) -> Snapshots: ...

    @property
    def devices(self) -> Devices: ...

    @property
    def volumes(self) -> Volumes: ...

    @property
    def volume_snapshots(self) -> VolumeSnapshots: ...


def guest_name(conf: cfg.ConfigOpts, instance: objects.Instance) -> str:
    """The domain's name: [DEFAULT]instance_name_template filled with the id, or with %(uuid)s and the like."""
    template: str = conf.instance_name_template
    try:
        return str(template % instance.id)
    except TypeError:
        return template % {'id': instance.id, 'uuid': instance.uuid, 'project_id': instance.project_id}


def load(conf: cfg.ConfigOpts, image_client: ImageClient | None = None) -> ComputeDriver:
    """The driver that [DEFAULT]compute_driver names; raises DriverNotLoaded."""
    name = conf.compute_driver
    if not name:
        raise DriverNotLoaded(name='', reason='[DEFAULT]compute_driver is not set')
    LOG.info("Loading compute driver '%s'", name)
    try:
        manager: stevedore.DriverManager[Any] = stevedore.DriverManager(NAMESPACE, name, invoke_on_load=False)
    except (stevedore.exception.NoMatches, ImportError, RuntimeError) as error:
        raise DriverNotLoaded(name=name, reason=str(error)) from error
    made: ComputeDriver = manager.driver(conf, image_client)
    return made
