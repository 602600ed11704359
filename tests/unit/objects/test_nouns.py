"""The smaller nouns: mappings, groups, tags, NUMA cells, build requests."""

from __future__ import annotations

import datetime
import uuid as uuids

import pytest

from kilonova.objects import (
    Aggregate,
    BlockDeviceMapping,
    CellMapping,
    Flavor,
    HostMapping,
    InstanceAction,
    InstanceGroup,
    InstanceInfoCache,
    InstanceMapping,
    InstanceNUMACell,
    KeyPair,
    NetworkRequest,
    NetworkRequestList,
    NUMACell,
    NUMAPagesTopology,
    NUMATopology,
    SecurityGroup,
    SecurityGroupList,
)
from kilonova.objects.base import naive

UUID = str(uuids.UUID(int=1))
NOW = naive(datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC))


def test_a_disk_as_a_row() -> None:
    disk = BlockDeviceMapping(uuid=UUID, instance_uuid=UUID, source_type='blank', volume_size=1, id=9)
    assert disk.to_row() == {'uuid': UUID, 'instance_uuid': UUID, 'source_type': 'blank', 'volume_size': 1}


def test_rows_of_the_api_database_have_no_deleted() -> None:
    pair = KeyPair.from_row(None, {'id': 1, 'name': 'k', 'user_id': 'u', 'type': 'ssh', 'created_at': NOW})
    assert (pair.deleted, pair.deleted_at, pair.name) == (False, None, 'k')
    assert 'public_key' not in pair


def test_flavor_rows_may_lack_disks() -> None:
    flavor = Flavor.from_row(
        None, {'id': 1, 'root_gb': None, 'ephemeral_gb': None, 'extra_specs': {'a': 'b'}}, projects=['p']
    )
    assert (flavor.root_gb, flavor.ephemeral_gb) == (0, 0)
    assert (flavor.extra_specs, flavor.projects) == ({'a': 'b'}, ['p'])
    assert Flavor.from_row(None, {'id': 1}, extra_specs={}).extra_specs == {}


def test_mappings() -> None:
    cell = CellMapping.from_row(
        None,
        {
            'id': 1,
            'uuid': '00000000-0000-0000-0000-000000000000',
            'name': 'cell0',
            'transport_url': 'none:///',
            'database_connection': 'sqlite://',
            'disabled': None,
            'created_at': NOW,
        },
    )
    assert cell.disabled is False
    assert HostMapping.from_row(None, {'id': 2, 'host': 'h', 'cell_mapping': cell}).cell_mapping is cell
    mapping = InstanceMapping.from_row(
        None,
        {
            'id': 3,
            'instance_uuid': UUID,
            'cell_mapping': None,
            'project_id': 'p',
            'user_id': 'u',
            'queued_for_delete': None,
        },
    )
    assert (mapping.cell_mapping, mapping.queued_for_delete) == (None, False)


def test_an_aggregate_may_be_a_zone() -> None:
    aggregate = Aggregate.from_row(
        None, {'id': 1, 'uuid': UUID, 'name': 'a', 'hosts': ['h'], 'metadata': {'availability_zone': 'z'}}
    )
    assert (aggregate.availability_zone, aggregate.hosts) == ('z', ['h'])
    assert Aggregate(metadata=None).availability_zone is None


def test_a_groups_rules_are_numbers() -> None:
    assert InstanceGroup(_rules={'max_server_per_host': '2'}).rules == {'max_server_per_host': 2}
    assert InstanceGroup().rules == {}


@pytest.mark.parametrize(('network', 'no'), [('none', True), ('auto', False), (UUID, False)])
def test_network_words(network: str, no: bool) -> None:
    request = NetworkRequest(network_id=network)
    assert request.no_allocate is no
    assert NetworkRequestList(objects=[request]).no_allocate is no
    assert not NetworkRequestList(objects=[request, request]).no_allocate


def test_security_groups_are_named_or_numbered() -> None:
    groups = SecurityGroupList(objects=[SecurityGroup(name='default'), SecurityGroup(uuid=UUID)])
    assert groups.names() == ['default', UUID]


def test_guest_cells_know_their_cpus() -> None:
    cell = InstanceNUMACell(id=0, cpuset={0}, pcpuset={1, 2}, memory=512)
    assert cell.total_cpus == {0, 1, 2}
    cell.cpu_pinning = {1: 5}
    assert (cell.cpu_pinning_raw, cell.cpu_pinning) == ({'1': 5}, {1: 5})


def test_host_cells_are_stored_as_envelopes() -> None:
    cell = NUMACell(
        id=0,
        cpuset={0, 1},
        pcpuset={2, 3},
        memory=1024,
        cpu_usage=0,
        memory_usage=256,
        pinned_cpus={2},
        siblings=[{0, 1}, {2, 3}],
        mempages=[NUMAPagesTopology(size_kb=4, total=100, used=20, reserved=5)],
    )
    again = NUMATopology.from_json(NUMATopology(cells=[cell]).to_json())
    assert len(again) == 1
    assert (again.cells[0].free_pcpus, again.cells[0].avail_memory) == ({3}, 768)
    assert again.cells[0].siblings == [{0, 1}, {2, 3}]
    assert (again.cells[0].mempages[0].free, again.cells[0].mempages[0].free_kb) == (75, 300)


def test_networks_are_one_json_text_outside() -> None:
    cache = InstanceInfoCache.from_row(None, {'instance_uuid': UUID, 'network_info': '[{"id": "port"}]'})
    assert cache.network_info == [{'id': 'port'}]
    assert cache.primitive_data()['network_info'] == '[{"id": "port"}]'
    assert InstanceInfoCache.from_row(None, {'instance_uuid': UUID, 'network_info': None}).network_info == []
    with pytest.raises(ValueError, match='A list of VIFs is required'):
        cache.network_info = {'id': 'port'}


def test_an_action_as_a_row_tells_it() -> None:
    action = InstanceAction.from_row(
        None, {'id': 1, 'action': 'create', 'instance_uuid': UUID, 'start_time': NOW, 'finish_time': None, 'deleted': 1}
    )
    assert (action.action, action.deleted, action.finish_time) == ('create', True, None)
    assert action.start_time.hour == 3
