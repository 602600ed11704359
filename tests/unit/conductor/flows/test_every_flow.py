"""What holds for each flow: hosts are shown the server as the host before left it, and a row is written as often as it
must survive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kilonova.db import engine
from kilonova.errors import Invalid
from tests.unit.conductor.flows import (
    test_backup,
    test_boot,
    test_confirm_revert,
    test_delete,
    test_evacuate,
    test_live_migrate,
    test_one_step,
    test_rebuild,
    test_resize,
    test_shelve,
    test_unshelve,
)
from tests.unit.conductor.site import SERVER, Sent, Site


def stop(site: Site) -> None:
    site.put('active', 'powering-off')
    site.accept('stop')


def settled(site: Site) -> None:
    test_delete.soft(site, moved=True)


# flow: (how it begins, how many hosts changed the server before each message, and before each notification, how often
# its row is written on the way).
GOOD: dict[str, tuple[Callable[[Site], Any], list[int], list[int], int]] = {
    'stop': (stop, [0], [], 0),
    'resize': (test_resize.begin, [0, 1, 2], [3], 6),
    'confirm': (test_confirm_revert.confirm, [0], [1], 1),
    'revert': (test_confirm_revert.revert, [0, 0, 2], [3], 4),
    'evacuate': (test_evacuate.begin, [0], [0, 1], 3),
    'live_migrate': (test_live_migrate.begin, [0, 0, 2, 2, 2, 5], [], 9),
    'backup': (test_backup.back_up, [0], [1], 1),
    'shelve': (test_shelve.shelve, [0], [1], 1),
    'shelve_offload': (test_shelve.offload, [0], [0], 1),
    'unshelve': (test_unshelve.unshelve, [0], [1], 4),
    'unshelve_start': (test_unshelve.start, [0], [1], 1),
    'rebuild': (test_rebuild.begin, [0], [0], 1),
    'delete': (test_delete.begin, [0], [0, 0], 1),
    'soft_delete': (settled, [0, 1], [], 2),
}
# The same where a step fails: which one, and what the messages behind it show.
BAD: dict[str, tuple[Callable[[Site], Any], str, list[int]]] = {
    'resize': (test_resize.begin, 'finish_resize', [3, 4, 5]),
    'evacuate': (test_evacuate.begin, 'evacuate_instance', [1]),
    'live_migrate': (test_live_migrate.begin, 'pre_live_migration', [3, 4]),
    'backup': (test_backup.back_up, 'backup_instance', [1]),
    'shelve': (test_shelve.shelve, 'shelve_instance', [1]),
    'unshelve': (test_unshelve.unshelve, 'unshelve_instance', [1]),
    'unshelve_start': (test_unshelve.start, 'start_shelved_instance', [1]),
}


def server_of(sent: Sent) -> Any:
    return sent.args['instance'] if 'instance' in sent.args else sent.args['order'].instance


def changes(site: Site) -> list[int]:
    return [server_of(sent).progress or 0 for sent in site.sent if sent.server]


@pytest.mark.parametrize('name', GOOD)
def test_each_is_shown_the_server_as_it_is(site: Site, name: str) -> None:
    begin, shown, notified, _ = GOOD[name]
    begin(site)
    site.touching = True
    site.go()
    assert changes(site) == shown
    texts = [facts['instance'] for _, facts in site.emitted]
    assert [int(text.partition('progress ')[2].partition(',')[0] or 0) for text in texts] == notified


@pytest.mark.parametrize('name', BAD)
def test_each_that_undoes_is_shown_the_server_as_it_is(site: Site, name: str) -> None:
    begin, failing, shown = BAD[name]
    begin(site)
    site.touching = True
    site.answers[failing] = Invalid('no')
    site.go()
    at = [sent.method for sent in site.sent if sent.server].index(failing)
    assert changes(site)[at + 1 :] == shown


@pytest.mark.parametrize('name', GOOD)
def test_what_must_survive_is_written(site: Site, name: str) -> None:
    """And nothing else: each costs a statement. The end is one for itself."""
    begin, _, _, written = GOOD[name]
    begin(site)
    work = site.work()
    assert writes(site, lambda: test_one_step.run(work)) == written


def writes(site: Site, act: Callable[[], None]) -> int:
    statements: list[str] = []
    stop_ = engine.listen(lambda database, statement, many: statements.append(statement))
    try:
        act()
    finally:
        stop_()
    return sum(statement.startswith('UPDATE operations') for statement in statements)


def test_a_boot_is_written_once(site: Site) -> None:
    """The choice; the hand-over writes a new row."""
    test_boot.begin(site)
    work = site.work(database=site.api)
    assert writes(site, lambda: test_one_step.run(work)) == 1
    assert site.row()['uuid'] == SERVER


def test_a_release_is_not_written(site: Site) -> None:
    site.put('active')
    site.accept('release', {'image_id': 'i'}, slot='x')
    work = site.work()
    assert writes(site, lambda: test_one_step.run(work)) == 0 and site.rows() == []
