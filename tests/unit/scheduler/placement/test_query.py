from __future__ import annotations

from urllib import parse

import pytest

from kilonova import objects
from kilonova.pci.request import PciInvalidAlias
from kilonova.scheduler import prefilters
from kilonova.scheduler.placement.query import RequestFilterFailed, build, own_classes
from tests.unit.scheduler.builders import GPU, conf, pci_requests, spec, uuid

REQUEST = uuid('request 0')


def pairs(request, **how):
    return dict(build(request, max_results=1000, **how).pairs())


def test_sizes_of_the_flavor():
    assert pairs(spec(flavor_values={'ephemeral_gb': 4, 'swap': 1500})) == {
        'limit': '1000',
        'resources': 'DISK_GB:22,MEMORY_MB:32768,VCPU:8',
    }


def test_a_server_from_a_volume_needs_no_root_disk():
    assert pairs(spec(is_bfv=True))['resources'] == 'MEMORY_MB:32768,VCPU:8'


@pytest.mark.parametrize(
    ('extra_specs', 'expected'),
    [
        ({'resources:VCPU': '2'}, {'resources': 'DISK_GB:16,MEMORY_MB:32768,VCPU:2'}),
        ({'resources:VCPU': '0'}, {'resources': 'DISK_GB:16,MEMORY_MB:32768'}),
        ({'resources1:VCPU': '2'}, {'resources': 'DISK_GB:16,MEMORY_MB:32768', 'resources1': 'VCPU:2'}),
        (
            {'resources_GPU:VGPU': '1', 'trait_GPU:HW_GPU_API_VULKAN': 'required'},
            {'resources_GPU': 'VGPU:1', 'required_GPU': 'HW_GPU_API_VULKAN'},
        ),
        (
            {'trait:HW_CPU_X86_VMX': 'required', 'trait:CUSTOM_OLD': 'forbidden'},
            {'required': 'HW_CPU_X86_VMX,!CUSTOM_OLD'},
        ),
        ({'resources1:A': '1', 'resources2:A': '1', 'group_policy': 'isolate'}, {'group_policy': 'isolate'}),
        ({'resources1:A': '1', 'resources2:B': '0'}, {'resources1': 'A:1'}),
        (
            {'hw:mem_encryption': 'true'},
            {
                'required': 'HW_CPU_X86_AMD_SEV',
                'resources': 'DISK_GB:16,MEMORY_MB:32768,MEM_ENCRYPTION_CONTEXT:1,VCPU:8',
            },
        ),
        (
            {'hw:mem_encryption': 'true', 'hw:mem_encryption_model': 'amd-sev-snp'},
            {'required': 'HW_CPU_X86_AMD_SEV_SNP'},
        ),
        (
            {'hw:pmem': '6GB, small,6GB'},
            {
                'resources': (
                    'CUSTOM_PMEM_NAMESPACE_6GB:2,CUSTOM_PMEM_NAMESPACE_SMALL:1,DISK_GB:16,MEMORY_MB:32768,VCPU:8'
                )
            },
        ),
        ({'hw:tpm_version': '2.0'}, {'required': 'COMPUTE_SECURITY_TPM_2_0,COMPUTE_SECURITY_TPM_TIS'}),
        (
            {'hw:tpm_version': '1.2', 'hw:tpm_model': 'tpm-crb'},
            {'required': 'COMPUTE_SECURITY_TPM_1_2,COMPUTE_SECURITY_TPM_CRB'},
        ),
        ({'os:secure_boot': 'required'}, {'required': 'COMPUTE_SECURITY_UEFI_SECURE_BOOT'}),
        ({'hw:maxphysaddr_mode': 'emulate'}, {'required': 'COMPUTE_ADDRESS_SPACE_EMULATED'}),
        ({'hw:maxphysaddr_mode': 'passthrough'}, {'required': 'COMPUTE_ADDRESS_SPACE_PASSTHROUGH'}),
        ({'hw:pci_numa_affinity_policy': 'socket'}, {'required': 'COMPUTE_SOCKET_PCI_NUMA_AFFINITY'}),
        (
            {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '0-2'},
            {'resources': 'DISK_GB:16,MEMORY_MB:32768,PCPU:3,VCPU:5'},
        ),
        ({'hw:cpu_policy': 'dedicated'}, {'resources': 'DISK_GB:16,MEMORY_MB:32768,PCPU:8'}),
        (
            {'hw:cpu_policy': 'dedicated', 'hw:emulator_threads_policy': 'isolate'},
            {'resources': 'DISK_GB:16,MEMORY_MB:32768,PCPU:9'},
        ),
        ({'hw:cpu_thread_policy': 'isolate'}, {'required': '!HW_CPU_HYPERTHREADING'}),
        ({'hw:cpu_thread_policy': 'require'}, {'required': 'HW_CPU_HYPERTHREADING'}),
        (
            {'resources:VCPU': '1', 'resources1:VCPU': '2', 'resources:MEMORY_MB': '64', 'resources:DISK_GB': '1'},
            {'resources': 'DISK_GB:1,MEMORY_MB:64,VCPU:1', 'resources1': 'VCPU:2'},
        ),
        (
            {'trait1:CUSTOM_A': 'required', 'trait1:CUSTOM_B': 'forbidden', 'resources1:A': '1'},
            {'required1': 'CUSTOM_A,!CUSTOM_B'},
        ),
        ({'group_policy': 'none', 'resources1:A': '1', 'resources2:A': '1'}, {'group_policy': 'none'}),
    ],
)
def test_extra_specs(extra_specs, expected):
    found = pairs(spec(extra_specs))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    'extra_specs', [{'resources:VCPU': 'many'}, {'trait:X': 'wanted'}, {'group_policy': 'together'}]
)
def test_meaningless_extra_specs_are_left_out_and_named(extra_specs, caplog):
    assert pairs(spec(extra_specs)) == pairs(spec())
    assert next(iter(extra_specs.values())) in caplog.text


def test_groups_of_one_flavor_need_its_word_for_it(caplog):
    """Placement refuses what names no policy; groups of ports and devices come with one."""
    assert 'group_policy' not in pairs(spec({'resources1:A': '1', 'resources2:A': '1'}))
    assert 'did not specify any group policy' in caplog.text
    assert pairs(spec({'resources1:A': '1'}, gpus=(1,)), pci_in_placement=True)['group_policy'] == 'none'


@pytest.mark.parametrize(
    'extra_specs',
    [
        {'hw:mem_encryption': 'true', 'hw:mem_encryption_model': 'rot13'},
        {'hw:tpm_version': '3.0'},
        {'hw:tpm_version': '2.0', 'hw:tpm_model': 'abacus'},
        {'hw:maxphysaddr_mode': 'wide'},
    ],
)
def test_features_that_there_are_not_end_the_scheduling(extra_specs):
    with pytest.raises(RequestFilterFailed, match=[*extra_specs.values()][-1]):
        build(spec(extra_specs), max_results=1)


@pytest.mark.parametrize(
    ('properties', 'expected'),
    [
        ({'hw_mem_encryption': 'true', 'hw_mem_encryption_model': 'amd-sev-es'}, 'HW_CPU_X86_AMD_SEV_ES'),
        ({'hw_tpm_version': '2.0', 'hw_tpm_model': 'tpm-crb'}, 'COMPUTE_SECURITY_TPM_2_0,COMPUTE_SECURITY_TPM_CRB'),
        ({'os_secure_boot': 'required'}, 'COMPUTE_SECURITY_UEFI_SECURE_BOOT'),
        ({'os_secure_boot': 'optional'}, None),
        ({'hw_maxphysaddr_mode': 'emulate'}, 'COMPUTE_ADDRESS_SPACE_EMULATED'),
        ({'hw_firmware_stateless': 'true'}, 'COMPUTE_SECURITY_STATELESS_FIRMWARE'),
        ({'hw_cpu_thread_policy': 'isolate'}, '!HW_CPU_HYPERTHREADING'),
        ({'hw_cpu_thread_policy': 'require'}, 'HW_CPU_HYPERTHREADING'),
        ({'hw_cpu_thread_policy': 'prefer'}, None),
        ({'hw_pci_numa_affinity_policy': 'socket'}, 'COMPUTE_SOCKET_PCI_NUMA_AFFINITY'),
        ({'hw_pci_numa_affinity_policy': 'preferred'}, None),
    ],
)
def test_features_of_the_image(properties, expected):
    assert pairs(spec(image={'id': uuid(), 'properties': properties})).get('required') == expected


def test_traits_of_the_image():
    image = {'id': uuid(), 'properties': {'trait:HW_CPU_X86_SGX': 'required'}}
    assert pairs(spec(image=image))['required'] == 'HW_CPU_X86_SGX'


def test_two_devices_are_asked_as_the_field_does():
    """Two devices of alias a1."""
    query = build(spec(gpus=(2,)), max_results=1000, pci_in_placement=True)
    prefilters.run(prefilters.ALL, query, spec(), prefilters.PrefilterFacts(conf(), {}.get))
    assert parse.urlencode(query.pairs()) == (
        f'group_policy=none&limit=1000&required{REQUEST}-0=OWNER_NOVA&required{REQUEST}-1=OWNER_NOVA'
        '&resources=DISK_GB%3A16%2CMEMORY_MB%3A32768%2CVCPU%3A8'
        f'&resources{REQUEST}-0={GPU}%3A1&resources{REQUEST}-1={GPU}%3A1'
        '&root_required=OWNER_NOVA%2C%21COMPUTE_STATUS_DISABLED'
    )


def test_one_device_needs_no_group_policy():
    assert 'group_policy' not in pairs(spec(gpus=(1,)), pci_in_placement=True)


def test_devices_are_not_asked_for_without_pci_in_placement():
    assert pairs(spec(gpus=(2,))) == pairs(spec())


def test_an_alias_of_several_specs_cannot_be_asked_for():
    requests = pci_requests(1)
    requests.requests[0].spec = [{'vendor_id': '10de', 'product_id': '13f1'}, {'vendor_id': '10de', 'product_id': '1'}]
    with pytest.raises(PciInvalidAlias, match='gpu'):
        pairs(spec(pci_requests=requests), pci_in_placement=True)


def test_groups_that_the_flow_made_already_are_asked_once():
    request = spec(
        gpus=(1,),
        requested_resources=[
            objects.RequestGroup(requester_id=f'{REQUEST}-0', resources={GPU: 1}),
            objects.RequestGroup(
                requester_id='_port',
                resources={'NET_BW_EGR_KILOBIT_PER_SEC': 5},
                required_traits={'CUSTOM_PHYSNET'},
                in_tree=uuid('host1'),
            ),
        ],
    )
    found = pairs(request, pci_in_placement=True)
    assert found[f'resources{REQUEST}-0'] == f'{GPU}:1'
    assert found['required_port'] == 'CUSTOM_PHYSNET'
    assert found['in_tree_port'] == uuid('host1')
    assert found['group_policy'] == 'none'


def test_what_the_whole_request_asks():
    request = spec()
    request.root_required.add('COMPUTE_NODE')
    request.same_subtree.append(['_a', '_b'])
    query = build(request, max_results=1000)
    assert ('same_subtree', '_a,_b') in query.pairs()
    assert ('root_required', 'COMPUTE_NODE') in query.pairs()


def test_destination_of_aggregates():
    request = spec(
        requested_destination=objects.Destination(host='h', aggregates=['b,a', 'c'], forbidden_aggregates={'d'})
    )
    found = build(request, max_results=1000).pairs()
    assert [value for name, value in found if name == 'member_of'] == ['!in:d', 'in:a,b', 'in:c']


def test_one_node_is_asked_in_its_tree():
    assert pairs(spec(), in_tree=uuid('host1'))['in_tree'] == uuid('host1')


@pytest.mark.parametrize(
    'how', [{'many_nodes': True}, {'hint': 'different_host'}, {'hint': 'group'}, {'hint': 'same_host'}]
)
def test_questions_that_must_not_be_cut(how):
    hints = {how.pop('hint'): [uuid()]} if 'hint' in how else {}
    assert 'limit' not in pairs(spec(scheduler_hints=hints), **how)
    assert pairs(spec(scheduler_hints={'query': '[]', 'group': []}))['limit'] == '1000'


def test_what_flavors_say_comes_before_images():
    image = {'id': uuid(), 'properties': {'hw_tpm_version': '1.2', 'hw_cpu_thread_policy': 'isolate'}}
    assert pairs(spec({'hw:tpm_version': '2.0', 'hw:cpu_thread_policy': 'require'}, image=image))['required'] == (
        'COMPUTE_SECURITY_TPM_2_0,COMPUTE_SECURITY_TPM_TIS,HW_CPU_HYPERTHREADING'
    )


def test_all_that_a_group_of_others_may_ask():
    request = spec(
        requested_resources=[
            objects.RequestGroup(
                requester_id='_port',
                resources={'A': 1},
                required_traits={'T'},
                forbidden_traits={'F'},
                aggregates=[['b', 'a'], ['c']],
                forbidden_aggregates={'e', 'd'},
            )
        ]
    )
    found = [pair for pair in build(request, max_results=1).pairs() if pair[0].endswith('_port')]
    assert found == [
        ('member_of_port', '!in:d,e'),
        ('member_of_port', 'in:a,b'),
        ('member_of_port', 'in:c'),
        ('required_port', 'T,!F'),
        ('resources_port', 'A:1'),
    ]


def test_the_root_of_a_request():
    request = spec()
    request.root_required.update('AB')
    request.root_forbidden.add('C')
    query = build(request, max_results=5)
    assert ('root_required', 'A,B,!C') in query.pairs()
    request.root_required.clear()
    assert ('root_required', '!C') in build(request, max_results=5).pairs()
    assert 'root_required' not in dict(build(spec(), max_results=5).pairs())


def test_classes_of_the_flavor_that_are_no_standard_ones():
    extra_specs = {
        'resources:CUSTOM_A': '1',
        'resources2:CUSTOM_B': '2',
        'resources:VCPU': '1',
        'trait:CUSTOM_C': 'required',
        'resources3:CUSTOM_D': '0',
        'group_policy': 'none',
    }
    assert list(own_classes(build(spec(extra_specs), max_results=1), extra_specs)) == [
        ('resources:CUSTOM_A', 'CUSTOM_A'),
        ('resources2:CUSTOM_B', 'CUSTOM_B'),
    ]


def test_amounts_of_all_groups():
    query = build(spec({'resources1:VCPU': '2', 'resources2:A': '3', 'resources3:A': '4'}), max_results=1)
    assert query.resources() == {'VCPU': 2, 'MEMORY_MB': 32768, 'DISK_GB': 16, 'A': 7}


def test_three_equal_groups_are_asked_as_one():
    query = build(spec(gpus=(4, 1)), max_results=1000, pci_in_placement=True)
    asked, clones = query.collapsed()
    assert clones == {f'{REQUEST}-0': [f'{REQUEST}-1', f'{REQUEST}-2', f'{REQUEST}-3', f'{uuid("request 1")}-0']}
    assert [name for name, _ in asked.pairs() if name.startswith('resources')] == ['resources', f'resources{REQUEST}-0']
    assert asked.pairs() != query.pairs()


@pytest.mark.parametrize('counts', [(2,), (1, 1)])
def test_two_groups_are_asked_as_two(counts):
    query = devices(*counts)
    assert query.collapsed() == (query, {})


def devices(*counts, **how):
    """The question of so many devices of each kind."""
    request = spec(gpus=counts, **how)
    for number, one in enumerate(request.pci_requests.requests):
        one.spec = [{'vendor_id': '10de', 'product_id': f'{number:04}'}]
    return build(request, max_results=1000, pci_in_placement=True)


def group(number, index=0):
    return f'{uuid(f"request {number}")}-{index}'


@pytest.mark.parametrize(
    ('counts', 'asked', 'left_out', 'limit'),
    [
        ((2, 1), {0, 1}, set(), 1000),
        ((2, 2), {0, 1}, set(), 1000),
        ((1, 1, 1), {0}, {1, 2}, None),
        # Hosts that have two of one kind are the rarest.
        ((1, 2, 1), {1}, {0, 2}, None),
        ((2, 2, 2, 2), {0}, {1, 2, 3}, None),
        ((1,) * 8, {0}, {1, 2, 3, 4, 5, 6, 7}, None),
    ],
)
def test_of_many_kinds_of_devices_one_is_asked_for(counts, asked, left_out, limit):
    query = devices(*counts)
    found, clones = query.collapsed()
    assert found.groups.keys() == {'', *(group(number) for number in asked)}
    assert found.left_out == {group(number): query.groups[group(number)] for number in left_out}
    assert {kept: len(others) + 1 for kept, others in clones.items() if others} == {
        group(number): count for number, count in enumerate(counts) if count > 1
    }
    assert found.limit == limit
    # None is lost.
    assert {*found.groups, *found.left_out, *(one for others in clones.values() for one in others)} == set(query.groups)
    assert clones.keys() >= found.left_out.keys()
    assert query.limit == 1000
    assert not query.left_out


def test_groups_that_summaries_do_not_settle_are_asked_for():
    """Those that belong to one subtree, to an aggregate, or are no devices."""
    query = devices(1, 1, 1, 1, 1)
    query.same_subtree = [[group(0), '']]
    query.groups[group(1)].aggregates = [[uuid('aggregate')]]
    query.pci_groups.remove(group(2))
    found, clones = query.collapsed()
    assert found.groups.keys() == {'', group(0), group(1), group(2), group(3)}
    assert clones == {group(3): [], group(4): []}
