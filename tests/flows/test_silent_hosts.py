"""Hosts that were silent or dead while a move of their server was undone, and what they do when heard again."""

from __future__ import annotations

import threading

import pytest

from kilonova.errors import HostRejected, KeyGone, Unanswered
from tests.fixtures.cloud import Crash
from tests.flows.cases import bring_back, force_down, lose_host

# What still waits then.
WAITING = ('release',)


@pytest.mark.parametrize('first', ['undo_resize_instance', 'undo_prep_resize'])
def test_a_host_dies_while_it_resizes_a_server_of_its_own(make_cloud, monkeypatch, first):
    """Simulated story 51052: back again, it built the guest with the devices of both flavors, and freed those of one of
    them. The two things that wait for it come in either order."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    cloud = make_cloud({'gpu1': ['0000:08:00.0', '0000:09:00.0', '0000:0a:00.0']}, allow_resize_to_same_host=True)
    server = cloud.boot(cloud.flavor(gpus=2))
    held, told = cloud.hostdevs(server), threading.Event()

    def on_message(kind, topic, host, method, args, deliver):
        if topic == 'compute' and method == 'resize_instance':
            try:
                return deliver()
            except Crash:
                lose_host(cloud, host)
                raise Unanswered(who=host, reason='crashed') from None
        if method == 'save_instance' and args['save'].transition == 'resize.migrated':
            raise Crash
        if method in ('undo_resize_instance', 'undo_prep_resize'):
            if method != first:
                assert told.wait(20)
            try:
                return deliver()
            finally:
                if method == first:
                    told.set()
        return deliver()

    cloud.on_message = on_message
    assert (
        cloud.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': cloud.flavor(gpus=1)}}).status_int
        == 202
    )
    cloud.settle(kinds_left=WAITING)
    bring_back(cloud, 'gpu1')
    cloud.on_message = None
    assert cloud.status(server) == 'ACTIVE' and cloud.hostdevs(server) == held
    cloud.assert_clean()


def resize(cloud, server):
    """Until nothing but a release of a silent host is left."""
    cloud.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': cloud.flavor(gpus=1, ram=1024)}})
    cloud.settle(kinds_left=WAITING)


def heard_again(cloud, source, server, held):
    """The server is then as it was before its move, and nothing is left of that."""
    cloud.on_message = None
    force_down(cloud, source, False)
    cloud.settle()
    assert (cloud.status(server), cloud.host_of(server), cloud.hostdevs(server)) == ('ACTIVE', source, held)
    cloud.assert_clean()


def test_a_host_that_was_silent_leaves_a_server_to_what_waits_for_it(make_cloud, monkeypatch):
    """Simulated stories 50323, 51283, 82971: a resize was undone while the source was not heard. Heard again, it saw
    that the guest was off and said so; so it stayed off when the disk was put back."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    cloud = make_cloud({'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:85:00.0']})
    server = cloud.boot(cloud.flavor(gpus=1))
    source, held = cloud.host_of(server), cloud.hostdevs(server)

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'finish_resize':
            raise HostRejected(reason='no')
        if method == 'undo_resize_instance':
            force_down(cloud, source, True)
            raise Unanswered(who=host, reason='silent')
        return deliver()

    cloud.on_message = on_message
    resize(cloud, server)
    assert [row['kind'] for row in cloud.rows()] == ['release']
    cloud.computes[source].guests.sync()
    heard_again(cloud, source, server, held)


def test_disks_that_arrive_after_their_move_was_undone_go_again(make_cloud, monkeypatch):
    """Simulated story 87074: a source that had been silent carried its disks when the destination was cleaned up
    already; they stayed there."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    cloud = make_cloud({'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:85:00.0']})
    server = cloud.boot(cloud.flavor(gpus=1))
    source, held = cloud.host_of(server), cloud.hostdevs(server)
    mover, late = cloud.computes[source].host.driver.moves._mover, []
    carry = mover.carry

    def carried(uuid, dest, progress):
        # The order was still good when it began.
        force_down(cloud, source, True)
        cloud.settle(kinds_left=WAITING)
        return carry(uuid, dest, progress)

    monkeypatch.setattr(mover, 'carry', carried)

    def refused(deliver):
        with pytest.raises(KeyGone):
            deliver()

    def begun(kind, topic, host, method, args, deliver):
        if method == 'resize_instance':
            late.append(threading.Thread(target=refused, args=[deliver]))
            late[0].start()
            force_down(cloud, source, True)
            raise Unanswered(who=host, reason='silent')
        return deliver()

    cloud.on_message = begun
    resize(cloud, server)
    late[0].join(20)
    heard_again(cloud, source, server, held)
