"""What the fake has besides the contract: failures on demand and a shape of its own."""
from __future__ import annotations

from pathlib import Path

import pytest

from kilonova.virt.fake import FakeDriver, FakeMachine
from tests.unit.virt.builders import GPU, devices, image_meta, new_conf, new_instance


@pytest.fixture
def fake(tmp_path: Path) -> FakeDriver:
    return FakeDriver(new_conf(tmp_path), machine=FakeMachine())


def test_failing_before_the_work(fake: FakeDriver) -> None:
    instance = new_instance()
    fake.fail('spawn', OSError('boom'))
    with pytest.raises(OSError, match='boom'):
        fake.guests.spawn(instance, image_meta())
    assert fake.guests.describe() == []
    fake.guests.spawn(instance, image_meta())
    assert len(fake.guests.describe()) == 1


def test_failing_after_the_work(fake: FakeDriver) -> None:
    instance = new_instance()
    fake.fail('spawn', OSError('boom'), after=True)
    with pytest.raises(OSError, match='boom'):
        fake.guests.spawn(instance, image_meta(), pci_devices=devices(GPU))
    assert fake.guests.describe()[0]['hostdevs'] == [GPU]


def test_calls_are_noted(fake: FakeDriver) -> None:
    instance = new_instance()
    fake.guests.destroy(instance)
    fake.host.get_available_resource()
    assert fake.calls == [('destroy', instance.uuid), ('get_available_resource', None)]


def test_devices_are_the_tests_own(fake: FakeDriver) -> None:
    fake.pci_devices.append({'address': GPU})
    assert fake.host.get_available_resource()['pci_passthrough_devices'] == [{'address': GPU}]
