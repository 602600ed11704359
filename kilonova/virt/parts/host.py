"""Protocols for a hypervisor's host: its resources and devices, and the object that receives its events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from kilonova import errors, objects

# {resource class: {total, reserved, min_unit, max_unit, step_size, allocation_ratio}}
Inventories = dict[str, dict[str, Any]]


class HypervisorUnavailable(errors.Unavailable):
    """The hypervisor cannot be reached."""

    msg_fmt = 'Connection to the hypervisor is broken on host %(host)s: %(reason)s'


class DriverMisconfigured(errors.Invalid):
    """The host's settings ask for a feature that this driver does not support. The compute does not start."""

    cause = errors.Cause.HOST
    msg_fmt = 'Invalid configuration of the compute driver: %(reason)s'


class MdevUnavailable(errors.HostRejected):
    """A guest's mediated device cannot be created, or exists with another type or parent than planned.

    An alternate host may have a device for the guest.
    """

    cause = errors.Cause.DEVICE
    msg_fmt = (
        'mdev-capable resource is not available: mediated device %(uuid)s of type %(type)s on %(parent)s: %(reason)s'
    )


class Listener(Protocol):
    """The receiver of a driver's events, including changes that were not made through the driver.

    Each method must return at once.
    """

    def guest_changed(self, uuid: str) -> None:
        """Handle that a guest was started, stopped, paused or continued.

        The driver itself may have caused the change.
        """

    def hypervisor_lost(self, reason: str) -> None:
        """Handle that the hypervisor has not been reachable for a moment, and is still unreachable."""

    def hypervisor_back(self) -> None:
        """Handle that the hypervisor is reachable again. Called even if it was unreachable only very shortly.

        Guests may have changed while the hypervisor was unreachable.
        """


class Host(Protocol):
    """The host as a whole: settings, resources, inventory and traits."""

    def listen(self, listener: Listener) -> None:
        """Send events to ``listener`` from now on. Called once, before ``init_host``.

        A driver whose hypervisor has no events may ignore the listener, because guests are also checked periodically.
        """

    def init_host(self) -> None:
        """Connect to the hypervisor and check the host's settings. Called before all other methods except ``listen``.

        The method removes files that a crash left half deleted, and XML copies of domains that the hypervisor no longer
        has. It starts mediated devices that are defined but not active. If it raises DriverMisconfigured, the compute
        does not start. If it raises HypervisorUnavailable, it is called again.
        """

    def get_available_resource(self) -> dict[str, Any]:
        """Return a dict that describes the current host.

        Keys: supported_instances [[arch, hv_type, vm_mode]], vcpus, memory_mb, local_gb, vcpus_used, memory_mb_used
        (the last two are 0, because the compute's tracker counts servers), local_gb_used, hypervisor_type,
        hypervisor_version (int), hypervisor_hostname (= conf.host), uuid (of the node, which never changes), cpu_info
        (JSON string), disk_available_least (GiB), numa_topology (a NUMATopology object without any usage, serialised as
        a JSON string, or None), stats {}, and pci_passthrough_devices.

        pci_passthrough_devices is a list (not JSON) of *all* PCI devices of the host, sorted by address. Each is a dict
        with dev_id, address, vendor_id, product_id, numa_node (int or None), label, dev_type, capabilities, parent_addr
        for virtual functions, and parent_ifname if it is known (for a physical function its own interface name). A
        function that supports mediated devices has mdev_types {type: {'available': number that can still be created,
        'api': for example 'vfio-pci'}}. After the functions, the list has the existing mediated devices, active or only
        defined: address is the uuid, dev_type is MDEV, parent_addr is the address of their function, mdev_type is the
        type; vendor_id, product_id, numa_node and label are those of the function.
        """

    def inventory(self, existing: Inventories | None = None) -> Inventories:
        """Return the Placement inventory of the root provider: VCPU, MEMORY_MB, DISK_GB, and PCPU for dedicated CPUs.

        ``existing`` is the current inventory in Placement. Its allocation ratios are kept if the configuration sets
        none. The options (reserved_host_*, *_allocation_ratio, initial_*_allocation_ratio) are in conf/base_virt.py.
        """

    def traits(self) -> set[str]:
        """Return the traits of the root provider that the driver manages.

        CUSTOM_ traits of operators are not included.
        """

    def uptime(self) -> str | None:
        """Return the output of the program uptime on this host, without the line feed, or None if it is unknown."""


class Devices(Protocol):
    """Methods for the host's PCI and mediated devices, which ``Host.get_available_resource`` lists."""

    def missing_devices(self, devices: Iterable[objects.PciDevice]) -> list[str]:
        """Return the addresses of devices that the host does not have now, in the order of ``devices``.

        Called before a guest is built. A mediated device that does not exist can still be created, so it is missing
        only if its PCI function does not exist or does not support its type.
        """

    def unusable(self, devices: Iterable[objects.PciDevice]) -> dict[str, str]:
        """Return {address: reason} for devices that the host has, but that cannot be given to a guest now.

        These are virtual functions of NVIDIA cards without a vGPU type or with another type than ``extra_info`` says,
        and functions that no longer respond on the PCI bus. Called before a guest is built, and to find out whether a
        device that failed works again.
        """

    def related(self, devices: Iterable[objects.PciDevice]) -> dict[str, frozenset[str]]:
        """Return {address of each device: addresses that no other guest may have while one guest has the device}.

        The addresses of a device are:

        - its own address
        - the functions that it is a part of: the parent of a mediated device, the physical function of a virtual
          function
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
