"""Live migration, from the front door to the hosts and back."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kilonova import errors
from kilonova.virt.parts.guests import GuestFailed
from tests.fixtures.cloud import WAIT, Cloud
from tests.flows.cases import force_down

AUTO = {'host': None, 'block_migration': 'auto'}
THREE: dict[str, list[str]] = {'gpu1': [], 'gpu2': [], 'gpu3': []}


def ask(cloud: Cloud, server: str, body: dict[str, Any], version: str = '2.104') -> Any:
    return cloud.request('POST', f'/servers/{server}/action', {'os-migrateLive': body}, version=version)


def migrated(cloud: Cloud, server: str, body: dict[str, Any], version: str = '2.104') -> None:
    assert ask(cloud, server, body, version).status_int == 202
    cloud.settle()


def events(cloud: Cloud, server: str) -> dict[str, tuple[str, str]]:
    """Events of its newest live migration: {name: (result, host)}."""
    shown = cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    newest = next(one for one in shown if one['action'] == 'live-migration')
    found = cloud.ok('GET', f'/servers/{server}/os-instance-actions/{newest["request_id"]}')['instanceAction']
    return {one['event']: (one['result'], one['host']) for one in found['events']}


def migrations(cloud: Cloud, server: str) -> list[tuple[str, str, str, str]]:
    return [
        (one['migration_type'], one['status'], one['source_compute'], one['dest_compute'])
        for one in cloud.ok('GET', f'/os-migrations?instance_uuid={server}')['migrations']
    ]


def marked(cloud: Cloud, host: str, server: str) -> str:
    """Its root disk there, which reads from no other file."""
    path = cloud.directory / host / 'instances' / server / 'disk'
    return str(path) if path.exists() else ''


def test_a_server_goes_to_another_host_and_runs_on(cloud: Cloud) -> None:
    """After a live migration host, allocation and the hosts' ledgers are those of the destination, and the guest
    was not restarted."""
    server = cloud.boot(cloud.flavor())
    source, shown = cloud.host_of(server), cloud.show(server)
    dest = {'gpu1': 'gpu2', 'gpu2': 'gpu1'}[source]
    migrated(cloud, server, AUTO)
    assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', dest)
    assert migrations(cloud, server) == [('live-migration', 'completed', source, dest)]
    assert events(cloud, server) == {
        'conductor_live_migrate_instance': ('Success', 'conductor1'),
        'compute_check_can_live_migrate_source': ('Success', source),
        'compute_check_can_live_migrate_destination': ('Success', dest),
        'compute_pre_live_migration': ('Success', dest),
        'compute_live_migration': ('Success', source),
        'compute_post_live_migration_at_destination': ('Success', dest),
    }
    assert marked(cloud, dest, server) and not (cloud.directory / source / 'instances' / server).exists()
    assert cloud.show(server)['OS-SRV-USG:launched_at'] == shown['OS-SRV-USG:launched_at']
    assert cloud.request('GET', f'/servers/{server}/migrations').json == {'migrations': []}
    cloud.assert_clean()
    # It is at home there: stop and start, and back.
    for action in ('os-stop', 'os-start'):
        cloud.action(server, action)
    migrated(cloud, server, AUTO)
    assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', source)
    cloud.assert_clean()


def test_a_paused_server_stays_paused(cloud: Cloud) -> None:
    server = cloud.boot(cloud.flavor())
    source = cloud.host_of(server)
    cloud.action(server, 'pause')
    migrated(cloud, server, AUTO)
    assert cloud.status(server) == 'PAUSED' and cloud.host_of(server) != source
    cloud.assert_clean()
    cloud.action(server, 'unpause')
    assert cloud.status(server) == 'ACTIVE'
    cloud.assert_clean()


@pytest.mark.parametrize(
    ('version', 'body'),
    [
        ('2.1', {'block_migration': True, 'disk_over_commit': False}),
        ('2.24', {'block_migration': 'true', 'disk_over_commit': True}),
        ('2.25', {'block_migration': 'auto'}),
        ('2.30', {'block_migration': 'auto', 'force': False}),
        ('2.67', {'block_migration': True, 'force': True}),
        ('2.68', {'block_migration': 'auto'}),
    ],
)
def test_to_a_named_host_in_every_form(make_cloud: Any, version: str, body: dict[str, Any]) -> None:
    cloud = make_cloud(THREE)
    server = cloud.boot(cloud.flavor())
    for host in sorted(set(THREE) - {cloud.host_of(server)}):
        migrated(cloud, server, {'host': host, **body}, version)
        assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', host)
    cloud.assert_clean()


def test_who_asks_the_scheduler(make_cloud: Any) -> None:
    """A host that is disabled takes a server that is forced on it, as it did for any that was named until 2.29."""
    cloud = make_cloud(THREE)
    server = cloud.boot(cloud.flavor())
    source = cloud.host_of(server)
    host = min(set(THREE) - {source})
    (service,) = cloud.ok('GET', f'/os-services?host={host}&binary=nova-compute')['services']
    cloud.ok('PUT', f'/os-services/{service["id"]}', {'status': 'disabled'})
    for version, body in (('2.30', {}), ('2.67', {'force': False}), ('2.68', {})):
        migrated(cloud, server, {'host': host, 'block_migration': 'auto', **body}, version)
        assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', source)
        assert events(cloud, server)['conductor_live_migrate_instance'][0] == 'Error'
    for version, body in (('2.29', {}), ('2.30', {'force': True})):
        migrated(cloud, server, {'host': host, 'block_migration': 'auto', **body}, version)
        assert cloud.host_of(server) == host
        migrated(cloud, server, {'host': source, 'block_migration': 'auto'})
        assert cloud.host_of(server) == source
    cloud.assert_clean()
    # One that is down takes nothing.
    force_down(cloud, host, True)
    migrated(cloud, server, {'host': host, 'block_migration': 'auto', 'force': True}, '2.30')
    assert cloud.host_of(server) == source
    assert 'No valid host was found. 1 host considered: 1 down.' in str(cloud.story(server)[0])
    cloud.assert_clean()


def test_bodies_that_are_refused(cloud: Cloud) -> None:
    server = cloud.boot(cloud.flavor())
    for version, body in (
        ('2.1', {'host': None, 'block_migration': True}),
        ('2.24', AUTO),
        ('2.25', {**AUTO, 'disk_over_commit': False}),
        ('2.29', {**AUTO, 'force': False}),
        ('2.68', {**AUTO, 'force': False}),
        ('2.68', {'host': None}),
        ('2.68', {'host': 7}),
    ):
        assert ask(cloud, server, body, version).status_int == 400, (version, body)
    assert cloud.status(server) == 'ACTIVE'


def test_what_can_not_be_migrated_live(cloud: Cloud) -> None:
    server = cloud.boot(cloud.flavor())
    here = cloud.host_of(server)
    for body, text in (
        ({'host': here}, f'Unable to migrate instance ({server}) to current host ({here}).'),
        ({'host': 'nowhere'}, 'Compute host nowhere could not be found.'),
        ({'host': None, 'force': True}, "Can't force to a non-provided destination"),
    ):
        response = ask(cloud, server, {**AUTO, **body}, '2.67')
        assert (response.status_int, response.json['badRequest']['message']) == (400, text)
    other = cloud.boot(cloud.flavor(gpus=1))
    response = ask(cloud, other, AUTO)
    assert response.status_int == 400
    assert response.json['badRequest']['message'] == (
        f'Migration pre-check error: instance {other} cannot be live migrated: it has PCI devices of alias '
        'QuadroM4000-video, which is not configured as live_migratable.'
    )
    assert cloud.status(other) == 'ACTIVE'
    cloud.action(server, 'os-stop')
    response = ask(cloud, server, AUTO)
    assert response.status_int == 409
    assert response.json['conflictingRequest']['message'] == (
        f"Cannot 'os-migrateLive' instance {server} while it is in vm_state stopped"
    )
    cloud.assert_clean()


def test_a_host_that_refuses_leaves_it_to_the_next(make_cloud: Any) -> None:
    cloud = make_cloud(THREE)
    server = cloud.boot(cloud.flavor())
    refused: list[str] = []

    def on_message(kind: str, topic: str, host: str, method: str, args: Any, deliver: Any) -> Any:
        if method == 'check_can_live_migrate_destination' and not refused:
            refused.append(host)
            raise errors.MigrationPreCheckError(reason='not today')
        return deliver()

    cloud.on_message = on_message
    migrated(cloud, server, AUTO)
    assert cloud.status(server) == 'ACTIVE' and refused and cloud.host_of(server) not in refused
    cloud.assert_clean()


@pytest.mark.parametrize('where', ['describe', 'offer', 'prepare', 'migrate'])
def test_a_driver_that_fails_leaves_the_server_where_it_was(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    server = cloud.boot(cloud.flavor())
    source = cloud.host_of(server)

    def fail(*args: Any) -> None:
        raise GuestFailed(act='migrate', uuid=server, reason='boom')

    for compute in cloud.computes.values():
        monkeypatch.setattr(compute.host.driver.live_migrations, where, fail)
    migrated(cloud, server, AUTO)
    assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', source)
    assert {one[:2] for one in migrations(cloud, server)} == {('live-migration', 'error')}
    assert events(cloud, server)['conductor_live_migrate_instance'][0] == 'Error'
    cloud.assert_clean()


def test_a_guest_that_has_gone_stays_gone(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The destination can't take it over at once: the operation ends badly, the server is there nevertheless."""
    server = cloud.boot(cloud.flavor())
    source = cloud.host_of(server)
    left = [5]
    for compute in cloud.computes.values():
        real = compute.host.driver.live_migrations.receive

        def receive(instance: Any, real: Any = real) -> None:
            if left[0]:
                left[0] -= 1
                raise GuestFailed(act='receive', uuid=instance.uuid, reason='boom')
            real(instance)

        monkeypatch.setattr(compute.host.driver.live_migrations, 'receive', receive)
    migrated(cloud, server, AUTO)
    assert left == [0] and cloud.status(server) == 'ACTIVE' and cloud.host_of(server) != source
    assert migrations(cloud, server)[0][1] == 'completed'
    assert not (cloud.directory / source / 'instances' / server).exists()
    cloud.assert_clean()


def test_half_a_guest_is_its_destinations(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """By post-copy it ran there, and was lost: what it wrote is on the disks there, so nothing goes back."""
    server = cloud.boot(cloud.flavor())
    source = cloud.host_of(server)
    live = cloud.computes[source].host.driver.live_migrations

    def migrate(instance: Any, offer: Any, told: Any) -> None:
        raise errors.MigrationError(reason='the compute was restarted')

    for name, act in (('migrate', migrate), ('abort', lambda instance: False), ('has_switched', lambda instance: True)):
        monkeypatch.setattr(live, name, act)
    migrated(cloud, server, AUTO)
    destination = cloud.host_of(server)
    assert destination != source and migrations(cloud, server)[0][1] == 'completed'
    assert [(cloud.directory / host / 'instances' / server).exists() for host in (source, destination)] == [False, True]
    # It is off, and starts anew.
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert cloud.status(server) == 'ACTIVE'
    cloud.assert_clean()


def test_one_at_a_time_the_next_is_queued(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """[DEFAULT]max_concurrent_live_migrations: 1."""
    one, two = (cloud.boot(cloud.flavor()) for _ in range(2))
    if cloud.host_of(one) != cloud.host_of(two):
        migrated(cloud, two, AUTO)
    source = cloud.host_of(one)
    live, seen = cloud.computes[source].host.driver.live_migrations, []
    real = live.migrate

    def migrate(instance: Any, offer: Any, told: Any) -> None:
        if not seen:
            # The first one goes on once the second one waits for it.
            seen.append(instance.uuid)
            waiting = ({one, two} - {instance.uuid}).pop()
            end = time.monotonic() + WAIT
            while [one['status'] for one in cloud.ok('GET', f'/servers/{waiting}/migrations')['migrations']] != [
                'queued'
            ]:
                assert time.monotonic() < end
                time.sleep(0.05)
        real(instance, offer, told)

    monkeypatch.setattr(live, 'migrate', migrate)
    for server in (one, two):
        assert ask(cloud, server, AUTO).status_int == 202
    cloud.settle()
    assert {cloud.host_of(server) for server in (one, two)} == {'gpu1', 'gpu2'} - {source}
    cloud.assert_clean()


class Held:
    """Guests stand in the middle of their way until ``go`` is set; ``reached``: one does."""

    def __init__(self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cloud, self.reached, self.go = cloud, threading.Event(), threading.Event()
        for compute in cloud.computes.values():
            live = compute.host.driver.live_migrations
            monkeypatch.setattr(live, 'migrate', functools.partial(self._migrate, live.migrate))

    def _migrate(self, real: Any, instance: Any, offer: Any, told: Any) -> None:
        self.reached.set()
        while not self.go.wait(0.02):
            told(
                dict.fromkeys(
                    (
                        'memory_total',
                        'memory_processed',
                        'memory_remaining',
                        'disk_total',
                        'disk_processed',
                        'disk_remaining',
                    ),
                    0,
                )
            )
        real(instance, offer, told)

    def start(self, server: str) -> str:
        """The number of its migration, which is under way."""
        assert ask(self.cloud, server, AUTO).status_int == 202
        assert self.reached.wait(WAIT)
        (row,) = self.cloud.ok('GET', f'/servers/{server}/migrations')['migrations']
        assert row['status'] == 'running'
        return str(row['id'])

    def end(self) -> None:
        self.go.set()
        self.cloud.settle()


@pytest.fixture
def held(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(cloud, monkeypatch)
    yield made
    made.end()


def test_no_console_is_opened_on_the_way(cloud: Cloud, held: Held) -> None:
    """It would be one of the host that the guest is leaving."""
    server = cloud.boot(cloud.flavor())
    held.start(server)
    for protocol, kind in (('vnc', 'novnc'), ('serial', 'serial'), ('spice', 'spice-html5')):
        response = cloud.request(
            'POST', f'/servers/{server}/remote-consoles', {'remote_console': {'protocol': protocol, 'type': kind}}
        )
        assert (response.status_int, response.json['conflictingRequest']['message']) == (
            409,
            f"Cannot 'get_{protocol}_console' instance {server} while it is in task_state migrating",
        )
    held.end()
    assert cloud.status(server) == 'ACTIVE'
    cloud.assert_clean()


def actions(cloud: Cloud, server: str, name: str) -> list[tuple[str | None, list[tuple[str, str, str]]]]:
    """(message, events) of the server's actions of that name."""
    found = []
    for one in cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']:
        if one['action'] == name:
            path = f'/servers/{server}/os-instance-actions/{one["request_id"]}'
            whole = cloud.ok('GET', path)['instanceAction']
            found.append(
                (
                    whole['message'],
                    [(each['event'], each['result'], each['host']) for each in whole['events'] if each['finish_time']],
                )
            )
    return found


def abort(cloud: Cloud, server: str, number: str, version: str = '2.104') -> tuple[int, str]:
    response = cloud.request('DELETE', f'/servers/{server}/migrations/{number}', version=version)
    return response.status_int, '' if response.status_int == 202 else next(iter(response.json.values()))['message']


def force(cloud: Cloud, server: str, number: str, version: str = '2.104') -> tuple[int, str]:
    response = cloud.request(
        'POST', f'/servers/{server}/migrations/{number}/action', {'force_complete': None}, version=version
    )
    return response.status_int, '' if response.status_int == 202 else next(iter(response.json.values()))['message']


@pytest.mark.parametrize('version', ['2.24', '2.104'])
def test_one_that_runs_is_aborted(cloud: Cloud, held: Held, version: str) -> None:
    server = cloud.boot(cloud.flavor())
    source = cloud.host_of(server)
    number = held.start(server)
    assert abort(cloud, server, number, version) == (202, '')
    cloud.settle()
    assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', source)
    assert [one[1] for one in migrations(cloud, server)] == ['cancelled']
    assert actions(cloud, server, 'live_migration_cancel') == [
        (None, [('compute_live_migration_abort', 'Success', source)])
    ]
    assert events(cloud, server)['conductor_live_migrate_instance'][0] == 'Error'
    assert 'fault' not in cloud.show(server)
    cloud.assert_clean()
    # Its end is known: nothing is aborted any more, and it can go once more.
    assert abort(cloud, server, number)[0] == 409
    held.go.set()
    migrated(cloud, server, AUTO)
    assert cloud.host_of(server) != source
    cloud.assert_clean()


def test_an_abort_that_comes_too_late_leaves_it_at_the_destination(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = cloud.boot(cloud.flavor())
    source, answers = cloud.host_of(server), []
    live = cloud.computes[source].host.driver.live_migrations
    real = live.migrate

    def migrate(instance: Any, offer: Any, told: Any) -> None:
        real(instance, offer, told)
        if not answers:
            (row,) = cloud.ok('GET', f'/servers/{server}/migrations')['migrations']
            answers.append(abort(cloud, server, str(row['id'])))

    monkeypatch.setattr(live, 'migrate', migrate)
    migrated(cloud, server, AUTO)
    assert answers == [(202, '')]
    assert cloud.status(server) == 'ACTIVE' and cloud.host_of(server) != source
    assert [one[1] for one in migrations(cloud, server)] == ['completed']
    cloud.assert_clean()


@pytest.mark.parametrize('step', ['check_can_live_migrate_destination', 'pre_live_migration', 'live_migration'])
@pytest.mark.parametrize('lost', [False, True])
def test_one_that_has_not_begun_is_aborted_from_2_65_on(cloud: Cloud, step: str, lost: bool) -> None:
    """``lost``: the casts that say so to hosts and conductors are."""
    server = cloud.boot(cloud.flavor())
    source, answers = cloud.host_of(server), []

    def on_message(kind: str, topic: str, host: str, method: str, args: Any, deliver: Any) -> Any:
        if method == step and not answers:
            if step == 'check_can_live_migrate_destination':
                deliver()
            (row,) = cloud.ok('GET', f'/servers/{server}/migrations')['migrations']
            assert row['status'] == 'preparing'
            answers.extend(abort(cloud, server, str(row['id']), version) for version in ('2.64', '2.65'))
        if lost and answers and method in ('cancel', 'run_operation'):
            return None
        return deliver()

    cloud.on_message = on_message
    migrated(cloud, server, AUTO)
    cloud.on_message = None
    assert [answer[0] for answer in answers] == [400, 202]
    assert answers[0][1].endswith('is preparing. Cannot abort live migration while the migration is in this state.')
    assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', source)
    assert [one[1] for one in migrations(cloud, server)] == ['cancelled']
    cloud.assert_clean()


def test_one_that_is_queued_is_aborted(cloud: Cloud, held: Held) -> None:
    one, two = (cloud.boot(cloud.flavor()) for _ in range(2))
    if cloud.host_of(one) != cloud.host_of(two):
        held.go.set()
        migrated(cloud, two, AUTO)
        held.go.clear()
        held.reached.clear()
    source = cloud.host_of(one)
    held.start(one)
    assert ask(cloud, two, AUTO).status_int == 202
    end = time.monotonic() + WAIT
    while not (
        rows := [
            row for row in cloud.ok('GET', f'/servers/{two}/migrations')['migrations'] if row['status'] == 'queued'
        ]
    ):
        assert time.monotonic() < end
        time.sleep(0.05)
    number = str(rows[0]['id'])
    assert abort(cloud, two, number, '2.64')[0] == 400 and force(cloud, two, number) == (
        400,
        (
            f'Migration {number} state of instance {two} is queued. Cannot force complete while the migration is in '
            'this state.'
        ),
    )
    assert abort(cloud, two, number) == (202, '')
    while cloud.status(two) != 'ACTIVE':
        assert time.monotonic() < end
        time.sleep(0.05)
    assert cloud.status(one) == 'MIGRATING'
    held.end()
    assert (cloud.host_of(two), migrations(cloud, two)[0][1]) == (source, 'cancelled')
    assert cloud.host_of(one) != source
    cloud.assert_clean()


@pytest.mark.parametrize('version', ['2.22', '2.104'])
def test_one_that_runs_is_forced_to_its_end(
    cloud: Cloud, held: Held, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    server, asked = cloud.boot(cloud.flavor()), []
    source = cloud.host_of(server)
    number = held.start(server)
    live = cloud.computes[source].host.driver.live_migrations

    def force_complete(instance: Any) -> None:
        asked.append(instance.uuid)
        held.go.set()

    with monkeypatch.context() as patch:
        # The guest stands outside of its driver until then: that has no migration that could be forced.
        status, text = force(cloud, server, number, version)
        assert (status, text) != (202, '') and cloud.status(server) == 'MIGRATING'
        patch.setattr(live, 'force_complete', force_complete)
        assert force(cloud, server, number, version) == (202, '')
        cloud.settle()
    assert asked == [server] and cloud.status(server) == 'ACTIVE' and cloud.host_of(server) != source
    event = 'compute_live_migration_force_complete'
    assert sorted(actions(cloud, server, 'live_migration_force_complete'), key=str) == [
        ('Error: Migration error: the guest is not being migrated', [(event, 'Error', source)]),
        (None, [(event, 'Success', source)]),
    ]
    cloud.assert_clean()


def test_what_can_not_be_aborted_or_forced(cloud: Cloud, held: Held) -> None:
    server = cloud.boot(cloud.flavor())
    assert abort(cloud, server, '1') == (
        409,
        f"Cannot 'abort live migration' instance {server} while it is in task_state None",
    )
    assert force(cloud, server, '1') == (
        409,
        f"Cannot 'force_complete' instance {server} while it is in task_state None",
    )
    cloud.action(server, 'pause')
    number = held.start(server)
    assert force(cloud, server, number) == (
        409,
        f"Cannot 'force_complete' instance {server} while it is in vm_state paused",
    )
    for other in ('0', '999999', 'x', '9' * 30):
        assert abort(cloud, server, other) == (404, f'Migration {other} not found for instance {server}')
    for version in ('2.22', '2.23'):
        assert abort(cloud, server, number, version)[0] == 404
    assert force(cloud, server, number, '2.21')[0] == 404
    held.end()
    assert cloud.status(server) == 'PAUSED'
    active = cloud.boot(cloud.flavor())
    held.go.clear()
    held.reached.clear()
    held.start(active)
    assert force(cloud, active, '999999') == (400, f'Migration 999999 not found for instance {active}')
    assert force(cloud, active, number) == (400, f'Migration {number} not found for instance {active}')
    assert abort(cloud, active, number) == (404, f'Migration {number} not found for instance {active}')
    held.end()
    cloud.assert_clean()


def test_a_delete_beside_an_abort_wins(cloud: Cloud, held: Held) -> None:
    server = cloud.boot(cloud.flavor())
    number = held.start(server)
    assert abort(cloud, server, number)[0] == 202
    assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    cloud.settle()
    assert cloud.status(server) == 'GONE'
    cloud.assert_clean()
