"""Shelve and offload: hosts, images, and what the server's row and metadata say."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.db.queries import instances
from kilonova.errors import Invalid
from kilonova.rpc.interface import VersionCapError
from tests.unit.conductor.site import IMAGE, SERVER, SHELVED, Sent, Site, steps

DB = "metadata {'role': 'db'}"


def shelve(site: Site, offload: int = -1, **values: Any) -> None:
    site.env.conf.shelved_offload_time = offload
    site.put('active', 'shelving', **values)
    site.accept('shelve', {'image_id': IMAGE})


def test_a_shelve_keeps_the_host(site: Site) -> None:
    shelve(site)
    site.go()
    assert site.calls() == [
        (
            'gpu1',
            'shelve_instance',
            {'instance': f'active/shelving on gpu1: flavor 1, {DB}', 'image_id': IMAGE, 'key': '0.shelve_instance/1'},
        )
    ]
    assert site.state() == ('shelved', None) and site.rows() == [] and site.action() == 'done'
    kept = site.system_metadata()
    assert (kept['shelved_image_id'], kept['shelved_host'], kept['image_min_ram']) == (IMAGE, 'gpu1', '1')
    assert kept['shelved_at'].startswith(str(instances.utcnow().date()))
    assert site.emitted == [
        (
            'instance.shelve.end',
            {'instance': f'active/shelving on gpu1: flavor 1, {DB}', 'moved': 'shelve.done', 'host': 'gpu1'},
        )
    ]
    assert site.woken == [([], False)]


def test_a_shelve_may_go_on_with_the_offload(site: Site) -> None:
    shelve(site, offload=0)
    site.go()
    (row,) = site.rows()
    assert (row.kind, row.args, row.slot) == ('shelve_offload', {'shelving': True}, 'run')
    assert site.state() == ('shelved', 'shelving_offloading') and site.action() == 'under way'
    assert site.woken == [([row.uuid], False)] and site.emitted[0][1]['moved'] == 'shelve.offload'


@pytest.mark.parametrize(('stale', 'left'), [('old', [(None, {'image_id': 'old'})]), (IMAGE, [])])
def test_the_image_of_an_earlier_shelve_goes(site: Site, stale: str, left: Any) -> None:
    shelve(site, system_metadata={'shelved_image_id': stale})
    site.go()
    assert site.releases() == left and site.system_metadata()['shelved_image_id'] == IMAGE
    assert len(site.woken[0][0]) == len(left)


def test_a_shelve_that_fails(site: Site) -> None:
    shelve(site)
    site.answers['shelve_instance'] = Invalid('no')
    site.go()
    assert site.calls()[1] == (
        'gpu1',
        'undo_shelve_instance',
        {'instance': f'active/shelving on gpu1: flavor 1, {DB}', 'image_id': IMAGE, 'key': '0.shelve_instance/1'},
    )
    assert site.state() == ('active', None) and site.images.deleted == [IMAGE]
    assert site.events() == [('compute_shelve_instance', 'Error', None, 'no')]


def test_a_shelve_of_a_server_that_was_reset(site: Site) -> None:
    shelve(site)

    def reset(sent: Sent) -> None:
        with site.cell.write() as conn:
            instances.transition(conn, SERVER, 'reset.active')

    site.answers['shelve_instance'] = reset
    site.go()
    assert site.images.deleted == [IMAGE] and 'shelved_image_id' not in site.system_metadata()


# --- offload ---------------------------------------------------------------------------------------------------------
def offload(site: Site, **args: Any) -> None:
    site.put('shelved', 'shelving_offloading', system_metadata=dict(SHELVED))
    site.inventory()
    site.accept('shelve_offload', args)


@pytest.mark.parametrize('args', [{}, {'shelving': True}])
def test_an_offload_leaves_no_host(site: Site, args: dict[str, Any]) -> None:
    offload(site, **args)
    site.go()
    before = f'shelved/shelving_offloading on gpu1: flavor 1, {DB}'
    assert site.calls() == [
        ('gpu1', 'shelve_offload_instance', {'instance': before, 'key': '0.shelve_offload_instance/1'})
    ]
    assert site.state() == ('shelved_offloaded', None) and site.rows() == [] and site.action() == 'done'
    row = site.row()
    nowhere = {'host': None, 'node': None, 'compute_id': None, 'power_state': 4}
    assert {name: row[name] for name in nowhere} == nowhere and site.held() == {}
    assert site.events() == ([] if args else [('compute_shelve_offload_instance', 'Success', 'gpu1', None)])
    assert site.emitted == [
        (
            'instance.shelve_offload.end',
            {'instance': before, 'host': 'gpu1', 'moved': 'shelve_offload.done', 'values': nowhere},
        )
    ]


def test_a_dead_host_offloads_later(site: Site) -> None:
    offload(site)
    site.silence('gpu1')
    site.go()
    ((host, args),) = site.releases()
    assert (host, args['host'], args['method']) == ('gpu1', 'gpu1', 'shelve_offload_instance')
    assert args['kwargs'] == {'instance': f'shelved/shelving_offloading on gpu1: flavor 1, {DB}'}
    assert site.state() == ('shelved_offloaded', None) and site.held() == {}


def test_an_offload_without_a_host(site: Site) -> None:
    offload(site)
    with site.cell.write() as conn:
        instances.update(conn, SERVER, {'host': None})
    site.go()
    assert site.sent == [] and site.state() == ('shelved_offloaded', None)


def test_an_offload_of_a_server_that_is_being_deleted(site: Site) -> None:
    offload(site)
    with site.cell.write() as conn:
        instances.transition(conn, SERVER, 'delete.start')
    site.go()
    assert site.emitted[0][1]['moved'] is None and site.state() == ('shelved', 'deleting') and site.kept() is None


def test_an_offload_goes_forward(site: Site) -> None:
    offload(site)
    site.answers['shelve_offload_instance'] = [Invalid('x'), None]
    site.go()
    row = site.kept()
    assert row is not None and not row.failed and site.state() == ('shelved', 'shelving_offloading')
    site.go()
    assert site.state() == ('shelved_offloaded', None)


def test_a_host_that_knows_no_offload(site: Site) -> None:
    offload(site)
    site.answers['shelve_offload_instance'] = VersionCapError(version='6.13', cap='6.12')
    site.go()
    assert site.state() == ('shelved', None) and site.kept() is None and site.action() == 'Error'
    text = 'Requested message version, 6.13 is incompatible: the peer accepts up to 6.12.'
    assert site.faults() == [(500, text, 'gpu1')]
    assert site.events() == [('compute_shelve_offload_instance', 'Error', None, text)]


def test_a_delete_ends_an_offload(site: Site) -> None:
    offload(site)
    site.update(cancelled=True)
    site.go()
    assert site.sent == [] and site.kept() is None and site.faults() == []
    assert site.state() == ('shelved', 'shelving_offloading') and site.action() == 'under way'


def test_steps() -> None:
    assert steps('shelve') == 'shelve_instance mark_shelved'
    assert steps('shelve_offload') == 'shelve_offload_instance drop_allocation mark_offloaded'
