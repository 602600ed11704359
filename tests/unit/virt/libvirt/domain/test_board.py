"""What flavors and images ask of the board: CPU quotas, limits of disks, serial ports, watchdog, video, agent.

Finding 3.6: all of them were accepted, and the guest had none.
"""
from __future__ import annotations

from typing import Any

import pytest

from kilonova.virt.driver import UnsupportedHardware
from kilonova.virt.libvirt.domain.builder import CONFIGURATORS
from kilonova.virt.libvirt.domain.guest import GuestDisk
from tests.unit.virt.libvirt.domain.conftest import Configure, text

DISKS = (GuestDisk('/i/disk', 'qcow2'), GuestDisk('/i/disk.config', 'raw', 'cdrom'))


def test_nobody_asked(configure: Configure) -> None:
    domain = configure(*CONFIGURATORS, disks=DISKS, console_log='/c')
    for path in ('cputune', 'devices/disk/iotune', 'devices/watchdog', 'devices/video', 'devices/channel'):
        assert domain.find(path) is None, path
    assert len(domain.findall('devices/serial')) == 1


def test_cpu_quota(configure: Configure) -> None:
    domain = configure(*CONFIGURATORS, extra_specs={
        'quota:cpu_quota': '20000', 'quota:cpu_shares': '512', 'quota:cpu_period': '10000'})
    assert text(domain.find('cputune')) == (
        '<cputune><shares>512</shares><period>10000</period><quota>20000</quota></cputune>')


def test_limits_of_disks(configure: Configure) -> None:
    domain = configure(*CONFIGURATORS, disks=DISKS, extra_specs={
        'quota:disk_write_bytes_sec': '1048576', 'quota:disk_total_iops_sec': '500'})
    root, drive = domain.findall('devices/disk')
    assert text(root.find('iotune')) == (
        '<iotune><write_bytes_sec>1048576</write_bytes_sec><total_iops_sec>500</total_iops_sec></iotune>')
    assert drive.find('iotune') is None


def test_serial_ports(configure: Configure) -> None:
    domain = configure(*CONFIGURATORS, console_log='/c', extra_specs={'hw:serial_port_count': '3'},
                       properties={'hw_serial_port_count': '2'})
    assert [text(port) for port in domain.findall('devices/serial')] == [
        '<serial type="pty"><log file="/c" append="off"/><target port="0"/></serial>',
        '<serial type="pty"><target port="1"/></serial>']


@pytest.mark.parametrize('asked', [{'extra_specs': {'hw:watchdog_action': 'reset'}},
                                   {'properties': {'hw_watchdog_action': 'reset'}}])
def test_watchdog(configure: Configure, asked: dict[str, Any]) -> None:
    domain = configure(*CONFIGURATORS, **asked)
    assert text(domain.find('devices/watchdog')) == '<watchdog model="i6300esb" action="reset"/>'


@pytest.mark.parametrize(('properties', 'video'), [
    ({'hw_video_model': 'qxl', 'hw_video_ram': '32'}, '<video><model type="qxl" vram="32768"/></video>'),
    ({'hw_video_model': 'none'}, '<video><model type="none"/></video>'),
    ({'hw_video_ram': '64'}, '<video><model type="virtio" vram="65536"/></video>')])
def test_video(configure: Configure, properties: dict[str, str], video: str) -> None:
    domain = configure(*CONFIGURATORS, properties=properties, extra_specs={'hw_video:ram_max_mb': '64'})
    assert text(domain.find('devices/video')) == video


@pytest.mark.parametrize(('model', 'models'), [('gop', frozenset()), ('qxl', frozenset({'vga', 'virtio'}))])
def test_a_graphics_adapter_that_the_host_does_not_have(configure: Configure, model: str,
                                                        models: frozenset[str]) -> None:
    with pytest.raises(UnsupportedHardware, match=f'video {model}'):
        configure(*CONFIGURATORS, settings={'video_models': models}, properties={'hw_video_model': model})


def test_the_port_of_the_guest_agent(configure: Configure) -> None:
    domain = configure(*CONFIGURATORS, properties={'hw_qemu_guest_agent': 'yes'})
    assert text(domain.find('devices/channel')) == (
        '<channel type="unix"><target type="virtio" name="org.qemu.guest_agent.0"/></channel>')
    assert configure(*CONFIGURATORS, properties={'hw_qemu_guest_agent': 'no'}).find('devices/channel') is None
