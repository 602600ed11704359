"""Protocol for creating, deleting and reading guests and their interfaces, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from kilonova import errors, objects
from kilonova.objects.vif import Vif
from kilonova.virt.parts.disks import Check, ImageMeta

# A function that is called once when a new guest is still paused and its interfaces are plugged on this host. The guest
# runs after the function has returned. An exception that the function raises ends the creation; ``destroy`` then
# deletes the guest.
Plugged = Callable[[], None]


class DomainInfo(TypedDict):
    """A domain with its power state and devices, as the hypervisor reports it.

    ``hostdevs`` are PCI addresses, and uuids of mediated devices.
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
    """The hypervisor could not define, start, stop or change a guest.

    ``cause`` says what caused the failure (host, device or request), as far as it is known.
    """

    msg_fmt = 'The hypervisor could not %(act)s guest %(uuid)s: %(reason)s'

    def __init__(
        self, message: str | None = None, *, cause: errors.Cause = errors.Cause.HOST, **fields: object
    ) -> None:
        self.cause = cause
        super().__init__(message, **fields)


class InterfaceUnsupported(errors.HostRejected):
    """A port is bound to this host in a form that the driver cannot plug.

    The port may be bound in another form on an alternate host, so the build may succeed there.
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
    """This host could not connect a port before the start of its guest. An alternate host may succeed."""

    msg_fmt = 'Port %(port)s could not be plugged into host %(host)s: %(reason)s'


class NotOnThisHost(errors.HostRejected):
    """Guests of this host cannot have what the server asks for, but guests of another host may.

    Nothing was created for the server. ``name`` is the extra spec, image property or flavor column with the value.
    ``reason`` says which values the host accepts.
    """

    msg_fmt = "'%(value)s' of '%(name)s' is not supported by this host: %(reason)s"


class UnsupportedHardware(errors.Invalid):
    """The request names a device model or bus that guests of this kind cannot have on any host."""

    msg_fmt = "Requested hardware '%(model)s' is not supported by the '%(virt)s' virt driver"


class Guests(Protocol):
    """Creation, deletion and reading of guests, and their interfaces.

    Methods that only read (``get_…``) may be called while another method runs for the same instance.
    """

    def list_instance_uuids(self) -> list[str]:
        """Return the uuids of all domains, running or not."""

    def describe(self) -> list[DomainInfo]:
        """Return all domains of the hypervisor with their power states and devices."""

    def holding(self, addresses: Collection[str]) -> list[DomainInfo]:
        """Return the domains that have any of these devices, running or not.

        Domains that Kilonova did not create are included. ``hostdevs`` of each domain contains only devices of
        ``addresses``, sorted. A domain that has a PCI function as a network interface or as an NVMe disk is included as
        well.
        """

    def get_info(self, instance: objects.Instance) -> int:
        """Return the guest's power state (kilonova.states.PowerState).

        The state is SHUTDOWN if there is no such domain, and SUSPENDED if the guest is off and its memory is saved.
        """

    def check(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Check that a guest of this host can have what its flavor and image ask for. Nothing is changed.

        ``instance`` has the flavor and NUMA topology that the server will have on this host. All methods that create a
        domain make the same check before they create disks. Raises NotOnThisHost if another host may support the
        request, and UnsupportedHardware or another errors.Invalid if no host supports it.
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
        """Create the disks and the domain, and start the guest unless ``power_on`` is False.

        Returns when the guest runs.

        If ``plugged`` is given, the guest is started paused, and runs after ``plugged()`` has returned. Otherwise its
        network might not be ready, and its first DHCP requests could be lost. A guest that stays off has no interfaces
        plugged. If the call fails, disks and domain that it created remain for ``destroy``. The guest's addresses of
        its tagged disks, volumes and interfaces are written to ``instance.device_metadata``; other methods that create
        or change the domain write them as well.

        Args:
            instance: The server.
            image_meta: The image's record.
            pci_devices: The server's PCI devices.
            admin_password: Password for the config drive.
            files: (path, base64 content) of files for the config drive.
            block_devices: Disks that the user requested, instead of the flavor's ephemeral and swap disks. The driver
                stores the requested properties together with the disks, and keeps them when the disks move.
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

        After this call, the image is downloaded and known to fit on the disk, and the domain is known to be possible.
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
        """Replace the guest's disks and its domain by new ones, and start the guest if ``power_on`` is True.

        The disks are created as in ``spawn``, and keep the properties that the user requested. With
        ``preserve_ephemeral``, ephemeral disks are not changed.
        """

    def attach_interface(
        self, instance: objects.Instance, image_meta: ImageMeta, vif: Vif, pci_devices: Iterable[objects.PciDevice] = ()
    ) -> None:
        """Plug an interface into a running guest, and add it to the guest's definition.

        Nothing is done if the interface is plugged already, or if there is no domain; the domain is built with
        ``instance.vifs`` later. If the port is a function of a PCI device, the function is one of ``pci_devices``, the
        devices that the server has on this host. The guest's address of the interface is written to
        ``instance.device_metadata``, as in ``spawn``. ``detach_interface`` is the undo.

        Raises:
            InterfaceUnsupported: The driver cannot plug the port. Nothing was done.
            UnsupportedHardware: The device model is not possible. Nothing was done.
            InterfaceFailed: The host cannot connect the port.
            GuestFailed: The guest has no free slot for another card, or no slot of the required kind.
        """

    def detach_interface(self, instance: objects.Instance, vif: Vif, check: Check) -> None:
        """Ask the guest to release an interface, and wait until the guest has released it.

        Nothing is done if the guest does not have the interface. Raises GuestFailed if the guest keeps it. An exception
        of ``check()`` ends the waiting. After an error the guest's definition is unchanged. ``attach_interface`` is the
        undo.
        """

    def destroy(self, instance: objects.Instance, destroy_disks: bool = True) -> None:
        """Stop and delete the domain.

        With ``destroy_disks``, also delete all its directories (including <uuid>_resize).
        """

    def set_admin_password(self, instance: objects.Instance, user: str, password: str) -> None:
        """Let an agent in the guest set the password of ``user``. A repeated call sets the password again.

        Raises errors.AdminPasswordNotSupported if this hypervisor has no such agents. Raises errors.AdminPasswordNotSet
        if the guest does not run, or if its agent does not answer or refuses. The error's text never contains the
        password.
        """

    def get_console_output(self, instance: objects.Instance) -> str:
        """Return the end of the serial console's log (about 100 KiB), or '' if the guest has no log.

        Raises errors.ConsoleNotAvailable if the log cannot be read.
        """

    def get_console(self, instance: objects.Instance, protocol: str) -> ConsoleAddress | None:
        """Return the address of a running guest's console for 'vnc', 'spice' or 'serial' (the first port).

        Return None if the guest has no console of this protocol, or does not run.
        """

    def get_diagnostics(self, instance: objects.Instance) -> dict[str, Any]:
        """Return the hypervisor's measurements of a running guest, as numbers under the hypervisor's own names.

        Raises errors.KilonovaError if the guest does not exist any more.
        """

    def get_instance_diagnostics(self, instance: objects.Instance) -> objects.Diagnostics:
        """Return the hypervisor's measurements of a running guest in a form that is the same for all drivers.

        Values that the driver does not know are None. Raises errors.KilonovaError if the guest does not exist any more.
        """
