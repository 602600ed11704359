"""Loading a driver, and names of guests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import stevedore

from kilonova.virt import driver
from kilonova.virt.fake import FakeDriver
from tests.unit.virt.builders import new_conf, new_instance


@pytest.mark.parametrize(
    ('template', 'name'),
    [('instance-%08x', 'instance-0000001f'), ('vm-%(uuid)s', 'vm-u-1'), ('%(project_id)s-%(id)d', 'demo-31')],
)
def test_guest_names_follow_the_template(tmp_path: Path, template: str, name: str) -> None:
    conf = new_conf(tmp_path, instance_name_template=template)
    assert driver.guest_name(conf, new_instance(id=0x1F, uuid='u-1')) == name


def test_load_gives_conf_and_image_client_to_the_class_of_the_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's class is found by its entry point, and gets the configuration and the image client."""
    asked = []

    def manager(namespace: str, name: str, **kwargs: object) -> SimpleNamespace:
        asked.append((namespace, name))
        return SimpleNamespace(driver=FakeDriver)

    monkeypatch.setattr(stevedore, 'DriverManager', manager)
    images = object()
    loaded = driver.load(new_conf(tmp_path, compute_driver='fake.FakeDriver'), images)  # type: ignore[arg-type]
    assert asked == [('kilonova.virt.drivers', 'fake.FakeDriver')]
    assert isinstance(loaded, FakeDriver) and loaded.image_client is images


def test_an_unknown_driver_is_named(tmp_path: Path) -> None:
    with pytest.raises(driver.DriverNotLoaded, match=r"'nosuch\.Driver'"):
        driver.load(new_conf(tmp_path, compute_driver='nosuch.Driver'))


def test_no_driver_at_all_says_which_option_is_missing(tmp_path: Path) -> None:
    with pytest.raises(driver.DriverNotLoaded, match='compute_driver is not set'):
        driver.load(new_conf(tmp_path))
