"""lock and unlock."""

from __future__ import annotations

import pytest

from kilonova.db.queries import instances


def act(site, server, name, body=None, **kwargs):
    return site.request('POST', f'/servers/{server}/action', {name: body}, **kwargs)


def shown(site, server, **kwargs):
    body = site.ok('GET', f'/servers/{server}', **kwargs)['server']
    return body['locked'], body['locked_reason'], site.row(server)['locked_by']


def test_an_owner_locks_and_unlocks(site):
    server = site.server()
    assert shown(site, server) == (False, None, None)
    response = act(site, server, 'lock', {'locked_reason': 'mine'}, user='bob')
    assert (response.status_int, response.body) == (202, b'')
    assert shown(site, server) == (True, 'mine', 'owner')
    (listed,) = site.ok('GET', '/servers/detail', user='bob')['servers']
    assert (listed['locked'], listed['locked_reason']) == (True, 'mine')
    assert act(site, server, 'unlock', user='bob').status_int == 202
    assert shown(site, server) == (False, None, None)


def test_the_story(site):
    server = site.server()
    for name in ('lock', 'unlock'):
        request = act(site, server, name).headers['x-openstack-request-id']
        story = site.ok('GET', f'/servers/{server}/os-instance-actions/{request}')['instanceAction']
        (event,) = story['events']
        assert (story['action'], event['event'], event['result']) == (name, f'api_{name}', 'Success')
        assert event['finish_time'] is not None


def test_an_owner_does_not_lock_twice_an_administrator_does(site):
    server = site.server()
    act(site, server, 'lock', {'locked_reason': 'first'}, user='bob')
    assert act(site, server, 'lock', {'locked_reason': 'second'}, user='bob').status_int == 202
    assert shown(site, server) == (True, 'first', 'owner')
    assert act(site, server, 'lock', {'locked_reason': 'third'}, project='ops').status_int == 202
    assert shown(site, server) == (True, 'third', 'admin')
    assert act(site, server, 'lock', project='ops').status_int == 202
    assert shown(site, server) == (True, None, 'admin')


def test_what_an_administrator_locked_takes_a_right_of_its_own(site):
    server = site.server()
    act(site, server, 'lock', project='ops')
    assert site.fault('POST', f'/servers/{server}/action', {'unlock': None}, user='bob') == (
        403,
        "Policy doesn't allow os_compute_api:os-lock-server:unlock:unlock_override to be performed.",
    )
    assert act(site, server, 'unlock', project='ops').status_int == 202
    act(site, server, 'lock', user='bob')
    assert act(site, server, 'unlock', project='ops').status_int == 202
    assert act(site, server, 'unlock', user='bob').status_int == 202
    assert shown(site, server) == (False, None, None)


def test_the_loser_of_a_race_to_unlock(site, monkeypatch):
    server = site.server()
    act(site, server, 'lock', user='bob')
    unlock = instances.unlock

    def late(database, uuid, **kwargs):
        act(site, server, 'lock', project='ops')
        return unlock(database, uuid, **kwargs)

    monkeypatch.setattr(instances, 'unlock', late)
    assert site.fault('POST', f'/servers/{server}/action', {'unlock': None}, user='bob') == (
        409,
        f'Instance {server} is locked',
    )
    assert shown(site, server)[2] == 'admin'


@pytest.mark.parametrize(
    ('version', 'body', 'code'),
    [
        ('2.1', None, 202),
        ('2.72', {'locked_reason': 'passed over'}, 202),
        ('2.72', 'x', 202),
        ('2.73', None, 202),
        ('2.73', {}, 202),
        ('2.73', {'locked_reason': 'x' * 255}, 202),
        ('2.73', {'locked_reason': 'x' * 256}, 400),
        ('2.73', {'locked_reason': ''}, 400),
        ('2.73', {'other': 'x'}, 400),
        ('2.73', 'x', 400),
    ],
)
def test_bodies_of_each_version(site, version, body, code):
    server = site.server()
    assert act(site, server, 'lock', body, version=version).status_int == code
    kept = (body or {}).get('locked_reason') if version == '2.73' and code == 202 else None
    assert shown(site, server)[:2] == (code == 202, kept)


def test_fields_of_each_version(site):
    server = site.server()
    act(site, server, 'lock')
    for version, keys in (('2.8', set()), ('2.9', {'locked'}), ('2.73', {'locked', 'locked_reason'})):
        body = site.ok('GET', f'/servers/{server}', version=version)['server']
        assert {key for key in body if key.startswith('lock')} == keys


def test_filters(site):
    free, owned, ours = (site.server() for _ in range(3))
    act(site, owned, 'lock', user='bob')
    act(site, ours, 'lock', project='ops')

    def listed(query, **kwargs):
        return {server['id'] for server in site.ok('GET', f'/servers?{query}', **kwargs)['servers']}

    assert listed('locked=true', user='bob') == {owned, ours}
    assert listed('locked=False', user='bob') == {free}
    assert listed('locked=true', user='bob', version='2.72') == {free, owned, ours}
    assert listed('locked_by=admin') == {ours} and listed('locked_by=owner') == {owned}
    assert listed('locked_by=admin', user='bob') == {free, owned, ours}


def test_every_change_is_refused_but_for_administrators(site):
    server = site.server(vm_state='active')
    act(site, server, 'lock', user='bob')
    for name, body in (
        ('os-stop', None),
        ('os-start', None),
        ('reboot', {'type': 'HARD'}),
        ('resize', {'flavorRef': site.flavor()}),
        ('confirmResize', None),
        ('revertResize', None),
        ('pause', None),
        ('unpause', None),
        ('suspend', None),
        ('resume', None),
        ('trigger_crash_dump', None),
    ):
        assert site.fault('POST', f'/servers/{server}/action', {name: body}, user='bob') == (
            409,
            f'Instance {server} is locked',
        ), name
    assert site.fault('DELETE', f'/servers/{server}', user='bob') == (409, f'Instance {server} is locked')
    assert act(site, server, 'os-stop').status_int == 202


def test_build_requests(site):
    waiting = site.create()
    for name in ('lock', 'unlock'):
        assert site.fault('POST', f'/servers/{waiting}/action', {name: None}) == (
            409,
            f'Instance {waiting} is not ready',
        )
