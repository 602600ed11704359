"""Rows 0.10, 0.11, 0.14, 0.21, 1.1, 1.12, 1.18, 1.21, 1.34 of the seed map: what crosses the whole cloud."""
from __future__ import annotations

import logging

from kilonova.virt.driver import GuestFailed


def test_a_move_claims_the_new_flavors_amounts_and_says_so(cloud, caplog):
    """Rows 0.10, 0.11: the field's lines on the destination, with the new flavor's memory, disk and vCPUs."""
    server = cloud.boot(cloud.flavor(gpus=1, vcpus=2, ram=1024, disk=2))
    with caplog.at_level(logging.INFO):
        cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2, vcpus=4, ram=2048, disk=3)})
    dest = cloud.host_of(server)
    lines = iter(record.getMessage() for record in caplog.records)
    story = ['Attempting claim: memory 2048 MB, disk 3 GB, vcpus 4 CPU', f'Claim successful on node {dest}',
             'Migrating']
    assert [line for line in story if line not in lines] == []


def test_resize_and_cold_migrate_go_through_migrate_server(cloud):
    """Row 0.14: both are migrate_server with live and rebuild off; what tells them apart is the flavor."""
    asked = []

    def on_message(kind, topic, server, method, args, deliver):
        if method == 'migrate_server':
            asked.append((kind, args['live'], args['rebuild'], args['flavor'].flavorid))
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
    assert asked == [('cast', False, False, large), ('cast', False, False, small), ('cast', False, False, small)]


def test_the_steps_of_a_boot_in_order(make_cloud, caplog):
    """Rows 0.21, 1.1, 1.12, 1.18, 1.21: the field's methods in its order, limits and alternates with the build."""
    cloud = make_cloud(periodic_enable=False, report_interval=3600)
    told = []

    def on_message(kind, topic, server, method, args, deliver):
        if method == 'build_and_run_instance':
            told.append((server, args['node'], args['host_list'], args['filter_properties']['retry']['num_attempts']))
        return deliver()
    cloud.messages.clear()
    cloud.on_message = on_message
    with caplog.at_level(logging.DEBUG, logger='kilonova.conductor'):
        server = cloud.boot(cloud.flavor(gpus=1))
    host = cloud.host_of(server)
    other = next(name for name in cloud.gpus if name != host)
    assert [message for message in cloud.messages if message[3] != 'object_action'] == [
        ('cast', 'conductor', None, 'schedule_and_build_instances'), ('long', 'scheduler', None, 'select_destinations'),
        ('long', 'compute', host, 'build_and_run_instance'), ('call', 'conductor', None, 'claim_instance'),
        ('call', 'conductor', None, 'save_instance')]
    assert told == [(host, host, [other], 1)]
    assert f"Selected host: {host}; Selected node: {host}; Alternates: ['{other}']" in caplog.text


def test_a_host_where_builds_fail_comes_last(cloud):
    """Row 1.34: the next host takes the server, and the failing one is passed over until a build works there."""
    flavor = cloud.flavor()
    # More room on gpu1 makes it the first choice.
    cloud.boot(cloud.flavor(vcpus=4, ram=8192), availability_zone='nova:gpu2')
    assert cloud.host_of(cloud.boot(flavor)) == 'gpu1'
    driver = cloud.computes['gpu1'].host.driver
    spawn = driver.spawn

    def fail(*args, **kwargs):
        driver.spawn = spawn
        raise GuestFailed(act='start', uuid='x', reason='injected')
    driver.spawn = fail
    rescheduled = cloud.boot(flavor)
    assert (cloud.status(rescheduled), cloud.host_of(rescheduled)) == ('ACTIVE', 'gpu2')
    assert cloud.host_of(cloud.boot(flavor)) == 'gpu2'
    # A build that works there ends it.
    cloud.boot(flavor, availability_zone='nova:gpu1')
    assert cloud.host_of(cloud.boot(flavor)) == 'gpu1'
    cloud.assert_clean()
