"""``adopt check`` says what stands in the way of adopting a Nova, with the row, and changes nothing."""

from __future__ import annotations

import pathlib
import uuid as uuids
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import errors
from kilonova.adopt import check, cloud
from kilonova.adopt.obstacles import KINDS
from kilonova.cmd import options
from kilonova.db.nova import source
from kilonova.virt import inventory
from tests.adopt.nova import CELL0, Nova, envelope, flavor, request_spec

HOST = 'cell1-host'
GUIDE = pathlib.Path(__file__).parents[3] / 'docs' / 'admin' / 'adopt.md'


@pytest.fixture
def nova(tmp_path: pathlib.Path) -> Nova:
    return Nova(tmp_path / 'nova')


def checked(nova: Nova) -> check.Report:
    with cloud.opened([nova.conf], options.new) as opened:
        return check.run(opened, 20)


def found(nova: Nova) -> dict[str, list[str]]:
    """{kind of obstacle: what is in the way}."""
    return {one.kind: one.first for one in checked(nova).obstacles.sorted()}


def test_a_cloud_at_rest_has_nothing_in_the_way(nova):
    nova.server()
    nova.server('cell0', vm_state='error', compute_id=None)
    nova.server(vm_state='shelved_offloaded', host=None, node=None, compute_id=None)
    nova.server(vm_state='soft-delete', mapping_queued_for_delete=1)
    nova.host('kvm-2', node='kvm-2.example.org')
    before = nova.sums()
    report = checked(nova)
    assert report.obstacles.found == {}
    assert report.counts['cell1']['servers active'] == 1 and report.counts['cell0']['servers error'] == 1
    assert report.counts['api']['hosts'] == 2 and report.counts['api']['request specs'] == 4
    assert report.releases['cell1'] == 'Nova 34 (schema ab450ba04102)'
    assert nova.sums() == before


@pytest.mark.parametrize('release', ['27', '28', '29', '31', '34'])
def test_each_release_is_read(tmp_path, release):
    nova = Nova(tmp_path / 'nova', release)
    uuid = nova.server(task_state='deleting')
    report = checked(nova)
    assert report.counts['cell1']['servers active'] == 1
    assert [one.first for one in report.obstacles.sorted()] == [[f'server {uuid} (web): active, deleting']]


def test_a_deleted_server_is_counted_and_stands_in_no_way(nova):
    nova.server(deleted=7, task_state='deleting', host='gone', spec=None)
    report = checked(nova)
    assert (report.counts['cell1']['servers deleted'], report.obstacles.found) == (1, {})


# A function that makes one obstacle, its kind, and a part of its line.
Make = Callable[[Nova], Any]
SPECS: dict[str, tuple[Make, str, str]] = {
    'an operation under way': (
        lambda nova: nova.server(task_state='powering-off'),
        'task-state',
        'active, powering-off',
    ),
    'a server of another cell': (
        lambda nova: nova.server(mapping_cell_id=nova.cell_ids['cell0']),
        'unmapped-server',
        'mapped to cell',
    ),
    'a server without mapping': (
        lambda nova: nova.run('api', 'DELETE FROM instance_mappings WHERE instance_uuid = ?', nova.server()),
        'unmapped-server',
        'server',
    ),
    'a delete that stopped half way': (lambda nova: nova.server(mapping_queued_for_delete=1), 'half-deleted', 'server'),
    'a server on a host that is gone': (lambda nova: nova.server(host='old-1'), 'no-host', 'host old-1'),
    'an active server without host': (
        lambda nova: nova.server(host=None, node=None, compute_id=None),
        'no-host',
        'active, without a host',
    ),
    'a row of an older form': (lambda nova: nova.server(compute_id=None), 'online-migrations', 'no compute_id'),
    'a rescued server': (lambda nova: nova.server(vm_state='rescued'), 'rescued', 'server'),
    'a server without flavor': (lambda nova: nova.server(extra_flavor=None), 'no-flavor', 'server'),
    'a server without request spec': (lambda nova: nova.server(spec=None), 'no-request-spec', 'server'),
    'persistent memory': (lambda nova: nova.server(extra_vpmems='[{}]'), 'persistent-memory', 'server'),
    'a share': (
        lambda nova: nova.add('cell1', 'share_mapping', instance_uuid=nova.server(), share_id='s', uuid='s'),
        'shares',
        '1 shares',
    ),
    'certificates': (
        lambda nova: nova.server(extra_trusted_certs=envelope('TrustedCerts', '1.0', ids=['a'])),
        'trusted-certificates',
        'server',
    ),
    'a TPM of the flavor': (
        lambda nova: nova.server(extra_flavor={'cur': flavor(extra_specs={'hw:tpm_version': '2.0'})}),
        'server-feature',
        'hw:tpm_version',
    ),
    'a TPM of the image': (
        lambda nova: nova.add(
            'cell1', 'instance_system_metadata', instance_uuid=nova.server(), key='image_hw_tpm_version', value='2.0'
        ),
        'server-feature',
        'hw_tpm_version',
    ),
    'a volume that is being attached': (
        lambda nova: nova.add(
            'cell1',
            'block_device_mapping',
            instance_uuid=nova.server(),
            uuid='b',
            destination_type='volume',
            volume_id='4c5d',
            attachment_id='a',
        ),
        'volume',
        'volume 4c5d',
    ),
    'an object of a newer Nova': (
        lambda nova: nova.server(extra_numa_topology=envelope('InstanceNUMATopology', '1.99', cells=[])),
        'unreadable-object',
        'numa_topology: InstanceNUMATopology 1.99: Kilonova reads versions up to',
    ),
    'a text that is no JSON': (
        lambda nova: nova.server(extra_pci_requests='[{'),
        'unreadable-object',
        'pci_requests: ',
    ),
    'a request spec of a newer Nova': (
        lambda nova: nova.server(spec=envelope('RequestSpec', '1.99')),
        'unreadable-object',
        'request spec: RequestSpec 1.99',
    ),
    'a request spec with a wrong value': (
        lambda nova: nova.server(spec=request_spec('x', num_instances='many')),
        'unreadable-object',
        'request spec: ',
    ),
    'a server being created': (
        lambda nova: nova.add('api', 'instance_mappings', instance_uuid='5e6f', cell_id=None, queued_for_delete=0),
        'build-requests',
        'server 5e6f',
    ),
    'a host of a cell that is gone': (
        lambda nova: nova.add('api', 'host_mappings', cell_id=99, host='lost'),
        'unknown-cell',
        'host lost: cell 99',
    ),
    'a host that was not discovered': (
        lambda nova: nova.run('api', 'DELETE FROM host_mappings'),
        'unmapped-host',
        f'host {HOST}',
    ),
    'two nodes of a host': (
        lambda nova: nova.add('cell1', 'compute_nodes', uuid='n', host=HOST, hypervisor_hostname='node-2'),
        'duplicate-host',
        f'host {HOST} has 2 nodes',
    ),
    'a hypervisor of another kind': (
        lambda nova: nova.run('cell1', "UPDATE compute_nodes SET hypervisor_type = 'ironic'"),
        'hypervisor',
        f'host {HOST}: ironic',
    ),
    'a compute of an older release': (lambda nova: nova.host('kvm-2', version=70), 'mixed-services', 'version 70: 1'),
    'a device of a server that is gone': (
        lambda nova: nova.add(
            'cell1',
            'pci_devices',
            compute_node_id=nova.nodes['cell1'],
            address='0000:08:00.0',
            status='allocated',
            instance_uuid='7a8b',
        ),
        'stale-devices',
        'device 0000:08:00.0 of node',
    ),
    'a flavor with a TPM': (
        lambda nova: nova.add(
            'api', 'flavor_extra_specs', flavor_id=add_flavor(nova), key='hw:tpm_version', value='2.0'
        ),
        'flavor-feature',
        'flavor tiny: extra spec hw:tpm_version',
    ),
    'a flavor that asks for a trait that is not reported here': (
        lambda nova: nova.add(
            'api', 'flavor_extra_specs', flavor_id=add_flavor(nova), key='trait:COMPUTE_TRUSTED_CERTS', value='required'
        ),
        'lost-traits',
        'flavor tiny: trait:COMPUTE_TRUSTED_CERTS',
    ),
}


def add_flavor(nova: Nova) -> int:
    return nova.add('api', 'flavors', name='tiny', flavorid='tiny')


@pytest.mark.parametrize('name', SPECS)
def test_what_stands_in_the_way_is_named(nova, name):
    make, kind, part = SPECS[name]
    nova.server()
    make(nova)
    report = found(nova)
    assert list(report) == [kind]
    assert part in report[kind][0]


def move(nova: Nova, status: str, kind: str = 'resize', vm_state: str = 'active', target: str = 'kvm-2') -> None:
    nova.host('kvm-2')
    nova.add(
        'cell1',
        'migrations',
        uuid=str(uuids.uuid4()),
        instance_uuid=nova.server(vm_state=vm_state),
        status=status,
        migration_type=kind,
        source_compute=HOST,
        dest_compute=target,
    )


@pytest.mark.parametrize(
    ('values', 'kinds'),
    [
        (('migrating',), ['move-under-way']),
        (('finished',), ['move-under-way']),
        (('running', 'live-migration'), ['move-under-way']),
        (('finished', 'resize', 'resized'), []),
        (('finished', 'resize', 'resized', HOST), ['same-host-resize']),
        (('done', 'evacuation'), ['evacuated']),
        (('completed', 'evacuation'), []),
        (('confirmed',), []),
        (('error',), []),
    ],
)
def test_moves(nova, values, kinds):
    move(nova, *values)
    assert list(found(nova)) == kinds


def test_every_kind_is_found_by_a_test():
    covered = {kind for _, kind, _ in SPECS.values()} | {'move-under-way', 'same-host-resize', 'evacuated'}
    assert covered | {'mixed-schemas'} == set(KINDS)


def test_one_host_in_two_cells(tmp_path):
    nova = Nova(tmp_path / 'nova', cells=('cell1', 'cell2'))
    nova.add('cell2', 'services', uuid='u', host=HOST, binary='nova-compute', topic='compute', version=74)
    report = found(nova)
    assert report['duplicate-host'] == [f'host {HOST} is in cell cell1, too']


def test_cells_of_two_releases(tmp_path):
    nova = Nova(tmp_path / 'nova', cells=('cell1', 'cell2'))
    nova.run('cell2', "UPDATE alembic_version SET version_num = '13863f4e1612'")
    assert any('cell2: 13863f4e1612' in line for line in found(nova)['mixed-schemas'])


def test_only_the_first_rows_are_kept_and_all_are_counted(nova):
    for _ in range(5):
        nova.server(task_state='deleting')
    with cloud.opened([nova.conf], options.new) as opened:
        (one,) = check.run(opened, 2).obstacles.sorted()
    assert (one.number, len(one.first)) == (5, 2)


def test_a_server_beyond_the_first_batch_is_looked_at(nova, monkeypatch):
    monkeypatch.setattr(source, 'BATCH', 2)
    for _ in range(5):
        nova.server()
    nova.server(task_state='deleting')
    assert list(found(nova)) == ['task-state']


@pytest.mark.parametrize(('api', 'cell'), [('b30f573d3377', 'ab450ba04102'), ('cdeec0c85668', '960aac0e09ea')])
def test_the_api_database_and_the_cells_are_of_one_release(nova, api, cell):
    nova.run('api', 'UPDATE alembic_version SET version_num = ?', api)
    for name in ('cell0', 'cell1'):
        nova.run(name, 'UPDATE alembic_version SET version_num = ?', cell)
    assert found(nova)['mixed-schemas'] == [f'API database: {api}, cells: {cell}']


# --- databases that can't be read
@pytest.fixture
def opened_with(nova: Nova) -> Callable[[str], None]:
    def open_with(text: str) -> None:
        nova.conf.write_text(text)
        with cloud.opened([nova.conf], options.new):
            pass

    return open_with


@pytest.mark.parametrize(
    ('url', 'text'),
    [
        ('', r'\[api_database\]connection is set in none of the files'),
        ('nonsense', 'is not the URL of a database'),
        ('oracle://host/nova', 'there is no driver'),
        ('sqlite:////nowhere/nova.db', r"Nova's api database \(sqlite:////nowhere/nova.db\) .*there is no such file"),
        ('mysql+pymysql://nova:hush@127.0.0.1:1/nova_api', r'mysql\+pymysql://nova:\*\*\*@127.0.0.1:1/nova_api'),
    ],
)
def test_a_url_that_leads_nowhere_is_named_without_its_password(opened_with, url, text):
    with pytest.raises(errors.KilonovaError, match=text) as raised:
        opened_with(f'[api_database]\nconnection = {url}\n')
    assert 'hush' not in str(raised.value)


@pytest.mark.parametrize(
    ('statement', 'text'),
    [
        ("UPDATE alembic_version SET version_num = '0123456789ab'", 'its schema has the revision 0123456789ab'),
        ("INSERT INTO alembic_version VALUES ('0123456789ab')", 'revision 0123456789ab and cdeec0c85668'),
        ('DROP TABLE alembic_version', 'it has no revision of a schema'),
        ('DELETE FROM cell_mappings', 'has no cell'),
    ],
)
def test_a_database_that_is_not_one_of_a_known_nova(nova, statement, text):
    nova.run('api', statement)
    with pytest.raises(errors.Invalid, match=text):
        checked(nova)


def test_a_cell_whose_database_is_gone_is_named(nova):
    nova.path('cell1').unlink()
    with pytest.raises(errors.Unavailable, match="Nova's cell1 database"):
        checked(nova)


def test_the_template_of_a_cells_url_is_filled_in(nova):
    nova.run('api', "UPDATE cell_mappings SET database_connection = '{scheme}:///{path}' WHERE uuid = ?", CELL0)
    assert checked(nova).releases.keys() == {'api', 'cell0', 'cell1'}
    nova.run('api', "UPDATE cell_mappings SET database_connection = '{scheme}://{port}' WHERE uuid = ?", CELL0)
    with pytest.raises(cloud.NoNova, match=r'the database URL of cell cell0 cannot be used: .*port'):
        checked(nova)


def test_a_connection_cannot_write(nova):
    with (
        cloud.opened([nova.conf], options.new) as opened,
        pytest.raises(source.NovaUnreadable, match='readonly database'),
        opened.api.read() as connection,
    ):
        connection.exec_driver_sql('DELETE FROM cell_mappings')
    assert len(nova.rows('api', 'cell_mappings')) == 2


def test_traits_that_are_lost_are_none_that_computes_report():
    assert not check.LOST_TRAITS & inventory.COMMON_TRAITS


def test_the_guide_has_each_kind():
    text = GUIDE.read_text()
    for name, kind in KINDS.items():
        assert f'| `{name}` | {kind.why} | {kind.remedy} | {kind.loss or "–"} |' in text
