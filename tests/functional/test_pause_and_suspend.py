"""Pause, suspend and crash dump of servers with and without devices, through the front door."""

from __future__ import annotations

import pytest

from tests.fixtures.notifications import Recorder

ASLEEP = {'pause': ('unpause', 'PAUSED', 3), 'suspend': ('resume', 'SUSPENDED', 7)}
EVERY = pytest.mark.parametrize('verb', ASLEEP)


@EVERY
@pytest.mark.parametrize('gpus', [0, 2])
def test_there_and_back_with_the_same_devices(cloud, verb, gpus):
    back, status, power_state = ASLEEP[verb]
    server = cloud.boot(cloud.flavor(gpus=gpus))
    devices, owned, held = cloud.hostdevs(server), cloud.owned(server), cloud.placement.allocations()[server]
    assert len(devices) == len(owned) == gpus
    for action, shown_as in ((verb, (status, power_state)), (back, ('ACTIVE', 1))):
        cloud.action(server, action)
        shown = cloud.show(server)
        assert (shown['status'], shown['OS-EXT-STS:power_state'], shown['OS-EXT-STS:task_state']) == (*shown_as, None)
        # What the guest is made from has them still, and nobody else gets them.
        assert (cloud.hostdevs(server), cloud.owned(server)) == (devices, owned)
        assert cloud.placement.allocations()[server] == held
        cloud.assert_clean()


@EVERY
def test_what_else_can_be_done_with_one(cloud, verb):
    """A hard reboot begins anew, and so does a restore; a soft one is refused; a delete gives all back."""
    back, status, _ = ASLEEP[verb]
    server = cloud.boot(cloud.flavor(gpus=1))
    devices = cloud.hostdevs(server)
    cloud.action(server, verb)
    for action, body in (
        (verb, None),
        ('os-stop', None),
        ('os-start', None),
        ('reboot', {'type': 'SOFT'}),
        ('resize', {'flavorRef': cloud.flavor(gpus=2)}),
    ):
        response = cloud.action(server, action, body, expect=409)
        assert f'while it is in vm_state {status.lower()}' in response.json['conflictingRequest']['message']
    cloud.action(server, 'createImage', {'name': 'asleep'})
    assert cloud.status(server) == status
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert (cloud.status(server), cloud.hostdevs(server)) == ('ACTIVE', devices)
    cloud.assert_clean()
    assert cloud.action(server, back, expect=409).status_int == 409
    cloud.action(server, verb)
    assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    cloud.settle()
    cloud.images.made.clear()
    cloud.assert_empty()


@EVERY
def test_a_reset_server_is_whole_again_after_a_hard_reboot(cloud, verb):
    server = cloud.boot(cloud.flavor(gpus=1))
    devices = cloud.hostdevs(server)
    cloud.action(server, verb)
    cloud.action(server, 'os-resetState', {'state': 'error'})
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert (cloud.status(server), cloud.hostdevs(server)) == ('ACTIVE', devices)
    cloud.assert_clean()


@EVERY
def test_a_host_that_lost_its_guests_says_that_theirs_are_off(cloud, verb):
    """Their memory is gone: the next start begins anew, with the same devices. State machine, section 5."""
    server = cloud.boot(cloud.flavor(gpus=1))
    host, devices = cloud.host_of(server), cloud.hostdevs(server)
    cloud.action(server, verb)
    cloud.crash_compute(host)
    cloud.start_compute(host)
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:power_state']) == ('SHUTOFF', 4)
    cloud.assert_clean()
    cloud.action(server, 'os-start')
    assert (cloud.status(server), cloud.hostdevs(server)) == ('ACTIVE', devices)
    cloud.assert_clean()


def test_a_crash_dump_changes_nothing_of_the_server(cloud):
    server = cloud.boot(cloud.flavor(gpus=1))
    devices = cloud.hostdevs(server)
    cloud.action(server, 'trigger_crash_dump')
    assert cloud.story(server)[0][:2] == ('trigger_crash_dump', None)
    assert (cloud.status(server), cloud.hostdevs(server)) == ('ACTIVE', devices)
    cloud.action(server, 'pause')
    cloud.action(server, 'trigger_crash_dump')
    assert cloud.status(server) == 'PAUSED'
    cloud.assert_clean()
    cloud.action(server, 'unpause')
    cloud.action(server, 'os-stop')
    response = cloud.action(server, 'trigger_crash_dump', expect=409)
    assert response.json['conflictingRequest']['message'] == (
        f"Cannot 'trigger_crash_dump' instance {server} while it is in vm_state stopped"
    )
    assert (
        cloud.request('POST', f'/servers/{server}/action', {'trigger_crash_dump': None}, version='2.16').status_int
        == 404
    )


def test_events_and_notifications(make_cloud):
    told = Recorder()
    cloud = make_cloud(
        sender=told, oslo_messaging_notifications__driver=['messagingv2'], notifications__notification_format='both'
    )
    server = cloud.boot(cloud.flavor(gpus=1))
    for action in ('pause', 'unpause', 'suspend', 'resume', 'trigger_crash_dump'):
        told.sent.clear()
        cloud.action(server, action)
        assert [message.event for message in told.of(True)] == [f'instance.{action}.start', f'instance.{action}.end']
        assert [message.event for message in told.of(False)] == [
            f'compute.instance.{action}.start',
            f'compute.instance.{action}.end',
        ]
        end = told.of(True)[1].payload['nova_object.data']
        assert (end['state'], end['power_state']) == {
            'pause': ('paused', 'paused'),
            'suspend': ('suspended', 'suspended'),
        }.get(action, ('active', 'running'))
        event = 'compute_trigger_crash_dump' if action == 'trigger_crash_dump' else f'compute_{action}_instance'
        ((name, message, events), *_) = cloud.story(server)
        assert (name, message, [row[:2] for row in events]) == (action, None, [(event, 'Success')])


@pytest.mark.parametrize(
    ('verb', 'method'), [('pause', 'hold'), ('suspend', 'save'), ('trigger_crash_dump', 'call_once')]
)
def test_a_guest_that_will_not_leaves_the_server_as_it_was(cloud, monkeypatch, verb, method):
    from kilonova.virt.parts.guests import GuestFailed

    server = cloud.boot(cloud.flavor(gpus=1))
    devices = cloud.hostdevs(server)

    def fail(guest, *args):
        raise GuestFailed(act=verb, uuid=guest.uuid, reason='QEMU is stuck')

    place = f'kilonova.virt.libvirt.guest.Guest.{method}'
    monkeypatch.setattr(place, fail)
    cloud.action(server, verb)
    ((name, message, events), *_) = cloud.story(server)
    assert (name, events[0][1]) == (verb, 'Error') and message.endswith('QEMU is stuck')
    assert (cloud.status(server), cloud.hostdevs(server)) == ('ACTIVE', devices)
    cloud.assert_clean()


def test_an_audit_beside_a_crash_dump_in_flight_finds_nothing_wrong(cloud):
    """Its server has no task state meanwhile."""
    server = cloud.boot(cloud.flavor())
    found = []

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'trigger_crash_dump' and not found:
            found.append(cloud.audit().disagreements)
        return deliver()

    cloud.on_message = on_message
    cloud.action(server, 'trigger_crash_dump')
    assert found == [[]]
