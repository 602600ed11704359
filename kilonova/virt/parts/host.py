"""The host of a hypervisor: what it has, its devices, and whom it tells what happens by itself."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from kilonova import errors, objects

# {resource class: {total, reserved, min_unit, max_unit, step_size, allocation_ratio}}
Inventories = dict[str, dict[str, Any]]


class HypervisorUnavailable(errors.Unavailable):
    """The hypervisor can't be reached."""

    msg_fmt = 'Connection to the hypervisor is broken on host %(host)s: %(reason)s'


class DriverMisconfigured(errors.Invalid):
    """The host's settings ask for something that this driver can't do; the compute doesn't start."""

    cause = errors.Cause.HOST
    msg_fmt = 'Invalid configuration of the compute driver: %(reason)s'


class MdevUnavailable(errors.HostRejected):
    """A guest's mediated device isn't here and can't be made, or is another than planned; an alternate may have it."""

    cause = errors.Cause.DEVICE
    msg_fmt = ('mdev-capable resource is not available: mediated device %(uuid)s of type %(type)s on %(parent)s: '
               '%(reason)s')


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


class Devices(Protocol):
    """The host's devices. All of them are told by ``Host.get_available_resource``."""

    def missing_devices(self, devices: Iterable[objects.PciDevice]) -> list[str]:
        """Addresses of those of these devices that the host doesn't have now, in order. Asked before a guest is built.

        A mediated device that doesn't exist is missing only if its PCI function isn't there or doesn't offer its type.
        """

    def unusable(self, devices: Iterable[objects.PciDevice]) -> dict[str, str]:
        """Return {address: why} of those of these devices that the host has and that no guest can be given now.

        These are virtual functions of NVIDIA cards without a vGPU type or with another than ``extra_info`` says, and
        functions that fell off the bus. Asked before a guest is built, and to find out whether a device that failed is
        well again.
        """

    def related(self, devices: Iterable[objects.PciDevice]) -> dict[str, frozenset[str]]:
        """Return, by the address of each of these devices, the addresses of all devices that no other guest may have
        while one guest has it.

        These are the device itself; the functions that it is a part of: the parent of a mediated device and the
        physical function of a virtual one; its parts: the virtual functions of a physical one, and the mediated devices
        on any of these; and the other functions of its IOMMU group, which the kernel gives to one process only.
        """

    def ids_of(self, addresses: Iterable[str]) -> dict[str, tuple[str, str]]:
        """{address: (vendor id, product id)} of PCI functions; those that the host doesn't have now are left out."""

    def remove_mdevs(self, uuids: Iterable[str]) -> None:
        """Remove these mediated devices, as far as it goes: what can't be removed (a guest has it) stays."""
