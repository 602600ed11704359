"""Backup: what the host is asked, and the rotation that it leaves."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.db.queries import instances
from kilonova.errors import Invalid, Unanswered
from tests.unit.conductor.site import IMAGE, SERVER, Sent, Site, steps

DB = "metadata {'role': 'db'}"


def back_up(site: Site) -> None:
    site.put('active', 'image_backup')
    site.accept('backup', {'image_id': IMAGE, 'backup_type': 'daily', 'rotation': 3})


def test_a_backup_leaves_a_rotation(site: Site) -> None:
    back_up(site)
    site.go()
    assert site.calls() == [
        (
            'gpu1',
            'backup_instance',
            {
                'instance': f'active/image_backup on gpu1: flavor 1, {DB}',
                'image_id': IMAGE,
                'key': '0.backup_instance/1',
            },
        )
    ]
    assert site.state() == ('active', None) and site.action() == 'done' and site.kept() is None
    (row,) = site.rows()
    assert (row.kind, row.args, row.slot) == (
        'release',
        {'image_id': IMAGE, 'backup_type': 'daily', 'rotation': 3},
        row.uuid,
    )
    assert site.woken == [([row.uuid], False)]
    assert site.emitted == [
        (
            'instance.snapshot.end',
            {
                'instance': f'active/image_backup on gpu1: flavor 1, {DB}',
                'moved': 'snapshot.done',
                'host': 'gpu1',
                'snapshot_image_id': IMAGE,
            },
        )
    ]


def test_a_backup_of_a_server_that_was_reset(site: Site) -> None:
    back_up(site)

    def reset(sent: Sent) -> None:
        with site.cell.write() as conn:
            instances.transition(conn, SERVER, 'reset.error')

    site.answers['backup_instance'] = reset
    site.go()
    assert site.rows() == [] and site.images.deleted == [IMAGE] and site.state() == ('error', None)
    assert site.asked() == ['gpu1 backup_instance', 'gpu1 undo_snapshot_instance']


def test_a_backup_that_fails(site: Site) -> None:
    back_up(site)
    site.answers['backup_instance'] = Invalid('no')
    site.go()
    assert site.calls()[1] == (
        'gpu1',
        'undo_snapshot_instance',
        {'instance': f'active/image_backup on gpu1: flavor 1, {DB}', 'image_id': IMAGE, 'key': '0.backup_instance/1'},
    )
    assert site.state() == ('active', None) and site.images.deleted == [IMAGE] and site.rows() == []
    assert site.events() == [('compute_backup_instance', 'Error', None, 'no')]


def test_a_backup_that_was_made_is_not_made_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes the row over only writes the end."""
    back_up(site)
    real = instances.transition

    def die(*args: Any, **kwargs: Any) -> Any:
        raise Unanswered(who='database', reason='x')

    monkeypatch.setattr(instances, 'transition', die)
    site.go()
    monkeypatch.setattr(instances, 'transition', real)
    site.go()
    assert site.asked() == ['gpu1 backup_instance'] and site.state() == ('active', None)


def test_steps() -> None:
    assert steps('backup') == 'backup_instance mark_backed_up'
