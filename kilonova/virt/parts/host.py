"""Protocols for a hypervisor's host: its resources and devices, and the object that receives its events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from kilonova import errors, objects

# A dict from resource class to a dict with total, reserved, min_unit, max_unit, step_size and allocation_ratio.
Inventories = dict[str, dict[str, Any]]


class HypervisorUnavailable(errors.Unavailable):
    """The hypervisor cannot be reached."""

    msg_fmt = 'Connection to the hypervisor is broken on host %(host)s: %(reason)s'


class DriverMisconfigured(errors.Invalid):
    """The host's configuration needs a feature that this driver does not support. The service does not start."""

    cause = errors.Cause.HOST
    msg_fmt = 'Invalid configuration of the compute driver: %(reason)s'


class MdevUnavailable(errors.HostRejected):
    """A guest's mediated device cannot be created, or a device with its uuid has another type or parent.

    The server may be built on another host, where it gets another device.
    """

    cause = errors.Cause.DEVICE
    msg_fmt = (
        'mdev-capable resource is not available: mediated device %(uuid)s of type %(type)s on card %(parent)s '
        'cannot be used: %(reason)s'
    )


class Listener(Protocol):
    """The receiver of a driver's events, such as the stop of a guest by the driver or by another program.

    Each method must return at once.
    """

    def guest_changed(self, uuid: str) -> None:
        """React to the start, stop, pause or resume of a guest.

        Another program or the driver itself may have caused the change, so the listener must check whether the change
        was requested.
        """

    def hypervisor_lost(self, reason: str) -> None:
        """React to the loss of the hypervisor. Called when it has been unreachable for some seconds."""

    def hypervisor_back(self) -> None:
        """React to the return of the hypervisor after a loss. Guests may have changed in the meantime.

        This method is also called after a very short loss for which ``hypervisor_lost`` was not called.
        """


class Host(Protocol):
    """The part of a driver for the host itself: its settings, resources, inventory and traits."""

    def listen(self, listener: Listener) -> None:
        """Send events to ``listener`` from now on. Called once, before ``init_host``.

        A driver whose hypervisor has no events may ignore the listener, because the compute service also checks all
        guests periodically.
        """

    def init_host(self) -> None:
        """Connect to the hypervisor and check the host's settings. Called before all other methods except ``listen``.

        The method removes what a crash left behind, and starts mediated devices that are defined but not active. If it
        raises DriverMisconfigured, the compute service does not start. If it raises HypervisorUnavailable, the compute
        service calls it again later.
        """

    def get_available_resource(self) -> dict[str, Any]:
        """Return a dict that describes the resources of the host.

        The dict has these keys:

        - vcpus, memory_mb, local_gb, local_gb_used, and disk_available_least (GiB)
        - vcpus_used and memory_mb_used: always 0, because the compute service itself counts what servers use
        - uuid: the node's uuid, which never changes
        - hypervisor_hostname (equal to conf.host), hypervisor_type, and hypervisor_version (int)
        - supported_instances: a list of lists [arch, hv_type, vm_mode]
        - cpu_info: a JSON string
        - numa_topology: a NUMATopology object without any usage, as a JSON string, or None
        - stats: an empty dict
        - pci_passthrough_devices: a list of *all* PCI devices of the host, sorted by address

        Each PCI device is a dict with dev_id, address, vendor_id, product_id, numa_node (int or None), label, dev_type
        and capabilities. A virtual function also has parent_addr. parent_ifname is added if it is known; for a physical
        function it is the function's own interface name. A function that supports mediated devices has mdev_types
        {type: {'available': number that can still be created, 'api': for example 'vfio-pci'}}.

        After the functions, the list has the existing mediated devices, active or only defined. Their address is their
        uuid, dev_type is MDEV, parent_addr is the address of their function, and mdev_type is their type. They have the
        vendor_id, product_id, numa_node and label of the function.
        """

    def inventory(self, existing: Inventories | None = None) -> Inventories:
        """Return the Placement inventory of the root provider: VCPU, MEMORY_MB, DISK_GB, and PCPU for dedicated CPUs.

        ``existing`` is the current inventory in Placement. Its allocation ratios are kept if the configuration sets
        none.
        """

    def traits(self) -> set[str]:
        """Return the traits that this host's root provider must have in Placement, as far as the driver knows them.

        Traits that operators set (CUSTOM_…) are not included.
        """

    def uptime(self) -> str | None:
        """Return the output of the program uptime on this host, without the line feed, or None if it is unknown."""


class Devices(Protocol):
    """Methods for the host's PCI and mediated devices, which ``Host.get_available_resource`` lists."""

    def missing_devices(self, devices: Iterable[objects.PciDevice]) -> list[str]:
        """Return the addresses of devices that the host does not have now, in the order of ``devices``.

        Called before a guest is built. A mediated device counts as missing only if its PCI function does not exist or
        does not support its type, because otherwise the device can be created.
        """

    def unusable(self, devices: Iterable[objects.PciDevice]) -> dict[str, str]:
        """Return {address: reason} for devices that the host has, but that cannot be given to a guest now.

        One reason is that a function no longer responds on the PCI bus. The other reason concerns virtual functions of
        NVIDIA cards: the function has no vGPU type, or another type than ``extra_info`` says. Called before a guest is
        built, and to find out whether a device that failed works again.
        """

    def related(self, devices: Iterable[objects.PciDevice]) -> dict[str, frozenset[str]]:
        """Return a dict from each device's address to the addresses that no other guest may have while a guest has it.

        The addresses of a device are:

        - its own address
        - the PCI functions to which the device belongs: the parent of a mediated device, the physical function of a
        virtual function
        - its parts: the virtual functions of a physical function, and the mediated devices on any of these functions
        - the other functions of its IOMMU group, because the kernel gives a group to only one process
        """

    def ids_of(self, addresses: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Return {address: (vendor id, product id)} for these PCI functions.

        Functions that the host does not have now are left out.
        """

    def remove_mdevs(self, uuids: Iterable[str]) -> None:
        """Remove these mediated devices.

        A device that cannot be removed, for example because a guest has it, is kept.
        """
