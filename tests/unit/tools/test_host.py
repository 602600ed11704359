"""Tests of `make host`, which adds a host to the one-machine cloud."""

from __future__ import annotations

import subprocess
from pathlib import Path

import libvirt
import pytest
from lxml import etree

import kilonova.conf
from kilonova.pci import kinds
from kilonova.pci.request import Aliases
from kilonova.pci.spec import DeviceSpecs
from kilonova.virt.libvirt.devices import hostdevs
from tools.cloud import host
from tools.cloud.__main__ import main
from tools.cloud.layout import DEFAULT_HOSTS, ROOT, CloudError, find_hosts


def read(*paths: Path) -> kilonova.conf.cfg.ConfigOpts:
    conf = kilonova.conf.new()
    conf([], project='kilonova', default_config_files=[str(path) for path in paths])
    return conf


def test_libvirt_shows_the_devices_and_the_settings_give_them_out(tmp_path: Path) -> None:
    node_file, settings, aliases = host.describe(tmp_path / 'mine', 'gpu3', gpus=5, device='10DE:20b5')
    connection = libvirt.open(f'test://{node_file}')
    try:
        trees = [etree.fromstring(device.XMLDesc()) for device in connection.listAllDevices()]
        assert connection.getInfo()[4:8] == [2, 1, 16, 2]
    finally:
        connection.close()
    devices = [tree for tree in trees if tree.find('capability').get('type') == 'pci']
    assert [tree.findtext('name') for tree in sorted(devices, key=lambda tree: tree.findtext('name'))] == [
        'pci_0000_10_00_0',
        'pci_0000_11_00_0',
        'pci_0000_12_00_0',
        'pci_0000_80_00_0',
        'pci_0000_81_00_0',
    ]
    assert sorted(tree.find('capability/numa').get('node') for tree in devices) == list('00011')
    conf = read(settings, aliases)
    (spec,) = DeviceSpecs.from_conf(conf).specs
    assert spec.match({'vendor_id': '10de', 'product_id': '20b5', 'address': '0000:10:00.0'})
    assert 'gpu-20b5' in str(Aliases.from_conf(conf).__dict__)


def test_a_host_with_vgpus(tmp_path: Path) -> None:
    """Those that its compute gives out."""
    node_file, settings, _ = host.describe(tmp_path / 'mine', 'gpu3', gpus=1, device='10de:20b5', vgpus=3)
    connection = libvirt.open(f'test://{node_file}')
    try:
        found = hostdevs.discover([device.XMLDesc() for device in connection.listAllDevices()])
    finally:
        connection.close()
    functions, mediated = kinds.from_conf(read(settings))
    mediated.check(found)
    assert len(functions.columns(found)) == 1
    assert {one['parent_addr'] for one in mediated.columns(found).values()} == {'0000:70:00.0'}
    assert len(mediated.columns(found)) == 3


def test_the_directory_begins_with_the_shipped_hosts_and_keeps_what_is_there(tmp_path: Path) -> None:
    directory = tmp_path / 'mine'
    host.describe(directory, 'gpu3', gpus=1, device='10de:20b5')
    host.describe(directory, 'gpu4', gpus=1, device='10de:20b5')
    host.describe(directory, 'gpu5', gpus=1, device='10de:13f1')
    assert set(find_hosts(directory)) == {*find_hosts(DEFAULT_HOSTS), 'gpu3', 'gpu4', 'gpu5'}
    # The shipped configuration has the alias of 10de:13f1.
    assert (directory / host.ALIAS_FILE).read_text().count('alias =') == 1
    assert host.alias_name('10de:13f1') == 'QuadroM4000-video'
    with pytest.raises(CloudError, match='is there already'):
        host.describe(directory, 'gpu3', gpus=1, device='10de:20b5')


@pytest.mark.parametrize(
    ('name', 'gpus', 'device'),
    [('GPU 3', 1, '10de:20b5'), ('gpu3', 0, '10de:20b5'), ('gpu3', 65, '10de:20b5'), ('gpu3', 1, '20b5')],
)
def test_what_can_not_be(tmp_path: Path, name: str, gpus: int, device: str) -> None:
    with pytest.raises(CloudError):
        host.describe(tmp_path / 'mine', name, gpus=gpus, device=device)
    with pytest.raises(CloudError, match='VGPUS=65'):
        host.describe(tmp_path / 'mine', 'gpu3', gpus=1, device='10de:20b5', vgpus=65)
    assert not (tmp_path / 'mine').exists()


def test_it_says_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['--var', str(tmp_path), 'host', 'gpu3', '--gpus', '2', '--id', '10de:20b5']) == 0
    described = tmp_path / 'described'
    told = capsys.readouterr().out
    assert f'make up HOSTS={described} CONF={described}/aliases.conf' in told and 'gpu-20b5:1' in told
    done = subprocess.run(
        ['make', '-n', 'host', 'NAME=gpu3', 'GPUS=8', 'ID=10de:20b5', 'VGPUS=2'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'host gpu3 --gpus 8 --vgpus 2 --id 10de:20b5' in ' '.join(done.stdout.replace('\\\n', '').split())
