"""An API request writes to one database in one transaction, so that it is stored as a whole or not at all.

The requests are those on key pairs, quotas, server groups, flavors with extra specs and access, and aggregates.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kilonova.db import engine
from tests.fixtures.cloud import PROJECT, Cloud

GROUP, KEY = {'name': 'g', 'policy': 'anti-affinity', 'rules': {'max_server_per_host': 2}}, {'name': 'k'}
FLAVOR = {'id': 'f', 'name': 'f', 'ram': 512, 'vcpus': 1, 'disk': 1, 'os-flavor-access:is_public': False}
LIMITS = {'cores': 20, 'ram': 51200, 'instances': 5}
# Each is made on what those before it made.
REQUESTS: list[tuple[str, str, Any]] = [
    (
        'POST',
        '/os-keypairs',
        {
            'keypair': {
                **KEY,
                'public_key': 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFkT5NBMR7Mi5YQXSHpHqmZSZEr4b5kKqTxUj2Qvm8nS',
            }
        },
    ),
    ('DELETE', '/os-keypairs/k', None),
    ('POST', '/os-server-groups', {'server_group': GROUP}),
    ('DELETE', '/os-server-groups/{group}', None),
    ('PUT', f'/os-quota-sets/{PROJECT}', {'quota_set': LIMITS}),
    ('PUT', f'/os-quota-sets/{PROJECT}?user_id=u', {'quota_set': {**LIMITS, 'force': True}}),
    ('DELETE', f'/os-quota-sets/{PROJECT}', None),
    ('PUT', '/os-quota-class-sets/default', {'quota_class_set': LIMITS}),
    ('POST', '/flavors', {'flavor': FLAVOR}),
    ('POST', '/flavors/f/os-extra_specs', {'extra_specs': {'hw:cpu_policy': 'dedicated', 'a:b': 'c'}}),
    ('POST', '/flavors/f/action', {'addTenantAccess': {'tenant': PROJECT}}),
    ('POST', '/flavors/f/action', {'removeTenantAccess': {'tenant': PROJECT}}),
    ('POST', '/flavors/f/action', {'addTenantAccess': {'tenant': PROJECT}}),
    ('DELETE', '/flavors/f', None),
    ('POST', '/os-aggregates', {'aggregate': {'name': 'a', 'availability_zone': 'z'}}),
    ('PUT', '/os-aggregates/{aggregate}', {'aggregate': {'name': 'b', 'availability_zone': 'y'}}),
    ('POST', '/os-aggregates/{aggregate}/action', {'set_metadata': {'metadata': {'ssd': 'true', 'gpu': 'yes'}}}),
    ('DELETE', '/os-aggregates/{aggregate}', None),
]


def test_each_request_commits_once(make_cloud: Any) -> None:
    cloud: Cloud = make_cloud(quota__recheck_quota=True, quota__instances=10, quota__cores=20, quota__ram=51200)
    ids: dict[str, Any] = {}
    for method, path, body in REQUESTS:
        commits = _commits(cloud, method, path.format(**ids), body, ids)
        assert commits == ['api'], (method, path, commits)
    assert set(ids) == {'group', 'aggregate'}


def _commits(cloud: Cloud, method: str, path: str, body: Any, ids: dict[str, Any]) -> list[str]:
    """Return the databases in which the request committed a transaction; note the ids of what it made."""
    commits: list[str] = []
    here = threading.current_thread()

    def listener(database: str, statement: str, many: bool) -> None:
        if statement == 'COMMIT' and threading.current_thread() is here:
            commits.append(database)

    stop = engine.listen(listener)
    try:
        response = cloud.request(method, path, body)
    finally:
        stop()
    assert response.status_int < 300, (method, path, response.text)
    made = response.json if response.body else {}
    ids.update(
        {
            name: made[noun]['id']
            for noun, name in (('server_group', 'group'), ('aggregate', 'aggregate'))
            if method == 'POST' and noun in made
        }
    )
    return commits


@pytest.mark.parametrize('action', ['add_host', 'remove_host'])
@pytest.mark.parametrize('when', ['before', 'after'])
@pytest.mark.parametrize('lost', range(2))
def test_each_request_of_an_aggregates_mirror_is_lost_in_turn(cloud: Cloud, action: str, when: str, lost: int) -> None:
    """The row of the same transaction brings Placement there."""
    made = cloud.ok('POST', '/os-aggregates', {'aggregate': {'name': 'a'}})['aggregate']
    path = f'/os-aggregates/{made["id"]}/action'
    if action == 'remove_host':
        cloud.ok('POST', path, {'add_host': {'host': 'gpu1'}})
    front, asked = threading.current_thread(), set[str]()

    def lose(method: str, path: str) -> None:
        if threading.current_thread() is front and path.endswith('/aggregates'):
            asked.add(method)
            if len(asked) > lost:
                raise cloud.placement.broken()

    setattr(cloud.placement, when, lose)
    assert (cloud.ok('POST', path, {action: {'host': 'gpu1'}})['aggregate']['hosts'] == ['gpu1']) == (
        action == 'add_host'
    )
    cloud.placement.before = cloud.placement.after = None
    assert [row['kind'] for row in cloud.rows()] == ['mirror'] and len(asked) == lost + 1
    with cloud.databases.api().write() as conn:
        conn.exec_driver_sql('UPDATE operations SET not_before = 0')
    cloud.settle()
    found = [row['name'] for row in cloud.placement.client.list_providers(member_of=made['uuid'])]
    assert found == (['gpu1'] if action == 'add_host' else [])
    cloud.assert_clean()
