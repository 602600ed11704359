"""Unshelve, of a server that was offloaded and of one that is still on its host."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.conductor.flows import FLOWS
from kilonova.db.queries import instances
from kilonova.errors import HostRejected, Invalid, NoValidHost, Unanswered
from tests.unit.conductor.site import IMAGE, LARGE, SERVER, SHELVED, SMALL, Sent, Site, primitive, steps, uuid

DB = "metadata {'role': 'db'}"
RECORD = {
    'id': IMAGE,
    'name': 'shelved',
    'status': 'active',
    'disk_format': 'raw',
    'container_format': 'bare',
    'min_disk': 5,
    'min_ram': 6,
    'size': 7,
    'owner': 'demo',
}


def unshelve(site: Site, **args: Any) -> None:
    site.put('shelved_offloaded', 'unshelving', host=None, node=None, system_metadata=dict(SHELVED))
    site.inventory(None)
    site.images.records[IMAGE] = dict(RECORD)
    site.choose('gpu2', 'gpu3')
    # Of other flavors, so that one sees which is stored.
    site.accept('unshelve', {'request_spec': primitive(site.spec(gpus=(1,))), **args})


def specs(site: Site) -> dict[str, Any]:
    return {'new_request_spec': primitive(site.spec(LARGE)), 'old_request_spec': primitive(site.spec(SMALL))}


def test_what_the_new_host_is_asked(site: Site) -> None:
    """Metadata are for the config drive."""
    site.env.notify.enabled = False
    unshelve(site)
    site.go()
    scheduler, call = site.calls()
    assert (scheduler[1], scheduler[2]['claim']) == ('select_destinations', False)
    host, method, args = call
    order = args['order']
    assert (host, method, args['key']) == ('gpu2', 'unshelve_instance', '3.unshelve_instance/1')
    image = order.pop('image')
    assert {name: image[name] for name in RECORD if name != 'owner'} == {
        name: value for name, value in RECORD.items() if name != 'owner'
    }
    assert image['properties'] == {'os_type': 'linux'} and 'owner' not in {
        name for name, value in image.items() if value is not None
    }
    assert order == {
        'instance': f'shelved_offloaded/unshelving on None: flavor 1, {DB}',
        'limits': {'memory_mb': 999},
        'request_spec': f"spec of flavor 1 with ['{uuid('device of gpu2')}']",
        'block_devices': [f'/dev/vda of {SERVER}'],
    }


def test_zone_and_devices_are_those_of_the_choice(site: Site) -> None:
    unshelve(site)
    site.go()
    order = site.sent[1].args['order']
    assert order.instance.availability_zone == 'zone1'
    (request,) = order.instance.pci_requests.requests
    assert request.spec[0]['rp_uuids'] == uuid('device of gpu2')


def test_it_is_as_before_it_was_shelved(site: Site) -> None:
    unshelve(site)

    def claim(sent: Sent) -> None:
        with site.cell.write() as conn:
            instances.update(conn, SERVER, {'host': 'gpu2'})

    site.answers['unshelve_instance'] = claim
    site.go()
    assert site.state() == ('active', None) and site.kept() is None and site.action() == 'done'
    assert site.held() == {'server': {'gpu2': 1}}
    assert site.system_metadata() == {'image_min_ram': '1', 'image_os_type': 'linux'}
    assert site.releases() == [(None, {'image_id': IMAGE})] and site.woken == [([site.rows()[0].uuid], False)]
    assert site.events() == [(name, 'Success', 'ctl1', None) for name in ('get_image_info', 'schedule_instances')]
    ((event, facts),) = site.emitted
    assert (event, facts['host'], facts['moved']) == ('instance.unshelve.end', 'gpu2', 'unshelve.done')
    assert facts['instance'].startswith('shelved_offloaded/unshelving on gpu2')


@pytest.mark.parametrize('known', [True, False])
def test_the_spec_of_a_new_zone_is_stored(site: Site, known: bool) -> None:
    unshelve(site, **(specs(site) if known else {}))
    site.go()
    assert site.stored_spec() == (2 if known else 1)


@pytest.mark.parametrize('why', ['gone', 'not active', 'never'])
def test_an_image_that_is_missing(site: Site, why: str) -> None:
    unshelve(site)
    if why == 'gone':
        site.images.records.clear()
    elif why == 'never':
        with site.cell.write() as conn:
            instances.set_system_metadata(conn, SERVER, {'shelved_image_id': None})
    else:
        site.images.records[IMAGE]['status'] = 'queued'
    site.go()
    text = f'Unshelve attempted but the image {None if why == "never" else IMAGE} cannot be found.'
    assert site.sent == [] and site.state() == ('shelved_offloaded', None) and site.action() == 'Error'
    assert site.faults() == [(404, text, None)]
    assert site.events() == [('get_image_info', 'Error', 'ctl1', text)]


def test_no_host_for_it(site: Site) -> None:
    unshelve(site, **specs(site))
    site.answers['select_destinations'] = NoValidHost(reason='none')
    site.go()
    assert site.state() == ('shelved_offloaded', None) and site.held() == {} and site.stored_spec() == 1
    assert [event[:2] for event in site.events()] == [('get_image_info', 'Success'), ('schedule_instances', 'Error')]
    assert site.asked() == ['scheduler select_destinations']


def test_hosts_that_all_refuse(site: Site) -> None:
    unshelve(site)
    site.answers['unshelve_instance'] = [HostRejected('small'), HostRejected('full')]
    site.go()
    assert site.asked()[1:] == [
        'gpu2 unshelve_instance',
        'gpu2 undo_unshelve_instance',
        'gpu3 unshelve_instance',
        'gpu3 undo_unshelve_instance',
    ]
    assert site.faults() == [(500, 'No valid host was found. Hosts said: small; full', 'gpu3')]
    assert [event[:2] for event in site.events()] == [('get_image_info', 'Success'), ('schedule_instances', 'Error')]


def test_a_host_that_fails(site: Site) -> None:
    unshelve(site, **specs(site))
    site.answers['unshelve_instance'] = Invalid('no')
    site.go()
    assert site.calls()[-1] == (
        'gpu2',
        'undo_unshelve_instance',
        {'instance': f'shelved_offloaded/unshelving on None: flavor 1, {DB}', 'key': '3.unshelve_instance/1'},
    )
    assert site.held() == {} and site.state() == ('shelved_offloaded', None) and site.stored_spec() == 1
    assert [event[:2] for event in site.events()] == [('get_image_info', 'Success'), ('schedule_instances', 'Success')]
    assert 'shelved_image_id' in site.system_metadata() and site.releases() == []


def test_a_server_that_was_reset_meanwhile_is_undone(site: Site) -> None:
    unshelve(site, **specs(site))

    def reset(sent: Sent) -> None:
        with site.cell.write() as conn:
            instances.transition(conn, SERVER, 'reset.error')

    site.answers['unshelve_instance'] = reset
    site.go()
    assert site.state() == ('shelved_offloaded', None) and site.stored_spec() == 1
    assert site.asked()[-1] == 'gpu2 undo_unshelve_instance'


@pytest.mark.parametrize(
    ('claimed', 'deleting', 'waits'), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_a_new_host_that_dies(site: Site, claimed: bool, deleting: bool, waits: bool) -> None:
    """It is waited for where it may run the guest; what it has it gives back when it is there again."""
    unshelve(site)

    def die(sent: Sent) -> None:
        with site.cell.write() as conn:
            if claimed:
                instances.update(conn, SERVER, {'host': 'gpu2', 'node': 'node2'})
            if deleting:
                instances.transition(conn, SERVER, 'delete.start')
        site.silence('gpu2')
        raise Unanswered(who='gpu2', reason='died')

    site.answers['unshelve_instance'] = [die, None]
    site.go()
    if waits:
        row = site.kept()
        assert row is not None and row.undoing and site.releases() == [] and site.row()['host'] == 'gpu2'
        site.silence('gpu2', forced=True)
        site.go()
    (host, args), *_ = site.releases()
    assert (host, args['method'], list(args['kwargs'])) == ('gpu2', 'undo_unshelve_instance', ['instance'])
    assert args['kwargs']['instance'].startswith('shelved_offloaded/')
    assert site.row()['host'] is None
    assert 'gpu3 unshelve_instance' in site.asked()


@pytest.mark.parametrize(('step', 'position'), [('select_destinations', 1), ('unshelve_instance', 3)])
def test_it_goes_on_where_it_stood(site: Site, step: str, position: int) -> None:
    unshelve(site)
    site.answers[step] = [Unanswered(who='x', reason='y'), [[site.selection('gpu2')]] if position == 1 else None]
    site.go()
    row = site.kept()
    assert row is not None and row.position == position
    site.images.records.clear()
    site.go()
    assert site.state() == ('active', None) and site.sent[-1].args['order'].image['size'] == 7


# --- a server that is still on its host ------------------------------------------------------------------------------
def start(site: Site) -> None:
    site.put('shelved', 'unshelving', system_metadata=dict(SHELVED))
    site.accept('unshelve_start')


def test_it_starts_where_it_is(site: Site) -> None:
    start(site)
    site.go()
    before = f'shelved/unshelving on gpu1: flavor 1, {DB}'
    assert site.calls() == [
        ('gpu1', 'start_shelved_instance', {'instance': before, 'key': '0.start_shelved_instance/1'})
    ]
    assert site.state() == ('active', None) and site.action() == 'done'
    assert site.releases() == [(None, {'image_id': IMAGE})] and site.events() == []
    assert site.emitted == [
        ('instance.power_on.end', {'instance': before, 'host': 'gpu1', 'moved': 'unshelve_start.done'})
    ]


def test_a_guest_that_does_not_start(site: Site) -> None:
    start(site)
    site.answers['start_shelved_instance'] = Invalid('no')
    site.go()
    assert site.calls()[-1] == (
        'gpu1',
        'undo_start_shelved_instance',
        {'instance': f'shelved/unshelving on gpu1: flavor 1, {DB}', 'key': '0.start_shelved_instance/1'},
    )
    assert site.state() == ('shelved', None) and site.releases() == []
    assert site.events() == [('compute_start_instance', 'Error', None, 'no')]
    assert FLOWS['unshelve_start'].outputs.__name__ == 'Outputs'


def test_nothing_is_asked_of_a_server_without_a_host(site: Site) -> None:
    start(site)

    def leave(sent: Sent) -> None:
        with site.cell.write() as conn:
            instances.update(conn, SERVER, {'host': None})
        raise Invalid('no')

    site.answers['start_shelved_instance'] = leave
    site.go()
    assert site.asked() == ['gpu1 start_shelved_instance'] and site.state() == ('shelved', None)


def test_steps() -> None:
    assert steps('unshelve') == 'get_image_info select claim<claim unshelve_instance<claim save_spec mark_unshelved'
    assert steps('unshelve_start') == 'start_shelved_instance mark_started'
