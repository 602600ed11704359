"""libvirt's capabilities."""
from __future__ import annotations

from kilonova.virt.libvirt import capabilities

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
        'x86_64', 'EPYC', 'AMD', ('aes', 'svm'), 'u-1')
    assert found.supported() == [['x86_64', 'qemu', 'hvm'], ['x86_64', 'kvm', 'hvm']]


def test_numa_cells() -> None:
    first, second = capabilities.parse(KVM).cells
    assert (first.id, sorted(first.cpus), first.memory_mb, first.socket) == (0, [0, 4], 2048, 0)
    assert first.siblings == (frozenset({0, 4}),) and first.pages == {4: 524288, 2048: 0}
    assert second.siblings == (frozenset({1, 2}),) and second.socket == 1


def test_the_test_driver_plays_an_x86_64() -> None:
    found = capabilities.parse("<capabilities><host><cpu><arch>i686</arch></cpu><topology><cells num='0'/></topology>"
                               '</host></capabilities>', test=True)
    assert found.arch == 'x86_64' and found.cells == ()
    assert found.supported() == [['x86_64', 'kvm', 'hvm'], ['x86_64', 'qemu', 'hvm']]
