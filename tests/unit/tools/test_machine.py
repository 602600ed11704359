"""Machines of real guests' hosts: their addresses, what they start from, and the services in them."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tools.cloud import cinder, control, machine, neutron, ports, process, render, services, switch
from tools.cloud import layout as layouts
from tools.cloud.layout import CloudError, Layout
from tools.cloud.machine import Machine

PORTS = {name: 21000 + number for number, name in enumerate(ports.names_for(['gpu1', 'gpu2']))}
SECRETS = {name: f'secret-of-{name}' for name in layouts.SECRET_NAMES}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(
        var=tmp_path / 'var',
        venv=tmp_path / 'venv',
        services_venv=tmp_path / 'services',
        tempest_venv=tmp_path / 'tempest',
        cyborg_venv=tmp_path / 'cyborg',
        neutron_venv=tmp_path / 'neutron',
        cinder_venv=tmp_path / 'cinder',
    )


@pytest.fixture
def cloud(layout: Layout, tmp_path: Path) -> services.Cloud:
    machines = {
        host: Machine(str(layout.machines / host), host, address)
        for host, address in machine.addresses({}, ['gpu1', 'gpu2']).items()
    }
    return services.Cloud(
        layout, PORTS, SECRETS, {host: tmp_path / f'{host}.xml' for host in machines}, machines=machines
    )


def test_a_host_keeps_its_address() -> None:
    """Whatever hosts come or go: a new address restarts the machine, and its guests with it."""
    first = machine.addresses({}, ['gpu1', 'gpu2'])
    assert first == {'gpu1': '10.77.0.1', 'gpu2': '10.77.0.2'}
    second = machine.addresses(first, ['alpha', 'gpu2'])
    assert second == {'gpu2': '10.77.0.2', 'alpha': '10.77.0.3'}


def test_a_machine_reads_what_was_written_for_it(tmp_path: Path) -> None:
    made = Machine(
        str(tmp_path),
        'gpu1',
        '10.77.0.7',
        ('/a', '/b'),
        ('/a/c',),
        (21001,),
        (21002, 21003),
        True,
        True,
        True,
        '203.0.113.1/24',
        ('/a/shared',),
    )
    (tmp_path / 'machine.json').write_text(json.dumps(asdict(made)))
    assert Machine.load(tmp_path) == made and made.number == 7


@pytest.mark.parametrize('shares', [(), ('/a/shared',)])
def test_only_machines_with_shares_need_what_mounts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: tuple[str, ...]
) -> None:
    monkeypatch.setattr(machine.shutil, 'which', lambda name, path=None: None)
    made = Machine(str(tmp_path / 'gpu1'), 'gpu1', '10.77.0.7', shares=shares)
    with pytest.raises(CloudError, match='not installed: ') as caught:
        machine.prepare(tmp_path, [made])
    assert str(caught.value).endswith(', bindfs') is bool(shares)


def test_a_pid_of_another_process_is_none(tmp_path: Path) -> None:
    """It may have gone to somebody else since the machine ended."""
    made = Machine(str(tmp_path), 'gpu1', '10.77.0.7')
    assert made.pid() is None
    for start, found in (('of another boot/1', None), (process.start_time(1), 1)):
        (tmp_path / 'pid.json').write_text(json.dumps([1, start]))
        assert made.pid() == found


def test_services_of_real_guests(cloud: services.Cloud) -> None:
    """A machine before what runs in it; it takes that along."""
    table = {service.name: service for service in services.table(cloud)}
    names = list(table)
    for host in ('gpu1', 'gpu2'):
        own = table[f'machine-{host}']
        assert own.first and own.holds == (f'libvirtd-{host}', f'compute-{host}')
        assert names.index(own.name) < names.index(own.holds[0]) < names.index(own.holds[1])
        for name in own.holds:
            assert table[name].argv[: len(own.argv) - 2] == own.argv[:-2] and 'enter' in table[name].argv
    assert 'kilonova-compute' in ' '.join(table['compute-gpu1'].argv)


def test_machines_with_a_network_have_a_switch_and_a_metadata_agent(cloud: services.Cloud) -> None:
    """Before guests can be plugged in there; and no pretended hosts beside them."""
    plain = {
        service.name
        for service in services.table(dataclasses.replace(cloud, network=True, machines={}, console_machine=None))
    }
    assert 'ovn-hosts' in plain and not {name for name in plain if name.startswith(('switch-', 'metadata-'))}
    table = {service.name: service for service in services.table(dataclasses.replace(cloud, network=True))}
    assert 'ovn-hosts' not in table
    for host, number in (('gpu1', 1), ('gpu2', 2)):
        own, names = table[f'machine-{host}'], list(table)
        assert own.holds == tuple(f'{kind}-{host}' for kind in ('switch', 'metadata', 'libvirtd', 'compute'))
        assert [name for name in names if name in own.holds] == [*own.holds]
        assert table[f'switch-{host}'].argv[-3:] == (host, f'10.78.0.{number}', f'tcp:127.0.0.1:{PORTS["ovn-sb"]}')
    assert f'--remote=ptcp:{PORTS["ovn-sb"]}:127.0.0.1' in table['ovn-sb'].argv


def test_a_network_leads_outside_by_one_machine_and_a_host_of_nobody_is_there(
    cloud: services.Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The routers of guests go out by the first host; a machine of its own is on the network outside."""
    monkeypatch.setattr(control.guests, 'build', lambda directory: None)
    monkeypatch.setattr(control.guests, 'kvm_works', lambda guest, directory: False)
    plain = dataclasses.replace(cloud, machines={})
    assert control.with_machines(plain, 'qemu').outside_machine is None
    made = control.with_machines(dataclasses.replace(plain, network=True), 'qemu')
    assert made.outside_machine is not None and made.outside_machine.outer_address == '203.0.113.1/24'
    assert {PORTS[name] for name in ('keystone', 'glance', 'api', 'neutron', 'novncproxy')} <= set(
        made.outside_machine.services
    )
    told = {host: switch.argv(one, 6642)[-2:] for host, one in made.machines.items()}
    assert told == {'gpu1': ('outside', 'routes'), 'gpu2': ('tcp:127.0.0.1:6642', 'outside')}
    assert 'machine-outside' in {service.name for service in services.table(made)}


def test_a_host_cannot_have_the_name_of_a_machine_of_the_cloud(cloud: services.Cloud) -> None:
    taken = dataclasses.replace(cloud, hosts={'outside': Path('/a.xml')})
    with pytest.raises(CloudError, match="no host can be called 'outside'"):
        control.with_machines(taken, 'qemu')


def test_volumes_of_real_guests_are_files_that_all_hosts_have(cloud: services.Cloud) -> None:
    """Cinder and each compute have the same directory for them; without real guests nothing is stored."""
    layout = cloud.layout
    layout.make_directories()
    for path in cloud.hosts.values():
        path.write_text('<node/>')
    services.write_configuration(dataclasses.replace(cloud, volume=True))
    text = cinder.conf_path(layout).read_text()
    assert 'volume_driver = tools.cloud.volume_files.Driver\n' in text
    assert f'nfs_mount_point_base = {cinder.shares(layout)}\n' in text
    assert cinder.shares_path(layout).read_text() == f'{cinder.SHARE}\n'
    assert all(
        f'nfs_mount_point_base = {cinder.shares(layout)}\n' in layout.compute_conf(host).read_text()
        for host in cloud.hosts
    )
    services.write_configuration(dataclasses.replace(cloud, volume=True, machines={}))
    assert 'pretended_volumes' in cinder.conf_path(layout).read_text()
    assert 'nfs_mount_point_base' not in layout.compute_conf('gpu1').read_text()


def test_a_metadata_agent_asks_our_service_and_signs(cloud: services.Cloud) -> None:
    """Both have the secret, in files of their own alone; without guests that could ask, neither is there."""
    layout = cloud.layout
    layout.make_directories()
    for path in cloud.hosts.values():
        path.write_text('<node/>')
    for made in (dataclasses.replace(cloud, network=True, machines={}), dataclasses.replace(cloud, network=True)):
        services.write_configuration(made)
        agents = [neutron.agent_path(layout, host) for host in made.machines]
        ours, theirs = layout.conf.read_text(), neutron.conf_path(layout).read_text()
        told = [
            f'metadata_proxy_shared_secret = {SECRETS["metadata"]}\n' in text
            for text in (ours, *(path.read_text() for path in agents))
        ]
        if made.machines:
            assert told == [True] * 3 and 'enabled_apis = osapi_compute, metadata\n' in ours
            assert f'metadata_listen_port = {PORTS["metadata"]}\n' in ours
            assert all(f'nova_metadata_port = {PORTS["metadata"]}\n' in path.read_text() for path in agents)
            assert 'ovn_metadata_enabled = true\n' in theirs
        else:
            assert told == [False] and 'enabled_apis' not in ours and 'ovn_metadata_enabled = false\n' in theirs
            assert not list(layout.etc.glob('neutron/metadata-*'))


def test_a_machine_takes_along_what_runs_in_it(cloud: services.Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[list[str]] = []
    monkeypatch.setattr(process, 'stop', lambda layout, names: ended.append(list(names)))
    table = {service.name: service for service in services.table(cloud)}
    for name in ('machine-gpu1', 'compute-gpu2'):
        control.end(cloud.layout, table[name])
    assert ended == [['libvirtd-gpu1', 'compute-gpu1'], ['machine-gpu1'], ['compute-gpu2']]


def test_settings_of_a_compute_with_real_guests(layout: Layout) -> None:
    text = render.compute(layout, PORTS, 'gpu1', Path('/gpu1.xml'), '', ('10.77.0.1', 'kvm'))
    assert 'connection_uri' not in text and 'my_ip = 10.77.0.1\n' in text and 'virt_type = kvm\n' in text
    played = render.compute(layout, PORTS, 'gpu1', Path('/gpu1.xml'), '')
    assert 'connection_uri = test:///gpu1.xml\n' in played and 'my_ip' not in played


def test_a_cloud_keeps_its_kind_of_guests(layout: Layout) -> None:
    """Its servers would be of the other kind."""
    assert control.kind_of(layout, None) == 'test' and control.kind_of(layout, 'qemu') == 'qemu'
    layout.var.mkdir()
    for kept, kind in (({}, 'test'), ({'guests': 'qemu'}, 'qemu')):
        control.settings_path(layout).write_text(json.dumps({'hosts': '/x', 'extra': None} | kept))
        assert control.kind_of(layout, None) == control.kind_of(layout, kind) == kind
        with pytest.raises(CloudError, match='remove'):
            control.kind_of(layout, 'test' if kind == 'qemu' else 'qemu')
