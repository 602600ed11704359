"""os-resetState on servers in the middle of a move: nothing hangs afterwards."""

from __future__ import annotations

import pytest

from tests.fixtures.cloud import Cloud


@pytest.fixture
def ground(emptied: Cloud) -> Cloud:
    return emptied


def resized(cloud: Cloud) -> str:
    server = cloud.boot(cloud.flavor(gpus=1))
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2)})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    return server


@pytest.mark.parametrize('state', ['active', 'error'])
def test_a_move_that_waits_for_an_answer_is_confirmed(ground: Cloud, state: str) -> None:
    """The server is what it was moved to; the source's disks, devices and allocation are given back."""
    server = resized(ground)
    ground.action(server, 'os-resetState', {'state': state}, expect=202)
    assert ground.status(server) == state.upper()
    assert [name.split()[0] for name in ground.owned(server)] == [ground.host_of(server)] * 2
    (migration,) = ground.ok('GET', f'/os-migrations?instance_uuid={server}')['migrations']
    assert migration['status'] == 'confirmed'
    ground.assert_clean()
    ground.action(server, 'revertResize', expect=409)
    if state == 'active':
        # And moves again.
        ground.action(server, 'resize', {'flavorRef': ground.flavor(gpus=1)})
        assert ground.status(server) == 'VERIFY_RESIZE'
        ground.action(server, 'confirmResize')
        ground.assert_clean()


def test_a_move_that_waits_is_confirmed_after_the_operation_that_the_reset_cancels(ground: Cloud) -> None:
    """A crash dump may run while the server waits for its confirm or revert. It is undone first."""
    server, codes = resized(ground), []

    def on_message(kind, topic, host, name, args, deliver):
        if name == 'trigger_crash_dump' and not codes:
            codes.append(
                ground.request('POST', f'/servers/{server}/action', {'os-resetState': {'state': 'active'}}).status_int
            )
        return deliver()

    ground.on_message = on_message
    ground.action(server, 'trigger_crash_dump')
    ground.settle()
    ground.on_message = None
    assert codes == [202] and ground.status(server) == 'ACTIVE'
    (migration,) = ground.ok('GET', f'/os-migrations?instance_uuid={server}')['migrations']
    assert migration['status'] == 'confirmed'
    ground.assert_clean()


@pytest.mark.parametrize(('action', 'method'), [('confirmResize', 'confirm_resize'), ('revertResize', 'revert_resize')])
def test_a_confirm_or_revert_under_way_ends(ground: Cloud, action: str, method: str) -> None:
    """They only go forward: the state is the one that was set, and nothing of the move is left."""
    server, codes = resized(ground), []

    def on_message(kind, topic, host, name, args, deliver):
        result = deliver()
        if topic == 'compute' and name == method and not codes:
            codes.append(
                ground.request('POST', f'/servers/{server}/action', {'os-resetState': {'state': 'active'}}).status_int
            )
        return result

    ground.on_message = on_message
    ground.action(server, action)
    ground.on_message = None
    assert codes == [202] and ground.status(server) == 'ACTIVE'
    ground.assert_clean()


def test_a_resize_under_way_is_unwound(ground: Cloud) -> None:
    server, codes = ground.boot(ground.flavor(gpus=1)), []
    home = ground.host_of(server)

    def on_message(kind, topic, host, name, args, deliver):
        result = deliver()
        if name == 'resize_instance' and not codes:
            codes.append(
                ground.request('POST', f'/servers/{server}/action', {'os-resetState': {'state': 'active'}}).status_int
            )
        return result

    ground.on_message = on_message
    ground.action(server, 'resize', {'flavorRef': ground.flavor(gpus=2)})
    assert codes == [202]
    assert (ground.status(server), ground.host_of(server), len(ground.owned(server))) == ('ACTIVE', home, 1)
    ground.assert_clean()


def test_delete_right_after_a_reset(ground: Cloud) -> None:
    """The confirm that the reset began is unwound by the delete, which gives back both sides."""
    server, codes = resized(ground), []

    def on_message(kind, topic, host, name, args, deliver):
        if topic == 'compute' and name == 'confirm_resize' and not codes:
            codes.append(ground.request('DELETE', f'/servers/{server}').status_int)
        return deliver()

    ground.on_message = on_message
    ground.action(server, 'os-resetState', {'state': 'error'})
    ground.on_message = None
    assert codes == [204] and ground.status(server) == 'GONE'
