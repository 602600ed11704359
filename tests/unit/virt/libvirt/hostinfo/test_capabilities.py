"""libvirt's capabilities, and the traits that a host gets from them."""

from __future__ import annotations

import libvirt
import pytest

from kilonova.virt.libvirt.host import LibvirtHost
from kilonova.virt.libvirt.hostinfo import capabilities, inventory
from kilonova.virt.libvirt.hostinfo.capabilities import GuestCapabilities
from kilonova.virt.parts.host import HypervisorUnavailable

KVM = """<capabilities><host><uuid>u-1</uuid><cpu><arch>x86_64</arch><model>EPYC</model><vendor>AMD</vendor>
  <feature name='svm'/><feature name='aes'/></cpu>
  <topology><cells num='2'>
    <cell id='0'><memory unit='KiB'>2097152</memory><pages unit='KiB' size='4'>524288</pages>
      <pages unit='KiB' size='2048'>0</pages><cpus num='2'>
      <cpu id='0' socket_id='0' core_id='0' siblings='0,4'/><cpu id='4' socket_id='0' core_id='0' siblings='0,4'/>
      </cpus></cell>
    <cell id='1'><memory unit='KiB'>1048576</memory><cpus num='2'><cpu id='1' socket_id='1' siblings='1-2'/>
      <cpu id='2' socket_id='1' siblings='1-2'/></cpus></cell></cells></topology></host>
  <guest><os_type>hvm</os_type><arch name='x86_64'><domain type='qemu'/><domain type='kvm'/></arch></guest>
  <guest><os_type>xen</os_type><arch name='i686'><domain type='xen'/></arch></guest></capabilities>"""


def test_a_kvm_host() -> None:
    found = capabilities.parse(KVM)
    assert (found.arch, found.cpu_model, found.cpu_vendor, found.cpu_features, found.uuid) == (
        'x86_64',
        'EPYC',
        'AMD',
        ('aes', 'svm'),
        'u-1',
    )
    assert found.supported() == [['x86_64', 'qemu', 'hvm'], ['x86_64', 'kvm', 'hvm']]


def test_machine_types_and_how_many_cpus_each_has() -> None:
    told = KVM.replace(
        "<domain type='qemu'/><domain type='kvm'/>",
        (
            "<machine maxCpus='255'>pc-i440fx-7.2</machine><machine canonical='pc-i440fx-7.2' "
            "maxCpus='255'>pc</machine>"
            "<machine>none</machine><domain type='qemu'/><domain type='kvm'>"
            "<machine maxCpus='710'>pc</machine></domain>"
        ),
    )
    assert capabilities.parse(told).machines == {'x86_64': {'pc-i440fx-7.2': 255, 'pc': 710, 'none': None}, 'i686': {}}
    assert capabilities.parse(KVM).machines == {'x86_64': {}, 'i686': {}}
    assert capabilities.parse(told, test=True).machines == {}


def test_a_look_at_the_emulators_that_failed_is_no_answer() -> None:
    """libvirt keeps it until it is asked for its capabilities again: so they aren't kept here either."""
    failed = KVM.replace("<arch name='x86_64'>", "<arch name='i686'>")

    class Libvirt:
        name, is_test, answers = 'gpu1', False, [failed, KVM]

        def capabilities_xml(self) -> str:
            return self.answers.pop(0)

    host = LibvirtHost(None, Libvirt(), None, None, None, None, None)  # type: ignore[arg-type]
    with pytest.raises(HypervisorUnavailable, match='no emulator for guests of architecture x86_64'):
        host.capabilities  # noqa: B018
    assert host.capabilities.supported() == [['x86_64', 'qemu', 'hvm'], ['x86_64', 'kvm', 'hvm']]
    assert host.capabilities.arch == 'x86_64' and not Libvirt.answers


def test_numa_cells() -> None:
    first, second = capabilities.parse(KVM).cells
    assert (first.id, sorted(first.cpus), first.memory_mb, first.socket) == (0, [0, 4], 2048, 0)
    assert first.siblings == (frozenset({0, 4}),) and first.pages == {4: 524288, 2048: 0}
    assert second.siblings == (frozenset({1, 2}),) and second.socket == 1


def test_the_test_driver_plays_an_x86_64() -> None:
    found = capabilities.parse(
        "<capabilities><host><cpu><arch>i686</arch></cpu><topology><cells num='0'/></topology></host></capabilities>",
        test=True,
    )
    assert found.arch == 'x86_64' and found.cells == ()
    assert found.supported() == [['x86_64', 'kvm', 'hvm'], ['x86_64', 'qemu', 'hvm']]


# As libvirt 10 answers, shortened.
GUEST = """<domainCapabilities><path>/usr/bin/qemu-system-x86_64</path><domain>kvm</domain><machine>{machine}</machine>
  <arch>x86_64</arch><vcpu max='255'/>
  <os supported='yes'><enum name='firmware'>{firmware}</enum>
    <loader supported='yes'><enum name='type'><value>rom</value><value>pflash</value></enum>
      <enum name='secure'><value>no</value>{secure}</enum></loader></os>
  <devices><disk supported='yes'><enum name='diskDevice'><value>disk</value></enum>
      <enum name='bus'><value>{bus}</value><value>virtio</value></enum></disk>
    <graphics supported='yes'><enum name='type'><value>vnc</value></enum></graphics>
    <video supported='yes'><enum name='modelType'><value>vga</value><value>none</value></enum></video>
    <hostdev supported='yes'/></devices></domainCapabilities>"""


class Asked:
    """libvirt, for machine types that it knows."""

    def __init__(self, libvirt_version: int = 9000000, version: int = 7002000, is_test: bool = False) -> None:
        self.is_test, self._versions = is_test, (libvirt_version, version)

    def libvirt_version(self) -> int:
        return self._versions[0]

    def version(self) -> int:
        return self._versions[1]

    def domain_capabilities(self, arch: str, machine: str, virt_type: str) -> str:
        assert (arch, virt_type) == ('x86_64', 'kvm')
        if machine == 'pc':
            return GUEST.format(machine=machine, bus='ide', firmware='', secure='')
        if machine == 'q35':
            return GUEST.format(machine=machine, bus='sata', firmware='<value>efi</value>', secure='<value>yes</value>')
        raise libvirt.libvirtError('invalid argument: the machine is not supported')


def test_what_guests_can_have_on_any_machine_type() -> None:
    found = capabilities.of_guests(Asked(), 'x86_64', 'kvm', {'pc', 'q35', 'pc-i440fx-1.0'})  # type: ignore[arg-type]
    assert found == GuestCapabilities(
        frozenset({'ide', 'sata', 'virtio'}),
        frozenset({'vga', 'none'}),
        frozenset({'vnc'}),
        True,
        True,
        capabilities.device_models('x86_64', 9000000, 7002000),
        True,
    )
    plain = capabilities.of_guests(Asked(), 'x86_64', 'kvm', {'pc'})  # type: ignore[arg-type]
    assert (plain.has_uefi, plain.has_secure_boot) == (False, False)


def test_a_libvirt_that_says_nothing() -> None:
    newest = Asked(libvirt_version=11000000, is_test=True)
    found = capabilities.of_guests(newest, 'x86_64', 'kvm', {'nosuch'})  # type: ignore[arg-type]
    assert found == capabilities.usual('x86_64')
    assert 'ide' not in capabilities.usual('aarch64').buses and capabilities.usual('aarch64').has_uefi


@pytest.mark.parametrize(
    ('libvirt_version', 'qemu', 'sound', 'iommu', 'spaces'),
    [
        (8000000, 6002000, False, False, False),
        (8003000, 6002000, False, True, False),
        (8007000, 6002000, False, True, True),
        (10004000, 8001000, False, True, True),
        (10003000, 8002000, False, True, True),
        (10004000, 8002000, True, True, True),
    ],
)
def test_models_come_with_versions(libvirt_version: int, qemu: int, sound: bool, iommu: bool, spaces: bool) -> None:
    found = capabilities.of_guests(Asked(libvirt_version, qemu), 'x86_64', 'kvm', {'pc'})  # type: ignore[arg-type]
    assert ('virtio' in found.models.sound, 'virtio' in found.models.iommu, found.has_address_spaces) == (
        sound,
        iommu,
        spaces,
    )
    assert {'sb16', 'ich9'} < found.models.sound and 'intel' in found.models.iommu
    assert ('pcspk' in found.models.sound) is (qemu < 7001000)


def test_models_of_an_architecture() -> None:
    arm = capabilities.usual('aarch64')
    assert arm.models.iommu == {'smmuv3', 'virtio'} and not arm.models.sound & {'sb16', 'pcspk'}
    assert 'qemu-xhci' in arm.models.usb and 'piix3-uhci' not in arm.models.usb and not arm.has_address_spaces
    assert capabilities.usual('s390x').models.iommu == frozenset()


def test_how_wide_addresses_are() -> None:
    wide = KVM.replace('<model>EPYC', "<maxphysaddr mode='emulate' bits='46'/><model>EPYC")
    assert capabilities.parse(wide).address_space == {'mode': 'emulate', 'bits': 46}
    assert capabilities.parse(KVM).address_space is None


PC = """HW_ARCH_X86_64 HW_ARCH_I686 COMPUTE_ARCH_X86_64 COMPUTE_GRAPHICS_MODEL_QXL COMPUTE_GRAPHICS_MODEL_NONE
    COMPUTE_NET_VIF_MODEL_VIRTIO COMPUTE_NET_VIF_MODEL_E1000 COMPUTE_STORAGE_BUS_IDE COMPUTE_FIRMWARE_UEFI
    COMPUTE_FIRMWARE_BIOS COMPUTE_SECURITY_UEFI_SECURE_BOOT COMPUTE_IMAGE_TYPE_AMI COMPUTE_SOUND_MODEL_ICH9
    COMPUTE_SOUND_MODEL_VIRTIO COMPUTE_VIOMMU_MODEL_INTEL COMPUTE_VIOMMU_MODEL_AUTO COMPUTE_USB_MODEL_QEMU_XHCI
    COMPUTE_NET_VIRTIO_PACKED COMPUTE_ADDRESS_SPACE_EMULATED"""
ARM = """HW_ARCH_AARCH64 COMPUTE_ARCH_AARCH64 COMPUTE_GRAPHICS_MODEL_VIRTIO COMPUTE_STORAGE_BUS_SCSI
    COMPUTE_FIRMWARE_UEFI COMPUTE_VIOMMU_MODEL_SMMUV3 COMPUTE_VIOMMU_MODEL_AUTO COMPUTE_SOUND_MODEL_ICH9"""
NOT_ARM = """HW_ARCH_I686 COMPUTE_GRAPHICS_MODEL_QXL COMPUTE_NET_VIF_MODEL_PCNET COMPUTE_STORAGE_BUS_IDE
    COMPUTE_FIRMWARE_BIOS COMPUTE_SECURITY_UEFI_SECURE_BOOT COMPUTE_VIOMMU_MODEL_INTEL COMPUTE_SOUND_MODEL_SB16
    COMPUTE_ADDRESS_SPACE_PASSTHROUGH"""


@pytest.mark.parametrize(
    ('arch', 'there', 'missing'),
    [('x86_64', PC, 'HW_ARCH_AARCH64 COMPUTE_GRAPHICS_MODEL_XEN'), ('aarch64', ARM, NOT_ARM)],
)
def test_traits(arch: str, there: str, missing: str) -> None:
    """A host has the traits of the models and buses that its QEMU supports.

    The prefilter for image properties needs them: without them no host accepts an image with hw_video_model.
    """
    both = "<guest><os_type>hvm</os_type><arch name='i686'><domain type='kvm'/></arch></guest></capabilities>"
    host = capabilities.parse(KVM.replace('x86_64', arch).replace('</capabilities>', both))
    found = inventory.traits(None, host, capabilities.usual(arch), ['emulate'])  # type: ignore[arg-type]
    assert set(there.split()) <= found and not found.intersection(missing.split())
