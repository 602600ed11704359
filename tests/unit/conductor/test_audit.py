"""The amounts that an audit expects are those that the scheduler asks Placement for."""
from __future__ import annotations

import pytest

from kilonova.conductor import audit
from kilonova.scheduler import query
from kilonova.virt.hardware import constraints
from tests.unit.scheduler.builders import spec, uuid

DEDICATED = {'hw:cpu_policy': 'dedicated'}
MIXED = {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '0-2'}
FLAVORS = [
    {}, {'resources:VCPU': '2'}, {'resources:VCPU': '0'}, {'resources:VCPU': 'many'}, {'resources1:VCPU': '2'},
    {'resources:VCPU': '2', 'resources_more:VCPU': '3'}, {'resources:DISK_GB': '0', 'resources:MEMORY_MB': '1024'},
    {'resources_disks:DISK_GB': '5'}, {'resources:CUSTOM_BAREMETAL': '1', 'resources:VCPU': '0'},
    {'resources:PCPU': '4'}, {'resources_cpus:PCPU': '4'}, {'resources_cpus:VCPU': '1', **DEDICATED},
    {'resources:VCPU': '3', **DEDICATED}, DEDICATED, MIXED, {**DEDICATED, 'hw:emulator_threads_policy': 'isolate'},
    {**MIXED, 'hw:emulator_threads_policy': 'isolate'}, {**DEDICATED, 'hw:emulator_threads_policy': 'share'},
    {'hw:numa_nodes': '2'}, {'hw:numa_nodes': '3'}, {'hw:mem_page_size': 'large'}, {'hw:cpu_policy': 'mixed'},
    {'hw:mem_encryption': 'true', 'hw:pmem': '6GB'}, {'trait:HW_CPU_X86_VMX': 'required'},
]


def asked(request, **how):
    found = query.build(request, max_results=1, **how).resources()
    return {name: amount for name, amount in found.items() if name in audit.CLASSES}


@pytest.mark.parametrize('pinning', [True, False])
@pytest.mark.parametrize('from_volume', [True, False])
@pytest.mark.parametrize('extra_specs', FLAVORS)
def test_amounts_are_what_the_scheduler_asks_for(extra_specs, from_volume, pinning):
    request = spec(extra_specs, flavor_values={'ephemeral_gb': 4, 'swap': 1500}, is_bfv=from_volume)
    assert audit.amounts(request.flavor, None, from_volume=from_volume, pinning=pinning) == asked(
        request, pinning=pinning)


def test_dedicated_cpus_that_the_image_asks_for():
    """The flavor says nothing of them: the server's place does."""
    image = {'id': uuid(), 'properties': {'hw_cpu_policy': 'dedicated'}}
    request = spec(image=image)
    request.numa_topology = constraints.of(request.flavor, request.image.properties)
    assert audit.amounts(request.flavor, request.numa_topology) == asked(request) == {
        'PCPU': 8, 'MEMORY_MB': 32768, 'DISK_GB': 16}
