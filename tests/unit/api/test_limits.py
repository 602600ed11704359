"""Limits and quota sets (rest-api.md §2.10)."""
from __future__ import annotations

import pytest

LIMITS = {'maxServerGroupMembers', 'maxServerGroups', 'maxServerMeta', 'maxTotalCores', 'maxTotalInstances',
          'maxTotalKeypairs', 'maxTotalRAMSize', 'totalCoresUsed', 'totalInstancesUsed', 'totalRAMUsed',
          'totalServerGroupsUsed'}
PERSONALITY = {'maxPersonality', 'maxPersonalitySize'}
NETWORK = {'maxSecurityGroupRules', 'maxSecurityGroups', 'maxTotalFloatingIps', 'totalFloatingIpsUsed',
           'totalSecurityGroupsUsed'}


@pytest.mark.parametrize(('version', 'keys'), [
    ('2.1', LIMITS | PERSONALITY | NETWORK | {'maxImageMeta'}), ('2.36', LIMITS | PERSONALITY | {'maxImageMeta'}),
    ('2.39', LIMITS | PERSONALITY), ('2.57', LIMITS)])
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
    assert site.fault('GET', '/limits?tenant_id=p2', user='bob')[0] == 403
    assert site.ok('GET', '/limits?tenant_id=p2')['limits']['absolute']['totalInstancesUsed'] == 1


QUOTAS = {'cores', 'id', 'instances', 'key_pairs', 'metadata_items', 'ram', 'server_group_members', 'server_groups'}
INJECTED = {'injected_file_content_bytes', 'injected_file_path_bytes', 'injected_files'}
FIXED = {'fixed_ips', 'floating_ips', 'security_group_rules', 'security_groups'}


@pytest.mark.parametrize(('version', 'keys'), [
    ('2.1', QUOTAS | INJECTED | FIXED), ('2.36', QUOTAS | INJECTED), ('2.57', QUOTAS)])
@pytest.mark.parametrize('path', ['', '/detail', '/defaults'])
def test_quota_sets_of_each_version(site, version, keys, path):
    answer = site.ok('GET', f'/os-quota-sets/p1{path}', version=version, user='bob')['quota_set']
    assert set(answer) == keys and answer['id'] == 'p1'
    if path == '/detail':
        assert answer['cores'] == {'limit': 20, 'in_use': 0, 'reserved': 0}
    else:
        assert answer['cores'] == 20


def test_quotas_of_other_projects(site):
    from kilonova.db.models import api as models
    with site.databases.api().write() as conn:
        conn.execute(models.Quota.__table__.insert(), {'project_id': 'p2', 'resource': 'cores', 'hard_limit': 7})
    for path in ('', '/detail'):
        assert site.fault('GET', f'/os-quota-sets/p2{path}', user='bob')[0] == 403
    assert site.ok('GET', '/os-quota-sets/p2')['quota_set']['cores'] == 7
    assert site.ok('GET', '/os-quota-sets/p2/defaults', user='bob')['quota_set']['cores'] == 20
