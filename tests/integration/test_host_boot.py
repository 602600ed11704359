"""A compute that restarts has lost its domains: to Kilonova that is a host that rebooted."""

from __future__ import annotations

import json
import random
import time

from tests.integration.site import GPUS, Site
from tools.cloud import control
from tools.cloud.layout import CloudError

COMPUTES = ('compute-gpu1', 'compute-gpu2')
# What a power cut takes; the databases of this cloud are files. Seconds that each is late.
ALL = ('rabbitmq', 'keystone', 'placement', 'glance', 'conductor', 'scheduler', 'api', *COMPUTES)
LATE = (0.0, 3.0, 10.0)
# The line of the issue: all is as before so many seconds after the hosts began to start.
BACK_WITHIN = 60.0


def guests(site: Site, servers: list[str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """server → its host and the PCI addresses in its domain XML."""
    hosts = {name: row['OS-EXT-SRV-ATTR:host'] for name, row in site.servers().items()}
    return {name: (hosts[name], site.hostdevs(hosts[name], name)) for name in servers}


def standing(site: Site, servers: list[str]) -> dict[str, tuple[object, ...]]:
    """server → what it is and where; of one that runs, what its hypervisor says of it."""
    rows = site.servers()
    shown = {}
    for name in servers:
        reply = site.send('GET', f'/servers/{name}/diagnostics', user='admin')
        said = reply.data['state'] if reply.status == 200 else reply.status
        shown[name] = (
            *(
                rows[name][key]
                for key in ('status', 'OS-EXT-STS:task_state', 'OS-EXT-STS:power_state', 'OS-EXT-SRV-ATTR:host')
            ),
            said,
        )
    return shown


def test_two_hosts_restart_with_twenty_servers(site: Site) -> None:
    """Five of them have GPUs, two of all are stopped. Both hosts die at once, and their domains with them: within a
    minute all is as before, with the same devices. resume_guests_state_on_host_boot is on in the one-machine cloud."""
    plain, one, two = site.flavor('boot-plain'), site.flavor('boot-one', gpus=1), site.flavor('boot-two', gpus=2)
    wanted = (
        [('gpu1', plain)] * 8
        + [('gpu2', plain)] * 7
        + [('gpu1', one), ('gpu1', one), ('gpu1', two), ('gpu2', one), ('gpu2', two)]
    )
    servers = site.at_once(lambda item: site.create('boot', item[1], user='admin', host=item[0]), wanted)
    site.await_status(servers, 'ACTIVE')
    stopped = [servers[0], servers[-1]]
    for name in stopped:
        site.act(name, 'os-stop')
    site.await_status(stopped, 'SHUTOFF')
    before, devices = standing(site, servers), guests(site, servers)
    assert sorted(len(found) for _, found in devices.values()) == [0] * 15 + [1, 1, 1, 2, 2]
    assert sorted(said for *_, said in before.values() if said != 'running') == [409, 409]
    site.audit()
    for daemon in COMPUTES:
        site.kill(daemon)
    began = time.monotonic()
    site.up()
    while (now := standing(site, servers)) != before:
        assert time.monotonic() < began + BACK_WITHIN, {name: now[name] for name in now if now[name] != before[name]}
        time.sleep(0.2)
    # One that is off has no domain until it is started.
    running = [name for name in servers if name not in stopped]
    assert guests(site, running) == {name: devices[name] for name in running}
    site.audit()
    for name in stopped:
        site.act(name, 'os-start')
    site.await_status(stopped, 'ACTIVE')
    assert guests(site, servers) == devices
    site.audit()


def test_everything_is_killed_and_comes_back_in_any_order(site: Site) -> None:
    """After a power cut all servers run as before within a minute of the start of the last daemon.

    All daemons are killed, and each is started once, with a random delay. No daemon exits because another one is not
    there yet. `tests/simulation/power_cut.py` tries all orders.
    """
    plain, one = site.flavor('boot-plain'), site.flavor('boot-one', gpus=1)
    servers = site.at_once(
        lambda item: site.create('cut', item[1], user='admin', host=item[0]),
        [('gpu1', plain), ('gpu1', one), ('gpu2', plain), ('gpu2', one)],
    )
    site.await_status(servers, 'ACTIVE')
    site.act(servers[0], 'os-stop')
    site.await_status(servers[:1], 'SHUTOFF')
    before, devices = standing(site, servers), guests(site, servers[1:])
    for name in ALL:
        site.kill(name)
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    late = {name: chance.choice(LATE) for name in ALL}
    order = sorted(chance.sample(ALL, len(ALL)), key=lambda name: late[name])
    print(f'seed {seed}: {", ".join(f"{name} {late[name]:.0f} s" for name in order)}')
    cut, pids = time.monotonic(), {}
    for name in order:
        time.sleep(max(0.0, cut + late[name] - time.monotonic()))
        assert control.start_one(site.cloud, control.pick(site.cloud, name))
        pids[name] = site.pid(name)
    began, now = time.monotonic(), None
    while now != before:
        assert time.monotonic() < began + BACK_WITHIN, now
        time.sleep(0.5)
        try:
            now = standing(site, servers)
        except (CloudError, OSError, AssertionError) as error:
            now = error
    print(f'all as before {time.monotonic() - began:.1f} s after the last one was started')
    assert {name: site.pid(name) for name in ALL} == pids
    assert guests(site, servers[1:]) == devices
    assert json.loads(site.manage('operation', 'list', '--format', 'json').stdout) == []
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
    for daemon in COMPUTES:
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
