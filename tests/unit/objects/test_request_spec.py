"""RequestSpec: made for a create, stored, and in the old dict forms."""

from __future__ import annotations

import copy
import json
import uuid as uuids
from typing import Any

import pytest

from kilonova.context import RequestContext
from kilonova.objects import (
    CellMapping,
    Destination,
    Flavor,
    ImageMeta,
    InstanceGroup,
    InstanceNUMATopology,
    InstancePCIRequest,
    InstancePCIRequests,
    NetworkRequest,
    NetworkRequestList,
    RequestGroup,
    RequestSpec,
    SchedulerLimits,
    SchedulerRetries,
    SecurityGroupList,
    Selection,
)
from kilonova.objects.base import Serializer, UnsetField

UUID, REQUEST, RP = (str(uuids.UUID(int=number)) for number in (1, 2, 3))
IMAGE = {'id': UUID, 'min_disk': 1, 'disk_format': 'qcow2', 'properties': {'hw_disk_bus': 'virtio'}}


@pytest.fixture
def ctxt() -> RequestContext:
    return RequestContext(user_id='user', project_id='project')


@pytest.fixture
def flavor() -> Flavor:
    return Flavor.from_row(
        None,
        {
            'id': 3,
            'name': 'small',
            'flavorid': 's',
            'memory_mb': 2048,
            'vcpus': 2,
            'root_gb': 20,
            'ephemeral_gb': 5,
            'swap': 512,
            'disabled': False,
            'is_public': True,
            'extra_specs': {'pci_passthrough:alias': 'gpu:1'},
        },
    )


@pytest.fixture
def spec(ctxt: RequestContext, flavor: Flavor) -> RequestSpec:
    requests = InstancePCIRequests(
        instance_uuid=UUID,
        requests=[
            InstancePCIRequest(
                count=1, spec=[{'vendor_id': '10de', 'rp_uuids': RP}], alias_name='gpu', request_id=REQUEST
            )
        ],
    )
    return RequestSpec.from_components(
        ctxt,
        instance_uuid=UUID,
        flavor=flavor,
        image=IMAGE,
        pci_requests=requests,
        availability_zone='zone1',
        scheduler_hints={'same_host': [UUID, RP], 'group': 'g'},
        ignore_hosts=['host9'],
        force_hosts=['host1'],
        security_groups=SecurityGroupList.from_names(ctxt, ['default']),
        requested_networks=NetworkRequestList(objects=[NetworkRequest(network_id='auto')]),
        retry=SchedulerRetries.from_dict(ctxt, {'num_attempts': 2, 'hosts': [['host1', 'node1']]}),
        limits=SchedulerLimits.from_dict({'memory_mb': 4096}),
        requested_destination=Destination(host='host1', node=None),
        requested_resources=[RequestGroup(requester_id='g0', resources={'CUSTOM_GPU': 1})],
        instance_group=InstanceGroup(id=1, uuid=RP, policy='affinity', members=[UUID], hosts=['host1']),
    )


def test_what_isnt_given_is_empty(ctxt: RequestContext, flavor: Flavor) -> None:
    spec = RequestSpec.from_components(ctxt, instance_uuid=UUID, flavor=flavor)
    assert (spec.user_id, spec.project_id, spec.num_instances, spec.is_bfv) == ('user', 'project', 1, False)
    assert (spec.image, spec.retry, spec.force_hosts, spec.availability_zone) == (None, None, None, None)
    assert (spec.scheduler_hints, spec.limits.to_dict(), spec.root_required) == ({}, {}, set())
    assert len(spec.requested_networks) == len(spec.security_groups) == 0


def test_a_name_that_is_no_field_is_refused(ctxt: RequestContext, flavor: Flavor) -> None:
    with pytest.raises(TypeError, match='force_host'):
        RequestSpec.from_components(ctxt, instance_uuid=UUID, flavor=flavor, force_host='host1')


def test_sizes_are_the_flavors(spec: RequestSpec) -> None:
    assert (spec.vcpus, spec.memory_mb, spec.root_gb, spec.ephemeral_gb, spec.swap) == (2, 2048, 20, 5, 512)


def test_hints_are_lists_inside_and_single_outside(spec: RequestSpec) -> None:
    """Scheduler hints are lists in the object, and single values in the old dict form and for filters."""
    assert spec.scheduler_hints == {'same_host': [UUID, RP], 'group': ['g']}
    assert spec.get_scheduler_hint('group') == 'g'
    assert spec.get_scheduler_hint('same_host') == [UUID, RP]
    assert spec.get_scheduler_hint('query', 'default') == 'default'


def test_traits_of_the_root_are_sets_to_add_to(flavor: Flavor) -> None:
    spec = RequestSpec(flavor=flavor)
    spec.root_required.add('COMPUTE_ACCELERATORS')
    spec.root_forbidden.add('COMPUTE_STATUS_DISABLED')
    spec.same_subtree.append(['', 'g0'])
    assert spec.root_required == {'COMPUTE_ACCELERATORS'}
    assert spec.request_level_params.root_forbidden == {'COMPUTE_STATUS_DISABLED'}
    assert spec.same_subtree == [['', 'g0']]


def test_every_field_can_be_read(ctxt: RequestContext, flavor: Flavor) -> None:
    """A filter may read every field of the request spec and its flavor, whether the spec is new, stored, or
    received in a message."""
    new = RequestSpec.from_components(ctxt, instance_uuid=UUID, flavor=flavor)
    stored = RequestSpec.from_json(new.to_json(), ctxt)
    bare = RequestSpec(
        instance_uuid=UUID,
        flavor=Flavor(
            name='small', memory_mb=1, vcpus=1, root_gb=1, flavorid='s', ephemeral_gb=0, id=3, swap=512, extra_specs={}
        ),
    )
    for spec in (new, stored, bare, Serializer().deserialize_entity(ctxt, Serializer().serialize_entity(ctxt, stored))):
        read = {name: getattr(spec, name) for name in spec.fields}
        networks = read['network_metadata']
        assert (read['id'], networks.physnets, networks.tunneled) == (None, set(), False)
        assert isinstance(read['requested_networks'], NetworkRequestList) and not read['requested_networks'].objects
        assert (read['request_level_params'].root_required, read['scheduler_hints']) == (set(), {})
        assert (read['num_instances'], read['is_bfv'], read['limits'].to_dict()) == (1, False, {})
        assert isinstance(read['security_groups'], SecurityGroupList)
        assert (read['requested_resources'], read['retry'], read['numa_topology']) == (None, None, None)
        of = {name: getattr(spec.flavor, name) for name in spec.flavor.fields}
        assert (of['projects'], of['description'], of['rxtx_factor'], of['vcpu_weight']) == ([], None, 1.0, 0)
        assert (of['created_at'], of['updated_at'], of['deleted'], of['deleted_at']) == (None, None, False, None)
        assert (of['name'], of['disabled'], of['is_public'], of['swap']) == ('small', False, True, 512)


def test_whom_and_what_it_is_for_is_not_made_up(flavor: Flavor) -> None:
    with pytest.raises(UnsetField, match='instance_uuid'):
        _ = RequestSpec(flavor=flavor).instance_uuid
    with pytest.raises(UnsetField, match='flavor'):
        _ = RequestSpec(instance_uuid=UUID).flavor
    with pytest.raises(UnsetField, match='memory_mb'):
        _ = Flavor(name='small').memory_mb


def test_reading_an_empty_field_leaves_a_spec_that_travels_and_is_stored(ctxt: RequestContext, flavor: Flavor) -> None:
    spec = RequestSpec.from_json(RequestSpec.from_components(ctxt, instance_uuid=UUID, flavor=flavor).to_json(), ctxt)
    before = spec.to_json()
    assert [getattr(spec, name) for name in spec.fields]
    assert (spec.id, 'id' in spec, spec.obj_what_changed()) == (None, False, set())
    assert spec.to_json() == before
    again = Serializer().deserialize_entity(ctxt, json.loads(json.dumps(Serializer().serialize_entity(ctxt, spec))))
    assert again.obj_to_primitive() == spec.obj_to_primitive()
    assert copy.deepcopy(spec).obj_to_primitive() == spec.obj_to_primitive()
    # What is added to an empty field stays.
    fresh = RequestSpec.from_json(before, ctxt)
    fresh.request_level_params.root_required.add('CUSTOM_LICENCE')
    assert fresh.root_required == {'CUSTOM_LICENCE'}


def test_destinations_collect_aggregates() -> None:
    destination = Destination(cell=CellMapping(uuid=UUID))
    destination.require_aggregates(['a', 'b'])
    destination.require_aggregates(['c'])
    destination.append_forbidden_aggregates({'x'})
    destination.append_forbidden_aggregates({'y'})
    assert destination.aggregates == ['a,b', 'c']
    assert destination.forbidden_aggregates == {'x', 'y'}


# -- storage ------------------------------------------------------------------------------------------
def test_stored_and_read_again(spec: RequestSpec) -> None:
    again = RequestSpec.from_json(spec.to_json(), row_id=8)
    assert again.id == 8
    assert again.flavor.extra_specs == {'pci_passthrough:alias': 'gpu:1'}
    assert again.image.properties.hw_disk_bus == 'virtio'
    assert again.scheduler_hints == spec.scheduler_hints
    assert (again.availability_zone, again.force_hosts) == ('zone1', ['host1'])
    assert again.security_groups.names() == ['default']
    assert again.instance_group.policy == 'affinity'
    assert again.obj_what_changed() == set()


def test_one_schedulings_own_is_not_stored(spec: RequestSpec) -> None:
    again = RequestSpec.from_json(spec.to_json())
    assert (again.retry, again.requested_destination, again.requested_resources, again.ignore_hosts) == (
        None,
        None,
        None,
        None,
    )
    for name in ('requested_networks', 'network_metadata', 'request_level_params', 'id'):
        assert name not in again
    assert 'hosts' not in again.instance_group
    assert 'members' not in again.instance_group
    assert again.pci_requests.requests[0].spec == [{'vendor_id': '10de'}]


def test_storing_leaves_the_spec_as_it_is(spec: RequestSpec) -> None:
    before = spec.obj_to_primitive()
    assert json.loads(spec.to_json())['nova_object.version'] == '1.15'
    assert spec.obj_to_primitive() == before


def test_a_spec_travels_whole(ctxt: RequestContext, spec: RequestSpec) -> None:
    serializer = Serializer()
    wire = json.loads(json.dumps(serializer.serialize_entity(ctxt, spec)))
    again = serializer.deserialize_entity(ctxt, wire)
    assert again.obj_to_primitive() == spec.obj_to_primitive()
    assert again.requested_resources[0].resources == {'CUSTOM_GPU': 1}


# -- the old dicts ------------------------------------------------------------------------------------
def test_the_old_request_spec(spec: RequestSpec, flavor: Flavor) -> None:
    """The old form of a request spec has the keys image, instance_properties, instance_type and num_instances."""
    old = spec.to_legacy_request_spec_dict()
    properties = old.pop('instance_properties')
    assert old == {'image': IMAGE, 'instance_type': flavor, 'num_instances': 1}
    assert properties == {
        'uuid': UUID,
        'project_id': 'project',
        'user_id': 'user',
        'availability_zone': 'zone1',
        'vcpus': 2,
        'memory_mb': 2048,
        'root_gb': 20,
        'ephemeral_gb': 5,
        'instance_type_id': 3,
        'numa_topology': None,
        'pci_requests': spec.pci_requests,
    }


def test_the_old_filter_properties(spec: RequestSpec, flavor: Flavor) -> None:
    assert spec.to_legacy_filter_properties_dict() == {
        'instance_type': flavor,
        'ignore_hosts': ['host9'],
        'force_hosts': ['host1'],
        'limits': {'memory_mb': 4096},
        'retry': {'num_attempts': 2, 'hosts': [['host1', 'node1']]},
        'requested_destination': spec.requested_destination,
        'scheduler_hints': {'same_host': [UUID, RP], 'group': 'g'},
        'group_updated': True,
        'group_policies': {'affinity'},
        'group_hosts': {'host1'},
        'group_members': {UUID},
    }


def test_empty_filter_properties_are_left_out(ctxt: RequestContext, flavor: Flavor) -> None:
    spec = RequestSpec.from_components(ctxt, instance_uuid=UUID, flavor=flavor)
    assert spec.to_legacy_filter_properties_dict() == {'instance_type': flavor}


def test_old_dicts_round_trip(ctxt: RequestContext, spec: RequestSpec) -> None:
    """to_legacy_request_spec_dict and from_primitives are inverse in what the dicts carry."""
    spec.num_instances = 3
    request, properties = spec.to_legacy_request_spec_dict(), spec.to_legacy_filter_properties_dict()
    again = RequestSpec.from_primitives(ctxt, request, properties)
    assert again.to_legacy_request_spec_dict() == request
    assert again.to_legacy_filter_properties_dict().pop('retry') == properties.pop('retry')
    assert again.instance_group.policy == 'affinity'
    assert isinstance(again.image, ImageMeta)


def test_hydration_from_dicts(ctxt: RequestContext) -> None:
    """From dicts hints become lists, and retry, limits, image, NUMA and PCI become objects."""
    spec = RequestSpec.from_primitives(
        ctxt,
        {
            'num_instances': 2,
            'image': IMAGE,
            'instance_type': {
                'id': 3,
                'name': 'small',
                'flavorid': 's',
                'memory_mb': 1,
                'vcpus': 1,
                'root_gb': 1,
                'ephemeral_gb': 0,
                'swap': 0,
                'disabled': False,
                'is_public': True,
                'extra_specs': {},
            },
            'instance_properties': {
                'uuid': UUID,
                'project_id': 'other',
                'user_id': None,
                'availability_zone': None,
                'numa_topology': {
                    'instance_uuid': UUID,
                    'cells': [{'id': 0, 'cpuset': [0, 1], 'memory': 512, 'mem': {'total': 512}}],
                },
                'pci_requests': {
                    'instance_uuid': UUID,
                    'requests': [
                        {'count': 1, 'spec': [{'vendor_id': '10de'}], 'alias_name': 'gpu', 'request_id': REQUEST}
                    ],
                },
            },
        },
        {'scheduler_hints': {'group': 'g'}, 'limits': {'vcpu': 8}, 'retry': {'num_attempts': 1, 'hosts': []}},
    )
    assert (spec.num_instances, spec.project_id, spec.user_id) == (2, 'other', 'user')
    assert spec.scheduler_hints == {'group': ['g']}
    assert (spec.limits.vcpu, spec.limits.memory_mb) == (8, None)
    assert (spec.retry.num_attempts, len(spec.retry.hosts)) == (1, 0)
    assert spec.image.properties.hw_disk_bus == 'virtio'
    assert spec.numa_topology.cells[0].cpuset == {0, 1}
    assert spec.numa_topology.cells[0].pcpuset == set()
    assert spec.pci_requests.requests[0].alias_name == 'gpu'
    assert spec.flavor.name == 'small'
    assert spec.instance_group is None


@pytest.mark.parametrize('form', ['object', 'envelope'])
def test_hydration_takes_objects_and_envelopes(
    ctxt: RequestContext, spec: RequestSpec, flavor: Flavor, form: str
) -> None:
    topology = InstanceNUMATopology(instance_uuid=UUID, cells=[])
    values: list[Any] = [flavor, topology, spec.pci_requests]
    if form == 'envelope':
        values = [value.obj_to_primitive() for value in values]
    again = RequestSpec.from_primitives(
        ctxt,
        {
            'instance_type': values[0],
            'instance_properties': {'uuid': UUID, 'numa_topology': values[1], 'pci_requests': values[2]},
        },
        {},
    )
    assert again.flavor.id == 3
    assert again.numa_topology.cells == []
    assert again.pci_requests.requests[0].request_id == REQUEST


def test_hydration_takes_the_stored_list_of_requests(ctxt: RequestContext, spec: RequestSpec, flavor: Flavor) -> None:
    again = RequestSpec.from_primitives(
        ctxt,
        {
            'instance_type': flavor,
            'instance_properties': {'uuid': UUID, 'pci_requests': json.loads(spec.pci_requests.to_column())},
        },
        {},
    )
    assert json.loads(again.pci_requests.to_column()) == json.loads(spec.pci_requests.to_column())


def test_a_selection_knows_its_allocation() -> None:
    selection = Selection(
        compute_node_uuid=UUID,
        service_host='host1',
        nodename='node1',
        cell_uuid=UUID,
        limits=SchedulerLimits.from_dict({'vcpu': 8}),
        allocation_request='{"allocations": {}, "mappings": {}}',
    )
    assert selection.allocation() == {'allocations': {}, 'mappings': {}}
    assert selection.to_dict() == {'host': 'host1', 'nodename': 'node1', 'limits': {'vcpu': 8}}
    selection.allocation_request = selection.limits = None
    assert selection.allocation() == {}
    assert selection.to_dict()['limits'] == {}
