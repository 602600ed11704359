"""Devices with which a guest could not be started: they rest, and come back by themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kilonova import errors
from tests.fixtures.carved import CarvedSys
from tests.fixtures.cloud import Cloud
from tests.functional.test_device_care import Program, shown
from tests.functional.test_disabled_devices import disable, reserved
from tests.functional.test_one_card_one_guest import foreign

GPU, OTHER = '0000:08:00.0', '0000:09:00.0'
TWO = {'gpu1': [GPU, OTHER]}
FIRST, MOST = 100, 350


class Broken:
    """Guests of a host don't start with these devices. ``time``: the clock of its compute, which a test sets."""

    def __init__(self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
        self.cloud, self.addresses, self.time, self._patch = cloud, set(addresses), 1_800_000_000.0, monkeypatch
        self.attach()

    def attach(self) -> None:
        """Once more after the compute was started anew."""
        compute = self.cloud.computes['gpu1']
        compute.rest.clock = lambda: self.time
        for part, name in ((compute.host.driver.guests, 'spawn'), (compute.host.driver.power, 'power_on')):
            self._patch.setattr(part, name, self._refusing(getattr(part, name)))

    def _refusing(self, act: Any) -> Any:
        def refusing(*args: Any, **kwargs: Any) -> None:
            given = kwargs.get('pci_devices') or (args[2] if len(args) > 2 else ())
            bad = sorted(self.addresses.intersection(device.address for device in given))
            if bad:
                raise errors.DevicesFailed(addresses=bad, reason='vfio 0000: failed to open\n/dev/vfio/42')
            act(*args, **kwargs)

        return refusing

    def look(self, after: float = 0) -> None:
        """The compute's look, so many seconds later."""
        self.time += after
        self.cloud.computes['gpu1'].rest.look()

    def status(self, address: str = GPU) -> str:
        return self.cloud.devices()[f'gpu1 {address}'][0]


def make(make_cloud: Any, monkeypatch: pytest.MonkeyPatch, *addresses: str, **options: Any) -> Broken:
    return Broken(
        make_cloud(TWO, devices__failed_rest=FIRST, devices__failed_rest_max=MOST, **options), monkeypatch, *addresses
    )


def delete(cloud: Cloud, server: str) -> None:
    cloud.ok('DELETE', f'/servers/{server}')
    cloud.settle()


def test_a_device_that_failed_is_not_offered_until_it_was_looked_at(
    make_cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next server gets another, the one after it none, and its host is not asked. All reports say why. A start of
    the compute changes nothing. It is no failed build of the host."""
    broken = make(make_cloud, monkeypatch, GPU, OTHER)
    cloud = broken.cloud
    flavor = cloud.flavor(gpus=1)
    delete(cloud, cloud.boot(flavor))
    (failed,) = [name.split()[1] for name, (status, _) in cloud.devices().items() if status == 'unavailable']
    assert shown(cloud, failed) == {
        'failed': 'vfio 0000: failed to open /dev/vfio/42; failure 1, checked again after 2027-01-15T08:01:40Z'
    }
    assert reserved(cloud, 'gpu1', failed) == 1
    assert cloud.computes['gpu1'].host.tracker.failed_builds == 0
    metrics = cloud.request('GET', '/metrics', mount='/kilonova/v1').text
    assert 'kilonova_devices_barred{host="gpu1",kind="pci",reason="failed"} 1' in metrics
    broken.addresses.clear()
    assert cloud.hostdevs(cloud.boot(flavor)) == sorted({GPU, OTHER} - {failed})
    cloud.assert_clean()
    cloud.crash_compute('gpu1')
    cloud.start_compute('gpu1')
    broken.attach()
    broken.look(FIRST - 1)
    asked = len(cloud.messages)
    refused = cloud.boot(flavor)
    assert cloud.status(refused) == 'ERROR'
    assert [one for one in cloud.messages[asked:] if one[3] == 'build_and_run_instance'] == []
    delete(cloud, refused)
    broken.look(2)
    assert (broken.status(failed), shown(cloud, failed), reserved(cloud, 'gpu1', failed)) == ('available', {}, 0)
    assert cloud.hostdevs(cloud.boot(flavor)) == [failed]
    cloud.assert_clean()


def test_its_time_grows_up_to_a_bound(make_cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And begins anew when a guest ran with it."""
    broken = make(make_cloud, monkeypatch, GPU)
    cloud = broken.cloud
    disable(cloud, 'gpu1', OTHER)
    flavor = cloud.flavor(gpus=1)
    for number, seconds in enumerate([FIRST, 2 * FIRST, MOST, MOST], 1):
        delete(cloud, cloud.boot(flavor))
        assert f'failure {number}, ' in shown(cloud, GPU)['failed']
        broken.look(seconds - 1)
        assert broken.status() == 'unavailable'
        broken.look(2)
        assert broken.status() == 'available'
    broken.addresses.clear()
    delete(cloud, cloud.boot(flavor))
    broken.addresses.add(GPU)
    delete(cloud, cloud.boot(flavor))
    assert 'failure 1, ' in shown(cloud, GPU)['failed']


def test_a_look_that_finds_it_bad(make_cloud: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It rests on with the new reason: fallen off the bus, held by a domain of somebody else, not well by the
    operator's command. Then it comes back."""
    sys, program = CarvedSys(monkeypatch, tmp_path), Program(tmp_path)
    broken = make(
        make_cloud, monkeypatch, GPU, devices__health_check=program.command, devices__health_check_interval=-1
    )
    cloud = broken.cloud
    disable(cloud, 'gpu1', OTHER)
    delete(cloud, cloud.boot(cloud.flavor(gpus=1)))
    sys.fall_off(GPU)
    broken.look(FIRST + 1)
    assert shown(cloud, GPU)['failed'].startswith(f'{GPU} does not answer any more')
    sys.fall_off(GPU, gone=False)
    with foreign(cloud, GPU) as name:
        broken.look(2 * FIRST + 1)
        assert f"domain '{name}'" in shown(cloud, GPU)['failed']
    program.bad.write_text(GPU)
    broken.look(MOST + 1)
    assert shown(cloud, GPU)['failed'].startswith('health_check ended with 3')
    program.bad.write_text('')
    broken.look(MOST + 1)
    assert (shown(cloud, GPU), broken.status()) == ({}, 'available')


def test_a_stopped_server_is_started_with_its_device_again(make_cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server keeps it; a start that goes well is the best look."""
    broken = make(make_cloud, monkeypatch)
    cloud = broken.cloud
    server = cloud.boot(cloud.flavor(gpus=1))
    (address,) = cloud.hostdevs(server)
    cloud.action(server, 'os-stop')
    broken.addresses.add(address)
    cloud.action(server, 'os-start')
    assert cloud.status(server) == 'SHUTOFF' and 'failed' in shown(cloud, address)
    assert 'vfio 0000' in json.dumps(cloud.story(server))
    broken.addresses.clear()
    cloud.action(server, 'os-start')
    assert (cloud.status(server), shown(cloud, address)) == ('ACTIVE', {})
    cloud.assert_clean()


def test_an_operator_enables_it(make_cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = make(make_cloud, monkeypatch, GPU, OTHER)
    server = broken.cloud.boot(broken.cloud.flavor(gpus=1))
    delete(broken.cloud, server)
    for address in (GPU, OTHER):
        disable(broken.cloud, 'gpu1', address, None)
        assert (shown(broken.cloud, address), broken.status(address)) == ({}, 'available')


def test_zero_seconds_is_off(make_cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = make_cloud(TWO, devices__failed_rest=0)
    Broken(cloud, monkeypatch, GPU, OTHER)
    delete(cloud, cloud.boot(cloud.flavor(gpus=1)))
    assert {status for status, _ in cloud.devices().values()} == {'available'}
