"""Objects that are stored in columns of the table ``instance_extra``."""

from __future__ import annotations

import json
from typing import Any, Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register
from kilonova.objects.fields import DictProxyField


# --- the NUMA cells of a guest (instance_extra.numa_topology) --------------------------------------------------------
@register
class InstanceNUMACell(KilonovaObject):
    """One NUMA cell of a guest.

    ``memory`` is in MiB, ``pagesize`` in KiB. ``cpuset`` has the guest CPUs of the cell that share host CPUs, and
    ``pcpuset`` the guest CPUs with dedicated host CPUs.
    """

    VERSION = '1.6'
    fields = {
        'id': fields.IntegerField(),
        'cpuset': fields.SetOfIntegersField(),
        'pcpuset': fields.SetOfIntegersField(),
        'cpuset_reserved': fields.SetOfIntegersField(nullable=True),
        'memory': fields.IntegerField(),
        'pagesize': fields.IntegerField(nullable=True),
        'cpu_topology': fields.ObjectField('VirtCPUTopology', nullable=True),
        'cpu_pinning_raw': fields.DictOfIntegersField(nullable=True),
        'cpu_policy': fields.CPUAllocationPolicyField(nullable=True),
        'cpu_thread_policy': fields.CPUThreadAllocationPolicyField(nullable=True),
    }
    cpu_pinning = DictProxyField('cpu_pinning_raw')

    @property
    def total_cpus(self) -> set[int]:
        """All guest CPUs of the cell, shared and dedicated ones."""
        return set(self.cpuset) | set(self.pcpuset)


@register
class InstanceNUMATopology(KilonovaObject):
    """The NUMA cells of a guest."""

    VERSION = '1.3'
    fields = {
        'id': fields.IntegerField(),
        'instance_uuid': fields.UUIDField(),
        'cells': fields.ListOfObjectsField('InstanceNUMACell'),
        'emulator_threads_policy': fields.CPUEmulatorThreadsPolicyField(nullable=True),
    }

    def __len__(self) -> int:
        return len(self.cells)


# --- the requested passthrough devices of a server (instance_extra.pci_requests) -------------------------------------
@register
class InstancePCIRequest(KilonovaObject):
    """A request for ``count`` devices, each of which must match at least one element of ``spec``.

    A request comes from a PCI alias of the flavor (``alias_name`` is set), from a Neutron port, or from resource
    classes in the flavor (for mediated devices).
    """

    VERSION = '1.4'
    fields = {
        'count': fields.IntegerField(),
        'spec': fields.ListOfDictOfNullableStringsField(),
        'alias_name': fields.StringField(nullable=True),
        'is_new': fields.BooleanField(default=False),
        'request_id': fields.UUIDField(nullable=True),
        'requester_id': fields.StringField(nullable=True),
        'numa_policy': fields.PCINUMAAffinityPolicyField(nullable=True),
    }
    FLAVOR_ALIAS = 0
    NEUTRON_PORT = 1
    FLAVOR_RESOURCES = 2

    @property
    def source(self) -> int:
        """The source of the request: FLAVOR_ALIAS, NEUTRON_PORT or FLAVOR_RESOURCES."""
        if 'alias_name' in self and self.alias_name is not None:
            return self.FLAVOR_ALIAS
        return self.FLAVOR_RESOURCES if any(one.get('dev_type') == 'mdev' for one in self.spec) else self.NEUTRON_PORT


# The JSON form of an InstancePCIRequest in which no field is set.
_UNSET = {
    'count': None,
    'spec': None,
    'alias_name': None,
    'is_new': False,
    'numa_policy': None,
    'request_id': None,
    'requester_id': None,
}


@register
class InstancePCIRequests(KilonovaObject):
    """All PCI requests of one server."""

    VERSION = '1.1'
    fields = {
        'instance_uuid': fields.UUIDField(),
        'requests': fields.ListOfObjectsField('InstancePCIRequest'),
    }

    @classmethod
    def from_list(cls, requests: list[dict[str, Any]], instance_uuid: str, ctxt: RequestContext | None = None) -> Self:
        """Return the object for the plain list of dicts that ``instance_extra.pci_requests`` stores."""
        self = cls(ctxt)
        made = []
        for request in requests:
            one = InstancePCIRequest(ctxt)
            one.load((name, value) for name, value in request.items() if name in one.fields)
            made.append(one)
        self.load((('instance_uuid', instance_uuid), ('requests', made)))
        return self

    def to_column(self) -> str:
        """Return the JSON text for ``instance_extra.pci_requests``.

        Each request has all fields, with null for unset ones.
        """
        return json.dumps([{**_UNSET, **request.primitive_data()} for request in self.requests])

    def without_providers(self) -> InstancePCIRequests:
        """Return a copy of the requests without the uuids of resource providers, for storage in a RequestSpec.

        The keys rp_uuids and port_rp_uuids are removed from all specs, because the uuids are valid only for one
        allocation. Requests that were made from resource classes of the flavor are left out, because they are made
        again after each allocation.
        """
        return self.replaced(
            requests=[
                request.replaced(
                    spec=[
                        {key: value for key, value in spec.items() if key not in ('rp_uuids', 'port_rp_uuids')}
                        for spec in request.spec
                    ]
                )
                for request in self.requests
                if request.source != request.FLAVOR_RESOURCES
            ]
        )


# --- a server's resources at source and destination of a move (instance_extra.migration_context) ---------------------
@register
class MigrationContext(PersistentObject, KilonovaObject):
    """The resources of a server at the source (``old_*``) and at the destination (``new_*``) of a move."""

    VERSION = '1.2'
    fields = {
        'instance_uuid': fields.UUIDField(),
        'migration_id': fields.IntegerField(),
        'new_numa_topology': fields.ObjectField('InstanceNUMATopology', nullable=True),
        'old_numa_topology': fields.ObjectField('InstanceNUMATopology', nullable=True),
        'new_pci_devices': fields.ObjectField('PciDeviceList', nullable=True),
        'old_pci_devices': fields.ObjectField('PciDeviceList', nullable=True),
        'new_pci_requests': fields.ObjectField('InstancePCIRequests', nullable=True),
        'old_pci_requests': fields.ObjectField('InstancePCIRequests', nullable=True),
        'new_resources': fields.ObjectField('ResourceList', nullable=True),
        'old_resources': fields.ObjectField('ResourceList', nullable=True),
    }


# --- resources such as vPMEM devices that Placement allocated to a server (instance_extra.resources) ------------------
@register
class ResourceMetadata(KilonovaObject):
    """Base class of the data that a driver stores about a server's resource, such as a vPMEM device."""

    VERSION = '1.0'
    fields = {}


@register
class LibvirtVPMEMDevice(ResourceMetadata):
    """A device of virtual persistent memory (vPMEM) of the libvirt driver."""

    VERSION = '1.0'
    fields = {
        'label': fields.StringField(),
        'name': fields.StringField(),
        'size': fields.IntegerField(),
        'devpath': fields.StringField(),
        'align': fields.IntegerField(),
    }


@register
class Resource(KilonovaObject):
    """One resource, such as a vPMEM device, that Placement allocated to a server.

    ``identifier`` is the device's name on the host.
    """

    VERSION = '1.0'
    fields = {
        'provider_uuid': fields.UUIDField(),
        'resource_class': fields.ResourceClassField(),
        'identifier': fields.StringField(),
        'metadata': fields.ObjectField('ResourceMetadata', subclasses=True),
    }


@register
class ResourceList(ListBase, KilonovaObject):
    """The resources, such as vPMEM devices, that Placement allocated to a server."""

    VERSION = '1.0'
    fields = {'objects': fields.ListOfObjectsField('Resource')}


# --- certificates that may sign a server's image (instance_extra.trusted_certs) --------------------------------------
@register
class TrustedCerts(KilonovaObject):
    """The ids of the certificates that may sign a server's image."""

    VERSION = '1.0'
    fields = {'ids': fields.ListOfStringsField()}


# --- the driver's description of a guest's CPU (instance_extra.vcpu_model) -------------------------------------------
@register
class VirtCPUTopology(KilonovaObject):
    """The numbers of sockets, cores and threads of a guest's CPU."""

    VERSION = '1.0'
    fields = {
        'sockets': fields.IntegerField(nullable=True, default=1),
        'cores': fields.IntegerField(nullable=True, default=1),
        'threads': fields.IntegerField(nullable=True, default=1),
    }


@register
class VirtCPUFeature(KilonovaObject):
    """A feature of a guest's CPU, and the policy that says whether the feature is required, optional or forbidden."""

    VERSION = '1.0'
    fields = {'policy': fields.CPUFeaturePolicyField(nullable=True), 'name': fields.StringField()}


@register
class VirtCPUModel(KilonovaObject):
    """The model and features of a guest's CPU."""

    VERSION = '1.0'
    fields = {
        'arch': fields.ArchitectureField(nullable=True),
        'vendor': fields.StringField(nullable=True),
        'topology': fields.ObjectField('VirtCPUTopology', nullable=True),
        'features': fields.ListOfObjectsField('VirtCPUFeature', default=[]),
        'mode': fields.CPUModeField(nullable=True),
        'model': fields.StringField(nullable=True),
        'match': fields.CPUMatchField(nullable=True),
    }


# --- tags of a guest's devices, and their addresses in the guest (instance_extra.device_metadata) --------------------
@register
class DeviceBus(KilonovaObject):
    """Base class of the addresses of devices in a guest."""

    VERSION = '1.0'
    fields = {}


@register
class PCIDeviceBus(DeviceBus):
    """The PCI address of a device in a guest."""

    VERSION = '1.0'
    fields = {'address': fields.PCIAddressField()}


@register
class SCSIDeviceBus(DeviceBus):
    """The SCSI address of a device in a guest; ``address`` is controller:bus:target:unit."""

    VERSION = '1.0'
    fields = {'address': fields.StringField()}


@register
class IDEDeviceBus(DeviceBus):
    """The IDE address of a device in a guest; ``address`` is bus:unit."""

    VERSION = '1.0'
    fields = {'address': fields.StringField()}


@register
class USBDeviceBus(DeviceBus):
    """The USB address of a device in a guest; ``address`` is bus:port."""

    VERSION = '1.0'
    fields = {'address': fields.StringField()}


@register
class DeviceMetadata(KilonovaObject):
    """A device of a guest with its address and its tags."""

    VERSION = '1.0'
    fields = {
        'bus': fields.ObjectField('DeviceBus', subclasses=True),
        'tags': fields.ListOfStringsField(),
    }


@register
class NetworkInterfaceMetadata(DeviceMetadata):
    """A network interface of a guest with its address and its tags."""

    VERSION = '1.2'
    fields = {
        'mac': fields.MACAddressField(),
        'vlan': fields.IntegerField(),
        'vf_trusted': fields.BooleanField(default=False),
    }


@register
class DiskMetadata(DeviceMetadata):
    """A disk of a guest with its address and its tags."""

    VERSION = '1.0'
    fields = {'serial': fields.StringField(nullable=True), 'path': fields.StringField(nullable=True)}


@register
class InstanceDeviceMetadata(KilonovaObject):
    """The devices of a guest that have tags."""

    VERSION = '1.0'
    fields = {'devices': fields.ListOfObjectsField('DeviceMetadata', subclasses=True)}
