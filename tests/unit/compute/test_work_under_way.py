"""What a host says of its work under way: builds, moves and images."""

from __future__ import annotations

import json

import pytest

from kilonova import errors
from kilonova.virt.parts.guests import GuestFailed
from tests.unit.compute.cell import flavor, new_context
from tests.unit.compute.cloud import build
from tests.unit.compute.test_moves import BIG, GPUS, OTHER_GPUS, Resize


def under_way(manager):
    """As the next write of this host's usage would have it."""
    usage = manager.host.tracker.usage()
    assert int(json.loads(usage['stats'])['io_workload']) == usage['current_workload']
    return usage['current_workload']


def written(usage):
    return int(json.loads(usage['stats'])['io_workload']), usage['current_workload'], usage['running_vms']


@pytest.fixture
def during(monkeypatch, cloud):
    """Notes what hosts have under way when a driver's method runs."""

    def watch(manager, subject, method):
        part, seen = getattr(cloud.drivers[manager.host.name], subject), []
        act = getattr(part, method)

        def watched(*args, **kwargs):
            seen.append(under_way(manager))
            return act(*args, **kwargs)

        monkeypatch.setattr(part, method, watched)
        return seen

    return watch


def test_a_build_counts_from_its_claim_to_its_end(cloud, during):
    manager = cloud.host('gpu1', GPUS)
    seen = during(manager, 'guests', 'spawn')
    assert under_way(manager) == 0
    cloud.cell.saves.clear()
    cloud.boot(manager)
    assert seen == [1] and under_way(manager) == 0
    assert written(cloud.cell.claims[-1]['usage']) == (1, 1, 1)
    (save,) = cloud.cell.saves
    assert written(save['usage']) == (0, 0, 1)
    cloud.boot(manager)
    assert written(cloud.cell.claims[-1]['usage']) == (1, 1, 2)
    assert written(cloud.cell.saves[-1]['usage']) == (0, 0, 2)
    count = len(cloud.cell.saves)
    manager.node.update()
    assert len(cloud.cell.saves) == count


def test_builds_at_the_same_time_add_up(cloud, monkeypatch):
    manager = cloud.host('gpu1', GPUS)
    driver, spawn, inner = cloud.drivers['gpu1'], cloud.drivers['gpu1'].guests.spawn, []

    def another(*args, **kwargs):
        if not inner:
            inner.append(cloud.cell.new_instance(1))
            build(manager, inner[0], key='inner/3.build/1')
            inner.append(under_way(manager))
        return spawn(*args, **kwargs)

    monkeypatch.setattr(driver.guests, 'spawn', another)
    cloud.boot(manager)
    assert written(cloud.cell.claims[-1]['usage']) == (2, 2, 2)
    assert inner[1] == 1 and under_way(manager) == 0


def test_a_build_that_fails_is_over(cloud):
    manager = cloud.host('gpu1', GPUS)
    cloud.drivers['gpu1'].fail('spawn', GuestFailed(act='start', uuid='u', reason='qemu died'), after=True)
    cloud.cell.saves.clear()
    with pytest.raises(errors.HostRejected):
        build(manager, cloud.cell.new_instance(1))
    assert written(cloud.cell.saves[-1]['usage']) == (0, 0, 0)


def test_a_refused_claim_was_never_under_way(cloud):
    manager = cloud.host('gpu1', GPUS)
    with pytest.raises(errors.HostRejected):
        build(manager, cloud.cell.new_instance(1, flavor(vcpus=8000)))
    cloud.cell.errors['claim_instance'] = errors.ClaimConflict(devices='x')
    with pytest.raises(errors.HostRejected):
        build(manager, cloud.cell.new_instance(1), key='p/3.build/1')
    assert under_way(manager) == 0


def test_an_order_that_comes_again_after_a_restart_counts_once(cloud, during):
    """The claim is there, the build isn't; then its undo."""
    manager = cloud.host('gpu1', GPUS)
    instance = cloud.cell.new_instance(1)
    cloud.cell.unanswered['save_instance'] = 1
    cloud.drivers['gpu1'].fail('spawn', KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        build(manager, instance)
    manager = cloud.host('gpu1')
    assert manager.host.tracker.usage()['running_vms'] == 1 and under_way(manager) == 0
    cloud.cell.instances[instance.uuid]['task_state'] = 'scheduling'
    seen = during(manager, 'guests', 'spawn')
    build(manager, cloud.cell.instance(instance.uuid), key='o/3.build/2')
    assert seen == [1] and under_way(manager) == 0


def test_both_ends_of_a_move_are_at_work(cloud, during):
    source, dest = cloud.host('gpu1', GPUS), cloud.host('gpu2', OTHER_GPUS)
    move = Resize(cloud, cloud.boot(source, 1), source, dest)
    moving = during(source, 'moves', 'migrate_disk_and_power_off')
    move.prep()
    assert written(cloud.cell.claims[-1]['usage']) == (1, 1, 1)
    assert (under_way(source), under_way(dest)) == (0, 1)
    move.move()
    assert moving == [1] and (under_way(source), under_way(dest)) == (0, 1)
    finishing = during(dest, 'moves', 'finish_migration')
    move.finish()
    assert finishing == [1] and (under_way(source), under_way(dest)) == (0, 0)


def test_a_move_on_one_host_is_one_server(cloud, during):
    host = cloud.host('gpu1', GPUS)
    move = Resize(cloud, cloud.boot(host, 1), host, host)
    seen = during(host, 'moves', 'migrate_disk_and_power_off')
    move.all()
    assert seen == [1] and under_way(host) == 0


def test_a_move_that_is_undone_is_over(cloud):
    source, dest = cloud.host('gpu1', GPUS), cloud.host('gpu2', OTHER_GPUS)
    move = Resize(cloud, cloud.boot(source, 1), source, dest)
    move.prep()
    cloud.drivers['gpu1'].fail('migrate_disk_and_power_off', errors.ResizeError(reason='no'))
    with pytest.raises(errors.ResizeError):
        move.move()
    assert (under_way(source), under_way(dest)) == (0, 1)
    dest.endpoint.undo_prep_resize(new_context(), instance=move.instance, migration=move.migration, key='x/3.undo/1')
    assert under_way(dest) == 0 and written(cloud.cell.saves[-1]['usage']) == (0, 0, 0)


def test_an_image_of_a_server_counts_while_it_is_made(cloud, during):
    manager = cloud.host('gpu1', GPUS)
    server = cloud.boot(manager)
    cloud.cell.instances[server.uuid].update(task_state='image_snapshot_pending')
    seen = during(manager, 'snapshots', 'snapshot')
    cloud.drivers['gpu1'].fail('snapshot', errors.ImageNotFound(image_id='i'))
    with pytest.raises(errors.ImageNotFound):
        manager.endpoint.snapshot_instance(
            new_context(), instance=cloud.cell.instance(server.uuid), image_id='i', key='i/0.snapshot_instance/1'
        )
    assert seen == [1] and under_way(manager) == 0


def test_a_claim_says_what_else_is_under_way(cloud, monkeypatch):
    """Work that has no write of its own (the source of a move, an image) is told with other servers' claims."""
    source, dest = cloud.host('gpu1', GPUS), cloud.host('gpu2', OTHER_GPUS)
    move = Resize(cloud, cloud.boot(source, 1), source, dest, to=BIG)
    move.prep()
    driver = cloud.drivers['gpu1']
    carry = driver.moves.migrate_disk_and_power_off

    def meanwhile(*args, **kwargs):
        cloud.boot(source)
        return carry(*args, **kwargs)

    monkeypatch.setattr(driver.moves, 'migrate_disk_and_power_off', meanwhile)
    move.move()
    assert written(cloud.cell.claims[-1]['usage']) == (2, 2, 2)
    assert under_way(source) == 0
