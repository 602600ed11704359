"""Payloads of scheduling: requests to the scheduler, and servers that could not be scheduled."""

from __future__ import annotations

from typing import Any, Self

from kilonova.objects import fields
from kilonova.objects.base import register
from kilonova.objects.image_meta import ImageMeta
from kilonova.objects.image_properties import PROPERTIES
from kilonova.objects.instance_extra import InstanceNUMACell, InstanceNUMATopology, InstancePCIRequests
from kilonova.objects.notifications.base import EventContext, InstanceStateField, Payload, value
from kilonova.objects.notifications.exception import ExceptionPayload
from kilonova.objects.notifications.flavor import FlavorPayload
from kilonova.objects.notifications.nouns import ServerGroupPayload
from kilonova.objects.request_spec import Destination, RequestSpec, SchedulerRetries


@register
class ImageMetaPropsPayload(Payload):
    """Notification payload: the properties of an image; properties that the image does not have are unset."""

    VERSION = '1.20'
    fields = dict(PROPERTIES)


@register
class ImageMetaPayload(Payload):
    """Notification payload: the metadata of an image.

    Sizes are in bytes, ``min_disk`` is in GiB, ``min_ram`` in MiB.
    """

    VERSION = '1.0'
    fields = {
        'id': fields.UUIDField(),
        'name': fields.StringField(),
        'status': fields.StringField(),
        'visibility': fields.StringField(),
        'protected': fields.FlexibleBooleanField(),
        'checksum': fields.StringField(),
        'owner': fields.StringField(),
        'size': fields.IntegerField(),
        'virtual_size': fields.IntegerField(),
        'container_format': fields.StringField(),
        'disk_format': fields.StringField(),
        'created_at': fields.DateTimeField(nullable=True),
        'updated_at': fields.DateTimeField(nullable=True),
        'tags': fields.ListOfStringsField(),
        'direct_url': fields.StringField(),
        'min_ram': fields.IntegerField(),
        'min_disk': fields.IntegerField(),
        'properties': fields.ObjectField('ImageMetaPropsPayload'),
    }

    @classmethod
    def of_image(cls, image: ImageMeta) -> Self:
        """Return the notification payload of an ImageMeta."""
        return cls.like(
            image, properties=ImageMetaPropsPayload.like(image.properties) if 'properties' in image else None
        )


@register
class VirtCPUTopologyPayload(Payload):
    """Notification payload: the CPU topology that the guest sees."""

    VERSION = '1.0'
    fields = {
        'sockets': fields.IntegerField(nullable=True),
        'cores': fields.IntegerField(nullable=True),
        'threads': fields.IntegerField(nullable=True),
    }


@register
class InstanceNUMACellPayload(Payload):
    """Notification payload: one NUMA cell of a guest; ``memory`` is in MiB, ``pagesize`` in KiB."""

    VERSION = '1.2'
    fields = {
        'id': fields.IntegerField(),
        'cpuset': fields.SetOfIntegersField(),
        'pcpuset': fields.SetOfIntegersField(),
        'cpuset_reserved': fields.SetOfIntegersField(nullable=True),
        'memory': fields.IntegerField(),
        'pagesize': fields.IntegerField(nullable=True),
        'cpu_topology': fields.ObjectField('VirtCPUTopologyPayload', nullable=True),
        'cpu_pinning_raw': fields.DictOfIntegersField(nullable=True),
        'cpu_policy': fields.CPUAllocationPolicyField(nullable=True),
        'cpu_thread_policy': fields.CPUThreadAllocationPolicyField(nullable=True),
    }

    @classmethod
    def of_cell(cls, cell: InstanceNUMACell) -> Self:
        """Return the notification payload of an InstanceNUMACell."""
        topology = value(cell, 'cpu_topology')
        return cls.like(cell, cpu_topology=None if topology is None else VirtCPUTopologyPayload.like(topology))


@register
class InstanceNUMATopologyPayload(Payload):
    """Notification payload: the requested NUMA cells of a guest."""

    VERSION = '1.0'
    fields = {
        'instance_uuid': fields.UUIDField(),
        'cells': fields.ListOfObjectsField('InstanceNUMACellPayload'),
        'emulator_threads_policy': fields.CPUEmulatorThreadsPolicyField(nullable=True),
    }

    @classmethod
    def of_topology(cls, topology: InstanceNUMATopology) -> Self:
        """Return the notification payload of an InstanceNUMATopology."""
        return cls.like(topology, cells=[InstanceNUMACellPayload.of_cell(cell) for cell in topology.cells])


@register
class InstancePCIRequestPayload(Payload):
    """Notification payload: the requested passthrough devices of one alias of the flavor."""

    VERSION = '1.0'
    fields = {
        'count': fields.IntegerField(),
        'spec': fields.ListOfDictOfNullableStringsField(),
        'alias_name': fields.StringField(nullable=True),
        'request_id': fields.UUIDField(nullable=True),
        'numa_policy': fields.PCINUMAAffinityPolicyField(nullable=True),
    }


@register
class InstancePCIRequestsPayload(Payload):
    """Notification payload: all requested passthrough devices of a server."""

    VERSION = '1.0'
    fields = {
        'instance_uuid': fields.UUIDField(),
        'requests': fields.ListOfObjectsField('InstancePCIRequestPayload'),
    }

    @classmethod
    def of_requests(cls, requests: InstancePCIRequests) -> Self:
        """Return the notification payload of InstancePCIRequests."""
        return cls.like(requests, requests=[InstancePCIRequestPayload.like(one) for one in requests.requests])


@register
class CellMappingPayload(Payload):
    """Notification payload: a cell, without its URLs, which contain passwords."""

    VERSION = '2.0'
    fields = {
        'uuid': fields.UUIDField(),
        'name': fields.StringField(nullable=True),
        'disabled': fields.BooleanField(),
    }


@register
class DestinationPayload(Payload):
    """Notification payload: the hosts that the server may use."""

    VERSION = '1.0'
    fields = {
        'host': fields.StringField(),
        'node': fields.StringField(nullable=True),
        'cell': fields.ObjectField('CellMappingPayload', nullable=True),
        'aggregates': fields.ListOfStringsField(nullable=True),
    }

    @classmethod
    def of_destination(cls, destination: Destination) -> Self:
        """Return the notification payload of a Destination."""
        cell = value(destination, 'cell')
        return cls.like(destination, cell=None if cell is None else CellMappingPayload.like(cell))


@register
class SchedulerRetriesPayload(Payload):
    """Notification payload: the hosts that were tried already for a server."""

    VERSION = '1.0'
    fields = {
        'num_attempts': fields.IntegerField(),
        'hosts': fields.ListOfStringsField(),
    }

    @classmethod
    def of_retries(cls, retries: SchedulerRetries) -> Self:
        """Return the notification payload of SchedulerRetries."""
        return cls.made({'num_attempts': retries.num_attempts, 'hosts': [node.host for node in retries.hosts]})


@register
class SchedulerLimitsPayload(Payload):
    """Notification payload: the limits of a claim on a host. Memory is in MiB, disk in GiB."""

    VERSION = '1.0'
    fields = {
        'vcpu': fields.IntegerField(nullable=True),
        'disk_gb': fields.IntegerField(nullable=True),
        'memory_mb': fields.IntegerField(nullable=True),
    }


@register
class RequestSpecPayload(Payload):
    """Notification payload: what a server requires of its host."""

    VERSION = '1.1'
    fields = {
        'instance_uuid': fields.UUIDField(),
        'project_id': fields.StringField(nullable=True),
        'user_id': fields.StringField(nullable=True),
        'availability_zone': fields.StringField(nullable=True),
        'flavor': fields.ObjectField('FlavorPayload', nullable=True),
        'image': fields.ObjectField('ImageMetaPayload', nullable=True),
        'numa_topology': fields.ObjectField('InstanceNUMATopologyPayload', nullable=True),
        'pci_requests': fields.ObjectField('InstancePCIRequestsPayload', nullable=True),
        'num_instances': fields.IntegerField(default=1),
        'ignore_hosts': fields.ListOfStringsField(nullable=True),
        'force_hosts': fields.ListOfStringsField(nullable=True),
        'force_nodes': fields.ListOfStringsField(nullable=True),
        'requested_destination': fields.ObjectField('DestinationPayload', nullable=True),
        'retry': fields.ObjectField('SchedulerRetriesPayload', nullable=True),
        'limits': fields.ObjectField('SchedulerLimitsPayload', nullable=True),
        'instance_group': fields.ObjectField('ServerGroupPayload', nullable=True),
        'scheduler_hints': fields.DictOfListOfStringsField(nullable=True),
        'security_groups': fields.ListOfStringsField(),
    }

    @classmethod
    def of(cls, about: EventContext, *, request_spec: RequestSpec) -> Self:
        """Return the notification payload of a RequestSpec."""
        makers: dict[str, Any] = {
            'flavor': FlavorPayload.like,
            'image': ImageMetaPayload.of_image,
            'numa_topology': InstanceNUMATopologyPayload.of_topology,
            'pci_requests': InstancePCIRequestsPayload.of_requests,
            'requested_destination': DestinationPayload.of_destination,
            'retry': SchedulerRetriesPayload.of_retries,
            'limits': SchedulerLimitsPayload.like,
            'instance_group': lambda group: ServerGroupPayload.of(about, group=group),
        }
        held = {name: value(request_spec, name) for name in makers}
        made = {name: None if one is None else makers[name](one) for name, one in held.items()}
        groups = value(request_spec, 'security_groups')
        return cls.like(request_spec, **made, security_groups=groups.names() if groups is not None else [])


@register
class ComputeTaskPayload(Payload):
    """Notification payload: a server that could not be scheduled, with the reason.

    ``state`` is the server's vm state after the failure.
    """

    VERSION = '1.0'
    fields = {
        'instance_uuid': fields.UUIDField(),
        'request_spec': fields.ObjectField('RequestSpecPayload', nullable=True),
        'state': InstanceStateField(nullable=True),
        'reason': fields.ObjectField('ExceptionPayload'),
    }

    @classmethod
    def of(
        cls,
        about: EventContext,
        *,
        instance_uuid: str,
        request_spec: RequestSpec,
        state: str | None,
        record: dict[str, Any],
        **facts: Any,
    ) -> Self:
        """Return the notification payload of a server that could not be scheduled.

        ``record`` is the error as the operation's row stores it.
        """
        return cls.made(
            {
                'instance_uuid': instance_uuid,
                'state': state,
                'reason': ExceptionPayload.of_record(record),
                'request_spec': RequestSpecPayload.of(about, request_spec=request_spec),
            }
        )
