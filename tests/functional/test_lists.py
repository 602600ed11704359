"""GET /servers and /servers/detail over servers that really are where they are: waiting, running, failed, deleted."""

from __future__ import annotations

import pytest

OTHER = '22222222222222222222222222222222'


def names(cloud, query='', **kwargs):
    return [server['name'] for server in cloud.ok('GET', f'/servers/detail{query}', **kwargs)['servers']]


def found(cloud, query='', **kwargs):
    """The same in the order of the names: what was created within a second has no other."""
    return sorted(names(cloud, query, **kwargs))


@pytest.fixture
def full(make_cloud):
    """Two that run, one of another project, one that no host took, one that is gone."""
    cloud = make_cloud()
    flavor = cloud.flavor(gpus=1)
    cloud.boot(flavor, name='one', tags=['red', 'big'], metadata={'a': 'b'}, user='bob')
    cloud.two = cloud.boot(cloud.flavor(), name='two', tags=['red'], user='bob', config_drive=True)
    cloud.boot(flavor, name='foreign', user='eve', project=OTHER)
    cloud.boot(cloud.flavor(gpus=9), name='failed', user='bob')
    cloud.gone = cloud.boot(flavor, name='gone', user='bob')
    cloud.request('DELETE', f'/servers/{cloud.gone}', user='bob')
    cloud.settle()
    return cloud


def test_who_sees_what(full):
    """A project its own, whoever may everybody's; what failed to get a host is in cell0 and in the list like others."""
    assert found(full, user='bob') == found(full) == ['failed', 'one', 'two']
    assert names(full, user='eve', project=OTHER) == ['foreign']
    assert found(full, '?all_tenants=1') == ['failed', 'foreign', 'one', 'two']
    assert names(full, f'?all_tenants=1&tenant_id={OTHER}') == ['foreign']
    assert full.request('GET', '/servers?all_tenants=1', user='bob').status_int == 403
    for query, wanted in {
        'status=ACTIVE': ['one', 'two'],
        'status=error': ['failed'],
        'name=^t': ['two'],
        'tags=red,big': ['one'],
        'not-tags=red': ['failed'],
        'host=gpu1': None,
        'config_drive=true': ['two'],
        'locked=true': [],
        'power_state=1': ['one', 'two'],
        'soft_deleted=true': ['failed', 'one', 'two'],
    }.items():
        shown = found(full, f'?{query}')
        assert shown == wanted or (wanted is None and set(shown) <= {'one', 'two'}), query
    # A member sees less of each.
    shown = full.ok('GET', '/servers/detail?name=one', user='bob')['servers'][0]
    seen = full.ok('GET', '/servers/detail?name=one')['servers'][0]
    assert set(seen) - set(shown) == {
        'OS-EXT-SRV-ATTR:host',
        'OS-EXT-SRV-ATTR:hypervisor_hostname',
        'OS-EXT-SRV-ATTR:instance_name',
        'OS-EXT-SRV-ATTR:kernel_id',
        'OS-EXT-SRV-ATTR:launch_index',
        'OS-EXT-SRV-ATTR:ramdisk_id',
        'OS-EXT-SRV-ATTR:reservation_id',
        'OS-EXT-SRV-ATTR:root_device_name',
        'OS-EXT-SRV-ATTR:user_data',
        'host_status',
    }
    assert all(shown[name] == seen[name] for name in shown)


def test_deleted_servers(full):
    """Those who may ask for them; everybody who asks what has changed."""
    assert names(full, '?deleted=true') == ['gone'] == names(full, '?status=DELETED')
    assert full.request('GET', '/servers?status=DELETED', user='bob').status_int == 403
    assert found(full, '?deleted=true', user='bob') == ['failed', 'one', 'two']
    assert found(full, '?changes-since=2020-01-01T00:00:00Z', user='bob') == ['failed', 'gone', 'one', 'two']
    assert names(full, '?changes-since=2099-01-01T00:00:00Z', user='bob') == []
    # A page goes on behind a server that was deleted meanwhile.
    assert 'gone' not in found(full, f'?sort_dir=asc&marker={full.gone}', user='bob')
    (shown,) = full.ok('GET', '/servers/detail?deleted=true')['servers']
    assert (shown['status'], shown['OS-EXT-STS:vm_state']) == ('DELETED', 'deleted')
    assert shown['OS-SRV-USG:terminated_at'] is not None


def test_page_by_page(full):
    """Each server once in all of them, in the order of the whole, whatever sorts and wherever it stands."""
    for sort in (
        'sort_key=display_name&sort_dir=asc',
        'sort_key=vm_state&sort_key=created_at&sort_dir=desc',
        'sort_key=launched_at&sort_dir=asc',
        'sort_key=host',
    ):
        everything = names(full, f'?all_tenants=1&{sort}')
        assert len(everything) == 4
        paged, path = [], f'/servers/detail?all_tenants=1&limit=1&{sort}'
        while path:
            answer = full.ok('GET', path)
            paged += [server['name'] for server in answer['servers']]
            links = answer.get('servers_links')
            path = links[0]['href'].split('/v2.1')[1] if links else None
        assert paged == everything, sort
