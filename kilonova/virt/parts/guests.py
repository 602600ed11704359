"""Protocol for creating, deleting and reading guests and their interfaces, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from kilonova import errors, objects
from kilonova.objects.vif import Vif
from kilonova.virt.parts.disks import Check, ImageMeta

# A function that waits for a new guest's network. It is called once, after the interfaces are plugged.
# The guest is paused until the Plugged function returns. If the function raises an error, the creation fails.
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

    ``cause`` says whether the host, a device or the request caused the failure, as far as it is known.
    """

    msg_fmt = 'The hypervisor could not %(act)s guest %(uuid)s: %(reason)s'

    def __init__(
        self, message: str | None = None, *, cause: errors.Cause = errors.Cause.HOST, **fields: object
    ) -> None:
        self.cause = cause
        super().__init__(message, **fields)


class InterfaceUnsupported(errors.HostRejected):
    """A port is bound to this host with a type of binding that the driver does not support.

    On another host the port may get another binding, so the server may be built there.
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
    """This host could not plug a port into its network, for example into its bridge.

    If the server is being built, another host may be able to plug the port.
    """

    msg_fmt = 'Port %(port)s could not be plugged into host %(host)s: %(reason)s'


class NotOnThisHost(errors.HostRejected):
    """This host does not support a value of the server's flavor or image, but another host may support it.

    Nothing was created for the server. ``name`` is the extra spec, image property or flavor field with the value.
    ``reason`` says which values the host accepts.
    """

    msg_fmt = "'%(value)s' of '%(name)s' is not supported by this host: %(reason)s"


class UnsupportedHardware(errors.Invalid):
    """The request names a device model or bus that no host supports for guests of this virtualization type."""

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

        The result includes domains that Kilonova did not create, and domains that have a device as a network interface
        or an NVMe disk. ``hostdevs`` of each domain contains only devices of ``addresses``, sorted.
        """

    def get_info(self, instance: objects.Instance) -> int:
        """Return the guest's power state (kilonova.states.PowerState).

        The state is SHUTDOWN if there is no such domain, and SUSPENDED if the guest is off and its memory is saved.
        """

    def check(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Check that a guest of this host can have the hardware that its flavor and image request. Nothing is changed.

        ``instance`` has the flavor and NUMA topology that the server will have on this host. All methods that create a
        domain make the same check before they create disks. Raises NotOnThisHost if another host may support the
        hardware, and UnsupportedHardware or another errors.Invalid if no host supports it.
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

        If ``plugged`` is given, the guest is started paused, ``plugged()`` is called to wait for the network, and the
        guest is resumed. Without this wait, the guest's first DHCP requests could be lost. If this method fails, the
        caller deletes created disks and domain by ``destroy``. The addresses of tagged disks, volumes and interfaces in
        the guest are written to ``instance.device_metadata``, here and in other methods that create or change the
        domain.

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
        """Prepare ``rebuild``. The guest and its disks are not changed.

        Download the image, and check that the root disk is large enough for it and that the new domain is possible.
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

        The disks are created as in ``spawn``, with the same disk properties that the user requested at the creation of
        the server, such as the bus. With ``preserve_ephemeral``, ephemeral disks are not changed.
        """

    def attach_interface(
        self, instance: objects.Instance, image_meta: ImageMeta, vif: Vif, pci_devices: Iterable[objects.PciDevice] = ()
    ) -> None:
        """Plug an interface into a running guest, and add the interface to the guest's definition.

        Do nothing if the guest has the interface already. Also do nothing if there is no domain, because the domain
        will be made with all ``instance.vifs``. ``pci_devices`` are the devices allocated to the server on this host;
        if the port is a PCI function, it is one of them. The address of the interface in the guest is written to
        ``instance.device_metadata``. ``detach_interface`` undoes this call.

        Raises:
            InterfaceUnsupported: The driver cannot plug the port. Nothing was done.
            UnsupportedHardware: The device model is not possible. Nothing was done.
            InterfaceFailed: The host cannot connect the port.
            GuestFailed: The guest has no free slot for another card, or no slot of the required kind.
        """

    def detach_interface(self, instance: objects.Instance, vif: Vif, check: Check) -> None:
        """Ask the guest to release an interface, and wait until the guest has released it.

        Do nothing if the guest does not have the interface. ``check`` is called during the wait, and an exception that
        it raises ends the wait. Raises GuestFailed if the guest does not release the interface. After an error the
        guest's definition is unchanged. ``attach_interface`` undoes this call.
        """

    def destroy(self, instance: objects.Instance, destroy_disks: bool = True) -> None:
        """Stop and delete the domain.

        With ``destroy_disks``, also delete all directories of the server on this host, including <uuid>_resize.
        """

    def set_admin_password(self, instance: objects.Instance, user: str, password: str) -> None:
        """Set the password of ``user`` in the guest, through the guest's agent. Repeated calls are safe.

        Raises errors.AdminPasswordNotSupported if the hypervisor does not support guest agents, and
        errors.AdminPasswordNotSet if the guest does not run or its agent fails. The text of these errors does not
        contain the password.
        """

    def get_console_output(self, instance: objects.Instance) -> str:
        """Return the end of the serial console's log (about 100 KiB), or '' if the guest has no log.

        Raises errors.ConsoleNotAvailable if the log cannot be read.
        """

    def get_console(self, instance: objects.Instance, protocol: str) -> ConsoleAddress | None:
        """Return the address of a guest's console, or None if the guest is off or has no console of this protocol.

        ``protocol`` is 'vnc', 'spice' or 'serial' (the first serial port).
        """

    def get_diagnostics(self, instance: objects.Instance) -> dict[str, Any]:
        """Return the hypervisor's measurements of a running guest, as numbers under the hypervisor's own names.

        Raises errors.KilonovaError if the guest does not exist any more.
        """

    def get_instance_diagnostics(self, instance: objects.Instance) -> objects.Diagnostics:
        """Return the hypervisor's measurements of a running guest in a form that is the same for all drivers.

        Values that the driver does not know are None. Raises errors.KilonovaError if the guest does not exist any more.
        """
