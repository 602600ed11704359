"""A compute that restarts has lost its domains: to Kilonova that is a host that rebooted."""
from __future__ import annotations

from tests.integration.site import GPUS, Site


def guests(site: Site, servers: list[str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """server → its host and the PCI addresses in its domain XML."""
    hosts = {name: row['OS-EXT-SRV-ATTR:host'] for name, row in site.servers().items()}
    return {name: (hosts[name], site.hostdevs(hosts[name], name)) for name in servers}


def test_servers_come_back_with_the_same_devices(site: Site) -> None:
    """resume_guests_state_on_host_boot is on in the one-machine cloud."""
    one, two = site.flavor('boot-one', gpus=1), site.flavor('boot-two', gpus=2)
    servers = site.boot(2, one, user='admin', host='gpu1') + site.boot(1, two, user='admin', host='gpu1')
    before = guests(site, servers)
    assert [len(devices) for _, devices in before.values()] == [1, 1, 2]
    site.restart('compute-gpu1')
    shown = site.settle(servers)
    assert {row['status'] for row in shown.values()} == {'ACTIVE'}, site.tell(shown)
    assert guests(site, servers) == before
    site.audit()


def test_without_resume_they_are_off_and_start_with_the_same_devices(site: Site) -> None:
    """Nobody finds a server running without its GPU."""
    servers = site.boot(2, site.flavor('boot-one', gpus=1), user='admin', host='gpu1')
    before = guests(site, servers)
    owned = sorted((row['address'], row['instance_uuid']) for row in site.devices() if row['instance_uuid'])
    site.configure('[DEFAULT]\nresume_guests_state_on_host_boot = false\n')
    site.restart('compute-gpu1')
    shown = site.await_status(servers, 'SHUTOFF')
    assert {row['OS-EXT-STS:power_state'] for row in shown.values()} == {4}
    assert sorted((row['address'], row['instance_uuid']) for row in site.devices() if row['instance_uuid']) == owned
    site.audit()
    for name in servers:
        site.act(name, 'os-start')
    site.await_status(servers, 'ACTIVE')
    assert guests(site, servers) == before
    site.audit()


def test_resized_servers_outlive_the_restart_of_both_hosts(site: Site) -> None:
    """VERIFY_RESIZE on the destination, the source keeps its side; then one is confirmed, one is reverted."""
    servers = site.boot(2, site.flavor('boot-one', gpus=1), user='admin', host='gpu1')
    before = guests(site, servers)
    larger = site.flavor('boot-one-large', gpus=1, vcpus=2, ram=1024)
    for name in servers:
        # One after the other: each is to find a device.
        site.act(name, 'resize', {'flavorRef': larger})
        site.await_status([name], 'VERIFY_RESIZE')
    moved = guests(site, servers)
    assert {host for host, _ in moved.values()} == {'gpu2'}
    for daemon in ('compute-gpu1', 'compute-gpu2'):
        site.restart(daemon)
    shown = site.settle(servers)
    assert {row['status'] for row in shown.values()} == {'VERIFY_RESIZE'}
    assert guests(site, servers) == moved
    site.audit()
    confirmed, reverted = servers
    site.act(confirmed, 'confirmResize')
    site.act(reverted, 'revertResize')
    site.await_status(servers, 'ACTIVE')
    assert guests(site, servers) == {confirmed: moved[confirmed], reverted: before[reverted]}
    assert sum(row['status'] == 'available' for row in site.devices() if row['product_id'] == '13f1') == GPUS - 2
    site.audit()
