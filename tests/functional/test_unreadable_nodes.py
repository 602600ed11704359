"""A text of a node's or a device's row that can't be read takes nothing else down: no other host, not its own."""

from __future__ import annotations

import pytest

from kilonova.db.models import cell as models
from tests.fixtures.cloud import Cloud

NODES, DEVICES = models.ComputeNode.__table__, models.PciDevice.__table__
BROKEN = '{"nova_object.name": "PciD'
COLUMNS = ('stats', 'pci_stats', 'numa_topology', 'metrics', 'cpu_info', 'supported_instances', 'extra_info')


def damage(cloud: Cloud, column: str, text: str) -> None:
    """Let a text of host gpu2 be cut, as by a restore or a script of an operator."""
    with cloud.cell.write() as conn:
        node = conn.execute(NODES.select().where(NODES.c.host == 'gpu2')).mappings().one()
        if column == 'extra_info':
            conn.execute(DEVICES.update().where(DEVICES.c.compute_node_id == node['id']).values(extra_info=text))
        else:
            conn.execute(NODES.update().where(NODES.c.id == node['id']).values({column: text}))


@pytest.mark.parametrize('column', COLUMNS)
@pytest.mark.parametrize('text', [BROKEN, '"word"'])
def test_a_text_of_a_node_that_can_not_be_read(cloud: Cloud, column: str, text: str) -> None:
    """A broken text in a node's row does not affect other hosts, and the host replaces the row when it starts.

    API pages answer, servers boot on the other host, and the audit names only the broken host.
    """
    flavor = cloud.flavor(gpus=1)
    there = cloud.boot(flavor, availability_zone='nova:gpu2')
    damage(cloud, column, text)
    for path in ('/servers/detail', '/os-hypervisors/detail', '/os-services', '/os-availability-zone/detail'):
        assert cloud.request('GET', path).status_int == 200, path
    assert not [line for line in cloud.audit().disagreements if 'gpu2' not in line and there not in line]
    for wanted in (flavor, cloud.flavor(gpus=1, **{'hw:numa_nodes': '1'})):
        for zone in ({'availability_zone': 'nova:gpu1'}, {}):
            server = cloud.boot(wanted, **zone)
            assert cloud.status(server) == 'ACTIVE', cloud.story(server)
            cloud.ok('DELETE', f'/servers/{server}')
            cloud.settle()
    cloud._start_scheduler()
    server = cloud.boot(flavor)
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    cloud.ok('DELETE', f'/servers/{server}')
    cloud.settle()
    cloud.crash_compute('gpu2')
    cloud.start_compute('gpu2')
    server = cloud.boot(flavor, availability_zone='nova:gpu2')
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    assert len({device for one in (there, server) for device in cloud.hostdevs(one)}) == 2
    cloud.assert_clean()
