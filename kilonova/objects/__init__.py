"""The versioned objects, one module for each subject. Importing this package registers all of them.

Example:
    from kilonova.objects import Instance, RequestSpec
"""

from kilonova.objects.aggregate import Aggregate, AggregateList
from kilonova.objects.compute_node import ComputeNode, ComputeNodeList, HVSpec
from kilonova.objects.console import ConsoleOffer
from kilonova.objects.diagnostics import (
    CpuDiagnostics,
    Diagnostics,
    DiskDiagnostics,
    MemoryDiagnostics,
    NicDiagnostics,
)
from kilonova.objects.ec2_ids import EC2Ids
from kilonova.objects.external_event import InstanceExternalEvent
from kilonova.objects.flavor import Flavor, FlavorList
from kilonova.objects.image_meta import ImageMeta, ImageMetaProps
from kilonova.objects.instance import Instance, InstanceList
from kilonova.objects.instance_extra import (
    DeviceBus,
    DeviceMetadata,
    DiskMetadata,
    IDEDeviceBus,
    InstanceDeviceMetadata,
    InstanceNUMACell,
    InstanceNUMATopology,
    InstancePCIRequest,
    InstancePCIRequests,
    LibvirtVPMEMDevice,
    MigrationContext,
    NetworkInterfaceMetadata,
    PCIDeviceBus,
    Resource,
    ResourceList,
    ResourceMetadata,
    SCSIDeviceBus,
    TrustedCerts,
    USBDeviceBus,
    VirtCPUFeature,
    VirtCPUModel,
    VirtCPUTopology,
)
from kilonova.objects.instance_group import InstanceGroup, InstanceGroupList
from kilonova.objects.instance_tables import (
    BlockDeviceMapping,
    BlockDeviceMappingList,
    InstanceAction,
    InstanceActionEvent,
    InstanceActionEventList,
    InstanceActionList,
    InstanceFault,
    InstanceFaultList,
    InstanceInfoCache,
    Tag,
    TagList,
)
from kilonova.objects.keypair import KeyPair, KeyPairList
from kilonova.objects.mappings import (
    CellMapping,
    CellMappingList,
    HostMapping,
    HostMappingList,
    InstanceMapping,
    InstanceMappingList,
)
from kilonova.objects.migration import Migration, MigrationList
from kilonova.objects.monitor_metric import MonitorMetric, MonitorMetricList
from kilonova.objects.network_request import NetworkRequest, NetworkRequestList, SecurityGroup, SecurityGroupList
from kilonova.objects.numa import NetworkMetadata, NUMACell, NUMAPagesTopology, NUMATopology, NUMATopologyLimits
from kilonova.objects.orders import (
    BuildOrder,
    Claim,
    EvacuateOrder,
    FinishResizeOrder,
    LiveMigrationCheckOrder,
    LiveMigrationOrder,
    LiveMigrationUndo,
    PrepResizeOrder,
    RebuildOrder,
    RescueOrder,
    ResizeOrder,
    Save,
    UnshelveOrder,
)
from kilonova.objects.pci_device import PciDevice, PciDeviceList
from kilonova.objects.pci_device_pool import PciDevicePool, PciDevicePoolList
from kilonova.objects.request_spec import (
    Destination,
    RequestGroup,
    RequestLevelParams,
    RequestSpec,
    SchedulerLimits,
    SchedulerRetries,
)
from kilonova.objects.selection import Selection
from kilonova.objects.service import Service, ServiceList
from kilonova.objects.task_log import TaskLog
from kilonova.objects.volume_usage import VolumeUsage

__all__ = (
    'Aggregate',
    'AggregateList',
    'BlockDeviceMapping',
    'BlockDeviceMappingList',
    'BuildOrder',
    'CellMapping',
    'CellMappingList',
    'Claim',
    'ComputeNode',
    'ComputeNodeList',
    'ConsoleOffer',
    'CpuDiagnostics',
    'Destination',
    'DeviceBus',
    'DeviceMetadata',
    'Diagnostics',
    'DiskDiagnostics',
    'DiskMetadata',
    'EC2Ids',
    'EvacuateOrder',
    'FinishResizeOrder',
    'Flavor',
    'FlavorList',
    'HVSpec',
    'HostMapping',
    'HostMappingList',
    'IDEDeviceBus',
    'ImageMeta',
    'ImageMetaProps',
    'Instance',
    'InstanceAction',
    'InstanceActionEvent',
    'InstanceActionEventList',
    'InstanceActionList',
    'InstanceDeviceMetadata',
    'InstanceExternalEvent',
    'InstanceFault',
    'InstanceFaultList',
    'InstanceGroup',
    'InstanceGroupList',
    'InstanceInfoCache',
    'InstanceList',
    'InstanceMapping',
    'InstanceMappingList',
    'InstanceNUMACell',
    'InstanceNUMATopology',
    'InstancePCIRequest',
    'InstancePCIRequests',
    'KeyPair',
    'KeyPairList',
    'LibvirtVPMEMDevice',
    'LiveMigrationCheckOrder',
    'LiveMigrationOrder',
    'LiveMigrationUndo',
    'MemoryDiagnostics',
    'Migration',
    'MigrationContext',
    'MigrationList',
    'MonitorMetric',
    'MonitorMetricList',
    'NUMACell',
    'NUMAPagesTopology',
    'NUMATopology',
    'NUMATopologyLimits',
    'NetworkInterfaceMetadata',
    'NetworkMetadata',
    'NetworkRequest',
    'NetworkRequestList',
    'NicDiagnostics',
    'PCIDeviceBus',
    'PciDevice',
    'PciDeviceList',
    'PciDevicePool',
    'PciDevicePoolList',
    'PrepResizeOrder',
    'RebuildOrder',
    'RequestGroup',
    'RequestLevelParams',
    'RequestSpec',
    'RescueOrder',
    'ResizeOrder',
    'Resource',
    'ResourceList',
    'ResourceMetadata',
    'SCSIDeviceBus',
    'Save',
    'SchedulerLimits',
    'SchedulerRetries',
    'SecurityGroup',
    'SecurityGroupList',
    'Selection',
    'Service',
    'ServiceList',
    'Tag',
    'TagList',
    'TaskLog',
    'TrustedCerts',
    'USBDeviceBus',
    'UnshelveOrder',
    'VirtCPUFeature',
    'VirtCPUModel',
    'VirtCPUTopology',
    'VolumeUsage',
)
