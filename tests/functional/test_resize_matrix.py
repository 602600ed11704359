"""Resize is right in every direction, and whatever an administrator says meanwhile: many cases, one cloud."""

from __future__ import annotations

import pytest

from tests.fixtures.cloud import Cloud


@pytest.fixture
def cloud(emptied: Cloud) -> Cloud:
    return emptied


@pytest.mark.parametrize('finish', ['confirmResize', 'revertResize'])
@pytest.mark.parametrize('state', ['active', 'stopped'])
@pytest.mark.parametrize(('before', 'after'), [(0, 1), (2, 1), (1, 0), (1, 2)])
def test_every_direction(cloud, before, after, state, finish):
    """A resize between any two numbers of GPUs gives the guest the right number, and a stopped server stays stopped."""
    server = cloud.boot(cloud.flavor(gpus=before))
    if state == 'stopped':
        cloud.action(server, 'os-stop')
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=after)})
    assert cloud.status(server) == 'VERIFY_RESIZE'
    assert len(cloud.hostdevs(server)) == after
    cloud.assert_clean()
    cloud.action(server, finish)
    assert cloud.status(server) == ('ACTIVE' if state == 'active' else 'SHUTOFF')
    wanted = after if finish == 'confirmResize' else before
    assert len(cloud.owned(server)) == wanted
    cloud.assert_clean()
    if state == 'stopped':
        cloud.action(server, 'os-start')
    assert len(cloud.hostdevs(server)) == wanted
    cloud.assert_clean()


@pytest.mark.parametrize('state', ['active', 'error'])
@pytest.mark.parametrize('when', ['before', 'after'])
@pytest.mark.parametrize('step', ['select_destinations', 'prep_resize', 'resize_instance', 'finish_resize'])
def test_reset_state_beside_a_running_resize(cloud, step, when, state):
    """Rule 17: the state is what the administrator says at once; what runs unwinds and leaves that state alone."""
    small = cloud.flavor(gpus=1)
    server = cloud.boot(small)
    before = (cloud.host_of(server), cloud.hostdevs(server), cloud.owned(server), cloud.placement.allocations()[server])
    found = []

    def reset():
        response = cloud.request('POST', f'/servers/{server}/action', {'os-resetState': {'state': state}})
        shown = cloud.show(server)
        found.append((response.status_int, shown['status'], shown['OS-EXT-STS:task_state']))

    def on_message(kind, topic, host, method, args, deliver):
        if method != step or found:
            return deliver()
        if when == 'before':
            reset()
            return deliver()
        answer = deliver()
        reset()
        return answer

    cloud.on_message = on_message
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2)})
    assert found == [(202, state.upper(), None)]
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:task_state']) == (state.upper(), None)
    assert shown['flavor']['original_name'] == cloud.ok('GET', f'/flavors/{small}')['flavor']['name']
    assert before == (
        cloud.host_of(server),
        cloud.hostdevs(server),
        cloud.owned(server),
        cloud.placement.allocations()[server],
    )
    (migration,) = cloud.ok('GET', f'/os-migrations?instance_uuid={server}')['migrations']
    assert migration['status'] == 'error'
    cloud.assert_clean()
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert cloud.status(server) == 'ACTIVE' and cloud.hostdevs(server) == before[1]
    cloud.assert_clean()
