"""Rebuild: what the scheduler and the host are asked, and what the server is when it fails."""

from __future__ import annotations

import contextlib
import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.conductor.flows import FLOWS, rebuild
from kilonova.conductor.flows.rebuild import POINT, NotReimaged
from kilonova.conductor.work import RetryLater
from kilonova.db.queries import instances
from kilonova.errors import Invalid, NoValidHost, Unanswered
from tests.unit.conductor.site import LARGE, SERVER, SMALL, Site, primitive, steps

NEW = {'id': 'the new image'}
OLD: dict[str, Any] = {
    'values': {'image_ref': 'old'},
    'extra': {},
    'system_metadata': {'image_min_ram': '7'},
    'metadata': {'role': 'web'},
}
ON_GPU1 = "active/rebuilding on gpu1: flavor 1, metadata {'role': 'db'}"


def begin(site: Site, **args: Any) -> None:
    site.put('active', 'rebuilding')
    site.accept(
        'rebuild',
        {
            'image': NEW,
            'old': OLD,
            'preserve_ephemeral': True,
            'sealed': 'x',
            'check_host': True,
            # Of other flavors, so that one sees which is stored.
            'request_spec': primitive(site.spec(LARGE, scheduler_hints={'group': 'g'})),
            'old_request_spec': primitive(site.spec(SMALL)),
            **args,
        },
    )


def thrown_away(site: Site) -> None:
    """The host writes that the disks go."""
    site.update(written=f'{site.operation}/2.rebuild_instance/1:{POINT}:')


@pytest.mark.parametrize('notify', [True, False])
def test_what_is_asked(site: Site, notify: bool) -> None:
    """Metadata are for the config drive."""
    site.env.notify.enabled = notify
    begin(site)
    site.go()
    asked = site.sent[0].args['spec_obj']
    assert (asked.requested_destination.host, asked.requested_destination.node) == ('gpu1', 'node1')
    assert asked.scheduler_hints == {'group': ['g'], '_nova_check_type': ['rebuild']}
    assert site.calls() == [
        (
            None,
            'select_destinations',
            {
                'spec_obj': 'spec of flavor 2',
                'instance_uuids': [SERVER],
                'return_objects': True,
                'return_alternates': False,
                'claim': False,
                'time_left': 60.0,
            },
        ),
        (
            'gpu1',
            'rebuild_instance',
            {
                'key': '2.rebuild_instance/1',
                'order': {'instance': ON_GPU1, 'image': NEW, 'sealed': 'x', 'preserve_ephemeral': True},
            },
        ),
    ]
    assert site.stored_spec() == 2 and site.kept() is not None
    assert site.events() == [('rebuild_server', 'Success', 'ctl1', None)]
    if notify:
        assert site.emitted == [('instance.rebuild_scheduled', {'instance': ON_GPU1})]


@pytest.mark.parametrize('args', [{'check_host': False}, {'request_spec': None, 'old_request_spec': None}])
def test_the_scheduler_is_asked_about_another_image_alone(site: Site, args: dict[str, Any]) -> None:
    begin(site, **args)
    site.go()
    assert site.asked() == ['gpu1 rebuild_instance']
    assert site.stored_spec() == (1 if 'request_spec' in args else 2)


def test_a_host_that_does_not_suit_leaves_it_as_it_was(site: Site) -> None:
    begin(site)
    site.answers['select_destinations'] = NoValidHost(reason='not here')
    site.go()
    assert site.asked() == ['scheduler select_destinations']
    text = 'No valid host was found. not here'
    assert site.state() == ('active', None) and site.kept() is None and site.action() == 'Error'
    assert site.row()['image_ref'] == 'old' and site.system_metadata()['image_min_ram'] == '7'
    assert site.faults() == [(500, text, None)] and site.stored_spec() == 1
    assert site.events() == [('rebuild_server', 'Error', 'ctl1', text)]
    ((event, facts),) = site.emitted
    assert (event, facts['instance_uuid'], facts['request_spec'], facts['state'], facts['record']['class']) == (
        'compute_task.rebuild_server.error',
        SERVER,
        'spec of flavor 2',
        'active',
        'NoValidHost',
    )


def test_without_notifications(site: Site) -> None:
    site.env.notify.enabled = False
    begin(site)
    site.answers['select_destinations'] = NoValidHost(reason='not here')
    site.go()
    assert site.state() == ('active', None) and site.emitted == []


@pytest.mark.parametrize('thrown', [False, True])
def test_a_host_that_fails(site: Site, thrown: bool) -> None:
    """Before it threw the disks away the server is as it was; afterwards it is ERROR, and of the new image."""
    begin(site)

    def fail(sent: object) -> None:
        if thrown:
            thrown_away(site)
        raise Invalid('no')

    site.answers['rebuild_instance'] = fail
    site.go()
    assert site.state() == ('error' if thrown else 'active', None) and site.kept() is None
    assert site.stored_spec() == (2 if thrown else 1)
    assert (site.row()['image_ref'] == 'old') is not thrown
    assert site.faults() == [(400, 'no', 'gpu1')] and site.action() == 'Error'
    assert site.events() == [
        ('rebuild_server', 'Success', 'ctl1', None),
        ('compute_rebuild_instance', 'Error', 'gpu1', 'no'),
    ]
    assert [event for event, _ in site.emitted] == ['instance.rebuild_scheduled']


def test_a_spec_that_was_not_there_is_not_stored(site: Site) -> None:
    begin(site, old_request_spec=None)
    site.answers['rebuild_instance'] = Invalid('no')
    site.go()
    assert site.stored_spec() == 2


@pytest.mark.parametrize(('silent', 'position'), [('select_destinations', 0), ('rebuild_instance', 2)])
def test_it_goes_on_where_it_stood(site: Site, silent: str, position: int) -> None:
    begin(site)
    site.answers[silent] = [Unanswered(who='x', reason='y'), None]
    site.go()
    row = site.kept()
    assert row is not None and row.position == position == FLOWS['rebuild'].index(
        'check_host' if silent == 'select_destinations' else 'rebuild_instance'
    )
    site.sent.clear()
    site.go()
    assert site.asked()[0].endswith(silent)
    # The event of what is repeated stands once.
    assert site.events() == [('rebuild_server', 'Success', 'ctl1', None)]


def test_steps() -> None:
    assert steps('rebuild') == 'check_host save_spec rebuild_instance'


# --- the image of a root volume --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('status', 'seconds', 'outcome'),
    [
        ('downloading', 59, RetryLater),
        ('downloading', 61, NotReimaged),
        ('in-use', 61, None),
    ],
)
def test_a_large_volume_has_longer_for_its_image(status: str, seconds: float, outcome: type[Exception] | None) -> None:
    """20 seconds for each GiB."""
    arguments = SimpleNamespace(reimage='i')
    work: Any = SimpleNamespace(
        env=SimpleNamespace(conf=SimpleNamespace(reimage_timeout_per_gb=20)), arguments=lambda kind: arguments
    )
    volume: Any = SimpleNamespace(id='v', size=3, status=status, is_written=status == 'downloading')
    since = instances.utcnow() - datetime.timedelta(seconds=seconds)
    with pytest.raises(outcome, match='downloading') if outcome is not None else contextlib.nullcontext():
        rebuild._await_written(work, volume, since)
