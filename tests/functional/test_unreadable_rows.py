"""One row whose text can't be read takes nothing else down: not a page, not its host, not the audit."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from kilonova.db.models import api as api_models
from kilonova.db.models import cell as models
from tests.fixtures.cloud import Cloud

EXTRA, CACHES = models.InstanceExtra.__table__, models.InstanceInfoCache.__table__
SPECS = api_models.RequestSpec.__table__
BROKEN = '{"nova_object.name": "Fla'
COLUMNS = (
    'flavor',
    'numa_topology',
    'pci_requests',
    'migration_context',
    'device_metadata',
    'keypairs',
    'trusted_certs',
    'network_info',
    'request spec',
)


def damage(cloud: Cloud, server: str, column: str, text: str = BROKEN) -> None:
    """Let a text of a server be cut, as by a restore or a script of an operator."""
    if column == 'request spec':
        with cloud.databases.api().write() as conn:
            conn.execute(SPECS.update().where(SPECS.c.instance_uuid == server).values(spec=text))
        return
    with cloud.cell.write() as conn:
        if column != 'network_info':
            conn.execute(EXTRA.update().where(EXTRA.c.instance_uuid == server).values({column: text}))
            return
        conn.execute(CACHES.delete().where(CACHES.c.instance_uuid == server))
        conn.execute(sa.insert(CACHES).values(instance_uuid=server, network_info=text, deleted=0))


@pytest.mark.parametrize('column', COLUMNS)
@pytest.mark.parametrize('text', [BROKEN, '"word"'])
def test_a_text_of_a_server_that_can_not_be_read(cloud: Cloud, column: str, text: str) -> None:
    """A broken text in a server's row affects only this server.

    API pages show it and the others, its host starts and checks the others, the audit names it, and its delete ends.
    """
    flavor = cloud.flavor(gpus=1)
    good, bad = (cloud.boot(flavor, availability_zone='nova:gpu1') for _ in range(2))
    damage(cloud, bad, column, text)
    for path in (
        '/servers',
        '/servers/detail',
        f'/servers/{bad}',
        f'/servers/{bad}/ips',
        f'/servers/{bad}/os-instance-actions',
        '/os-simple-tenant-usage?detailed=1',
        '/os-hypervisors/detail?with_servers=1',
    ):
        assert cloud.request('GET', path).status_int == 200, path
    assert {one['id'] for one in cloud.ok('GET', '/servers/detail')['servers']} == {good, bad}
    report = cloud.audit()
    assert not [line for line in report.disagreements if bad not in line] and report.silent == []
    cloud.crash_compute('gpu1')
    cloud.start_compute('gpu1')
    cloud.computes['gpu1'].guests.sync()
    cloud.computes['gpu1'].node.update()
    shown = cloud.show(good)
    assert (shown['status'], shown['OS-EXT-STS:power_state']) == ('ACTIVE', 1)
    another = cloud.boot(flavor, availability_zone='nova:gpu1')
    assert cloud.status(another) == 'ACTIVE', cloud.story(another)
    assert not set(cloud.hostdevs(another)) & {*cloud.hostdevs(good), *(name.split()[1] for name in cloud.owned(bad))}
    cloud.ok('DELETE', f'/servers/{bad}')
    cloud.settle()
    assert cloud.status(bad) == 'GONE'
    cloud.assert_clean()
