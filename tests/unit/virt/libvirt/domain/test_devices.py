"""Devices besides disks: what flavor and image ask for, and the host's own."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors
from kilonova.virt.libvirt.devices.mdev import MediatedDevice
from kilonova.virt.libvirt.devices.pci import PciFunction
from kilonova.virt.libvirt.domain.builder import CONFIGURATORS
from kilonova.virt.libvirt.domain.devices import (
    BalloonConfigurator,
    ControllerConfigurator,
    GraphicsConfigurator,
    HostdevConfigurator,
    InputConfigurator,
    RngConfigurator,
    SerialConfigurator,
    VideoConfigurator,
)
from kilonova.virt.libvirt.domain.guest import Consoles, DeviceModels, GuestDisk, Spice
from kilonova.virt.parts.guests import NotOnThisHost, UnsupportedHardware
from tests.unit.virt.builders import MDEV, MDEV2
from tests.unit.virt.libvirt.domain.conftest import Configure, text

BACKEND = '<backend model="random">/dev/urandom</backend>'
GPU = (
    '<hostdev mode="subsystem" type="pci" managed="yes"><source>'
    '<address domain="0x0000" bus="0x08" slot="0x00" function="0x0"/></source></hostdev>'
)
USB, USED, ROOT, PORT = ('usb', 'none'), ('usb', None), ('pci', 'pcie-root'), ('pci', 'pcie-root-port')


@pytest.mark.parametrize(
    ('asked', 'rng'),
    [
        ({}, f'<rng model="virtio">{BACKEND}</rng>'),
        (
            {'extra_specs': {'hw_rng:rate_bytes': '10', 'hw_rng:rate_period': '1000'}},
            f'<rng model="virtio"><rate period="1000" bytes="10"/>{BACKEND}</rng>',
        ),
        ({'extra_specs': {'hw_rng:allowed': 'False'}}, ''),
        ({'properties': {'hw_rng_model': 'virtio'}}, f'<rng model="virtio">{BACKEND}</rng>'),
        ({'settings': {'rng_source': None}}, ''),
        ({'settings': {'virt_type': 'lxc'}}, ''),
    ],
)
def test_rng(configure: Configure, asked: dict[str, Any], rng: str) -> None:
    assert text(configure(RngConfigurator(), **asked).find('devices/rng')) == rng


def test_nothing_but_the_address(configure: Configure) -> None:
    """The XML of a hostdev has nothing but the address of its device. libvirt adds driver and alias."""
    domain = configure(HostdevConfigurator(), hostdevs=(PciFunction('0000:08:00.0'),))
    assert text(domain.find('devices')) == f'<devices>{GPU}</devices>'


def test_several_in_the_order_given(configure: Configure) -> None:
    domain = configure(
        HostdevConfigurator(), hostdevs=(PciFunction('0000:88:1f.7', managed=False), PciFunction('0000:08:00.0'))
    )
    first, second = domain.findall('devices/hostdev')
    assert text(second) == GPU
    assert first.get('managed') == 'no'
    assert '<address domain="0x0000" bus="0x88" slot="0x1f" function="0x7"/>' in text(first)


def test_mediated_devices_beside_a_function(configure: Configure) -> None:
    domain = configure(
        HostdevConfigurator(),
        hostdevs=(
            MediatedDevice(MDEV2, '0000:84:00.0', 'nvidia-35'),
            PciFunction('0000:08:00.0'),
            MediatedDevice(MDEV, '0000:85:00.0', 'nvidia-36'),
        ),
    )
    vgpu = (
        '<hostdev mode="subsystem" type="mdev" managed="no" model="vfio-pci"><source><address uuid="{}"/></source>'
        '</hostdev>'
    )
    assert text(domain.find('devices')) == f'<devices>{vgpu.format(MDEV2)}{GPU}{vgpu.format(MDEV)}</devices>'


@pytest.mark.parametrize('virt_type', ['lxc', 'parallels'])
def test_guests_that_cannot_have_any(configure: Configure, virt_type: str) -> None:
    """A virtualisation type without PCI passthrough raises PciDeviceUnsupportedHypervisor."""
    with pytest.raises(errors.PciDeviceUnsupportedHypervisor, match=virt_type):
        configure(HostdevConfigurator(), settings={'virt_type': virt_type}, hostdevs=(PciFunction('0000:08:00.0'),))


@pytest.mark.parametrize(
    ('settings', 'controllers'),
    [
        ({}, [USB]),
        ({'pcie_ports': 2}, [USB]),
        ({'pcie_ports': 2, 'machines': {'x86_64': 'q35'}}, [USB, ROOT, PORT, PORT]),
        ({'pcie_ports': 0, 'machines': {'x86_64': 'q35'}}, [USB]),
        ({'pcie_ports': 1, 'arch': 'aarch64'}, [ROOT, PORT]),
    ],
)
def test_controllers(configure: Configure, settings: dict[str, Any], controllers: list[tuple[str, str]]) -> None:
    domain = configure(ControllerConfigurator(), settings=settings)
    assert [(found.get('type'), found.get('model')) for found in domain.findall('devices/controller')] == controllers


@pytest.mark.parametrize('properties', [{'hw_disk_bus': 'usb'}, {'hw_cdrom_bus': 'usb'}, {}])
def test_disks_on_usb_have_a_controller(configure: Configure, properties: dict[str, str]) -> None:
    """A domain with a disk or CD-ROM on USB has a USB controller; others have USB switched off."""
    disks = (GuestDisk('/disk', 'qcow2'), GuestDisk('/cd', 'raw', 'cdrom'))
    domain = configure(ControllerConfigurator(), disks=disks, properties=properties)
    assert [(found.get('type'), found.get('model')) for found in domain.findall('devices/controller')] == [
        USED if properties else USB
    ]


@pytest.mark.parametrize(
    ('settings', 'balloon'),
    [
        ({}, '<memballoon model="virtio" autodeflate="on" freePageReporting="on"><stats period="10"/></memballoon>'),
        ({'memory_stats_period': 0}, '<memballoon model="none"/>'),
        ({'virt_type': 'lxc'}, ''),
    ],
)
def test_balloon(configure: Configure, settings: dict[str, Any], balloon: str) -> None:
    assert text(configure(BalloonConfigurator(), settings=settings).find('devices/memballoon')) == balloon


def test_serial_ports(configure: Configure) -> None:
    domain = configure(
        *CONFIGURATORS,
        console_log='/c',
        extra_specs={'hw:serial_port_count': '3'},
        properties={'hw_serial_port_count': '2'},
    )
    assert [text(port) for port in domain.findall('devices/serial')] == [
        '<serial type="pty"><log file="/c" append="off"/><target port="0"/></serial>',
        '<serial type="pty"><target port="1"/></serial>',
    ]


@pytest.mark.parametrize(
    'asked', [{'extra_specs': {'hw:watchdog_action': 'reset'}}, {'properties': {'hw_watchdog_action': 'reset'}}]
)
def test_watchdog(configure: Configure, asked: dict[str, Any]) -> None:
    domain = configure(*CONFIGURATORS, **asked)
    assert text(domain.find('devices/watchdog')) == '<watchdog model="i6300esb" action="reset"/>'


@pytest.mark.parametrize(
    ('properties', 'video'),
    [
        ({'hw_video_model': 'qxl', 'hw_video_ram': '32'}, '<video><model type="qxl" vram="32768"/></video>'),
        ({'hw_video_model': 'none'}, '<video><model type="none"/></video>'),
        ({'hw_video_ram': '64'}, '<video><model type="vga" vram="65536"/></video>'),
    ],
)
def test_video(configure: Configure, properties: dict[str, str], video: str) -> None:
    domain = configure(*CONFIGURATORS, properties=properties, extra_specs={'hw_video:ram_max_mb': '64'})
    assert text(domain.find('devices/video')) == video


@pytest.mark.parametrize(
    ('model', 'error', 'said'),
    [
        ('gop', UnsupportedHardware, 'video gop'),
        (
            'qxl',
            NotOnThisHost,
            "'qxl' of 'hw_video_model' is not supported by this host: it must be one of vga, virtio",
        ),
    ],
)
def test_a_graphics_adapter_that_the_host_does_not_have(
    configure: Configure, model: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        configure(
            *CONFIGURATORS,
            settings={'video_models': frozenset({'vga', 'virtio'})},
            properties={'hw_video_model': model},
        )


Q35 = {'hw_machine_type': 'q35'}
MODELS = DeviceModels(sound=frozenset({'ich9', 'usb'}), iommu=frozenset({'intel'}), usb=frozenset({'qemu-xhci'}))
INTEL = '<iommu model="intel"><driver intremap="on" caching_mode="on" iotlb="on" aw_bits="48"/></iommu>'


@pytest.mark.parametrize(
    'asked', [{'extra_specs': {'hw:sound_model': 'ich9'}}, {'properties': {'hw_sound_model': 'ich9'}}]
)
def test_sound(configure: Configure, asked: dict[str, Any]) -> None:
    assert text(configure(*CONFIGURATORS, **asked).find('devices/sound')) == '<sound model="ich9"/>'


def test_a_sound_card_on_usb_has_a_controller(configure: Configure) -> None:
    domain = configure(*CONFIGURATORS, extra_specs={'hw:sound_model': 'usb'})
    assert text(domain.find('devices/controller')) == '<controller type="usb" index="0"/>'


@pytest.mark.parametrize(
    ('extra_specs', 'properties', 'settings', 'iommu'),
    [
        ({'hw:viommu_model': 'intel'}, Q35, {}, INTEL),
        ({'hw:viommu_model': 'auto'}, Q35, {}, INTEL),
        ({}, {**Q35, 'hw_viommu_model': 'virtio'}, {}, '<iommu model="virtio"/>'),
        ({}, {'hw_viommu_model': 'smmuv3'}, {'arch': 'aarch64'}, '<iommu model="smmuv3"/>'),
        ({'hw:viommu_model': 'auto'}, {}, {'arch': 'aarch64'}, '<iommu model="smmuv3"/>'),
    ],
)
def test_iommus(
    configure: Configure, extra_specs: dict[str, str], properties: dict[str, str], settings: dict[str, Any], iommu: str
) -> None:
    domain = configure(*CONFIGURATORS, extra_specs=extra_specs, properties=properties, settings=settings)
    assert text(domain.find('devices/iommu')) == iommu


def test_many_cpus_need_wide_interrupts(configure: Configure) -> None:
    for vcpus, eim in ((255, None), (256, 'on')):
        domain = configure(
            *CONFIGURATORS, extra_specs={'hw:viommu_model': 'intel'}, properties=Q35, flavor={'vcpus': vcpus}
        )
        driver = domain.find('devices/iommu/driver')
        assert driver is not None and driver.get('eim') == eim


@pytest.mark.parametrize(
    'asked', [{'extra_specs': {'hw:usb_model': 'qemu-xhci'}}, {'properties': {'hw_usb_model': 'qemu-xhci'}}]
)
def test_usb(configure: Configure, asked: dict[str, Any]) -> None:
    """Whether anything is on it or not."""
    for settings in ({}, {'consoles': VNC}, {'arch': 'aarch64'}):
        found = configure(*CONFIGURATORS, settings=settings, **asked).findall('devices/controller')
        assert [text(one) for one in found] == ['<controller type="usb" index="0" model="qemu-xhci"/>']


def test_an_ich9_has_companions_for_slow_devices(configure: Configure) -> None:
    domain = configure(ControllerConfigurator(), extra_specs={'hw:usb_model': 'ich9-ehci1'})
    assert [text(one) for one in domain.findall('devices/controller')] == [
        '<controller type="usb" index="0" model="ich9-ehci1"/>',
        *(
            f'<controller type="usb" index="0" model="ich9-uhci{number}"><master startport="{port}"/></controller>'
            for number, port in ((1, 0), (2, 2), (3, 4))
        ),
    ]


@pytest.mark.parametrize(
    ('extra_specs', 'properties', 'said'),
    [
        ({'hw:sound_model': 'virtio'}, {}, "'virtio' of 'hw:sound_model' .* ich9, usb"),
        ({'hw:usb_model': 'vt82c686b-uhci'}, {}, "'vt82c686b-uhci' of 'hw:usb_model' .* qemu-xhci"),
        ({'hw:viommu_model': 'smmuv3'}, Q35, "'smmuv3' of 'hw:viommu_model' .* intel"),
        ({'hw:viommu_model': 'intel'}, {}, "'intel' of 'hw:viommu_model' .* machine type pc does not support"),
        ({'hw:viommu_model': 'auto'}, {}, "'intel' of 'hw:viommu_model' .* machine type pc does not support"),
    ],
)
def test_models_that_the_host_does_not_have(
    configure: Configure, extra_specs: dict[str, str], properties: dict[str, str], said: str
) -> None:
    with pytest.raises(NotOnThisHost, match=said):
        configure(*CONFIGURATORS, settings={'models': MODELS}, extra_specs=extra_specs, properties=properties)


def test_an_iommu_on_a_board_that_the_image_names_and_that_has_none(configure: Configure) -> None:
    with pytest.raises(UnsupportedHardware, match='IOMMU intel on machine type pc'):
        configure(*CONFIGURATORS, extra_specs={'hw:viommu_model': 'intel'}, properties={'hw_machine_type': 'pc'})


def test_the_port_of_the_guest_agent(configure: Configure) -> None:
    domain = configure(*CONFIGURATORS, properties={'hw_qemu_guest_agent': 'yes'})
    assert text(domain.find('devices/channel')) == (
        '<channel type="unix"><target type="virtio" name="org.qemu.guest_agent.0"/></channel>'
    )
    assert configure(*CONFIGURATORS, properties={'hw_qemu_guest_agent': 'no'}).find('devices/channel') is None


def test_serial_ports_that_users_write_to(configure: Configure) -> None:
    domain = configure(
        SerialConfigurator(),
        console_log='/c',
        settings={'consoles': Consoles(serial='192.0.2.10')},
        serial_tcp=(10000, 10001),
        extra_specs={'hw:serial_port_count': '2'},
    )
    assert [text(port) for port in domain.findall('devices/serial')] == [
        (
            '<serial type="tcp"><source mode="bind" host="192.0.2.10" service="10000"/><log file="/c" append="off"/>'
            '<target port="0"/></serial>'
        ),
        '<serial type="tcp"><source mode="bind" host="192.0.2.10" service="10001"/><target port="1"/></serial>',
    ]


VNC, SPICE = Consoles(vnc='192.0.2.10', pointer='usbtablet'), Consoles(spice=Spice('192.0.2.11'), pointer='usbtablet')


def screen(configure: Configure, consoles: Consoles, **more: Any) -> list[str]:
    domain = configure(
        GraphicsConfigurator(),
        VideoConfigurator(),
        InputConfigurator(),
        ControllerConfigurator(),
        settings={'consoles': consoles, **more.pop('settings', {})},
        **more,
    )
    return [text(device) for device in domain.find('devices') or ()]


VNC_XML = '<graphics type="vnc" autoport="yes"><listen type="address" address="192.0.2.10"/></graphics>'
VIDEO, TABLET, BUS = '<video><model type="virtio"/></video>', '<input type="tablet" bus="usb"/>', 'usb" index="0"'


def test_a_screen_by_vnc(configure: Configure) -> None:
    assert screen(configure, VNC) == [VNC_XML, VIDEO, TABLET, f'<controller type="{BUS}/>']
    assert screen(configure, Consoles()) == [f'<controller type="{BUS} model="none"/>']


def test_pointers(configure: Configure) -> None:
    mouse = [VNC_XML, VIDEO, f'<controller type="{BUS} model="none"/>']
    assert screen(configure, VNC, properties={'hw_pointer_model': 'ps2mouse'}) == mouse
    assert screen(configure, Consoles(vnc='192.0.2.10', pointer='ps2mouse')) == mouse
    assert screen(configure, VNC, properties={'hw_input_bus': 'virtio'})[2:] == [
        '<input type="tablet" bus="virtio"/>',
        '<input type="keyboard" bus="virtio"/>',
        f'<controller type="{BUS} model="none"/>',
    ]
    arm = screen(configure, VNC, settings={'arch': 'aarch64'})
    assert arm[2:] == [TABLET, '<input type="keyboard" bus="usb"/>']


def test_a_screen_by_spice(configure: Configure) -> None:
    """Its agent moves the pointer."""
    channel = '<channel type="spicevmc"><target type="virtio" name="com.redhat.spice.0"/></channel>'
    listen = '<listen type="address" address="192.0.2.11"/>'
    assert screen(configure, SPICE) == [
        channel,
        f'<graphics type="spice" autoport="yes">{listen}</graphics>',
        VIDEO,
        f'<controller type="{BUS} model="none"/>',
    ]
    plain = Spice('192.0.2.11', agent=False, secure=True, options={'image': 'off', 'streaming': 'filter'})
    assert screen(configure, Consoles(spice=plain, pointer='usbtablet'))[:3] == [
        (
            f'<graphics type="spice" autoport="yes" defaultMode="secure">{listen}<image compression="off"/>'
            '<streaming mode="filter"/></graphics>'
        ),
        VIDEO,
        TABLET,
    ]


def test_the_adapter_is_one_that_the_host_has(configure: Configure) -> None:
    assert screen(configure, VNC, settings={'video_models': frozenset({'vga', 'none'})})[1] == (
        '<video><model type="vga"/></video>'
    )
    assert screen(configure, VNC, properties={'hw_video_model': 'none'})[1] == '<video><model type="none"/></video>'
