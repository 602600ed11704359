"""RequestSpec: what a server requires of its host. It is sent to the scheduler and stored in the API database.

Example:
    spec = RequestSpec.from_components(ctxt, instance_uuid=uuid, flavor=flavor, image=image, scheduler_hints={...})
    row = {'instance_uuid': uuid, 'spec': spec.to_json()}
    spec = RequestSpec.from_json(row['spec'], ctxt)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register
from kilonova.objects.compute_node import ComputeNode, ComputeNodeList
from kilonova.objects.flavor import Flavor
from kilonova.objects.image_meta import ImageMeta
from kilonova.objects.instance_extra import InstanceNUMACell, InstanceNUMATopology, InstancePCIRequests
from kilonova.objects.instance_group import InstanceGroup
from kilonova.objects.network_request import NetworkRequestList, SecurityGroupList
from kilonova.objects.numa import NetworkMetadata

# Fields that are valid only for one call of the scheduler. They are never stored in the database.
NOT_STORED = (
    'id',
    'network_metadata',
    'requested_networks',
    'requested_resources',
    'requested_destination',
    'retry',
    'ignore_hosts',
    'request_level_params',
)
# Fields that are never stored, and are None in a request spec that was read from the database.
EMPTY = ('requested_resources', 'requested_destination', 'retry', 'ignore_hosts')
# Fields that the old dict form of a request spec contains unchanged, in its member ``instance_properties``.
LEGACY_PROPERTIES = ('project_id', 'user_id', 'availability_zone', 'numa_topology', 'pci_requests')
ENVELOPE = 'nova_object.name'


@register
class Destination(KilonovaObject):
    """The hosts that a server may use: a host, a node, a cell, and aggregates.

    Each entry of ``aggregates`` is a text 'a,b', which means that the host must be in at least one of the aggregates a
    and b. All entries must be fulfilled.
    """

    VERSION = '1.4'
    aggregates: Any
    forbidden_aggregates: Any
    fields = {
        'host': fields.StringField(),
        'node': fields.StringField(nullable=True),
        'cell': fields.ObjectField('CellMapping', nullable=True),
        'aggregates': fields.ListOfStringsField(nullable=True),
        'allow_cross_cell_move': fields.BooleanField(default=False),
        'forbidden_aggregates': fields.SetOfStringsField(nullable=True),
    }

    def require_aggregates(self, aggregates: Iterable[str]) -> None:
        """Require that the host is in at least one of these aggregates."""
        before: Any = self.aggregates if 'aggregates' in self else None
        self.aggregates = [*(before or ()), ','.join(aggregates)]

    def append_forbidden_aggregates(self, aggregates: Iterable[str]) -> None:
        """Require that the host is in none of these aggregates."""
        before: Any = self.forbidden_aggregates if 'forbidden_aggregates' in self else None
        self.forbidden_aggregates = {*(before or ()), *aggregates}


@register
class SchedulerRetries(KilonovaObject):
    """The number of attempts, and the hosts that were already tried for a server."""

    VERSION = '1.1'
    fields = {
        'num_attempts': fields.IntegerField(),
        'hosts': fields.ObjectField('ComputeNodeList'),
    }

    @classmethod
    def from_dict(cls, ctxt: RequestContext, retry: dict[str, Any]) -> Self:
        """Return the object for the dict {'num_attempts': n, 'hosts': [[host, node], …]}."""
        hosts = [ComputeNode(ctxt, host=host, hypervisor_hostname=node) for host, node in retry.get('hosts') or ()]
        return cls(ctxt, num_attempts=retry.get('num_attempts') or 0, hosts=ComputeNodeList(ctxt, objects=hosts))

    def to_dict(self) -> dict[str, Any]:
        """Return the dict that ``from_dict`` reads."""
        return {
            'num_attempts': self.num_attempts,
            'hosts': [[node.host, node.hypervisor_hostname] for node in self.hosts],
        }


@register
class SchedulerLimits(KilonovaObject):
    """The limits of a claim on a host. Memory is in MiB, disk in GiB."""

    VERSION = '1.0'
    fields = {
        'numa_topology': fields.ObjectField('NUMATopologyLimits', nullable=True),
        'vcpu': fields.IntegerField(nullable=True),
        'disk_gb': fields.IntegerField(nullable=True),
        'memory_mb': fields.IntegerField(nullable=True),
    }

    @classmethod
    def from_dict(cls, limits: dict[str, Any]) -> Self:
        """Return the object for a dict with 'numa_topology', 'vcpu', 'disk_gb' and 'memory_mb'.

        Missing limits are None.
        """
        return cls(**{name: limits.get(name) for name in cls.fields})

    def to_dict(self) -> dict[str, Any]:
        """Return the limits that are set and not None as a dict."""
        return {name: getattr(self, name) for name in self.fields if name in self and getattr(self, name) is not None}


@register
class RequestGroup(KilonovaObject):
    """A group of requested resources and traits; ``requester_id`` is its name.

    If ``use_same_provider`` is True, all resources of the group must come from one provider.
    """

    VERSION = '1.3'
    fields = {
        'use_same_provider': fields.BooleanField(default=True),
        'resources': fields.DictOfIntegersField(default={}),
        'required_traits': fields.SetOfStringsField(default=set()),
        'forbidden_traits': fields.SetOfStringsField(default=set()),
        'aggregates': fields.ListOfListsOfStringsField(default=[]),
        'forbidden_aggregates': fields.SetOfStringsField(default=set()),
        'requester_id': fields.StringField(nullable=True),
        'provider_uuids': fields.ListOfUUIDField(default=[]),
        'in_tree': fields.UUIDField(nullable=True),
    }

    def __init__(self, context: RequestContext | None = None, **values: Any) -> None:
        super().__init__(context, **{'requester_id': None, 'in_tree': None, **values})
        self.obj_set_defaults()


@register
class RequestLevelParams(KilonovaObject):
    """The requirements on an allocation as a whole, which do not belong to a single group of resources."""

    VERSION = '1.1'
    root_required: set[str]
    root_forbidden: set[str]
    same_subtree: list[list[str]]
    fields = {
        'root_required': fields.SetOfStringsField(default=set()),
        'root_forbidden': fields.SetOfStringsField(default=set()),
        'same_subtree': fields.ListOfListsOfStringsField(default=[]),
    }

    def __init__(self, context: RequestContext | None = None, **values: Any) -> None:
        super().__init__(context, **values)
        self.obj_set_defaults()


@register
class RequestSpec(KilonovaObject):
    """The requirements that a server has for its host: resources, devices, zone, hints and named hosts.

    The values of ``scheduler_hints`` are always lists. A field that is not set reads as empty, so that filters can read
    all fields. Only the flavor and the server's uuid raise UnsetField if they are not set.
    """

    VERSION = '1.15'
    flavor: Flavor
    request_level_params: RequestLevelParams
    fields = {
        'id': fields.IntegerField(),
        'image': fields.ObjectField('ImageMeta', nullable=True),
        'numa_topology': fields.ObjectField('InstanceNUMATopology', nullable=True),
        'pci_requests': fields.ObjectField('InstancePCIRequests', nullable=True),
        'project_id': fields.StringField(nullable=True),
        'user_id': fields.StringField(nullable=True),
        'availability_zone': fields.StringField(nullable=True),
        'flavor': fields.ObjectField('Flavor'),
        'num_instances': fields.IntegerField(default=1),
        'ignore_hosts': fields.ListOfStringsField(nullable=True),
        'force_hosts': fields.ListOfStringsField(nullable=True),
        'force_nodes': fields.ListOfStringsField(nullable=True),
        'requested_destination': fields.ObjectField('Destination', nullable=True),
        'retry': fields.ObjectField('SchedulerRetries', nullable=True),
        'limits': fields.ObjectField('SchedulerLimits', nullable=True),
        'instance_group': fields.ObjectField('InstanceGroup', nullable=True),
        'scheduler_hints': fields.DictOfListOfStringsField(nullable=True),
        'instance_uuid': fields.UUIDField(),
        'security_groups': fields.ObjectField('SecurityGroupList'),
        'network_metadata': fields.ObjectField('NetworkMetadata'),
        'is_bfv': fields.BooleanField(),
        'requested_resources': fields.ListOfObjectsField('RequestGroup', nullable=True),
        'request_level_params': fields.ObjectField('RequestLevelParams'),
        'requested_networks': fields.ObjectField('NetworkRequestList'),
    }
    _empty: ClassVar[Mapping[str, Callable[[], Any]]] = MappingProxyType(
        {
            **dict.fromkeys(
                (
                    'image',
                    'numa_topology',
                    'pci_requests',
                    'project_id',
                    'user_id',
                    'availability_zone',
                    'ignore_hosts',
                    'force_hosts',
                    'force_nodes',
                    'requested_destination',
                    'retry',
                    'instance_group',
                    'requested_resources',
                ),
                type(None),
            ),
            'num_instances': lambda: 1,
            'is_bfv': bool,
            'scheduler_hints': dict,
            'limits': lambda: SchedulerLimits.from_dict({}),
            'security_groups': SecurityGroupList,
            'network_metadata': lambda: NetworkMetadata(physnets=set(), tunneled=False),
            'request_level_params': RequestLevelParams,
            'requested_networks': NetworkRequestList,
        }
    )
    # Default of the field ``id``: a spec that was not read from a row of ``request_specs`` has no id.
    _obj_id: ClassVar[int | None] = None

    @classmethod
    def from_components(
        cls,
        ctxt: RequestContext,
        *,
        instance_uuid: str,
        flavor: Flavor,
        image: ImageMeta | dict[str, Any] | None = None,
        scheduler_hints: dict[str, Any] | None = None,
        security_groups: SecurityGroupList | None = None,
        requested_networks: NetworkRequestList | None = None,
        **values: Any,
    ) -> Self:
        """Return the spec for the creation of a server.

        ``values`` are further fields by name. Fields that are not given are empty. Project and user are taken from the
        context, unless ``values`` has them. Raises TypeError for an unknown field name.
        """
        spec = cls(
            ctxt,
            instance_uuid=instance_uuid,
            flavor=flavor,
            num_instances=values.pop('num_instances', 1),
            image=ImageMeta.from_dict(image) if isinstance(image, dict) else image,
            project_id=values.pop('project_id', None) or ctxt.project_id,
            user_id=values.pop('user_id', None) or ctxt.user_id,
            scheduler_hints=hints_as_lists(scheduler_hints),
            is_bfv=values.pop('is_bfv', False),
            limits=values.pop('limits', None) or SchedulerLimits.from_dict({}),
            security_groups=security_groups or SecurityGroupList(ctxt),
            requested_networks=requested_networks or NetworkRequestList(ctxt),
            request_level_params=values.pop('request_level_params', None) or RequestLevelParams(),
        )
        for name in (
            'numa_topology',
            'pci_requests',
            'availability_zone',
            'ignore_hosts',
            'force_hosts',
            'force_nodes',
            'requested_destination',
            'retry',
            'instance_group',
            'requested_resources',
        ):
            setattr(spec, name, values.pop(name, None))
        if values:
            raise TypeError(f'unknown fields of a request: {sorted(values)}')
        return spec

    # -- values that the scheduler reads -------------------------------------------------------------------------------
    @property
    def vcpus(self) -> int:
        """The flavor's number of vCPUs."""
        return self.flavor.vcpus

    @property
    def memory_mb(self) -> int:
        """The flavor's memory in MiB."""
        return self.flavor.memory_mb

    @property
    def root_gb(self) -> int:
        """The size of the root disk on the host in GiB; 0 if the root disk is a volume."""
        return 0 if 'is_bfv' in self and self.is_bfv else self.flavor.root_gb

    @property
    def ephemeral_gb(self) -> int:
        """The size of the flavor's ephemeral disk in GiB."""
        return self.flavor.ephemeral_gb

    @property
    def swap(self) -> int:
        """The size of the flavor's swap in MiB."""
        return self.flavor.swap

    def get_scheduler_hint(self, name: str, default: Any = None) -> Any:
        """Return the value of a hint, the list of its values if there are several, or ``default`` if it is not set."""
        hints = (self.scheduler_hints if 'scheduler_hints' in self else None) or {}
        values = hints.get(name)
        if values is None:
            return default
        return values[0] if len(values) == 1 else list(values)

    @property
    def root_required(self) -> set[str]:
        """The traits that the root provider (the host) must have; callers may add to the set."""
        return self.request_level_params.root_required

    @property
    def root_forbidden(self) -> set[str]:
        """The traits that the root provider (the host) must not have; callers may add to the set."""
        return self.request_level_params.root_forbidden

    @property
    def same_subtree(self) -> list[list[str]]:
        """Lists of names of request groups. Callers may add lists.

        The providers of all groups in one list must be in the same subtree of the host's providers.
        """
        return self.request_level_params.same_subtree

    # -- storage of a request spec in the database ---------------------------------------------------------------------
    def to_json(self) -> str:
        """Return the JSON text for the column ``request_specs.spec``.

        The text does not contain the fields that are valid only for one call of the scheduler, such as ``retry``. It
        also lacks the uuids of resource providers in the PCI requests, which are valid only for one allocation.
        """
        stored = self.replaced()
        for name in NOT_STORED:
            if name in stored:
                delattr(stored, name)
        if 'pci_requests' in stored and stored.pci_requests is not None:
            stored.pci_requests = stored.pci_requests.without_providers()
        group = stored.instance_group if 'instance_group' in stored else None
        if group is not None:
            group = group.replaced()
            for name in ('members', 'hosts'):
                if name in group:
                    delattr(group, name)
            stored.instance_group = group
        return json.dumps(stored.stored_primitive())

    @classmethod
    def from_json(cls, text: str | None, ctxt: RequestContext | None = None, row_id: int | None = None) -> Self | None:
        """Return the spec for a text of ``request_specs.spec``, or None for an empty text.

        Fields that are valid only for one call of the scheduler are not stored, so they are None. ``row_id`` is the id
        of the row that has the text.
        """
        spec = super().from_json(text, ctxt)
        if spec is not None:
            spec.load((name, None) for name in EMPTY)
            if row_id is not None:
                spec.load((('id', row_id),))
        return spec

    # -- the old dict forms (for notifications and services of older releases) ---------------------------------------
    def to_legacy_request_spec_dict(self) -> dict[str, Any]:
        """Return the dict that older releases used: {'image', 'num_instances', 'instance_properties', 'instance_type'}.

        NUMA topology, PCI requests and flavor stay objects in the dict.
        """
        flavor = self.flavor
        properties = {name: getattr(self, name) for name in LEGACY_PROPERTIES if name in self}
        properties.update(
            uuid=self.instance_uuid,
            vcpus=flavor.vcpus,
            memory_mb=flavor.memory_mb,
            root_gb=flavor.root_gb,
            ephemeral_gb=flavor.ephemeral_gb,
            instance_type_id=flavor.id,
        )
        image = self.image if 'image' in self else None
        return {
            'image': {} if image is None else image.to_dict(),
            'instance_type': flavor,
            'num_instances': self.num_instances,
            'instance_properties': properties,
        }

    def to_legacy_filter_properties_dict(self) -> dict[str, Any]:
        """Return the dict of filter properties that older releases used, without empty values.

        It contains ignore_hosts, force_hosts, force_nodes, retry, limits, scheduler_hints, group_*, …
        """
        result: dict[str, Any] = {'instance_type': self.flavor}
        for name in ('ignore_hosts', 'force_hosts', 'force_nodes'):
            if name in self and getattr(self, name):
                result[name] = list(getattr(self, name))
        for name in ('retry', 'limits'):
            value = getattr(self, name) if name in self else None
            if value is not None and value.to_dict():
                result[name] = value.to_dict()
        if 'requested_destination' in self and self.requested_destination is not None:
            result['requested_destination'] = self.requested_destination
        if 'scheduler_hints' in self and self.scheduler_hints:
            result['scheduler_hints'] = {name: self.get_scheduler_hint(name) for name in self.scheduler_hints}
        group = self.instance_group if 'instance_group' in self else None
        if group is not None:
            result.update(
                group_updated=True,
                group_policies={group.policy},
                group_hosts=set(group.hosts or ()) if 'hosts' in group else set(),
                group_members=set(group.members or ()) if 'members' in group else set(),
            )
        return result

    @classmethod
    def from_primitives(
        cls, ctxt: RequestContext, request_spec: dict[str, Any], filter_properties: dict[str, Any]
    ) -> Self:
        """Return the spec for the two dicts that older releases used (request spec and filter properties).

        In the returned spec, hints are lists, and retry, limits, image, NUMA topology and PCI requests are objects.
        """
        properties = request_spec.get('instance_properties') or {}
        uuid = properties['uuid']
        retry, limits = filter_properties.get('retry'), filter_properties.get('limits')
        return cls.from_components(
            ctxt,
            instance_uuid=uuid,
            image=request_spec.get('image') or None,
            flavor=_flavor(ctxt, request_spec.get('instance_type') or filter_properties.get('instance_type')),
            num_instances=request_spec.get('num_instances') or 1,
            scheduler_hints=filter_properties.get('scheduler_hints'),
            project_id=properties.get('project_id'),
            user_id=properties.get('user_id'),
            availability_zone=properties.get('availability_zone'),
            numa_topology=_numa_topology(ctxt, properties.get('numa_topology')),
            pci_requests=_pci_requests(ctxt, properties.get('pci_requests'), uuid),
            retry=SchedulerRetries.from_dict(ctxt, retry) if isinstance(retry, dict) else retry,
            limits=SchedulerLimits.from_dict(limits) if isinstance(limits, dict) else limits,
            requested_destination=filter_properties.get('requested_destination'),
            instance_group=_group(ctxt, filter_properties),
            **{name: filter_properties.get(name) for name in ('ignore_hosts', 'force_hosts', 'force_nodes')},
        )


def _flavor(ctxt: RequestContext, flavor: Flavor | dict[str, Any] | None) -> Any:
    """Return the flavor. The argument is a Flavor, a serialised Flavor, or a plain dict of its fields."""
    if not isinstance(flavor, dict):
        return flavor
    if ENVELOPE in flavor:
        return Flavor.obj_from_primitive(flavor, ctxt)
    return Flavor.from_row(ctxt, flavor)


def _numa_topology(ctxt: RequestContext, topology: InstanceNUMATopology | dict[str, Any] | None) -> Any:
    """Return the topology. The argument is an object, a serialised object, or a plain dict.

    The plain dict has the form {'instance_uuid', 'cells': [{id, cpuset, memory, …}]}.
    """
    if not isinstance(topology, dict):
        return topology
    if ENVELOPE in topology:
        return InstanceNUMATopology.obj_from_primitive(topology, ctxt)
    cells = []
    for cell in topology.get('cells') or ():
        if not isinstance(cell, dict):
            cells.append(cell)
            continue
        values = {
            name: set(value) if name in ('cpuset', 'pcpuset') else value
            for name, value in cell.items()
            if name in InstanceNUMACell.fields
        }
        cells.append(InstanceNUMACell(**{'cpuset': set(), 'pcpuset': set(), **values}))
    values = {name: topology[name] for name in ('instance_uuid', 'emulator_threads_policy') if topology.get(name)}
    return InstanceNUMATopology(ctxt, cells=cells, **values)


def _pci_requests(
    ctxt: RequestContext, requests: InstancePCIRequests | dict[str, Any] | list[Any] | None, instance_uuid: str
) -> Any:
    """Return the PCI requests. The argument is an object, a serialised object, the stored list, or a plain dict.

    The plain dict has the form {'instance_uuid', 'requests': [...]}.
    """
    if isinstance(requests, dict):
        if ENVELOPE in requests:
            return InstancePCIRequests.obj_from_primitive(requests, ctxt)
        instance_uuid = requests.get('instance_uuid') or instance_uuid
        requests = requests.get('requests') or []
    if isinstance(requests, list):
        return InstancePCIRequests.from_list(requests, instance_uuid, ctxt)
    return requests


def _group(ctxt: RequestContext, filter_properties: dict[str, Any]) -> Any:
    """Return the server group that the keys ``group_*`` of ``filter_properties`` describe.

    Return None if there are no such keys.
    """
    if not filter_properties.get('group_updated'):
        return None
    policies = sorted(filter_properties.get('group_policies') or ())
    return InstanceGroup(
        ctxt,
        policy=policies[0] if policies else None,
        hosts=sorted(filter_properties.get('group_hosts') or ()),
        members=sorted(filter_properties.get('group_members') or ()),
    )


def hints_as_lists(hints: dict[str, Any] | None) -> dict[str, list[str]]:
    """Convert scheduler hints so that each value is a list of texts. A single text becomes a list with one element."""
    return {
        name: [str(item) for item in value] if isinstance(value, (list, tuple, set)) else [str(value)]
        for name, value in (hints or {}).items()
    }
