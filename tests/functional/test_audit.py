"""The audit finds what disagrees, amounts in Placement among it, and nothing else, however busy the cloud is."""

from __future__ import annotations

import contextlib
import json
import threading

import pytest
import sqlalchemy as sa

from kilonova.conductor.audit import compare as audit
from kilonova.context import get_admin_context
from kilonova.db import engine
from kilonova.db.models.api import RequestSpec
from kilonova.db.models.cell import ComputeNode, Instance, InstanceExtra, Migration
from kilonova.db.queries import audit as queries
from kilonova.db.queries import operations

ONE_HOST = {'gpu1': ['0000:08:00.0', '0000:88:00.0', '0000:89:00.0']}
SETS = {'compute__cpu_shared_set': '0-3,32-35', 'compute__cpu_dedicated_set': '8-11,40-43'}
SMALL, LARGE = {'vcpus': 1, 'ram': 512}, {'vcpus': 2, 'ram': 1024}
MORE = 'VCPU 2, MEMORY_MB 1024, DISK_GB 3'


def look(cloud, between=lambda: None):
    """(report, pauses before a second look); ``between``: what happens in a pause."""
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        between()

    report = audit.Audit(
        cloud.databases, cloud.cells, cloud.placement.reader, cloud.compute_client, get_admin_context(), pause=pause
    ).run()
    return report, pauses


def hold(cloud, consumer, change):
    """Change what a consumer holds in Placement behind the cloud's back; ``change`` gets {provider: amounts}."""
    client = cloud.placement.client
    found = client.get_allocations(consumer)
    held = {provider: dict(given['resources']) for provider, given in found['allocations'].items()}
    change(held)
    client.claim(
        consumer,
        {provider: {'resources': amounts} for provider, amounts in held.items()},
        project_id=found['project_id'],
        user_id=found['user_id'],
        generation=found['consumer_generation'],
    )


def root_of(held):
    return next(amounts for amounts in held.values() if 'MEMORY_MB' in amounts)


def set_root(cloud, consumer, **amounts):
    hold(cloud, consumer, lambda held: root_of(held).update(amounts))


def migration_of(cloud, server):
    return cloud.ok('GET', f'/os-migrations?instance_uuid={server}')['migrations'][0]['uuid']


# -- amounts -----------------------------------------------------------------------------------------------------------
def test_the_allocation_of_the_old_flavor_after_a_move(cloud):
    server = cloud.boot(cloud.flavor(**SMALL))
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(**LARGE)})
    cloud.action(server, 'confirmResize')
    cloud.assert_clean()
    set_root(cloud, server, VCPU=1, MEMORY_MB=512)
    report, _ = look(cloud)
    assert report.disagreements == [
        f'Placement: server {server} holds VCPU 1, MEMORY_MB 512, its flavor says VCPU 2, MEMORY_MB 1024'
    ]
    assert report.exit_code == 1


@pytest.mark.parametrize('same_host', [False, True])
def test_both_sides_of_a_move(make_cloud, same_host):
    """The server holds the new flavor's amounts, its migration the old one's; reverted, each is the old one's."""
    cloud = make_cloud(ONE_HOST, allow_resize_to_same_host=True) if same_host else make_cloud()
    server = cloud.boot(cloud.flavor(**SMALL))
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(disk=3, **LARGE)})
    assert cloud.status(server) == 'VERIFY_RESIZE'
    cloud.assert_clean()
    move = migration_of(cloud, server)
    set_root(cloud, move, VCPU=2, MEMORY_MB=1024, DISK_GB=3)
    assert look(cloud)[0].disagreements == [
        f'Placement: move {move} holds {MORE}, its flavor says VCPU 1, MEMORY_MB 512, DISK_GB 1'
    ]
    set_root(cloud, move, VCPU=1, MEMORY_MB=512, DISK_GB=1)
    set_root(cloud, server, VCPU=1)
    assert look(cloud)[0].disagreements == [f'Placement: server {server} holds VCPU 1, its flavor says VCPU 2']
    cloud.action(server, 'revertResize')
    cloud.assert_clean()


def test_all_that_a_flavor_says(cloud):
    """Swap and ephemeral disks count, in GiB rounded up; extra specs say other amounts, or none."""
    flavor = cloud.ok(
        'POST',
        '/flavors',
        {'flavor': {'name': 'disks', 'vcpus': 1, 'ram': 512, 'disk': 1, 'OS-FLV-EXT-DATA:ephemeral': 1, 'swap': 1}},
    )['flavor']['id']
    disks = cloud.boot(flavor)
    nothing = cloud.boot(cloud.flavor(**{'resources:VCPU': '0', 'resources:DISK_GB': '0', 'resources:MEMORY_MB': '64'}))
    assert [cloud.status(server) for server in (disks, nothing)] == ['ACTIVE', 'ACTIVE']
    assert root_of(cloud.placement.allocations()[disks])['DISK_GB'] == 3
    cloud.assert_clean()
    set_root(cloud, disks, DISK_GB=1)
    set_root(cloud, nothing, VCPU=1)
    assert sorted(look(cloud)[0].disagreements) == sorted(
        [
            f'Placement: server {disks} holds DISK_GB 1, its flavor says DISK_GB 3',
            f'Placement: server {nothing} holds VCPU 1, its flavor says VCPU 0',
        ]
    )


def test_dedicated_cpus(make_cloud):
    """PCPU, on hosts that report them; where the scheduler asked for VCPU in their place, that is right as well."""
    cloud = make_cloud(ONE_HOST, **SETS)
    server = cloud.boot(
        cloud.flavor(
            vcpus=4,
            **{'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '2-3', 'hw:emulator_threads_policy': 'isolate'},
        )
    )
    assert cloud.status(server) == 'ACTIVE'
    cloud.assert_clean()
    set_root(cloud, server, PCPU=2)
    assert look(cloud)[0].disagreements == [f'Placement: server {server} holds PCPU 2, its flavor says PCPU 3']

    def fallback(held):
        amounts = root_of(held)
        del amounts['PCPU']
        amounts['VCPU'] = 4

    hold(cloud, server, fallback)
    cloud.assert_clean()
    set_root(cloud, server, VCPU=3)
    assert look(cloud)[0].disagreements == [
        f'Placement: server {server} holds VCPU 3, PCPU 0, its flavor says VCPU 2, PCPU 3'
    ]


def test_dedicated_cpus_that_the_image_asks_for(make_cloud, monkeypatch):
    """No flavor says so: the place of each end does."""
    cloud = make_cloud(**SETS)
    real = cloud.images.get
    monkeypatch.setattr(cloud.images, 'get', lambda *args: {**real(*args), 'hw_cpu_policy': 'dedicated'})
    server = cloud.boot(cloud.flavor(vcpus=1))
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(vcpus=2)})
    assert cloud.status(server) == 'VERIFY_RESIZE'
    cloud.assert_clean()
    move = migration_of(cloud, server)
    held = cloud.placement.allocations()
    assert [root_of(held[consumer])['PCPU'] for consumer in (server, move)] == [2, 1]
    set_root(cloud, move, PCPU=2)
    assert look(cloud)[0].disagreements == [f'Placement: move {move} holds PCPU 2, its flavor says PCPU 1']


@pytest.mark.parametrize(('host', 'other'), [('gpu1', 'gpu2'), ('gpu2', 'gpu1')])
def test_what_a_server_holds_in_another_cell(make_cloud, host, other):
    """Whichever cell is read first."""
    cloud = make_cloud(cells={'cell1': ['gpu1'], 'cell2': ['gpu2']})
    server = cloud.boot(cloud.flavor(**SMALL), availability_zone=f'nova:{host}')
    root = cloud.computes[other].host.tracker.node.uuid
    cloud.assert_clean()
    hold(cloud, server, lambda held: held.update({root: {'MEMORY_MB': 512}}))
    assert look(cloud)[0].disagreements == [
        f'Placement: server {server} is on {host} and holds {root} elsewhere',
        f'Placement: server {server} holds MEMORY_MB 1024, its flavor says MEMORY_MB 512',
    ]


# -- devices of a move on one host -------------------------------------------------------------------------------------
@pytest.fixture
def moved(make_cloud):
    """(cloud, server, its move): from one device to two on the same host, not confirmed."""
    cloud = make_cloud(ONE_HOST, allow_resize_to_same_host=True)
    server = cloud.boot(cloud.flavor(gpus=1))
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2)})
    assert cloud.status(server) == 'VERIFY_RESIZE'
    cloud.assert_clean()
    return cloud, server, migration_of(cloud, server)


def test_devices_of_both_sides_on_one_host(moved):
    cloud, server, move = moved
    new = cloud.hostdevs(server)
    (old,) = {name.removeprefix('gpu1 ') for name in cloud.owned(server)} - set(new)
    held = cloud.placement.client.get_allocations(server)['allocations']
    device = next(provider for provider, given in held.items() if 'MEMORY_MB' not in given['resources'])
    providers = cloud.placement.client.list_providers(in_tree=device)
    lost = next(one['name'].removeprefix('gpu1_').lower() for one in providers if one['uuid'] == device)
    hold(cloud, server, lambda held: held.pop(device))
    hold(cloud, move, lambda held: held.update({device: {'CUSTOM_PCI_10DE_13F1': 1}}))
    assert sorted(look(cloud)[0].disagreements) == sorted(
        [
            f'Placement: server {server} holds devices {[one for one in new if one != lost]}, its rows say {new}',
            f'Placement: move {move} holds devices {sorted([old, lost])}, its rows say {[old]}',
        ]
    )


@pytest.mark.parametrize('which', ['one of the new', 'the old'])
def test_devices_of_a_guest_that_moved_on_one_host(moved, which):
    cloud, server, _ = moved
    new = cloud.hostdevs(server)
    (old,) = {name.removeprefix('gpu1 ') for name in cloud.owned(server)} - set(new)
    has = new[:1] if which == 'one of the new' else [old]

    def on_message(kind, topic, host, method, args, deliver):
        answer = deliver()
        if method == 'describe_host':
            answer['domains'][0]['hostdevs'] = list(has)
        return answer

    cloud.on_message = on_message
    assert look(cloud)[0].disagreements == [f'libvirt: domain {server} on gpu1 has devices {has}, its rows say {new}']


def test_what_a_host_offers_and_what_its_rows_say(cloud):
    """A free device that schedulers aren't told of is lost until the host looks again; one that isn't free is refused
    too late."""
    server = cloud.boot(cloud.flavor(gpus=1))
    cloud.assert_clean()
    nodes, host = ComputeNode.__table__, cloud.host_of(server)
    with cloud.cell.write() as connection:
        offered = dict(connection.execute(sa.select(nodes.c.host, nodes.c.pci_stats)).all())
        connection.execute(nodes.update().values(pci_stats=offered[host]))
    (other,) = set(cloud.gpus) - {host}
    assert look(cloud)[0].disagreements == [f'database: {other} offers 3 devices, its rows say that 4 are available']
    with cloud.cell.write() as connection:
        connection.execute(nodes.update().values(pci_stats=offered[other]))
    assert look(cloud)[0].disagreements == [f'database: {host} offers 4 devices, its rows say that 3 are available']


# -- what databases say of one server ----------------------------------------------------------------------------------
SPECS, SERVERS, EXTRAS, MOVES = (model.__table__ for model in (RequestSpec, Instance, InstanceExtra, Migration))


def where(table, uuid):
    """The row of a server, or of a move."""
    return (table.c.uuid if 'uuid' in table.c else table.c.instance_uuid) == uuid


@contextlib.contextmanager
def written(cloud, table, uuid, **columns):
    """Other values in a row, for a while."""
    database = cloud.databases.api() if table is SPECS else cloud.cell
    row = where(table, uuid)
    with database.write() as conn:
        (before,) = conn.execute(sa.select(*(table.c[name] for name in columns)).where(row)).mappings()
        conn.execute(table.update().where(row).values(**columns))
    yield
    with database.write() as conn:
        conn.execute(table.update().where(row).values(**before))


def read(cloud, table, uuid, column):
    database = cloud.databases.api() if table is SPECS else cloud.cell
    with database.read() as conn:
        return conn.execute(sa.select(table.c[column]).where(where(table, uuid))).scalar_one()


def with_flavor(text, **values):
    """A stored request spec with another flavor; without values with none."""
    spec = json.loads(text)
    if values:
        spec['nova_object.data']['flavor']['nova_object.data'].update(values)
    else:
        spec['nova_object.data']['flavor'] = None
    return json.dumps(spec)


def test_the_stored_request_spec(cloud):
    """It has the server's flavor, which is what the next move starts from. While an operation works on the server it
    is listed; the specs of deleted servers aren't read."""
    gone, server = cloud.boot(cloud.flavor(**SMALL)), cloud.boot(cloud.flavor(**SMALL, **{'hw:mem_page_size': 'any'}))
    cloud.request('DELETE', f'/servers/{gone}')
    cloud.settle()
    stored = read(cloud, SPECS, server, 'spec')
    assert read(cloud, SPECS, gone, 'spec')
    with cloud.databases.api().read() as conn:
        assert set(queries.api(conn).specs) == {server}
    cloud.assert_clean()
    for values, line in (
        ({'vcpus': 2}, 'says vcpus 2, its flavor vcpus 1'),
        (
            {'flavorid': 'x', 'extra_specs': {}},
            "says flavorid x, extra_specs {}, its flavor flavorid %s, extra_specs {'hw:mem_page_size': 'any'}",
        ),
        ({}, 'has no flavor'),
    ):
        flavorid = json.loads(stored)['nova_object.data']['flavor']['nova_object.data']['flavorid']
        with written(cloud, SPECS, server, spec=with_flavor(stored, **values)):
            assert look(cloud)[0].disagreements == [
                f'database: the request spec of server {server} {line.replace("%s", flavorid)}'
            ]
    for text in ('', '[]', '{"nova_object.data": 1}'):
        with written(cloud, SPECS, server, spec=text):
            assert look(cloud)[0].disagreements == [f'database: the request spec of server {server} has no flavor']
    with written(cloud, SPECS, server, spec=with_flavor(stored, vcpus=2)):
        with cloud.cell.write() as conn:
            operations.insert(
                conn,
                [
                    operations.OperationRow(
                        uuid='o' * 36,
                        kind='release',
                        instance_uuid=server,
                        slot='o',
                        request_id='req-1',
                        not_before=2**31,
                    )
                ],
            )
        report, _ = look(cloud)
        assert (report.disagreements, report.in_flight) == ([], [f'release of {server}'])
        with cloud.cell.write() as conn:
            operations.end(conn, 'o' * 36, server)

    def rename(before, after):
        with cloud.databases.api().write() as conn:
            conn.execute(SPECS.update().where(SPECS.c.instance_uuid == before).values(instance_uuid=after))

    rename(server, 'nobody')
    assert look(cloud)[0].disagreements == [f'database: server {server} has no request spec']
    rename('nobody', server)
    cloud.assert_clean()


def test_columns_of_another_flavor(cloud):
    server = cloud.boot(cloud.flavor(**SMALL))
    number = read(cloud, SERVERS, server, 'instance_type_id')
    with written(cloud, SERVERS, server, vcpus=2, ephemeral_gb=3):
        assert look(cloud)[0].disagreements == [
            f'database: server {server} has vcpus 2, ephemeral_gb 3, its flavor says vcpus 1, ephemeral_gb 0'
        ]
    with written(cloud, SERVERS, server, instance_type_id=77, memory_mb=1, root_gb=9):
        (line,) = look(cloud)[0].disagreements
        assert line == (
            f'database: server {server} has instance_type_id 77, memory_mb 1, root_gb 9, its flavor says '
            f'instance_type_id {number}, memory_mb 512, root_gb 1'
        )
    cloud.assert_clean()


def test_what_a_move_leaves_behind(cloud):
    """A confirmed or reverted move leaves no context and no old or new flavor."""
    server = cloud.boot(cloud.flavor(gpus=1))
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2)})
    context, flavors = (read(cloud, EXTRAS, server, name) for name in ('migration_context', 'flavor'))
    cloud.action(server, 'confirmResize')
    cloud.assert_clean()
    with written(cloud, EXTRAS, server, migration_context=context):
        assert look(cloud)[0].disagreements == [f'database: server {server} has a migration context and is not moving']
    with written(cloud, EXTRAS, server, flavor=flavors):
        assert look(cloud)[0].disagreements == [
            f'database: server {server} has old and new flavor of a move and is not moving'
        ]
    with written(cloud, EXTRAS, server, flavor=json.dumps({**json.loads(flavors), 'old': None})):
        assert look(cloud)[0].disagreements == [f'database: server {server} has new flavor of a move and is not moving']
    cloud.assert_clean()


@pytest.fixture(params=['two hosts', 'one host'])
def waiting(request, make_cloud):
    """(cloud, server, its move): from one device to two, not confirmed."""
    cloud = make_cloud(ONE_HOST, allow_resize_to_same_host=True) if request.param == 'one host' else make_cloud()
    server = cloud.boot(cloud.flavor(gpus=1, **SMALL))
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2, **LARGE)})
    assert cloud.status(server) == 'VERIFY_RESIZE'
    cloud.assert_clean()
    return cloud, server, migration_of(cloud, server)


def test_a_move_that_waits_keeps_the_new_flavors_spec(waiting):
    """Should the step that saves it, or its undo, do nothing."""
    cloud, server, _ = waiting
    new, old = (json.loads(read(cloud, EXTRAS, server, 'flavor'))[which] for which in ('new', 'old'))
    stored = json.loads(read(cloud, SPECS, server, 'spec'))
    stored['nova_object.data']['flavor'] = old
    new, old = new['nova_object.data'], old['nova_object.data']
    with written(cloud, SPECS, server, spec=json.dumps(stored)):
        (line,) = look(cloud)[0].disagreements
    assert line.startswith(f'database: the request spec of server {server} says id {old["id"]}, flavorid ')
    assert f'vcpus 1, memory_mb 512, extra_specs {old["extra_specs"]}, its flavor id {new["id"]}' in line


def test_flavors_of_a_move_that_waits(waiting):
    cloud, server, move = waiting
    text = read(cloud, EXTRAS, server, 'flavor')
    own = json.loads(text)
    number = {which: own[which]['nova_object.data']['id'] for which in ('old', 'new')}
    for which, said in (('old', None), ('new', None), ('old', 77), ('new', 77)):
        envelope = json.loads(text)[which]
        envelope['nova_object.data']['id'] = said
        changed = json.dumps({**own, which: envelope if said else None})
        with written(cloud, EXTRAS, server, flavor=changed):
            # The old one is what Placement is to hold for the source as well.
            found = [line for line in look(cloud)[0].disagreements if line.startswith('database')]
        assert f'database: server {server} has {which} flavor {said}, its move {move} says {number[which]}' == found[0]
        assert found[1:] == [f'database: server {server} has flavor {number["new"]} and new flavor 77'] * (
            which == 'new' and said == 77
        )
    cloud.assert_clean()


def test_the_context_of_a_move_that_waits(waiting):
    cloud, server, move = waiting
    context = json.loads(read(cloud, EXTRAS, server, 'migration_context'))
    waits = f'its move {move} waits to be confirmed'

    def databases():
        return [line for line in look(cloud)[0].disagreements if line.startswith('database: ')]

    with written(cloud, EXTRAS, server, migration_context=None):
        assert databases() == [f'database: server {server} has no migration context, {waits}']
    other = {**context, 'nova_object.data': {**context['nova_object.data'], 'migration_id': 77}}
    with written(cloud, EXTRAS, server, migration_context=json.dumps(other)):
        assert databases() == [f'database: server {server} has the migration context of another move, {waits}']
    held = cloud.owned(server)
    devices = {
        which: context['nova_object.data'][f'{which}_pci_devices']['nova_object.data']['objects']
        for which in ('old', 'new')
    }
    new = sorted(name for name in held if name.split()[1] in cloud.hostdevs(server))
    (old,) = set(held) - set(new)
    for which in ('old', 'new'):
        kept = devices[which].pop()
        with written(cloud, EXTRAS, server, migration_context=json.dumps(context)):
            (line,) = databases()
        address = kept['nova_object.data']['address']
        named = {'old': [old], 'new': new}
        named[which] = [name for name in named[which] if name.split()[1] != address]
        assert line == (
            f'database: the migration context of server {server} has old devices {named["old"]} and new '
            f'ones {named["new"]}, the server holds {held}'
        )
        devices[which].append(kept)
    cloud.assert_clean()


def test_moves_and_states_that_do_not_belong_together(waiting):
    cloud, server, move = waiting

    def databases():
        return sorted(
            line for line in look(cloud)[0].disagreements if line.startswith(('database: server', 'database: move'))
        )

    with written(cloud, SERVERS, server, vm_state='active'):
        assert databases() == [f'database: move {move} waits to be confirmed and its server {server} is active']
    with written(cloud, MOVES, move, status='confirmed'):
        assert databases() == [
            f'database: server {server} has a migration context and is not moving',
            f'database: server {server} has old and new flavor of a move and is not moving',
            f'database: server {server} is resized and no move of it waits to be confirmed',
        ]
    with cloud.cell.write() as conn:
        (row,) = conn.execute(sa.select(MOVES)).mappings()
        conn.execute(MOVES.insert().values({**row, 'id': 77, 'uuid': 'f' * 36}))
    assert databases() == [f'database: server {server} has 2 open moves: {", ".join(sorted([move, "f" * 36]))}']
    with cloud.cell.write() as conn:
        conn.execute(MOVES.delete().where(MOVES.c.id == 77))
    cloud.assert_clean()


# -- the second look ---------------------------------------------------------------------------------------------------
def once(cloud, act):
    """Do something while the first host is asked: after the databases were read, before Placement is."""
    done = []

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'describe_host' and not done:
            done.append(host)
            act()
        return deliver()

    cloud.on_message = on_message
    return done


def create(cloud):
    server = cloud.boot(cloud.flavor(gpus=1))
    assert cloud.status(server) == 'ACTIVE'


def delete(cloud):
    (server,) = cloud.ok('GET', '/servers')['servers']
    assert cloud.request('DELETE', f'/servers/{server["id"]}').status_int == 204
    cloud.settle()


@pytest.mark.parametrize('act', [create, delete])
def test_servers_that_come_and_go_between_the_reads(cloud, act):
    """Only a second look tells them from what disagrees: it finds nothing."""
    if act is delete:
        create(cloud)
    done = once(cloud, lambda: act(cloud))
    report, pauses = look(cloud)
    assert done and pauses == [2.0]
    assert (report.disagreements, report.in_flight, report.silent, report.exit_code) == ([], [], [], 0)
    assert report.checked['servers'] == (act is create)


@pytest.mark.parametrize('act', [create, delete])
def test_what_disagrees_is_found_among_them(cloud, act):
    wrong = cloud.boot(cloud.flavor(**SMALL), name='wrong')
    set_root(cloud, wrong, MEMORY_MB=1024)
    before = cloud.boot(cloud.flavor(gpus=1)) if act is delete else None

    def happen():
        if before is None:
            create(cloud)
        else:
            assert cloud.request('DELETE', f'/servers/{before}').status_int == 204
            cloud.settle()

    done = once(cloud, happen)
    report, pauses = look(cloud)
    assert done and pauses == [2.0]
    assert report.disagreements == [f'Placement: server {wrong} holds MEMORY_MB 1024, its flavor says MEMORY_MB 512']
    assert report.exit_code == 1


def test_what_changes_between_the_looks_is_not_reported(cloud):
    server = cloud.boot(cloud.flavor(**SMALL))
    set_root(cloud, server, MEMORY_MB=1024)
    report, pauses = look(cloud, lambda: set_root(cloud, server, MEMORY_MB=2048))
    assert (report.disagreements, report.exit_code, pauses) == ([], 0, [2.0])


@pytest.mark.parametrize('when', ['first', 'second'])
def test_a_host_that_one_look_does_not_hear(cloud, when):
    """What it has was compared once at most: the report says so."""
    server = cloud.boot(cloud.flavor(**SMALL))
    other = next(host for host in cloud.gpus if host != cloud.host_of(server))
    set_root(cloud, server, MEMORY_MB=1024)
    if when == 'first':
        cloud.crash_compute(other)
        report, _ = look(cloud, lambda: cloud.start_compute(other))
    else:
        report, _ = look(cloud, lambda: cloud.crash_compute(other))
    assert report.disagreements == [f'Placement: server {server} holds MEMORY_MB 1024, its flavor says MEMORY_MB 512']
    assert [line.partition(':')[0] for line in report.silent] == [other]
    assert report.exit_code == 2


def test_a_clean_cloud_is_looked_at_once(cloud):
    """No pause, each host asked once, and as many statements for three servers as for one."""
    mine = threading.get_ident()

    def count():
        seen = []
        cloud.messages.clear()
        stop = engine.listen(lambda database, statement, many: threading.get_ident() == mine and seen.append(statement))
        try:
            report, pauses = look(cloud)
        finally:
            stop()
        assert (report.disagreements, pauses) == ([], [])
        assert sorted(host for _, _, host, method in cloud.messages if method == 'describe_host') == list(cloud.gpus)
        return len(seen)

    create(cloud)
    alone = count()
    for _ in range(2):
        create(cloud)
    assert count() == alone > 0
