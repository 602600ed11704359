"""changePassword of servers with and without devices, through the front door."""

from __future__ import annotations

import base64
from xml.etree import ElementTree

import libvirt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from kilonova.virt.libvirt.guest import Guest
from tests.fixtures.cloud import IMAGE_ID
from tests.fixtures.notifications import Recorder

BODY = {'adminPass': 'the-new-one'}


@pytest.fixture
def agents(cloud, monkeypatch):
    """What agents of guests were asked for; the image says that its guests have one."""
    cloud.images.offered[IMAGE_ID]['hw_qemu_guest_agent'] = 'yes'
    asked, real = [], Guest.set_password
    monkeypatch.setattr(
        Guest,
        'set_password',
        lambda self, user, password: (asked.append((self.uuid, user, password)), real(self, user, password)),
    )
    return asked


@pytest.mark.parametrize('gpus', [0, 2])
def test_the_agent_sets_it_and_nothing_else_changes(cloud, agents, gpus):
    server = cloud.boot(cloud.flavor(gpus=gpus))
    assert [
        one.get('name') for one in ElementTree.fromstring(cloud.xml(server)).iterfind('devices/channel/target')
    ] == ['org.qemu.guest_agent.0']
    before = (cloud.hostdevs(server), cloud.owned(server), cloud.placement.allocations()[server])
    cloud.action(server, 'changePassword', BODY, expect=202)
    assert agents == [(server, 'root', 'the-new-one')]
    assert cloud.story(server)[0][:2] == ('changePassword', None)
    (event,) = cloud.story(server)[0][2]
    assert event[:2] == ('compute_set_admin_password', 'Success')
    assert cloud.status(server) == 'ACTIVE'
    assert (cloud.hostdevs(server), cloud.owned(server), cloud.placement.allocations()[server]) == before
    cloud.assert_clean()


def test_the_owner_of_a_key_reads_it_by_os_server_password(cloud, agents):
    key = rsa.generate_private_key(65537, 2048)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    cloud.ok('POST', '/os-keypairs', {'keypair': {'name': 'k', 'public_key': public.decode()}})
    server = cloud.boot(cloud.flavor(), key_name='k')
    cloud.images.offered[IMAGE_ID].clear()  # what the server keeps of its image counts
    cloud.action(server, 'changePassword', BODY, expect=202)
    kept = cloud.ok('GET', f'/servers/{server}/os-server-password')['password']
    assert key.decrypt(base64.b64decode(kept), padding.PKCS1v15()) == b'the-new-one'


@pytest.mark.parametrize(
    ('code', 'reason'),
    [
        (libvirt.VIR_ERR_AGENT_UNRESPONSIVE, 'the guest agent does not answer'),
        (libvirt.VIR_ERR_INTERNAL_ERROR, 'error setting admin password'),
    ],
)
def test_an_agent_that_does_not_do_it(cloud, agents, monkeypatch, caplog, code, reason):
    """The server goes on as it was. What the agent says may hold the password: it is shown and logged nowhere."""
    server = cloud.boot(cloud.flavor(gpus=1))

    def refuse(self, user, password):
        error = libvirt.libvirtError(f'the agent does not like {password}')
        error.err = (code, 0, f'the agent does not like {password}', 2, '', '', '', 0, 0)
        raise error

    monkeypatch.setattr(Guest, 'set_password', refuse)
    cloud.action(server, 'changePassword', BODY, expect=202)
    action, message, events = cloud.story(server)[0]
    assert action == 'changePassword' and message.startswith('Error')
    assert [(event[0], event[1], event[2]) for event in events] == [
        ('compute_set_admin_password', 'Error', f'Failed to set admin password on {server} because {reason}')
    ]
    assert 'the-new-one' not in repr(cloud.story(server)) + caplog.text + repr(cloud.show(server))
    assert (cloud.status(server), len(cloud.hostdevs(server))) == ('ACTIVE', 1)
    cloud.assert_clean()


def test_what_is_told(make_cloud):
    """The field has no notification of its own for it: the server's updates tell of its task."""
    told = Recorder()
    cloud = make_cloud(
        sender=told,
        oslo_messaging_notifications__driver=['messagingv2'],
        notifications__notification_format='both',
        notifications__notify_on_state_change='vm_and_task_state',
    )
    cloud.images.offered[IMAGE_ID]['hw_qemu_guest_agent'] = 'yes'
    server = cloud.boot(cloud.flavor())
    told.sent.clear()
    cloud.action(server, 'changePassword', BODY, expect=202)
    assert cloud.story(server)[0][:2] == ('changePassword', None)
    assert {message.event for message in told.of(True)} == {'instance.update'}


def test_a_guest_that_went_down_by_itself(cloud, agents):
    server = cloud.boot(cloud.flavor())
    cloud.computes[cloud.host_of(server)].host.driver.guests._libvirt.find(server).destroy()
    cloud.action(server, 'changePassword', BODY, expect=202)
    assert cloud.story(server)[0][2][0][2] == f'Failed to set admin password on {server} because it does not run'
    assert agents == []


def test_who_is_refused(cloud, agents):
    server = cloud.boot(cloud.flavor())
    for body in (None, {}, {'adminPass': 5}, {'adminPass': None}, {**BODY, 'more': 1}):
        cloud.action(server, 'changePassword', body, expect=400)
    cloud.action(server, 'os-stop')
    response = cloud.action(server, 'changePassword', BODY, expect=409)
    assert response.json['conflictingRequest']['message'] == (
        f"Cannot 'changePassword' instance {server} while it is in vm_state stopped"
    )
    cloud.images.offered[IMAGE_ID].clear()
    other = cloud.boot(cloud.flavor())
    response = cloud.action(other, 'changePassword', BODY, expect=409)
    assert response.json['conflictingRequest']['message'] == 'QEMU guest agent is not enabled'
    assert agents == [] and cloud.rows() == []
