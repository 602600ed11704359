"""Payloads of notifications: versioned ones, one class a kind of thing, and the old plain dicts (``legacy``)."""
from kilonova.objects.notifications.base import About, Payload
from kilonova.objects.notifications.exception import ExceptionPayload
from kilonova.objects.notifications.flavor import FlavorPayload
from kilonova.objects.notifications.instance import (
    AuditPeriodPayload,
    BlockDevicePayload,
    InstanceActionPayload,
    InstanceActionRebuildPayload,
    InstanceActionResizePrepPayload,
    InstanceActionSnapshotPayload,
    InstanceCreatePayload,
    InstanceExistsPayload,
    InstancePayload,
    InstanceStateUpdatePayload,
    InstanceUpdatePayload,
    IpPayload,
    SharePayload,
)
from kilonova.objects.notifications.nouns import (
    AggregatePayload,
    KeypairPayload,
    ServerGroupPayload,
    ServiceStatusPayload,
)
from kilonova.objects.notifications.request_spec import (
    CellMappingPayload,
    ComputeTaskPayload,
    DestinationPayload,
    ImageMetaPayload,
    ImageMetaPropsPayload,
    InstanceNUMACellPayload,
    InstanceNUMATopologyPayload,
    InstancePCIRequestPayload,
    InstancePCIRequestsPayload,
    RequestSpecPayload,
    SchedulerLimitsPayload,
    SchedulerRetriesPayload,
    VirtCPUTopologyPayload,
)

# Each of these has a version that other programs rely on.
PAYLOADS = (
    AggregatePayload, AuditPeriodPayload, BlockDevicePayload, CellMappingPayload, ComputeTaskPayload,
    DestinationPayload, ExceptionPayload, FlavorPayload, ImageMetaPayload, ImageMetaPropsPayload,
    InstanceActionPayload, InstanceActionRebuildPayload, InstanceActionResizePrepPayload, InstanceActionSnapshotPayload,
    InstanceCreatePayload,
    InstanceExistsPayload, InstanceNUMACellPayload, InstanceNUMATopologyPayload, InstancePCIRequestPayload,
    InstancePCIRequestsPayload, InstancePayload, InstanceStateUpdatePayload, InstanceUpdatePayload, IpPayload,
    KeypairPayload, RequestSpecPayload, SchedulerLimitsPayload, SchedulerRetriesPayload, ServerGroupPayload,
    ServiceStatusPayload, SharePayload, VirtCPUTopologyPayload)

__all__ = (
    'PAYLOADS',
    'About',
    'AggregatePayload',
    'AuditPeriodPayload',
    'BlockDevicePayload',
    'CellMappingPayload',
    'ComputeTaskPayload',
    'DestinationPayload',
    'ExceptionPayload',
    'FlavorPayload',
    'ImageMetaPayload',
    'ImageMetaPropsPayload',
    'InstanceActionPayload',
    'InstanceActionRebuildPayload',
    'InstanceActionResizePrepPayload',
    'InstanceActionSnapshotPayload',
    'InstanceCreatePayload',
    'InstanceExistsPayload',
    'InstanceNUMACellPayload',
    'InstanceNUMATopologyPayload',
    'InstancePCIRequestPayload',
    'InstancePCIRequestsPayload',
    'InstancePayload',
    'InstanceStateUpdatePayload',
    'InstanceUpdatePayload',
    'IpPayload',
    'KeypairPayload',
    'Payload',
    'RequestSpecPayload',
    'SchedulerLimitsPayload',
    'SchedulerRetriesPayload',
    'ServerGroupPayload',
    'ServiceStatusPayload',
    'SharePayload',
    'VirtCPUTopologyPayload',
)
