"""The order of RPC methods, the log lines and the locks of boots and moves, through the whole cloud."""

from __future__ import annotations

import logging
import re

import pytest

from kilonova.db.queries import operations
from kilonova.objects.base import Serializer
from kilonova.virt.parts.guests import GuestFailed


def test_a_move_claims_the_new_flavors_amounts_and_says_so(cloud, caplog):
    """The destination of a move logs Nova's lines "Attempting claim", "Claim successful" and "Migrating" with the
    memory, disk and vCPUs of the new flavor."""
    server = cloud.boot(cloud.flavor(gpus=1, vcpus=2, ram=1024, disk=2))
    with caplog.at_level(logging.INFO):
        cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2, vcpus=4, ram=2048, disk=3)})
    dest = cloud.host_of(server)
    lines = iter(record.getMessage() for record in caplog.records)
    story = [
        'Attempting claim: memory 2048 MB, disk 3 GB, vcpus 4 CPU',
        f'Claim successful on node {dest}',
        'Migrating',
    ]
    assert [line for line in story if line not in lines] == []


def test_resize_and_cold_migrate_go_through_migrate_server(cloud):
    """Resize and cold migration are both sent as migrate_server. The operation row tells them apart."""
    asked = []

    def on_message(kind, topic, server, method, args, deliver):
        if method == 'migrate_server':
            with cloud.databases.main().read() as conn:
                row = operations.get(conn, args['operation'])
            asked.append(
                (kind, row.args['migration_type'], Serializer().deserialize_entity(None, row.args['flavor']).flavorid)
            )
        return deliver()

    cloud.on_message = on_message
    small, large = cloud.flavor(gpus=1), cloud.flavor(gpus=2)
    server = cloud.boot(small)
    cloud.action(server, 'resize', {'flavorRef': large})
    cloud.action(server, 'confirmResize')
    cloud.action(server, 'resize', {'flavorRef': small})
    cloud.action(server, 'confirmResize')
    cloud.action(server, 'migrate')
    assert cloud.status(server) == 'VERIFY_RESIZE'
    assert asked == [('cast', 'resize', large), ('cast', 'resize', small), ('cast', 'migration', small)]


def test_the_steps_of_a_boot_in_order(make_cloud, caplog):
    """A boot sends Nova's RPC methods in Nova's order, and select_destinations is a call. The alternates stay with
    the conductor, which tells the host the number of the attempt."""
    cloud = make_cloud(periodic_enable=False, report_interval=3600)
    told = []

    def on_message(kind, topic, server, method, args, deliver):
        if method == 'build_and_run_instance':
            told.append((server, args['order'].attempt))
        return deliver()

    cloud.messages.clear()
    cloud.on_message = on_message
    with caplog.at_level(logging.DEBUG, logger='kilonova.conductor'):
        server = cloud.boot(cloud.flavor(gpus=1))
    host = cloud.host_of(server)
    other = next(name for name in cloud.gpus if name != host)
    assert [message for message in cloud.messages if message[3] != 'object_action'] == [
        ('cast', 'conductor', None, 'schedule_and_build_instances'),
        ('long', 'scheduler', None, 'select_destinations'),
        ('long', 'compute', host, 'build_and_run_instance'),
        ('call', 'conductor', None, 'claim_instance'),
        ('call', 'conductor', None, 'save_instance'),
    ]
    assert told == [(host, 1)]
    assert f"Selected host: {host}; Selected node: {host}; Alternates: ['{other}']" in caplog.text


def test_a_host_where_builds_fail_comes_last(cloud):
    """When a build fails, the next host takes the server. The failing host is chosen last until a build works there."""
    flavor = cloud.flavor()
    # More room on gpu1 makes it the first choice.
    cloud.boot(cloud.flavor(vcpus=4, ram=8192), availability_zone='nova:gpu2')
    assert cloud.host_of(cloud.boot(flavor)) == 'gpu1'
    driver = cloud.computes['gpu1'].host.driver
    spawn = driver.guests.spawn

    def fail(*args, **kwargs):
        driver.guests.spawn = spawn
        raise GuestFailed(act='start', uuid='x', reason='injected')

    driver.guests.spawn = fail
    rescheduled = cloud.boot(flavor)
    assert (cloud.status(rescheduled), cloud.host_of(rescheduled)) == ('ACTIVE', 'gpu2')
    assert cloud.host_of(cloud.boot(flavor)) == 'gpu2'
    # A build that works there ends it.
    cloud.boot(flavor, availability_zone='nova:gpu1')
    assert cloud.host_of(cloud.boot(flavor)) == 'gpu1'
    cloud.assert_clean()


def test_a_boot_tells_which_hosts_were_filtered_and_weighed(cloud, caplog):
    """A boot logs "Filtered", "Weighed" and "Selected host" at DEBUG."""
    with caplog.at_level(logging.DEBUG, logger='kilonova.scheduler'):
        server = cloud.boot(cloud.flavor(gpus=1))
    assert cloud.status(server) == 'ACTIVE'
    told = [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.getMessage().startswith(('Filtered', 'Weighed', 'Selected host'))
    ]
    assert [level for level, _ in told] == ['DEBUG', 'DEBUG', 'DEBUG']
    filtered, weighed, selected = (line for _, line in told)
    host = cloud.host_of(server)
    assert re.match(rf'Selected host: \({host}, {host}\) ram: \d+MB ', selected)
    assert re.match(r'Filtered \[\(gpu1, gpu1\) ram: \d+MB .*, \(gpu2, gpu2\) ram: \d+MB .*\]$', filtered)
    one = r'WeighedHost \[host: \(gpu\d, gpu\d\) ram: [^\]]*, weight: [\d.]+\]'
    assert re.match(rf'Weighed \[{one}, {one}\]$', weighed)


# What changes a guest or its files; the other methods only look, or are the host's.
ACTS = {
    'guests': ('spawn', 'destroy'),
    'power': ('power_off', 'power_on', 'reboot'),
    'snapshots': ('snapshot',),
    'moves': (
        'migrate_disk_and_power_off',
        'finish_migration',
        'confirm_migration',
        'cleanup_move_dest',
        'finish_revert_migration',
    ),
}


@pytest.fixture
def watched(cloud):
    """(cloud, {method: whether the server's lock was held, each time})."""
    seen = {}

    def watch(host, part, name):
        act = getattr(part, name)

        def call(*args, **kwargs):
            uuid = next(arg.uuid for arg in args if hasattr(arg, 'uuid'))
            seen.setdefault(name, []).append(uuid in host.locks._locks)
            return act(*args, **kwargs)

        setattr(part, name, call)

    for manager in cloud.computes.values():
        for subject, names in ACTS.items():
            for name in names:
                watch(manager.host, getattr(manager.host.driver, subject), name)
    return cloud, seen


def test_whatever_a_host_does_with_a_guest_it_does_under_its_lock(watched):
    """Each operation holds the one lock of its server for as long as the driver works on the guest."""
    cloud, seen = watched
    small, large = cloud.flavor(gpus=1), cloud.flavor(gpus=2)
    server = cloud.boot(small)
    for name, body in (
        ('os-stop', None),
        ('os-start', None),
        ('reboot', {'type': 'HARD'}),
        ('createImage', {'name': 'i'}),
        ('resize', {'flavorRef': large}),
        ('confirmResize', None),
        ('resize', {'flavorRef': small}),
        ('revertResize', None),
    ):
        cloud.action(server, name, body)
    assert cloud.status(server) == 'ACTIVE'
    # A move that fails at its end is undone on both hosts.
    for manager in cloud.computes.values():
        manager.host.driver.moves.finish_migration = fail
    cloud.action(server, 'resize', {'flavorRef': small})
    assert cloud.status(server) == 'ACTIVE'
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    assert set(seen) == {name for names in ACTS.values() for name in names}
    assert {name for name, held in seen.items() if not all(held)} == set()


def fail(*args, **kwargs):
    raise GuestFailed(act='start', uuid='x', reason='injected')
