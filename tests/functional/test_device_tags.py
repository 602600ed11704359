"""Tags of interfaces and volumes: what the guest is told of them, whatever becomes of its server.

libvirt's test driver gives no PCI addresses, and puts nothing into a guest that runs:
tests/integration/test_libvirtd.py has the addresses.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import errors, objects
from kilonova.db.queries import instances
from kilonova.virt.guest_metadata import GuestFacts, meta_data
from tests.fixtures.cinder import FakeCinder
from tests.fixtures.cloud import IMAGE_ID, PROJECT, Cloud
from tests.flows.cases import disturb
from tests.functional.test_ports import Networked
from tests.functional.test_volumes import RBD


class Tagged(Networked):
    """``server``: one with a port and a volume that have tags, and a port without, in front."""

    def __init__(self, make_cloud: Callable[..., Cloud]) -> None:
        self.cinder = FakeCinder()
        self.cinder.connection = RBD
        self.cinder.users.update({f'{user}:{PROJECT}': PROJECT for user in ('admin', 'demo')})
        super().__init__(make_cloud, cinder=self.cinder)
        self.volume, self.second = self.cinder.add_volume(PROJECT), self.cinder.add_volume(PROJECT)
        self.server = self.boot(
            {'uuid': self.network},
            {'uuid': self.network, 'tag': 'front'},
            config_drive=True,
            block_device_mapping_v2=[
                {'source_type': 'image', 'destination_type': 'local', 'uuid': IMAGE_ID, 'boot_index': 0},
                {'source_type': 'volume', 'destination_type': 'volume', 'uuid': self.volume, 'tag': 'data'},
            ],
        )
        self.front = f'{self.cache(self.server)[1]["address"]} front'
        self.data = f'{self.volume} data'

    def guest(self) -> list[str]:
        """What the metadata service says."""
        with self.cloud.cell.read() as conn:
            row = instances.get(conn, self.server)
            assert row is not None
        instance = objects.Instance.from_row(None, *instances.split(row))
        return [_short(device) for device in meta_data(GuestFacts.of(instance, ''), 'latest')['devices']]

    def drive(self) -> list[str]:
        """What the config drive says."""
        path = self.cloud.directory / self.cloud.host_of(self.server) / 'instances' / self.server / 'disk.config'
        read = subprocess.run(
            ['isoinfo', '-J', '-x', '/openstack/latest/meta_data.json', '-i', str(path)],
            check=True,
            capture_output=True,
        )
        return [_short(device) for device in json.loads(read.stdout)['devices']]

    def shown(self, kind: str) -> dict[str, str | None]:
        """{port or volume: its tag}"""
        found = self.cloud.ok('GET', f'/servers/{self.server}/{kind}')
        (listed,) = found.values()
        return {one.get('port_id') or one['volumeId']: one['tag'] for one in listed}

    def change(self, method: str, path: str, body: Any = None) -> None:
        assert self.cloud.request(method, f'/servers/{self.server}/{path}', body).status_int in (200, 202)
        self.cloud.settle(kinds_left=('release',))


def _short(device: dict[str, Any]) -> str:
    return f'{device.get("mac") or device["serial"]} {device["tags"][0]}'


@pytest.fixture
def tagged(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Tagged:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.compute.ports.LOOK', 0.05)
    return Tagged(make_cloud)


def test_from_create_to_delete(tagged: Tagged) -> None:
    """Tags of devices stay right while devices are attached and detached, the server moves, Neutron sends events,
    and the server is shelved. Each config drive has the tags of the moment when it was made."""
    cloud, server = tagged.cloud, tagged.server
    both = [tagged.front, tagged.data]
    assert tagged.guest() == tagged.drive() == both
    plain, front = (vif['id'] for vif in tagged.cache(server))
    assert tagged.shown('os-interface') == {plain: None, front: 'front'}
    assert tagged.shown('os-volume_attachments') == {tagged.volume: 'data'}
    # 1. more, and less
    cloud.action(server, 'os-stop')
    answer = cloud.request(
        'POST', f'/servers/{server}/os-interface', {'interfaceAttachment': {'net_id': tagged.network, 'tag': 'back'}}
    )
    cloud.settle()
    body = answer.json['interfaceAttachment']
    assert body['tag'] == 'back' and tagged.shown('os-interface')[body['port_id']] == 'back'
    tagged.change('POST', 'os-volume_attachments', {'volumeAttachment': {'volumeId': tagged.second, 'tag': 'logs'}})
    back, logs = f'{body["mac_addr"]} back', f'{tagged.second} logs'
    assert tagged.guest() == [tagged.front, back, tagged.data, logs]
    # 2. Neutron has news: only the cache knows tags
    tagged.notify([{'name': 'network-changed', 'server_uuid': server, 'tag': front}])
    cloud.settle()
    assert tagged.shown('os-interface')[front] == 'front'
    tagged.change('DELETE', f'os-interface/{front}')
    tagged.change('DELETE', f'os-volume_attachments/{tagged.volume}')
    assert tagged.guest() == [back, logs] and tagged.drive() == both
    # 3. elsewhere
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(vcpus=2)})
    assert cloud.status(server) == 'VERIFY_RESIZE' and tagged.guest() == [back, logs]
    cloud.action(server, 'revertResize')
    assert tagged.guest() == [back, logs]
    # 4. on no host, where nobody notes what goes
    cloud.action(server, 'shelve')
    assert cloud.status(server) == 'SHELVED_OFFLOADED'
    tagged.change('DELETE', f'os-volume_attachments/{tagged.second}')
    cloud.action(server, 'unshelve')
    assert tagged.guest() == tagged.drive() == [back]
    tagged.delete(server)
    tagged.assert_empty()


@pytest.mark.parametrize('kind', ['attach', 'detach'])
def test_what_is_undone_is_noted_too(tagged: Tagged, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Its host has noted what came, or went, when the operation fails."""
    cloud, server, noted = tagged.cloud, tagged.server, []

    def fails(real: Callable[..., Any], work: Any) -> None:
        monkeypatch.setattr('kilonova.conductor.flows.network.interfaces._end', lambda *args: None)
        real(work)
        noted.append(tagged.guest())
        raise errors.KilonovaError('enough')

    cloud.action(server, 'os-stop')
    front = tagged.cache(server)[1]['id']
    disturb(monkeypatch, f'{kind}_interface', 3 if kind == 'attach' else 0, fails)
    if kind == 'attach':
        assert (
            cloud.request(
                'POST',
                f'/servers/{server}/os-interface',
                {'interfaceAttachment': {'net_id': tagged.network, 'tag': 'back'}},
            ).status_int
            == 409
        )
        assert [len(devices) for devices in noted] == [3]
    else:
        tagged.change('DELETE', f'os-interface/{front}')
        assert noted == [[tagged.data]]
    assert tagged.guest() == [tagged.front, tagged.data]
