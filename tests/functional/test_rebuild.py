"""rebuild: new disks for a server where it is."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from kilonova.compute.ops import rebuild as on_host
from kilonova.db.queries import request_specs
from kilonova.errors import KilonovaError
from kilonova.pci.request import Aliases
from kilonova.virt.parts.guests import GuestFailed
from tests.fixtures.cloud import IMAGE_ID, OTHER_IMAGE_ID, Cloud

CHANGES = "An instance's %s cannot be changed as part of a rebuild. The image provided is invalid for this instance."
GPUS = {'gpu1': ['0000:08:00.0', '0000:09:00.0'], 'gpu2': ['0000:88:00.0', '0000:89:00.0']}


@pytest.fixture
def small(make_cloud, monkeypatch) -> Cloud:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    return make_cloud(GPUS)


def rebuild(cloud: Cloud, server: str, image: str = OTHER_IMAGE_ID, **more: Any) -> dict[str, Any]:
    """The answer; the operation is over."""
    kwargs = {key: more.pop(key) for key in ('user', 'version', 'project') if key in more}
    response = cloud.action(server, 'rebuild', {'imageRef': image, **more}, expect=202, **kwargs)
    return response.json['server']


def write(cloud: Cloud, server: str) -> None:
    """The guest wrote to its root disk."""
    disk(cloud, server).write_bytes(b'old')


def disk(cloud: Cloud, server: str) -> Any:
    return cloud.directory / cloud.host_of(server) / 'instances' / server / 'disk'


def spec_image(cloud: Cloud, server: str) -> str:
    with cloud.databases.api().read() as conn:
        stored = request_specs.get(conn, server)
    return json.loads(stored['spec'])['nova_object.data']['image']['nova_object.data']['id']


def events(cloud: Cloud, server: str) -> dict[str, str]:
    return {event[0]: event[1] for action in cloud.story(server) if action[0] == 'rebuild' for event in action[2]}


@pytest.mark.parametrize('gpus', [0, 2])
def test_a_rebuild_keeps_place_devices_and_allocation(small, gpus):
    server = small.boot(small.flavor(gpus=gpus))
    write(small, server)
    before = (small.owned(server), small.host_of(server), small.placement.allocations()[server], small.hostdevs(server))
    answer = rebuild(small, server)
    assert answer['image']['id'] == OTHER_IMAGE_ID
    assert small.status(server) == 'ACTIVE', small.story(server)
    assert small.show(server)['image']['id'] == OTHER_IMAGE_ID and spec_image(small, server) == OTHER_IMAGE_ID
    assert (
        small.owned(server),
        small.host_of(server),
        small.placement.allocations()[server],
        small.hostdevs(server),
    ) == before
    assert disk(small, server).read_bytes() != b'old'
    assert events(small, server) == {'rebuild_server': 'Success', 'compute_rebuild_instance': 'Success'}
    small.assert_clean()


def test_what_is_not_named_stays_and_what_is_changes(small):
    key = small.ok('POST', '/os-keypairs', {'keypair': {'name': 'mine', 'type': 'ssh'}}, version='2.90')['keypair']
    server = small.boot(
        small.flavor(),
        name='old',
        metadata={'a': 'b'},
        user_data='eA==',
        description='words',
        key_name=key['name'],
        config_drive=True,
    )
    was = small.show(server)
    rebuild(small, server, IMAGE_ID)
    now = small.show(server)
    for name in (
        'name',
        'metadata',
        'OS-EXT-SRV-ATTR:user_data',
        'description',
        'key_name',
        'config_drive',
        'OS-EXT-SRV-ATTR:hostname',
    ):
        assert now[name] == was[name], name
    text = base64.b64encode(b'new').decode()
    answer = rebuild(
        small,
        server,
        IMAGE_ID,
        **{
            'name': 'new',
            'metadata': {'c': 'd'},
            'user_data': text,
            'description': None,
            'key_name': None,
            'hostname': 'other.example.org',
            'accessIPv4': '192.0.2.1',
            'OS-DCF:diskConfig': 'AUTO',
        },
    )
    now = small.show(server)
    for shown in (answer, now):
        assert (
            shown['name'],
            shown['metadata'],
            shown['description'],
            shown['key_name'],
            shown['OS-EXT-SRV-ATTR:hostname'],
            shown['accessIPv4'],
            shown['OS-DCF:diskConfig'],
        ) == ('new', {'c': 'd'}, None, None, 'other.example.org', '192.0.2.1', 'AUTO')
    # Rebuild's answer has user_data alone, and no attribute of administrators beside it.
    assert answer['user_data'] == now['OS-EXT-SRV-ATTR:user_data'] == text
    assert 'OS-EXT-SRV-ATTR:user_data' not in answer and answer['trusted_image_certificates'] is None
    small.assert_clean()


def test_a_stopped_server_stays_off_and_one_in_error_comes_back(small):
    server = small.boot(small.flavor(gpus=1))
    small.action(server, 'os-stop')
    rebuild(small, server)
    assert small.status(server) == 'SHUTOFF' and small.show(server)['OS-EXT-STS:power_state'] == 4
    small.action(server, 'os-resetState', {'state': 'error'})
    rebuild(small, server)
    assert small.status(server) == 'ACTIVE' and small.show(server)['OS-EXT-STS:power_state'] == 1
    small.assert_clean()


@pytest.mark.parametrize('when', ['before', 'after'])
def test_a_failure_keeps_the_server_until_its_disks_are_thrown_away(small, monkeypatch, when):
    server = small.boot(small.flavor(gpus=1), metadata={'a': 'b'})
    write(small, server)
    before = {name: value for name, value in small.show(server).items() if name != 'updated'}
    host = small.computes[small.host_of(server)].host
    method = 'prepare_rebuild' if when == 'before' else 'rebuild'

    def fail(*args: Any, **kwargs: Any) -> None:
        raise GuestFailed(act='define', uuid=server, reason='injected')

    with monkeypatch.context() as patch:
        patch.setattr(type(host.driver.guests), method, fail)
        rebuild(small, server, name='new', metadata={'c': 'd'})
    if when == 'before':
        assert {name: value for name, value in small.show(server).items() if name != 'updated'} == before
        assert disk(small, server).read_bytes() == b'old'
        assert spec_image(small, server) == IMAGE_ID
    else:
        shown = small.show(server)
        assert shown['status'] == 'ERROR' and 'injected' in shown['fault']['message']
        assert shown['name'] == 'new' and spec_image(small, server) == OTHER_IMAGE_ID
    assert events(small, server) == {'rebuild_server': 'Success', 'compute_rebuild_instance': 'Error'}
    assert len(small.owned(server)) == 1
    rebuild(small, server)
    assert small.status(server) == 'ACTIVE'
    small.assert_clean()


def test_the_scheduler_is_asked_for_another_image_alone(small):
    """A rebuild with the same image does not call the scheduler. With another image the scheduler checks the
    server's host only, and sends no request to Placement."""
    server, asked = small.boot(small.flavor()), []

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'select_destinations':
            spec = args['spec_obj']
            asked.append((spec.scheduler_hints, spec.requested_destination.host))
        return deliver()

    small.on_message = on_message
    requests = len(small.placement.requests) if hasattr(small.placement, 'requests') else None
    rebuild(small, server, IMAGE_ID)
    assert asked == []
    rebuild(small, server, OTHER_IMAGE_ID)
    small.on_message = None
    assert asked == [({'_nova_check_type': ['rebuild']}, small.host_of(server))]
    assert requests is None or len(small.placement.requests) == requests


def test_a_host_that_the_new_image_may_not_use_is_refused(small):
    server = small.boot(small.flavor(gpus=1))
    small.images.offered[OTHER_IMAGE_ID] = {'hw_architecture': 'aarch64'}
    rebuild(small, server)
    assert small.status(server) == 'ACTIVE' and small.show(server)['image']['id'] == IMAGE_ID
    assert events(small, server) == {'rebuild_server': 'Error'}
    assert spec_image(small, server) == IMAGE_ID
    small.assert_clean()


@pytest.mark.parametrize(
    ('offered', 'text'),
    [
        ({'min_ram': 4096}, "Flavor's memory is too small for requested image."),
        ({'hw_numa_nodes': '2'}, CHANGES % 'NUMA topology'),
        ({'hw_pci_numa_affinity_policy': 'required'}, CHANGES % 'PCI NUMA policy'),
    ],
)
def test_images_that_do_not_fit_are_refused(small, offered, text):
    server = small.boot(small.flavor(gpus=1, vcpus=2))
    small.images.offered[OTHER_IMAGE_ID] = offered
    response = small.action(server, 'rebuild', {'imageRef': OTHER_IMAGE_ID}, expect=400)
    assert response.json['badRequest']['message'] == text
    assert small.show(server)['image']['id'] == IMAGE_ID and small.rows() == []


def test_a_renamed_alias_hides_no_other_reason_found_1_13(small, monkeypatch):
    server = small.boot(small.flavor(gpus=1, vcpus=2))
    monkeypatch.setattr(Aliases, '__getitem__', lambda aliases, name: {}[name])
    small.images.offered[OTHER_IMAGE_ID] = {'hw_pci_numa_affinity_policy': 'required'}
    response = small.action(server, 'rebuild', {'imageRef': OTHER_IMAGE_ID}, expect=400)
    assert response.json['badRequest']['message'] == CHANGES % 'PCI NUMA policy'


def test_requests_that_are_refused(small):
    server = small.boot(small.flavor())

    def refused(code: int, body: dict[str, Any], **kwargs: Any) -> str:
        response = small.action(server, 'rebuild', {'imageRef': OTHER_IMAGE_ID, **body}, expect=code, **kwargs)
        return next(iter(response.json.values()))['message']

    assert refused(400, {'imageRef': server}) == 'Cannot find image for rebuild'
    assert refused(400, {'key_name': 'nobody'}) == 'Invalid key_name provided.'
    assert 'trusted_image_certificates' in refused(400, {'trusted_image_certificates': ['x']})
    assert 'metadata' in refused(403, {'metadata': {str(number): 'x' for number in range(129)}}).lower()
    for body, version in (
        ({'key_name': None}, '2.53'),
        ({'user_data': None}, '2.56'),
        ({'description': 'x'}, '2.18'),
        ({'hostname': 'xy'}, '2.89'),
        ({'trusted_image_certificates': None}, '2.62'),
        ({'personality': []}, '2.57'),
    ):
        refused(400, body, version=version)
    small.action(server, 'lock')
    assert refused(409, {}, user='member') == f'Instance {server} is locked'
    small.action(server, 'unlock')
    small.action(server, 'os-resetState', {'state': 'active'})
    small.action(server, 'resize', {'flavorRef': small.flavor()})
    assert refused(409, {}) == f"Cannot 'rebuild' instance {server} while it is in vm_state resized"


def test_the_password_and_files_reach_the_config_drive(small, monkeypatch):
    seen: list[Any] = []
    real = on_host.build.opened

    def opened(op: Any, sealed: str | None) -> Any:
        seen.append(real(op, sealed))
        return seen[-1]

    monkeypatch.setattr(on_host.build, 'opened', opened)
    server = small.boot(small.flavor())
    answer = rebuild(
        small, server, adminPass='seekr3t', version='2.56', personality=[{'path': '/etc/motd', 'contents': 'eA=='}]
    )
    assert answer['adminPass'] == 'seekr3t'
    assert (seen[-1].admin_password, seen[-1].files) == ('seekr3t', [('/etc/motd', 'eA==')])
    assert small.show(server)['config_drive'] == 'True'
    made = rebuild(small, server)['adminPass']
    assert len(made) == 12 and seen[-1].admin_password == made


def test_a_host_without_the_method_leaves_the_server_as_it_was(small, monkeypatch):
    """An older host beside this release."""
    server = small.boot(small.flavor(gpus=1))
    write(small, server)

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'rebuild_instance' and topic == 'compute':
            raise KilonovaError('too old')
        return deliver()

    small.on_message = on_message
    rebuild(small, server)
    small.on_message = None
    assert small.status(server) == 'ACTIVE' and small.show(server)['image']['id'] == IMAGE_ID
    assert disk(small, server).read_bytes() == b'old'
    small.assert_clean()


@pytest.mark.parametrize('preserved', [True, False])
def test_ephemeral_disks_stay_where_that_is_asked_for(small, preserved):
    flavor = small.ok(
        'POST',
        '/flavors',
        {'flavor': {'name': 'ephemeral', 'vcpus': 1, 'ram': 512, 'disk': 1, 'OS-FLV-EXT-DATA:ephemeral': 1}},
    )['flavor']
    server = small.boot(flavor['id'])
    ephemeral = disk(small, server).with_name('disk.eph0')
    ephemeral.write_bytes(ephemeral.read_bytes() + b'of its guest')
    rebuild(small, server, preserve_ephemeral=preserved)
    assert small.status(server) == 'ACTIVE' and ephemeral.read_bytes().endswith(b'of its guest') == preserved
    small.assert_clean()
