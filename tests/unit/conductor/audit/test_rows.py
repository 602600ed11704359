"""What the rows of a server at rest must say of each other: each line for one thing that is wrong alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kilonova import objects
from kilonova.conductor.audit import rows as audit_rows
from kilonova.conductor.audit.rows import ServerRows, disagreements
from tests.unit.scheduler.builders import flavor, uuid

SERVER, MOVE = uuid('server'), uuid('move')
SMALL = flavor({'hw:numa_nodes': '1'}, id=1, vcpus=1, memory_mb=512, root_gb=2, ephemeral_gb=3, flavorid='small')
LARGE = flavor(id=2, vcpus=2, memory_mb=1024, root_gb=4, ephemeral_gb=5, flavorid='large')
OLD, NEW = '0000:0a:00.0', '0000:0b:00.0'


def text(**which: objects.Flavor | None) -> str:
    return json.dumps({name: one and one.obj_to_primitive() for name, one in which.items()})


def server(of: objects.Flavor, **values: Any) -> dict[str, Any]:
    return {
        'uuid': SERVER,
        'vm_state': 'active',
        'instance_type_id': of.id,
        'vcpus': of.vcpus,
        'memory_mb': of.memory_mb,
        'root_gb': of.root_gb,
        'ephemeral_gb': of.ephemeral_gb,
        'flavor': text(cur=of, old=None, new=None),
        'migration_context': None,
        **values,
    }


def spec(of: objects.Flavor | None) -> str:
    return json.dumps(of and of.obj_to_primitive())


def devices(*addresses: str) -> objects.PciDeviceList:
    return objects.PciDeviceList(objects=[objects.PciDevice(address=address) for address in addresses])


def context(**values: Any) -> str:
    given = {'migration_id': 7, 'old_pci_devices': devices(OLD), 'new_pci_devices': devices(NEW), **values}
    found: str = objects.MigrationContext(
        instance_uuid=SERVER, **{name: value for name, value in given.items() if value is not None}
    ).to_json()
    return found


RESTING = ServerRows(server(SMALL), spec(SMALL), [], [])
MOVED = ServerRows(
    server(LARGE, vm_state='resized', flavor=text(cur=LARGE, old=SMALL, new=LARGE), migration_context=context()),
    spec(LARGE),
    [
        {
            'id': 7,
            'uuid': MOVE,
            'status': 'finished',
            'old_instance_type_id': 1,
            'new_instance_type_id': 2,
            'source_compute': 'gpu1',
            'source_node': 'node1',
            'dest_compute': 'gpu2',
            'dest_node': 'node2',
        }
    ],
    [{'host': 'gpu1', 'node': 'node1', 'address': OLD}, {'host': 'gpu2', 'node': 'node2', 'address': NEW}],
)


def with_server(rows: ServerRows, **values: Any) -> ServerRows:
    return replace(rows, server={**rows.server, **values})


def with_move(rows: ServerRows, **values: Any) -> ServerRows:
    return replace(rows, moves=[{**rows.moves[0], **values}])


@pytest.mark.parametrize(
    'rows',
    [
        RESTING,
        MOVED,
        with_server(RESTING, vm_state='error'),
        # A spec of an older flavor of another name: names may be changed.
        replace(
            RESTING,
            spec=spec(
                flavor(
                    {'hw:numa_nodes': '1'},
                    id=1,
                    vcpus=1,
                    memory_mb=512,
                    root_gb=2,
                    ephemeral_gb=3,
                    flavorid='small',
                    name='another',
                )
            ),
        ),
        # What a context lacks can't be wrong.
        with_server(MOVED, migration_context=context(old_pci_devices=None)),
        with_server(MOVED, migration_context=context(new_pci_devices=None)),
    ],
)
def test_nothing_is_wrong(rows: ServerRows) -> None:
    assert list(disagreements(rows)) == []


SAYS = "id 1, flavorid small, vcpus 1, memory_mb 512, root_gb 2, ephemeral_gb 3, extra_specs {'hw:numa_nodes': '1'}"
HAS = 'id 2, flavorid large, vcpus 2, memory_mb 1024, root_gb 4, ephemeral_gb 5, extra_specs {}'


def context_line(held: str, old: str = f"['gpu1 {OLD}']", new: str = f"['gpu2 {NEW}']") -> str:
    return (
        f'database: the migration context of server {SERVER} has old devices {old} and new ones {new}, the server '
        f'holds {held}'
    )


WRONG: dict[str, tuple[Callable[[], ServerRows], list[str]]] = {
    'no flavor': (lambda: with_server(RESTING, flavor=None), [f'database: server {SERVER} has no flavor']),
    'an empty flavor': (
        lambda: with_server(RESTING, flavor=text(cur=None)),
        [f'database: server {SERVER} has no flavor'],
    ),
    'columns': (
        lambda: with_server(RESTING, vcpus=8, root_gb=9),
        [f'database: server {SERVER} has vcpus 8, root_gb 9, its flavor says vcpus 1, root_gb 2'],
    ),
    'the id of the flavor': (
        lambda: with_server(RESTING, instance_type_id=5),
        [f'database: server {SERVER} has instance_type_id 5, its flavor says instance_type_id 1'],
    ),
    'sizes': (
        lambda: with_server(RESTING, memory_mb=1, ephemeral_gb=1),
        [f'database: server {SERVER} has memory_mb 1, ephemeral_gb 1, its flavor says memory_mb 512, ephemeral_gb 3'],
    ),
    'no spec': (lambda: replace(RESTING, spec=None), [f'database: server {SERVER} has no request spec']),
    'a spec without a flavor': (
        lambda: replace(RESTING, spec='null'),
        [f'database: the request spec of server {SERVER} has no flavor'],
    ),
    'another spec': (
        lambda: replace(MOVED, spec=spec(SMALL)),
        [f'database: the request spec of server {SERVER} says {SAYS}, its flavor {HAS}'],
    ),
    'a spec with other swap': (
        lambda: replace(
            RESTING,
            spec=spec(
                flavor(
                    {'hw:numa_nodes': '1'},
                    id=1,
                    vcpus=1,
                    memory_mb=512,
                    root_gb=2,
                    ephemeral_gb=3,
                    flavorid='small',
                    swap=9,
                )
            ),
        ),
        [f'database: the request spec of server {SERVER} says swap 9, its flavor swap 0'],
    ),
    'two moves': (
        lambda: replace(MOVED, moves=[*MOVED.moves, {**MOVED.moves[0], 'uuid': 'a'}]),
        [f'database: server {SERVER} has 2 open moves: a, {MOVE}'],
    ),
    'resized without a move': (
        lambda: replace(with_server(RESTING, vm_state='resized')),
        [f'database: server {SERVER} is resized and no move of it waits to be confirmed'],
    ),
    'a move of an active server': (
        lambda: with_server(MOVED, vm_state='active'),
        [f'database: move {MOVE} waits to be confirmed and its server {SERVER} is active'],
    ),
    'a context without a move': (
        lambda: with_server(RESTING, migration_context='{}'),
        [f'database: server {SERVER} has a migration context and is not moving'],
    ),
    'an old flavor without a move': (
        lambda: with_server(RESTING, flavor=text(cur=SMALL, old=SMALL)),
        [f'database: server {SERVER} has old flavor of a move and is not moving'],
    ),
    'flavors without a move': (
        lambda: with_server(RESTING, flavor=text(cur=SMALL, old=SMALL, new=LARGE)),
        [f'database: server {SERVER} has old and new flavor of a move and is not moving'],
    ),
    'another old flavor': (
        lambda: with_move(MOVED, old_instance_type_id=9),
        [f'database: server {SERVER} has old flavor 1, its move {MOVE} says 9'],
    ),
    'another new flavor': (
        lambda: with_move(MOVED, new_instance_type_id=9),
        [f'database: server {SERVER} has new flavor 2, its move {MOVE} says 9'],
    ),
    'no old flavor': (
        lambda: with_server(MOVED, flavor=text(cur=LARGE, new=LARGE)),
        [f'database: server {SERVER} has old flavor None, its move {MOVE} says 1'],
    ),
    'a new flavor that it has not': (
        lambda: replace(
            with_server(
                MOVED,
                **server(
                    SMALL, vm_state='resized', flavor=text(cur=SMALL, old=SMALL, new=LARGE), migration_context=context()
                ),
            ),
            spec=spec(SMALL),
        ),
        [f'database: server {SERVER} has flavor 1 and new flavor 2'],
    ),
    'no context': (
        lambda: with_server(MOVED, migration_context=None),
        [f'database: server {SERVER} has no migration context, its move {MOVE} waits to be confirmed'],
    ),
    'another context': (
        lambda: with_server(MOVED, migration_context=context(migration_id=8)),
        [f'database: server {SERVER} has the migration context of another move, its move {MOVE} waits to be confirmed'],
    ),
    'devices that it does not hold': (
        lambda: replace(MOVED, devices=MOVED.devices[:1]),
        [context_line(f"['gpu1 {OLD}']")],
    ),
    'devices on another node': (
        lambda: replace(MOVED, devices=[MOVED.devices[0], {**MOVED.devices[1], 'node': 'another'}]),
        [context_line(f"['gpu1 {OLD}', 'gpu2 {NEW}']")],
    ),
    'more devices than the context has': (
        lambda: replace(MOVED, devices=[*MOVED.devices, {'host': 'gpu2', 'node': 'node2', 'address': OLD}]),
        [context_line(f"['gpu1 {OLD}', 'gpu2 {OLD}', 'gpu2 {NEW}']")],
    ),
    'the same at both ends': (
        lambda: replace(
            with_move(
                with_server(MOVED, migration_context=context(old_pci_devices=devices(NEW))),
                source_compute='gpu2',
                source_node='node2',
            ),
            devices=MOVED.devices[1:],
        ),
        [context_line(f"['gpu2 {NEW}']", f"['gpu2 {NEW}']")],
    ),
}


@pytest.mark.parametrize('name', WRONG)
def test_what_is_wrong(name: str) -> None:
    make, lines = WRONG[name]
    assert list(disagreements(make())) == lines


def test_a_move_under_way_says_nothing() -> None:
    """Its rows are being changed."""
    assert (
        list(
            disagreements(
                with_server(
                    with_move(MOVED, status='migrating'),
                    vm_state='active',
                    migration_context=None,
                    flavor=text(cur=LARGE),
                )
            )
        )
        == []
    )


def test_the_context_of_a_move() -> None:
    move = MOVED.moves[0]
    assert audit_rows.context_of(MOVED.server, None) is None
    assert audit_rows.context_of({'migration_context': None}, move) is None
    assert audit_rows.context_of(MOVED.server, {'id': 8}) is None
    found = audit_rows.context_of(MOVED.server, move)
    assert found is not None and found.migration_id == 7


def test_flavors_that_are_there() -> None:
    assert audit_rows.flavors(None) == {} and list(audit_rows.flavors(text(cur=SMALL, old=None))) == ['cur']
