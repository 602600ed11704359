"""A volume that a server gets or gives up while it keeps another: what hosts are asked, and what is left."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kilonova.conductor.flows.volume import volume_attach, volumes
from kilonova.errors import Invalid
from tests.fixtures.cinder import FakeCinder
from tests.unit.conductor.flows.volume.test_volumes import DATA, ROOT, add, of
from tests.unit.conductor.site import SERVER, Site


def test_the_volume_is_found_by_its_id_and_named_if_it_is_gone(site: Site) -> None:
    site.put('active')
    cinder = FakeCinder()
    add(site, cinder, ROOT)
    wanted = add(site, cinder, DATA)
    site.accept('detach_volume', {'volume_id': wanted})
    assert volume_attach.volume_of(site.work()).device == DATA
    site.update(args='{"volume_id": "gone"}')
    with pytest.raises(volume_attach.VolumeGone, match='gone') as caught:
        volume_attach.volume_of(site.work())
    assert SERVER in str(caught.value)


# --- operations on a server that keeps another volume ----------------------------------------------------------------
ON = "active/None on gpu1: flavor 1, metadata {'role': 'db'}"


class Story:
    """An attach or a detach of the volume 'new' of a server that has the volume 'kept'."""

    def __init__(self, site: Site, kind: str, host: str | None = 'gpu1') -> None:
        self.site, self.cinder = site, FakeCinder()
        site.env._volumes = self.cinder.client
        site.answers['prepare_volumes'] = lambda sent: {'connector': {'host': sent.server}, 'devices': ['/dev/vdc']}
        site.put('active' if host else 'shelved_offloaded', **({} if host else {'host': None, 'node': None}))
        site.accept(kind)
        self.work, is_attached = site.work(), kind == 'detach_volume'
        self.ids = {'kept': add(site, self.cinder, DATA)}
        if is_attached:
            self.ids['new'] = add(site, self.cinder, None)
        if host:
            volumes.to_host(self.work, host)
        else:
            volumes.off_host(self.work)
        if not is_attached:
            self.ids['new'] = add(site, self.cinder, None)
        row = next(volume.uuid for volume in of(self.work) if volume.volume_id == self.ids['new'])
        site.update(args=json.dumps({'volume_id': self.ids['new'], **({} if is_attached else {'row': row})}))
        site.sent.clear()

    def run(self) -> dict[str, Any]:
        """Run the operation: what was asked, and what is left, with the volumes' names in place of their ids."""
        site = self.site
        site.go()
        found = {
            'asked': site.calls(),
            'held': self.cinder.held(),
            'rows': [(one.volume_id, one.device, one.host) for one in of(self.work)],
            'releases': site.releases(),
        }
        text = json.dumps(found)
        for name, uuid in {**self.ids, 'server': SERVER}.items():
            text = text.replace(uuid, name)
        found = json.loads(text)
        found['held'].sort()
        return found


def asked(method: str, step: str) -> list[Any]:
    """Return a message of this step to gpu1 about the volume 'new'."""
    return ['gpu1', method, {'instance': ON, 'volume_id': 'new', 'key': f'{step}/1'}]


KEPT = {'held': ['kept server attached gpu1'], 'rows': [['kept', DATA, 'gpu1']], 'releases': []}
BOTH = {
    'held': ['kept server attached gpu1', 'new server attached gpu1'],
    'rows': [['kept', DATA, 'gpu1'], ['new', '/dev/vdc', 'gpu1']],
    'releases': [],
}
# What remains of a server on no host.
APART: dict[str, Any] = {'asked': [], 'releases': []}
PREPARE = ['gpu1', 'prepare_volumes', {'instance': ON}]
ATTACH, UNDO_ATTACH = asked('attach_volume', '1.plug'), asked('undo_attach_volume', '1.plug')
DETACH, UNDO_DETACH = asked('detach_volume', '0.unplug'), asked('undo_detach_volume', '0.unplug')
LATER = ['gpu1', {'host': 'gpu1', 'method': 'undo_attach_volume', 'kwargs': {'instance': ON, 'volume_id': 'new'}}]


@pytest.mark.parametrize(
    ('how', 'status', 'result', 'expected'),
    [
        ('attached', 'in-use', 'Success', {**BOTH, 'asked': [PREPARE, ATTACH]}),
        ('refused', 'available', 'Error', {**KEPT, 'asked': [PREPARE, ATTACH, UNDO_ATTACH]}),
        ('refused, and then down', 'available', 'Error', {**KEPT, 'asked': [PREPARE, ATTACH], 'releases': [LATER]}),
        (
            'on no host',
            'in-use',
            'Success',
            {
                **APART,
                'held': ['kept server reserved None', 'new server attached None'],
                'rows': [['kept', DATA, None], ['new', '/dev/vdc', None]],
            },
        ),
    ],
)
def test_an_attach_ends_with_the_volume_or_without_any_trace_of_it(
    site: Site, how: str, status: str, result: str, expected: dict[str, Any]
) -> None:
    """Leave the other volume as it is, in each case."""

    def refuse(sent: Any) -> None:
        if how != 'refused':
            site.silence('gpu1')
        raise Invalid('no')

    if how.startswith('refused'):
        site.answers['attach_volume'] = refuse
    host = None if how == 'on no host' else 'gpu1'
    story = Story(site, 'attach_volume', host)
    assert story.run() == expected
    assert story.cinder.statuses()[story.ids['new']] == status
    assert site.events() == [('compute_attach_volume', result, host, 'no' if result == 'Error' else None)]
    assert site.action() == ('Error' if result == 'Error' else 'done') and site.kept() is None


@pytest.mark.parametrize(
    ('how', 'result', 'expected'),
    [
        ('detached', 'Success', {**KEPT, 'asked': [DETACH]}),
        ('refused', 'Error', {**BOTH, 'asked': [DETACH, UNDO_DETACH]}),
        ('cancelled when the guest has released it', 'Success', {**KEPT, 'asked': [DETACH]}),
        (
            'on no host',
            'Success',
            {**APART, 'held': ['kept server reserved None'], 'rows': [['kept', DATA, None]]},
        ),
    ],
)
def test_a_detach_frees_the_volume_unless_the_guest_keeps_it(
    site: Site, how: str, result: str, expected: dict[str, Any]
) -> None:
    if how == 'refused':
        site.answers['detach_volume'] = Invalid('no')
    elif how.startswith('cancelled'):
        site.answers['detach_volume'] = lambda sent: site.update(cancelled=True)
    host = None if how == 'on no host' else 'gpu1'
    story = Story(site, 'detach_volume', host)
    assert story.run() == expected
    assert story.cinder.statuses()[story.ids['new']] == ('in-use' if result == 'Error' else 'available')
    assert [event[:3] for event in site.events()] == [('compute_detach_volume', result, host)]
    assert site.action() == ('Error' if result == 'Error' else 'done') and site.kept() is None
