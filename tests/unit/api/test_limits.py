"""Limits."""

from __future__ import annotations

import pytest

LIMITS = {
    'maxServerGroupMembers',
    'maxServerGroups',
    'maxServerMeta',
    'maxTotalCores',
    'maxTotalInstances',
    'maxTotalKeypairs',
    'maxTotalRAMSize',
    'totalCoresUsed',
    'totalInstancesUsed',
    'totalRAMUsed',
    'totalServerGroupsUsed',
}
PERSONALITY = {'maxPersonality', 'maxPersonalitySize'}
NETWORK = {
    'maxSecurityGroupRules',
    'maxSecurityGroups',
    'maxTotalFloatingIps',
    'totalFloatingIpsUsed',
    'totalSecurityGroupsUsed',
}


@pytest.mark.parametrize(
    ('version', 'keys'),
    [
        ('2.1', LIMITS | PERSONALITY | NETWORK | {'maxImageMeta'}),
        ('2.36', LIMITS | PERSONALITY | {'maxImageMeta'}),
        ('2.39', LIMITS | PERSONALITY),
        ('2.57', LIMITS),
    ],
)
def test_limits_of_each_version(site, version, keys):
    answer = site.ok('GET', '/limits', version=version, user='bob')['limits']
    assert answer['rate'] == [] and set(answer['absolute']) == keys


def test_what_is_used(site):
    flavor = site.flavor(vcpus=2, ram=100)
    site.server(site.cell1, flavor)
    site.server(site.cell2, flavor)
    site.create(flavor)
    site.server(project='p2')
    absolute = site.ok('GET', '/limits', user='bob')['limits']['absolute']
    assert (absolute['totalInstancesUsed'], absolute['totalCoresUsed'], absolute['totalRAMUsed']) == (3, 6, 300)
    for named in ('p1', 'p2'):
        assert site.fault('GET', f'/limits?tenant_id={named}', user='bob')[0] == 403
    assert site.ok('GET', '/limits?tenant_id=p2')['limits']['absolute']['totalInstancesUsed'] == 1


def test_server_groups_are_counted(site):
    from kilonova.db.models import api as models

    with site.databases.api().write() as conn:
        conn.execute(
            models.InstanceGroup.__table__.insert(),
            [
                {'uuid': str(number), 'name': 'g', 'user_id': 'bob', 'project_id': project}
                for number, project in enumerate(('p1', 'p1', 'p2'))
            ],
        )
    assert site.ok('GET', '/limits', user='bob')['limits']['absolute']['totalServerGroupsUsed'] == 2


def test_quotas_are_shown_as_limits(site):
    site.ok('PUT', '/os-quota-sets/p1', {'quota_set': {'cores': 7, 'floating_ips': 3}}, version='2.35')
    absolute = site.ok('GET', '/limits?reserved=1', user='bob', version='2.35')['limits']['absolute']
    assert (absolute['maxTotalCores'], absolute['maxTotalFloatingIps'], absolute['maxTotalInstances']) == (7, 3, 10)
