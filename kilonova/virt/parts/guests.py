"""Guests as they come, go and are looked at, and their interfaces."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from kilonova import errors, objects
from kilonova.objects.vif import Vif
from kilonova.virt.parts.disks import Check, ImageMeta

# Called once, while a guest is there and its CPUs stand still: its interfaces are plugged on this host. Returns when
# the guest may run; what it raises ends the call, and leaves the guest for ``destroy``.
Plugged = Callable[[], None]


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


class GuestFailed(errors.KilonovaError):
    """The hypervisor refused to define, start or stop a guest. ``cause``: whose fault that is, as far as it is known.
    """

    msg_fmt = 'The hypervisor could not %(act)s guest %(uuid)s: %(reason)s'

    def __init__(self, message: str | None = None, *, cause: errors.Cause = errors.Cause.HOST,
                 **fields: object) -> None:
        self.cause = cause
        super().__init__(message, **fields)


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


class NotOnThisHost(errors.HostRejected):
    """Guests of this host can't have what the server asks for; those of another host may. Nothing was made for it.

    ``name``: the extra spec, image property or column of the flavor; ``reason``: what the host accepts.
    """

    msg_fmt = "'%(value)s' of '%(name)s' is not possible on this host: %(reason)s"


class UnsupportedHardware(errors.Invalid):
    """A device model or bus that guests of this kind can't have on any host."""

    msg_fmt = "Requested hardware '%(model)s' is not supported by the '%(virt)s' virt driver"


class Guests(Protocol):
    """Guests as they come, go and are looked at. Calls that only look (``get_…``) may come beside others for the same
    instance."""

    def list_instance_uuids(self) -> list[str]:
        """Uuids of all domains, running or not."""

    def describe(self) -> list[DomainInfo]:
        """All domains, for the audit."""

    def holding(self, addresses: Collection[str]) -> list[DomainInfo]:
        """Return the domains that have any of these devices, ours or anybody's, running or not. ``hostdevs`` of each
        are only those of ``addresses``, sorted.

        A domain has a PCI function as a device, as a network interface or as an NVMe disk.
        """

    def get_info(self, instance: objects.Instance) -> int:
        """Its power state (kilonova.states.PowerState); SHUTDOWN when there is no such domain, SUSPENDED when it is off
        and its memory is saved."""

    def check(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Check that guests of this host can have what flavor and image ask for, with ``instance`` as it will be here:
        flavor, and place on the NUMA cells. Changes nothing. Whatever makes a domain checks the same before disks.

        Raises NotOnThisHost if another host may take it; UnsupportedHardware or another errors.Invalid if none does.
        """

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
        InterfaceUnsupported, InterfaceFailed, VolumeUnsupported, UnsupportedHardware, NotOnThisHost, GuestFailed,
        errors.DevicesFailed, whatever the download raises; what was made until then stays for ``destroy``.
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
