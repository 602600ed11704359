"""An extra spec, image property or create argument takes effect, or is refused with an error that names it."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from kilonova.api.routes import ROUTES
from kilonova.api.services import unsupported
from tests.unit.api.conftest import IMAGE

KERNEL, RAMDISK = '11111111-2222-3333-4444-555555555555', '11111111-2222-3333-4444-666666666666'
# The server actions of the field, without those that it took out.
_ACTIONS = """os-start os-stop reboot resize confirmResize revertResize rebuild createImage createBackup
    trigger_crash_dump pause unpause suspend resume lock unlock rescue unrescue shelve shelveOffload unshelve migrate
    os-migrateLive evacuate os-resetState injectNetworkInfo changePassword forceDelete restore os-getConsoleOutput
    os-getVNCConsole os-getSPICEConsole os-getSerialConsole os-getRDPConsole addFloatingIp removeFloatingIp
    addSecurityGroup removeSecurityGroup addFixedIp removeFixedIp"""
ACTIONS = frozenset(_ACTIONS.split())
# Its resources of which nothing is built.
_RESOURCES = """/servers/{id}/shares"""
RESOURCES = frozenset(_RESOURCES.split())


def specs(site, flavor, values):
    """As operators of old versions set them, unchecked."""
    site.ok('POST', f'/flavors/{flavor}/os-extra_specs', {'extra_specs': values}, version='2.61')
    return flavor


def refused(site, flavor):
    body = {'server': {'name': 's', 'flavorRef': flavor, 'imageRef': IMAGE, 'networks': 'none'}}
    code, text = site.fault('POST', '/servers', body, user='bob')
    assert code == 400 and site.conductor.calls == []
    return text


@pytest.mark.parametrize('name', sorted(unsupported.names(unsupported.EXTRA_SPECS)))
def test_extra_specs_without_effect_are_named(site, name):
    """On create, and on the resize to such a flavor. What switches something off asks for nothing."""
    asked = name.replace('quota:*', 'quota:memory').replace('*', 'outbound_peak')
    assert f'extra spec {asked} is not supported by this cloud: ' in refused(
        site, specs(site, site.flavor(), {asked: '1'})
    )
    server = site.server()
    if name != 'accel:device_profile':
        code, text = site.fault(
            'POST', f'/servers/{server}/action', {'resize': {'flavorRef': specs(site, site.flavor(), {asked: '1'})}}
        )
        assert code == 400 and f'extra spec {asked} is not supported' in text
    site.create(specs(site, site.flavor(), {asked: 'false'}))


@pytest.mark.parametrize('name', sorted(unsupported.names(unsupported.IMAGE_PROPERTIES)))
def test_image_properties_without_effect_are_named(site, name):
    value = {
        'hw_ephemeral_encryption_format': 'luks',
        'hw_ephemeral_encryption_secret_uuid': KERNEL,
        'hw_mem_encryption_model': 'amd-sev',
        'hw_tpm_model': 'tpm-tis',
        'hw_tpm_version': '2.0',
        'hw_emulation_architecture': 'aarch64',
        'block_device_mapping': json.dumps([{'source_type': 'snapshot'}]),
    }.get(name, '1')
    flavor = site.flavor()
    site.images.record[name] = value
    assert f'image property {name} is not supported by this cloud: ' in refused(site, flavor)


@pytest.mark.parametrize(
    'values',
    [
        {'hw_mem_encryption': 'false'},
        {'hw_qemu_guest_agent': 'yes'},
        {'hw_vif_model': 'virtio'},
        {'hw_video_model': 'virtio', 'hw_watchdog_action': 'reset'},
        {'hw_firmware_type': 'uefi', 'os_secure_boot': 'optional'},
        {'kernel_id': 'nokernel', 'ramdisk_id': ''},
    ],
)
def test_images_that_are_fine(site, values):
    site.images.record.update(values)
    uuid = site.create()
    assert site.ok('GET', f'/servers/{uuid}')['server']['OS-EXT-SRV-ATTR:kernel_id'] == ''


@pytest.mark.parametrize(
    ('values', 'image', 'said'),
    [
        ({'quota:cpu_shares': 'many'}, {}, "Invalid value 'many' of 'quota:cpu_shares'"),
        ({'quota:cpu_period': '10'}, {}, 'from 1000 to 1000000'),
        ({'hw:serial_port_count': '1'}, {'hw_serial_port_count': '2'}, 'Forbidden to exceed flavor value'),
        ({'hw_video:ram_max_mb': '16'}, {'hw_video_ram': '32'}, 'maximum allowed by flavor 16'),
        ({'os:secure_boot': 'required'}, {}, 'hw_firmware_type=uefi'),
        ({'hw:watchdog_action': 'bark'}, {}, "'bark' of 'hw:watchdog_action'"),
        ({'hw:pmu': 'true'}, {'hw_pmu': 'false'}, 'Conflicting values'),
    ],
)
def test_what_no_guest_can_have_is_refused(site, values, image, said):
    server, flavor = site.server(), specs(site, site.flavor(), values)
    site.conductor.calls.clear()
    site.images.record.update(image)
    assert said in refused(site, flavor)
    if not image:
        code, text = site.fault('POST', f'/servers/{server}/action', {'resize': {'flavorRef': flavor}})
        assert code == 400 and said in text


@pytest.fixture
def kernels(site, monkeypatch):
    """{id: record} of images besides the one that is booted."""
    records = {
        image: {'id': image, 'status': 'active', 'size': 1 << 20, 'disk_format': 'aki'} for image in (KERNEL, RAMDISK)
    }
    get = site.images.get
    monkeypatch.setattr(site.images, 'get', lambda image, ctxt=None: records.get(image) or get(image, ctxt))
    return records


def test_an_image_brings_its_kernel(site, kernels):
    site.images.record.update(kernel_id=KERNEL, ramdisk_id=RAMDISK, os_command_line='root=/dev/vda quiet')
    uuid = site.create()
    shown = site.ok('GET', f'/servers/{uuid}')['server']
    assert shown['OS-EXT-SRV-ATTR:kernel_id'] == KERNEL and shown['OS-EXT-SRV-ATTR:ramdisk_id'] == RAMDISK
    (row,) = site.rows(uuid)
    server = row['args']['instance']['nova_object.data']
    assert (server['kernel_id'], server['ramdisk_id']) == (KERNEL, RAMDISK)


@pytest.mark.parametrize(
    ('values', 'change', 'said'),
    [
        ({'kernel_id': 'aki-1234'}, {}, 'kernel_id: image aki-1234 could not be found.'),
        ({'kernel_id': KERNEL.replace('1', '9')}, {}, 'could not be found.'),
        ({'kernel_id': KERNEL}, {'status': 'queued'}, f'kernel_id: image {KERNEL} is not active.'),
        ({'kernel_id': KERNEL, 'ramdisk_id': RAMDISK}, {'size': 300 << 20}, 'ramdisk_id: '),
        ({'ramdisk_id': RAMDISK}, {}, 'ramdisk_id: the property cannot be used without kernel_id.'),
        ({'os_command_line': 'quiet'}, {}, 'os_command_line: the property cannot be used without kernel_id.'),
    ],
)
def test_kernels_that_cannot_be_used(site, kernels, values, change, said):
    for record in kernels.values():
        record.update(change)
    flavor = site.flavor()
    site.images.record.update(values)
    assert said in refused(site, flavor)


def test_images_whose_file_systems_must_be_frozen(site):
    """Of a guest that is off they are as they should be."""
    site.images.record['os_require_quiesce'] = 'yes'
    server, off = site.server(), site.server(vm_state='stopped', power_state=4)
    code, text = site.fault('POST', f'/servers/{server}/action', {'createImage': {'name': 'i'}})
    assert code == 400 and 'image property os_require_quiesce is not supported' in text
    assert site.rows(server) == [] and site.images.created == []
    site.ok('POST', f'/servers/{off}/action', {'createImage': {'name': 'i'}})


# --- the list for operators ------------------------------------------------------------------------------------------
def listed(heading):
    """What the page names below a heading, in the first column of its table."""
    page = (pathlib.Path(__file__).parents[3] / 'docs' / 'admin' / 'limitations.md').read_text()
    section = page.partition(f'\n## {heading}\n')[2].partition('\n#')[0]
    rows = [line.split('|')[1] for line in section.splitlines() if line.startswith('| `')]
    return {name for row in rows for name in re.findall(r'`([^`]+)`', row)}


def test_the_page_lists_what_is_refused():
    """All of it, and nothing that is served."""
    assert listed('Extra specs') == unsupported.names(unsupported.EXTRA_SPECS)
    assert listed('Image properties') == unsupported.names(unsupported.IMAGE_PROPERTIES)
    assert listed('Images of servers') == unsupported.names(unsupported.SNAPSHOTS)
    assert listed('Members of a create') == set(unsupported.FIELDS)


def test_the_page_lists_what_has_no_route():
    served = {route.action for route in ROUTES if route.path == '/servers/{server_id}/action'}
    assert listed('Server actions') == ACTIONS - served
    paths = {re.sub(r'{\w+}', '{id}', route.path) for route in ROUTES if route.status < 400}
    assert listed('Resources') == RESOURCES and not [
        name for name in RESOURCES if any(path == name or path.startswith(f'{name}/') for path in paths)
    ]
