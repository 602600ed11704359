"""A volume that moves to another back end while a server has it: what hosts are asked, and what is left."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kilonova.conductor.flows.volume import volumes
from kilonova.errors import Invalid
from tests.fixtures.cinder import FakeCinder
from tests.unit.conductor.flows.volume.test_volumes import DATA, ROOT, add, of
from tests.unit.conductor.site import SERVER, Site


class Story:
    """A swap of the volume 'data' of a server on gpu1 for 'copy'; the server boots from another volume."""

    def __init__(self, site: Site) -> None:
        self.site, self.cinder = site, FakeCinder()
        site.env._volumes = self.cinder.client
        site.answers['prepare_volumes'] = lambda sent: {'connector': {'host': sent.server}, 'devices': []}
        site.put('active')
        site.accept('swap_volume')
        self.work = site.work()
        self.ids = {'root': add(site, self.cinder, ROOT), 'data': add(site, self.cinder, DATA)}
        volumes.to_host(self.work, 'gpu1')
        self.ids['copy'] = self.cinder.migrate(self.ids['data'], retype=True, size=3)
        (volume,) = [one for one in of(self.work) if one.device == DATA]
        args = {
            'volume_id': volume.volume_id,
            'copy': self.ids['copy'],
            'row': volume.uuid,
            'attachment': volume.attachment_id,
            'columns': {'volume_size': 3},
        }
        site.update(args=json.dumps(args))
        site.sent.clear()

    def run(self) -> dict[str, Any]:
        """Run the operation: what was asked, and what is left, with the volumes' names in place of their ids."""
        site = self.site
        site.go()
        found: dict[str, Any] = {
            'asked': site.calls(),
            'held': self.cinder.held(),
            'volumes': self.cinder.statuses(),
            'rows': [(one.volume_id, one.device, one.host, one.size) for one in of(self.work)],
            'releases': site.releases(),
            'events': site.events(),
            'action': site.action(),
            'migration': self.cinder.volumes[self.ids['data']]['os-vol-mig-status-attr:migstat'],
        }
        about = [args['copy'] for _, _, args in found['asked'] if 'copy' in args]
        attached = {one['attachment_id'] for one in about}
        about += [args['kwargs']['copy'] for _, args in found['releases'] if 'kwargs' in args]
        for one in about:
            one['attachment_id'] = 'one' if {one['attachment_id']} == attached else 'another'
            (one['connection_info'],) = re.findall('"name": "([^"]*)"', one['connection_info'])
        text = json.dumps(found)
        for name, uuid in {**self.ids, 'server': SERVER}.items():
            text = text.replace(uuid, name)
        found = json.loads(text)
        found['held'].sort()
        return found


ON = "active/None on gpu1: flavor 1, metadata {'role': 'db'}"
COPY = {'volume_id': 'copy', 'of': 'data', 'volume_size': 3, 'attachment_id': 'one', 'connection_info': 'volumes/copy'}


def asked(method: str, step: str) -> list[Any]:
    """Return a message of this step to gpu1 about the copy."""
    return ['gpu1', method, {'instance': ON, 'copy': COPY, 'key': f'{step}/1'}]


PREPARE = ['gpu1', 'prepare_volumes', {'instance': ON}]
COPYING, UNDO_COPYING = asked('copy_volume', '1.copy'), asked('undo_copy_volume', '1.copy')
SWAP, UNDO_SWAP = asked('swap_volume', '2.swap'), asked('undo_swap_volume', '2.swap')
LATER = ['gpu1', {'host': 'gpu1', 'method': 'undo_swap_volume', 'kwargs': {'instance': ON, 'copy': COPY}}]


@pytest.mark.parametrize(
    ('how', 'has_copy', 'messages', 'releases'),
    [
        ('swapped', True, [COPYING, SWAP], []),
        ('copy_volume refused', False, [COPYING, UNDO_COPYING], []),
        ('swap_volume refused', False, [COPYING, SWAP, UNDO_SWAP, UNDO_COPYING], []),
        ('swap_volume refused though done', True, [COPYING, SWAP, UNDO_SWAP], []),
        ('swap_volume refused, and then off', True, [COPYING, SWAP], [LATER]),
        ('off after the copy', True, [COPYING], []),
    ],
)
def test_a_swap_leaves_one_of_the_two_volumes_and_the_server_with_it(
    site: Site, how: str, has_copy: bool, messages: list[Any], releases: list[Any]
) -> None:
    """Keep the copy if the guest uses it or may use it, and the first volume in all other cases."""

    def refuse(sent: Any) -> None:
        if how.endswith('off'):
            site.silence('gpu1', forced=True)
        raise Invalid('no')

    if 'refused' in how:
        site.answers[how.split(maxsplit=1)[0]] = refuse
    elif how.startswith('off'):
        site.answers['copy_volume'] = lambda sent: site.silence('gpu1', forced=True)
    site.answers['undo_swap_volume'] = {'swapped': how.endswith('done')}
    result = 'Success' if has_copy else 'Error'
    assert Story(site).run() == {
        'asked': [PREPARE, *messages],
        'held': ['data server attached gpu1', 'root server attached gpu1'],
        'volumes': {'root': 'in-use', 'data': 'in-use'},
        'migration': 'success' if has_copy else 'error',
        'rows': [['root', ROOT, 'gpu1', 1], ['data', DATA, 'gpu1', 3 if has_copy else 1]],
        'releases': releases,
        'events': [['compute_swap_volume', result, 'gpu1', 'no' if 'refused' in how else None]],
        'action': 'done' if has_copy else 'Error',
    }
    assert site.kept() is None


def test_the_volumes_of_a_failed_swap_are_released_later_if_the_volume_service_does_not_answer(site: Site) -> None:
    story = Story(site)

    def refuse(sent: Any) -> None:
        story.cinder.before = broken
        raise Invalid('no')

    def broken(method: str, path: str) -> None:
        if path.startswith('/attachments'):
            raise story.cinder.broken()

    site.answers['copy_volume'] = refuse
    found = story.run()
    assert found['releases'] == [[None, {'volumes_of': 'server', 'volume_swapped': ['data', 'copy', False]}]]
    assert found['rows'] == [['root', ROOT, 'gpu1', 1], ['data', DATA, 'gpu1', 1]]
    assert found['volumes'] == {'root': 'in-use', 'data': 'retyping', 'copy': 'attaching'}
    assert site.action() == 'Error' and site.kept() is None


def test_a_swap_waits_while_a_host_that_is_down_may_run_the_guest(site: Site) -> None:
    """Keep the two volumes, as it is unknown which one the guest uses."""
    site.answers['copy_volume'] = lambda sent: site.silence('gpu1')
    found = Story(site).run()
    assert found['asked'] == [PREPARE, COPYING] and found['releases'] == found['events'] == []
    assert found['rows'] == [['root', ROOT, 'gpu1', 1], ['data', DATA, 'gpu1', 1]]
    assert found['held'][0] == 'copy server attaching gpu1' and found['migration'] == 'migrating'
    row = site.kept()
    assert row is not None and not row.failed and site.action() == 'under way'


def test_a_swap_that_is_cancelled_when_the_guest_uses_the_copy_is_completed_without_asking_the_host(site: Site) -> None:
    site.answers['swap_volume'] = lambda sent: site.update(cancelled=True)
    found = Story(site).run()
    assert found['asked'] == [PREPARE, COPYING, SWAP]
    assert found['rows'] == [['root', ROOT, 'gpu1', 1], ['data', DATA, 'gpu1', 3]]
    assert found['migration'] == 'success' and site.kept() is None
