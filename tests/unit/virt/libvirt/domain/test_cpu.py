"""CPUs and memory: how many, what the guest sees of them, its place on the host's NUMA cells."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from kilonova import objects
from kilonova.virt.hardware import constraints, numa
from kilonova.virt.hardware.offer import Offer
from kilonova.virt.libvirt.domain.builder import CONFIGURATORS
from kilonova.virt.libvirt.domain.cpu import CpuConfigurator, MemoryConfigurator
from kilonova.virt.parts.guests import NotOnThisHost
from tests.unit.virt.builders import new_vif
from tests.unit.virt.libvirt.domain.conftest import Configure, text

TOPOLOGY = '<topology sockets="2" cores="1" threads="1"/>'
# The host of the reference: two cells of two cores of two threads.
OFFER = Offer(shared=frozenset({0, 1, 4, 5}), dedicated=frozenset({2, 3, 6, 7}), said=True)
CELLS = numa.spread(cells=2, sockets=1, cores=2, threads=2, memory_mb=65536)
SETTINGS = {'shared_cpus': OFFER.shared, 'cells': {cell.id: cell.cpus & OFFER.shared for cell in CELLS}}


def placed(specs: dict[str, str], vcpus: int = 2, pages: dict[int, int] | None = None) -> Any:
    host = numa.topology_of(
        [
            numa.HostCell(cell.id, cell.cpus, cell.memory_mb, cell.siblings, cell.socket, pages or cell.pages)
            for cell in CELLS
        ],
        OFFER,
    )
    wanted = constraints.of(objects.Flavor(vcpus=vcpus, memory_mb=2048, extra_specs=specs))
    assert host is not None
    assert wanted is not None
    found = numa.fit(host, wanted)
    assert found is not None
    return found


def domain(configure: Configure, specs: dict[str, str], vcpus: int = 2, **more: Any) -> ElementTree.Element:
    return configure(
        *CONFIGURATORS,
        settings=SETTINGS,
        extra_specs=specs,
        flavor={'vcpus': vcpus, 'memory_mb': 2048},
        instance={'numa_topology': placed(specs, vcpus, more.pop('pages', None)), 'vifs': more.pop('vifs', [])},
        **more,
    )


def test_memory_in_kib(configure: Configure) -> None:
    """The domain XML has the flavor's memory in KiB."""
    assert configure(MemoryConfigurator(), flavor={'memory_mb': 2048}).findtext('memory') == '2097152'


@pytest.mark.parametrize(
    ('settings', 'cpu'),
    [
        ({}, f'<cpu mode="host-model" match="exact">{TOPOLOGY}</cpu>'),
        ({'arch': 'aarch64'}, f'<cpu mode="host-passthrough">{TOPOLOGY}</cpu>'),
        ({'cpu_mode': 'host-passthrough'}, f'<cpu mode="host-passthrough">{TOPOLOGY}</cpu>'),
        ({'cpu_mode': 'none'}, f'<cpu>{TOPOLOGY}</cpu>'),
        (
            {'cpu_mode': 'custom', 'cpu_models': {'Haswell': frozenset()}, 'cpu_flags': (('pcid', 'require'),)},
            (
                f'<cpu mode="custom" match="exact"><model>Haswell</model>{TOPOLOGY}'
                '<feature name="pcid" policy="require"/></cpu>'
            ),
        ),
        ({'domain_type': 'test'}, ''),
    ],
)
def test_cpu(configure: Configure, settings: dict[str, Any], cpu: str) -> None:
    """The domain XML has the flavor's vCPUs and the CPU mode of the host's options."""
    domain = configure(CpuConfigurator(), settings=settings, flavor={'vcpus': 2})
    assert domain.findtext('vcpu') == '2'
    assert text(domain.find('cpu')) == cpu


MODELS = {
    'Nehalem': frozenset({'sse4.2'}),
    'Haswell': frozenset({'sse4.2', 'avx2'}),
    'EPYC': frozenset({'avx2', 'svm'}),
}


@pytest.mark.parametrize(
    ('asked', 'model'),
    [
        ({}, 'Nehalem'),
        ({'extra_specs': {'trait:HW_CPU_X86_SSE42': 'required'}}, 'Nehalem'),
        ({'extra_specs': {'trait:HW_CPU_X86_AVX2': 'required'}}, 'Haswell'),
        ({'extra_specs': {'trait_cpu:HW_CPU_X86_AVX2': 'required', 'trait:HW_CPU_X86_SVM': 'forbidden'}}, 'Haswell'),
        ({'properties': {'trait:HW_CPU_X86_SVM': 'required'}}, 'EPYC'),
        ({'extra_specs': {'trait:HW_CPU_X86_SHA': 'required', 'trait:CUSTOM_X': 'required'}}, 'Nehalem'),
    ],
)
def test_the_first_model_with_what_traits_require(configure: Configure, asked: dict[str, Any], model: str) -> None:
    """[libvirt]cpu_models, together with what [libvirt]cpu_model_extra_flags gives all guests."""
    settings = {'cpu_mode': 'custom', 'cpu_models': MODELS, 'cpu_flags': (('sha-ni', 'require'), ('svm', 'disable'))}
    assert configure(CpuConfigurator(), settings=settings, **asked).findtext('cpu/model') == model
    with pytest.raises(NotOnThisHost, match=r"^'avx512f, svm' of 'trait:HW_CPU_.*' is .* \(Nehalem, Haswell, EPYC\) "):
        configure(
            CpuConfigurator(),
            settings=settings,
            extra_specs={'trait:HW_CPU_X86_SVM': 'required', 'trait:HW_CPU_X86_AVX512F': 'required'},
        )


@pytest.mark.parametrize(
    ('specs', 'cputune', 'numatune', 'cells'),
    [
        (
            {'hw:cpu_policy': 'dedicated'},
            '<vcpupin vcpu="0" cpuset="2"/><vcpupin vcpu="1" cpuset="3"/><emulatorpin cpuset="2-3"/>',
            '<memory mode="strict" nodeset="0"/><memnode cellid="0" mode="strict" nodeset="0"/>',
            '<cell id="0" cpus="0-1" memory="2097152" unit="KiB"/>',
        ),
        (
            {'hw:cpu_policy': 'dedicated', 'hw:emulator_threads_policy': 'share'},
            '<vcpupin vcpu="0" cpuset="2"/><vcpupin vcpu="1" cpuset="3"/><emulatorpin cpuset="0-1,4-5"/>',
            '<memory mode="strict" nodeset="0"/><memnode cellid="0" mode="strict" nodeset="0"/>',
            '<cell id="0" cpus="0-1" memory="2097152" unit="KiB"/>',
        ),
        (
            {'hw:numa_nodes': '2'},
            '<vcpupin vcpu="0" cpuset="0-1"/><vcpupin vcpu="1" cpuset="4-5"/><emulatorpin cpuset="0-1,4-5"/>',
            (
                '<memory mode="strict" nodeset="0,1"/><memnode cellid="0" mode="strict" nodeset="0"/>'
                '<memnode cellid="1" mode="strict" nodeset="1"/>'
            ),
            '<cell id="0" cpus="0" memory="1048576" unit="KiB"/><cell id="1" cpus="1" memory="1048576" unit="KiB"/>',
        ),
        (
            {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '1'},
            '<vcpupin vcpu="0" cpuset="0-1"/><vcpupin vcpu="1" cpuset="2"/><emulatorpin cpuset="0-2"/>',
            '<memory mode="strict" nodeset="0"/><memnode cellid="0" mode="strict" nodeset="0"/>',
            '<cell id="0" cpus="0-1" memory="2097152" unit="KiB"/>',
        ),
    ],
)
def test_the_guests_of_the_reference(
    configure: Configure, specs: dict[str, str], cputune: str, numatune: str, cells: str
) -> None:
    """The CPU and NUMA elements of a guest are those that were captured from Nova."""
    found = domain(configure, specs)
    assert text(found.find('cputune')) == f'<cputune>{cputune}</cputune>'
    assert text(found.find('numatune')) == f'<numatune>{numatune}</numatune>'
    assert text(found.find('cpu/numa')) == f'<numa>{cells}</numa>'
    vcpu = found.find('vcpu')
    assert vcpu is not None
    assert vcpu.get('cpuset') is None
    assert found.find('memoryBacking') is None


def test_elements_stand_in_the_fields_order(configure: Configure) -> None:
    found = domain(configure, {'hw:mem_page_size': 'large', 'hw:cpu_policy': 'dedicated'}, pages={4: 1, 2048: 4096})
    assert [element.tag for element in found][2:6] == ['memory', 'memoryBacking', 'numatune', 'vcpu']
    assert [element.tag for element in found][-4:] == ['cputune', 'clock', 'cpu', 'devices']


def test_emulator_threads_on_a_cpu_of_their_own(configure: Configure) -> None:
    found = domain(configure, {'hw:cpu_policy': 'dedicated', 'hw:emulator_threads_policy': 'isolate'}, vcpus=1)
    assert text(found.find('cputune')) == ('<cputune><vcpupin vcpu="0" cpuset="2"/><emulatorpin cpuset="3"/></cputune>')


REALTIME = {'hw:cpu_policy': 'dedicated', 'hw:cpu_realtime': 'yes'}


def test_realtime_cpus_run_before_all_else(configure: Configure) -> None:
    """The emulator's threads stay off their CPUs, the memory where it is."""
    found = domain(configure, {**REALTIME, 'hw:cpu_realtime_mask': '^0', 'hw:numa_nodes': '2'}, vcpus=4)
    assert text(found.find('cputune')) == (
        '<cputune><vcpupin vcpu="0" cpuset="2"/><vcpupin vcpu="1" cpuset="3"/><vcpupin vcpu="2" cpuset="6"/>'
        '<vcpupin vcpu="3" cpuset="7"/><emulatorpin cpuset="2"/>'
        '<vcpusched vcpus="1-3" scheduler="fifo" priority="1"/></cputune>'
    )
    assert text(found.find('memoryBacking')) == '<memoryBacking><nosharepages/><locked/></memoryBacking>'
    masked = domain(configure, {**REALTIME, 'hw:cpu_realtime_mask': '^0'}, properties={'hw_cpu_realtime_mask': '0'})
    assert text(masked.find('cputune/vcpusched')) == '<vcpusched vcpus="0" scheduler="fifo" priority="1"/>'


@pytest.mark.parametrize(('policy', 'emulator'), [('share', '0-1,4-5'), ('isolate', '3')])
def test_all_cpus_are_realtime_where_the_emulator_is_elsewhere(
    configure: Configure, policy: str, emulator: str
) -> None:
    found = domain(configure, {**REALTIME, 'hw:emulator_threads_policy': policy}, vcpus=1)
    pin, scheduler = found.find('cputune/emulatorpin'), found.find('cputune/vcpusched')
    assert pin is not None and scheduler is not None
    assert (pin.get('cpuset'), scheduler.get('vcpus')) == (emulator, '0')


def test_the_emulator_never_runs_where_it_would_get_no_time(configure: Configure) -> None:
    specs = {**REALTIME, 'hw:emulator_threads_policy': 'share'}
    with pytest.raises(NotOnThisHost, match=r'hw:emulator_threads_policy.*cpu_shared_set'):
        configure(
            *CONFIGURATORS,
            settings={**SETTINGS, 'shared_cpus': frozenset()},
            extra_specs=specs,
            flavor={'vcpus': 2, 'memory_mb': 2048},
            instance={'numa_topology': placed(specs)},
        )


def test_the_priority_is_the_hosts(configure: Configure) -> None:
    specs = {**REALTIME, 'hw:cpu_realtime_mask': '1'}
    found = configure(
        *CONFIGURATORS,
        settings={**SETTINGS, 'realtime_priority': 7},
        extra_specs=specs,
        flavor={'vcpus': 2, 'memory_mb': 2048},
        instance={'numa_topology': placed(specs)},
    )
    assert text(found.find('cputune/vcpusched')) == '<vcpusched vcpus="1" scheduler="fifo" priority="7"/>'


@pytest.mark.parametrize(
    ('version', 'taken', 'refused', 'bounds'),
    [
        (2, ('1', '10000'), ('10001', '16384', '262144'), 'from 1 to 10000'),
        (1, ('2', '16384', '262144'), ('1',), 'from 2 to 262144'),
        (None, ('1', '262144'), (), ''),
    ],
)
def test_shares_are_those_of_the_hosts_control_groups(
    configure: Configure, version: int | None, taken: tuple[str, ...], refused: tuple[str, ...], bounds: str
) -> None:
    """`quota:cpu_shares` is refused outside of the range of the host's version of control groups."""
    for shares in taken:
        found = configure(
            *CONFIGURATORS, settings={'control_groups': version}, extra_specs={'quota:cpu_shares': shares}
        )
        assert found.findtext('cputune/shares') == shares
    for shares in refused:
        with pytest.raises(
            NotOnThisHost,
            match=(
                f"^'{shares}' of 'quota:cpu_shares' is not supported by this host: it must be {bounds} "
                rf'\(control groups of version {version}\)$'
            ),
        ):
            configure(*CONFIGURATORS, settings={'control_groups': version}, extra_specs={'quota:cpu_shares': shares})


@pytest.mark.parametrize(
    ('asked', 'addresses'),
    [
        (
            {'extra_specs': {'hw:maxphysaddr_mode': 'emulate', 'hw:maxphysaddr_bits': '42'}},
            '<maxphysaddr mode="emulate" bits="42"/>',
        ),
        ({'properties': {'hw_maxphysaddr_mode': 'passthrough'}}, '<maxphysaddr mode="passthrough"/>'),
        (
            {'properties': {'hw_maxphysaddr_mode': 'emulate', 'hw_maxphysaddr_bits': '40'}},
            '<maxphysaddr mode="emulate" bits="40"/>',
        ),
    ],
)
def test_the_width_of_addresses(configure: Configure, asked: dict[str, Any], addresses: str) -> None:
    found = configure(CpuConfigurator(), settings={'address_spaces': frozenset({'emulate', 'passthrough'})}, **asked)
    cpu = found.find('cpu')
    assert cpu is not None and [part.tag for part in cpu] == ['maxphysaddr', 'topology']
    assert text(cpu.find('maxphysaddr')) == addresses
    with pytest.raises(NotOnThisHost, match=r"'hw:maxphysaddr_mode' .* host-model the host accepts only guests with"):
        configure(CpuConfigurator(), **asked)


def test_large_pages_and_locked_memory(configure: Configure) -> None:
    asked = {'hw:mem_page_size': '2MB', 'hw:numa_nodes': '2'}
    assert (
        domain(configure, asked, properties={'hw_locked_memory': 'yes'}, pages={4: 262144, 2048: 4096}).find(
            'memoryBacking/locked'
        )
        is not None
    )
    specs = {**asked, 'hw:locked_memory': 'true'}
    found = domain(configure, specs, pages={4: 262144, 2048: 4096})
    assert text(found.find('memoryBacking')) == (
        '<memoryBacking><hugepages><page size="2048" unit="KiB" nodeset="0"/><page size="2048" unit="KiB" nodeset="1"/>'
        '</hugepages><locked/></memoryBacking>'
    )
    assert [cell.get('memAccess') for cell in found.findall('cpu/numa/cell')] == ['shared', 'shared']


def test_a_switch_in_user_space_maps_the_memory(configure: Configure) -> None:
    """Whatever its pages are."""
    server = {
        'vifs': [
            new_vif(
                type='vhostuser',
                details={'vhostuser_mode': 'server', 'vhostuser_socket': '/run/openvswitch/vhu1eeb6c43-4f'},
            )
        ]
    }
    found = configure(MemoryConfigurator(), instance=server)
    assert text(found.find('memoryBacking')) == (
        '<memoryBacking><source type="memfd"/><access mode="shared"/></memoryBacking>'
    )
    found = domain(configure, {'hw:mem_page_size': '2MB'}, pages={4: 262144, 2048: 4096}, **server)
    assert text(found.find('memoryBacking')) == (
        '<memoryBacking><hugepages><page size="2048" unit="KiB" nodeset="0"/></hugepages><access mode="shared"/>'
        '</memoryBacking>'
    )


def test_small_pages_need_no_backing(configure: Configure) -> None:
    found = domain(configure, {'hw:mem_page_size': 'small'})
    assert found.find('memoryBacking') is None
    assert [cell.get('memAccess') for cell in found.findall('cpu/numa/cell')] == [None]


def test_threads_of_one_core_are_threads_of_the_guest(configure: Configure) -> None:
    found = domain(configure, {'hw:cpu_policy': 'dedicated'})
    assert text(found.find('cpu/topology')) == '<topology sockets="1" cores="1" threads="2"/>'
    found = domain(configure, {'hw:cpu_policy': 'dedicated', 'hw:cpu_threads': '1'})
    assert text(found.find('cpu/topology')) == '<topology sockets="2" cores="1" threads="1"/>'


def test_the_test_driver_knows_no_cpu_models(configure: Configure) -> None:
    specs = {'hw:numa_nodes': '1'}
    found = configure(
        *CONFIGURATORS,
        settings={**SETTINGS, 'domain_type': 'test'},
        extra_specs=specs,
        flavor={'vcpus': 2, 'memory_mb': 2048},
        instance={'numa_topology': placed(specs)},
    )
    cpu = found.find('cpu')
    assert cpu is not None
    assert (cpu.attrib, [part.tag for part in cpu]) == ({}, ['topology', 'numa'])


def test_guests_without_cells_stay_on_the_shared_cpus(configure: Configure) -> None:
    vcpu = configure(*CONFIGURATORS, settings=SETTINGS, flavor={'vcpus': 2}).find('vcpu')
    assert vcpu is not None
    assert vcpu.get('cpuset') == '0-1,4-5'


def test_layouts_of_flavors(configure: Configure) -> None:
    found = configure(*CONFIGURATORS, extra_specs={'hw:cpu_sockets': '2', 'hw:cpu_threads': '2'}, flavor={'vcpus': 8})
    assert text(found.find('cpu/topology')) == '<topology sockets="2" cores="2" threads="2"/>'
    found = configure(*CONFIGURATORS, properties={'hw_cpu_sockets': '1'}, flavor={'vcpus': 8})
    assert text(found.find('cpu/topology')) == '<topology sockets="1" cores="8" threads="1"/>'


def test_quotas_stand_beside_the_pins(configure: Configure) -> None:
    found = domain(configure, {'hw:cpu_policy': 'dedicated', 'quota:cpu_shares': '512'})
    assert text(found.find('cputune')) == (
        '<cputune><shares>512</shares><vcpupin vcpu="0" cpuset="2"/><vcpupin vcpu="1" cpuset="3"/>'
        '<emulatorpin cpuset="2-3"/></cputune>'
    )


def test_cpu_quota(configure: Configure) -> None:
    domain = configure(
        *CONFIGURATORS, extra_specs={'quota:cpu_quota': '20000', 'quota:cpu_shares': '512', 'quota:cpu_period': '10000'}
    )
    assert text(domain.find('cputune')) == (
        '<cputune><shares>512</shares><period>10000</period><quota>20000</quota></cputune>'
    )
