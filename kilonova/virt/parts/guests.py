"""Protocol for creating, deleting and reading guests and their interfaces, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from kilonova import errors, objects
from kilonova.objects.vif import Vif
from kilonova.virt.parts.disks import Check, ImageMeta

# A function that is called once, when a guest is created and paused and its interfaces are plugged on this host. It
# returns when the guest may run. An exception that it raises ends the call, and the guest remains for ``destroy``.
Plugged = Callable[[], None]


class DomainInfo(TypedDict):
    """A domain, for the audit.

    ``state`` is a power state. ``hostdevs`` are PCI addresses, and uuids of mediated devices.
    """

    uuid: str
    name: str
    state: int
    hostdevs: list[str]


@dataclass(frozen=True)
class ConsoleAddress:
    """Address of a guest's console on its host. ``tls_port`` is the port with TLS, or None."""

    host: str
    port: int
    tls_port: int | None = None


class GuestFailed(errors.KilonovaError):
    """The hypervisor could not define, start or stop a guest, or act on it in another way.

    ``cause`` is the cause of the failure (host, device or request), as far as it is known.
    """

    msg_fmt = 'The hypervisor could not %(act)s guest %(uuid)s: %(reason)s'

    def __init__(
        self, message: str | None = None, *, cause: errors.Cause = errors.Cause.HOST, **fields: object
    ) -> None:
        self.cause = cause
        super().__init__(message, **fields)


class InterfaceUnsupported(errors.HostRejected):
    """A port is bound to this host in a form that the driver cannot plug.

    On an alternate host the binding may differ.
    """

    msg_fmt = (
        'Port %(port)s is bound as %(type)s; this is not supported. Supported with vnic_type normal: bridges of '
        'Open vSwitch (ovs) and Linux (bridge), vhost-user sockets (vhostuser), TAP devices that an agent '
        'connects (tap), and macvtap devices without a VLAN (macvtap). Supported virtual functions: hw_veb, and '
        '802.1qbh without a VLAN, with vnic_type direct or macvtap; ib_hostdev with direct; ovs with '
        'remote-managed or vdpa, or with direct and switchdev. Supported physical functions: hostdev_physical '
        'with direct-physical'
    )


class InterfaceFailed(errors.HostRejected):
    """This host could not connect a port before its guest starts; an alternate host may succeed."""

    msg_fmt = 'Port %(port)s could not be plugged into host %(host)s: %(reason)s'


class NotOnThisHost(errors.HostRejected):
    """Guests of this host cannot have what the server asks for, but guests of another host may.

    Nothing was created for it.

    ``name`` is the extra spec, image property or column of the flavor. ``reason`` says which values the host accepts.
    """

    msg_fmt = "'%(value)s' of '%(name)s' is not supported by this host: %(reason)s"


class UnsupportedHardware(errors.Invalid):
    """The request names a device model or bus that guests of this kind cannot have on any host."""

    msg_fmt = "Requested hardware '%(model)s' is not supported by the '%(virt)s' virt driver"


class Guests(Protocol):
    """Creation, deletion and reading of guests, and their interfaces.

    Methods that only read (``get_…``) may be called at the same time as other methods for the same instance.
    """

    def list_instance_uuids(self) -> list[str]:
        """Return the uuids of all domains, running or not."""

    def describe(self) -> list[DomainInfo]:
        """Return all domains, for the audit."""

    def holding(self, addresses: Collection[str]) -> list[DomainInfo]:
        """Return the domains that have any of these devices, running or not.

        Domains that Kilonova did not create are included. ``hostdevs`` of each domain contains only devices of
        ``addresses``, sorted. A domain may have a PCI function as a device, as a network interface or as an NVMe disk.
        """

    def get_info(self, instance: objects.Instance) -> int:
        """Return the guest's power state (kilonova.states.PowerState).

        It is SHUTDOWN if there is no such domain, and SUSPENDED if the guest is off and its memory is saved.
        """

    def check(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Check that a guest of this host can have what its flavor and image ask for. Nothing is changed.

        ``instance`` has the flavor and NUMA topology that it will have on this host. All methods that create a domain
        make the same check before they create disks. Raises NotOnThisHost if another host may take the guest, and
        UnsupportedHardware or another errors.Invalid if no host can.
        """

    def spawn(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        *,
        pci_devices: Iterable[objects.PciDevice] = (),
        admin_password: str | None = None,
        files: Sequence[tuple[str, str]] = (),
        block_devices: Iterable[objects.BlockDeviceMapping] = (),
        power_on: bool = True,
        plugged: Plugged | None = None,
    ) -> None:
        """Create the disks and the domain, and start it unless ``power_on`` is False. Returns when the guest runs.

        With ``plugged`` the guest is started paused, and runs after ``plugged()`` has returned. Otherwise it could lose
        its first DHCP requests because its network is not ready. A guest that stays off has no interfaces plugged. If
        the call fails, disks and domain that it created remain for ``destroy``. The guest's addresses of its tagged
        disks, volumes and interfaces are written to ``instance.device_metadata``; other methods that create or change
        the domain do the same.

        Args:
            instance: The server.
            image_meta: The image's record.
            pci_devices: The server's PCI devices.
            admin_password: Password for the config drive.
            files: (path, base64 content) of files for the config drive.
            block_devices: Disks that the user requested, instead of the flavor's ephemeral and swap disks. The driver
                stores their requested properties with the disks, also when the disks move.
            power_on: Whether to start the guest.
            plugged: Function that waits for the network.

        Raises errors.ImageUnacceptable, FlavorDiskSmallerThanImage, errors.PciDeviceUnsupportedHypervisor,
        InterfaceUnsupported, InterfaceFailed, VolumeUnsupported, UnsupportedHardware, NotOnThisHost, GuestFailed,
        errors.DevicesFailed, and exceptions of the image download.
        """

    def prepare_rebuild(
        self, instance: objects.Instance, image_meta: ImageMeta, pci_devices: Iterable[objects.PciDevice]
    ) -> None:
        """Make all checks and preparations for ``rebuild``, without changing the guest and its disks.

        Afterwards it is certain that the domain can be created, and that the image is downloaded and fits on the disk.
        Raises the errors of ``spawn``.
        """

    def rebuild(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        *,
        pci_devices: Iterable[objects.PciDevice],
        power_on: bool,
        preserve_ephemeral: bool = False,
        admin_password: str | None = None,
        files: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Replace the guest's disks by new ones, as ``spawn`` creates them, and its domain, and start it if requested.

        The disks keep the properties that the user requested. With ``preserve_ephemeral``, ephemeral disks are not
        changed. The guest is started if ``power_on`` is True.
        """

    def attach_interface(
        self, instance: objects.Instance, image_meta: ImageMeta, vif: Vif, pci_devices: Iterable[objects.PciDevice] = ()
    ) -> None:
        """Plug an interface into a running guest, and add it to the guest's definition.

        Nothing is done if the interface is plugged already, or if there is no domain, which is built with
        ``instance.vifs`` later. If the port is a function of a PCI device, this is one of ``pci_devices``, which the
        server has on this host. The interface's address in the guest is written to ``instance.device_metadata``, as in
        ``spawn``. ``detach_interface`` is the undo.

        Raises:
            InterfaceUnsupported: If the driver cannot plug the port. Nothing was done.
            UnsupportedHardware: If the device model is not possible. Nothing was done.
            InterfaceFailed: If the host cannot connect the port.
            GuestFailed: If the guest has no free slot for another card, or none of this kind.
        """

    def detach_interface(self, instance: objects.Instance, vif: Vif, check: Check) -> None:
        """Ask the guest to release an interface and wait until it has; do nothing if the guest does not have it.

        Raises GuestFailed if the guest keeps the interface. An exception of ``check()`` ends the waiting. The guest's
        definition is unchanged then. ``attach_interface`` is the undo.
        """

    def destroy(self, instance: objects.Instance, destroy_disks: bool = True) -> None:
        """Stop and delete the domain, and with ``destroy_disks`` delete all its directories (also <uuid>_resize)."""

    def set_admin_password(self, instance: objects.Instance, user: str, password: str) -> None:
        """Let an agent in the guest set the password of ``user``. A repeated call sets it again.

        Raises errors.AdminPasswordNotSupported if this hypervisor has no such agents, and errors.AdminPasswordNotSet if
        the guest does not run, its agent does not answer, or it refused. The error's text never contains the password.
        """

    def get_console_output(self, instance: objects.Instance) -> str:
        """Return the end of the serial console's log (about 100 KiB), or '' if there is none.

        Raises errors.ConsoleNotAvailable if the log cannot be read.
        """

    def get_console(self, instance: objects.Instance, protocol: str) -> ConsoleAddress | None:
        """Return the address of a running guest's console for 'vnc', 'spice' or 'serial' (its first port).

        Return None if the guest has no console of this protocol, or does not run.
        """

    def get_diagnostics(self, instance: objects.Instance) -> dict[str, Any]:
        """Return the hypervisor's measurements of a running guest, as numbers with the hypervisor's own names.

        Raises errors.KilonovaError if the guest does not exist any more.
        """

    def get_instance_diagnostics(self, instance: objects.Instance) -> objects.Diagnostics:
        """Return the hypervisor's measurements in the form that all drivers have.

        Values that the driver does not know are None.

        Raises errors.KilonovaError if the guest does not exist any more.
        """
