"""No guest starts with a device, or a part of one, that another domain of the host has."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kilonova import errors
from kilonova.states import PowerState
from tests.fixtures.cloud import IMAGE_ID, SPEC, Cloud
from tests.fixtures.cyborg import FakeCyborg
from tests.fixtures.hosts import sriov_gpu
from tests.functional.test_device_care import shown

GPU, OTHER = '0000:08:00.0', '0000:88:00.0'
HOSTS = {'gpu1': [GPU], 'gpu2': [OTHER]}
ONE = {'gpu1': [GPU]}
PF, VFS = '0000:3b:00.0', ['0000:3b:00.4', '0000:3b:00.5']
VF_ALIAS = json.dumps({'name': 'vf', 'vendor_id': '10de', 'product_id': '2330', 'device_type': 'type-VF'})
PF_ALIAS = json.dumps({'name': 'pf', 'vendor_id': '10de', 'product_id': '2330', 'device_type': 'type-PF'})


def with_cyborg(make_cloud: Any, gpus: dict[str, Any], handles: dict[str, list[str]], **options: Any) -> Cloud:
    """A cloud whose Cyborg gives away these PCI functions of hosts."""
    cyborg = FakeCyborg()
    cloud: Cloud = make_cloud(gpus, cyborg=cyborg, **options)
    cyborg.notify = lambda events: cloud.request(
        'POST', '/os-server-external-events', {'events': events}, version='2.82'
    )
    for host, addresses in handles.items():
        cyborg.offer(cloud.placement, host, f'{host}_card', 'PGPU', [('PCI', address) for address in addresses])
    cyborg.profiles['card'] = [{'resources:PGPU': '1'}]
    return cloud


def accelerated(cloud: Cloud) -> str:
    return cloud.flavor(**{'accel:device_profile': 'card'})


@contextlib.contextmanager
def foreign(
    cloud: Cloud, address: str, *, host: str = 'gpu1', kind: str = 'hostdev', runs: bool = True
) -> Iterator[str]:
    """A domain that somebody else made on the host, which has this PCI function; its name."""
    domain, bus, rest = address.split(':')
    slot, function = rest.split('.')
    source = (
        f"<source><address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'{{}}/></source>"
    )
    device = {
        'hostdev': f"<hostdev mode='subsystem' type='pci' managed='yes'>{source.format('')}</hostdev>",
        'interface': f"<interface type='hostdev' managed='yes'>{source.format(chr(32) + 'type=' + repr('pci'))}"
        '</interface>',
        'nvme': f"<disk type='nvme' device='disk'><driver name='qemu' type='raw'/><source type='pci' managed='yes' "
        f"namespace='1'>{source.format('')[8:]}<target dev='vda' bus='virtio'/></disk>",
    }[kind]
    xml = (
        f"<domain type='test'><name>labs-vm</name><uuid>{uuid.uuid4()}</uuid><memory>65536</memory><vcpu>1</vcpu>"
        f'<os><type>hvm</type></os><devices>{device}</devices></domain>'
    )
    connection = cloud.computes[host].host.driver.guests._libvirt
    made = connection.do(lambda one: one.defineXML(xml))
    if runs:
        made.create()
    try:
        yield 'labs-vm'
    finally:
        if made.isActive():
            made.destroy()
        made.undefine()


def fault(cloud: Cloud, server: str) -> str:
    return str(cloud.show(server)['fault']['message'])


def why(cloud: Cloud, server: str) -> str:
    """All that the story of a server says of its failures."""
    return json.dumps(cloud.story(server))


# --- offered by two books ---------------------------------------------------------------------------------------------
def test_a_card_that_a_server_has_from_cyborg_is_given_to_no_other(make_cloud: Any) -> None:
    """Another host takes the second server; the third is told who has the card. No host counts a failed build."""
    cloud = with_cyborg(make_cloud, HOSTS, {'gpu1': [GPU]})
    first = cloud.boot(accelerated(cloud))
    assert cloud.hostdevs(first) == [GPU]
    servers = [cloud.boot(cloud.flavor(gpus=1)) for _ in range(2)]
    assert [cloud.status(server) for server in servers].count('ACTIVE') == 1
    (active,) = [server for server in servers if cloud.status(server) == 'ACTIVE']
    assert cloud.hostdevs(active) == [OTHER] and cloud.hostdevs(first) == [GPU]
    stories = why(cloud, servers[0]) + why(cloud, servers[1])
    assert f'server {first} has {GPU}' in stories
    assert [compute.host.tracker.failed_builds for compute in cloud.computes.values()] == [0, 0]


def test_cyborg_gives_a_card_that_a_server_has(make_cloud: Any) -> None:
    """The other way round; the server that has the card keeps it."""
    cloud = with_cyborg(make_cloud, ONE, {'gpu1': [GPU]})
    first = cloud.boot(cloud.flavor(gpus=1))
    second = cloud.boot(accelerated(cloud))
    assert (cloud.status(first), cloud.status(second)) == ('ACTIVE', 'ERROR')
    assert f'server {first} has {GPU}' in why(cloud, second)
    assert shown(cloud, GPU) == {}, 'nothing is wrong with the device of the first server'


@pytest.mark.parametrize('action', ['os-start', 'reboot', 'rebuild', 'rescue', 'unshelve', 'host boot'])
def test_whatever_starts_a_guest_looks(make_cloud: Any, action: str) -> None:
    """Somebody else's domain got the card while the server was off: nothing starts it, and its story says why. Later
    its user starts it."""
    cloud = make_cloud(ONE, shelved_offload_time=-1)
    server = cloud.boot(cloud.flavor(gpus=1))
    find = cloud.computes['gpu1'].host.driver.guests._libvirt.find
    if action in ('os-start', 'unshelve'):
        cloud.action(server, 'shelve' if action == 'unshelve' else 'os-stop')
    elif action == 'host boot':
        find(server).destroy()
    body: Any = {'reboot': {'type': 'HARD'}, 'rebuild': {'imageRef': IMAGE_ID}, 'rescue': {}}.get(action)
    with foreign(cloud, GPU) as name:
        before = find(server).is_active()
        if action == 'host boot':
            cloud.computes['gpu1'].guests.boot()
        else:
            cloud.action(server, action, body)
        assert find(server).is_active() == before
        if action != 'host boot':
            assert f"domain '{name}'" in why(cloud, server) and f'Device(s) {GPU} cannot be used' in why(cloud, server)
    if cloud.status(server) == 'SHUTOFF':
        cloud.action(server, 'os-start')
        assert cloud.status(server) == 'ACTIVE'


@pytest.mark.parametrize('end', ['revertResize', 'failed'])
def test_a_server_that_comes_back_from_a_move_stays_off(make_cloud: Any, end: str) -> None:
    """Its card at the source is somebody else's by now: a revert is refused before anything is changed, a resize that
    fails puts the server back."""
    cloud = make_cloud(HOSTS)
    server = cloud.boot(cloud.flavor(gpus=1))
    source = cloud.host_of(server)
    if end == 'revertResize':
        cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=1, ram=1024)})
        destination = cloud.host_of(server)
        with foreign(cloud, HOSTS[source][0], host=source):
            cloud.action(server, end)
        assert (cloud.status(server), cloud.host_of(server)) == ('VERIFY_RESIZE', destination)
        cloud.action(server, end)
        assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', source)
    else:
        taken = contextlib.ExitStack()

        def fail(kind: str, topic: str, host: str | None, method: str, args: Any, deliver: Any) -> Any:
            if method == 'finish_resize':
                taken.enter_context(foreign(cloud, HOSTS[source][0], host=source))
                raise errors.KilonovaError('no')
            return deliver()

        cloud.on_message = fail
        with taken:
            cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=1, ram=1024)})
            assert cloud.host_of(server) == source
            assert cloud.show(server)['OS-EXT-STS:power_state'] == PowerState.SHUTDOWN
        cloud.on_message = None


@pytest.mark.parametrize('kind', ['hostdev', 'interface', 'nvme'])
def test_a_domain_of_somebody_else_has_the_card(make_cloud: Any, kind: str) -> None:
    """A boot names it."""
    cloud = make_cloud(ONE)
    flavor = cloud.flavor(gpus=1)
    with foreign(cloud, GPU, kind=kind) as name:
        server = cloud.boot(flavor)
        assert cloud.status(server) == 'ERROR'
        assert f"domain '{name}'" in why(cloud, server) and 'no server of this host' in why(cloud, server)


def test_a_domain_of_somebody_else_that_does_not_run_has_nothing(make_cloud: Any) -> None:
    cloud = make_cloud(ONE)
    with foreign(cloud, GPU, runs=False):
        assert cloud.status(cloud.boot(cloud.flavor(gpus=1))) == 'ACTIVE'


@pytest.mark.parametrize(('given', 'alias'), [(PF, 'vf'), (VFS[0], 'pf'), (PF, 'pf')])
def test_a_card_and_its_virtual_functions_exclude_each_other(make_cloud: Any, given: str, alias: str) -> None:
    """Whichever of the two the other domain has, and though our books know only one side."""
    spec = json.dumps(
        {
            'vendor_id': '10de',
            'product_id': '2330',
            'address': PF if alias == 'pf' else {'bus': '3b', 'slot': '00', 'function': '[45]'},
        }
    )
    cloud = make_cloud(
        {'gpu1': []},
        devices={'gpu1': sriov_gpu(PF, VFS)},
        specs={'gpu1': [spec]},
        pci__alias=[VF_ALIAS, PF_ALIAS],
        pci__report_in_placement=False,
        filter_scheduler__pci_in_placement=False,
    )
    with foreign(cloud, given) as name:
        server = cloud.boot(cloud.flavor(gpus=1, alias=alias))
        assert cloud.status(server) == 'ERROR'
        assert f"domain '{name}'" in why(cloud, server) and given in why(cloud, server)


def test_two_functions_of_one_card_go_to_two_guests(make_cloud: Any) -> None:
    spec = json.dumps(
        {'vendor_id': '10de', 'product_id': '2330', 'address': {'bus': '3b', 'slot': '00', 'function': '[45]'}}
    )
    cloud = make_cloud(
        {'gpu1': []}, devices={'gpu1': sriov_gpu(PF, VFS)}, specs={'gpu1': [spec]}, pci__alias=[VF_ALIAS]
    )
    servers = [cloud.boot(cloud.flavor(gpus=1, alias='vf')) for _ in range(2)]
    assert sorted(address for server in servers for address in cloud.hostdevs(server)) == VFS


# --- the audit says so before anybody boots ---------------------------------------------------------------------------
def test_the_audit_names_a_card_that_two_give_away(make_cloud: Any) -> None:
    """Cyborg names its provider by the address of the card."""
    cyborg = FakeCyborg()
    cloud = make_cloud(HOSTS, cyborg=cyborg, specs={host: [SPEC] for host in HOSTS})
    cloud.assert_clean()
    cyborg.offer(cloud.placement, 'gpu1', f'gpu1_NVIDIA_GPU_{GPU}', 'PGPU', [('PCI', GPU)])
    cyborg.offer(cloud.placement, 'gpu2', 'gpu2_NVIDIA_GPU_0000:99:00.0', 'PGPU', [('PCI', '0000:99:00.0')])
    (line,) = cloud.audit().disagreements
    assert f'gpu1_NVIDIA_GPU_{GPU}' in line and GPU in line and 'device_spec' in line
