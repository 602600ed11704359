"""Tests of `kilonova-manage operation`, which lists and shows operations that are running or waiting."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kilonova.db import engine
from kilonova.db.clock import db_now, db_utcnow
from kilonova.db.models.cell import Lease, Operation

S1, S2 = 'aaaaaaaa-0000-4000-8000-00000000000a', 'aaaaaaaa-0000-4000-8000-00000000000b'
RESIZE, BOOT = 'bbbbbbbb-0000-4000-8000-00000000000a', 'bbbbbbbb-0000-4000-8000-00000000000b'


@pytest.fixture
def working(cloud: Any, parse: Any) -> Any:
    """A resize that a conductor works on, in a cell, and a boot that waits, in the API database; the command."""
    databases = engine.configure(parse())
    values = {'args': json.dumps({'sealed': 'SECRET', 'flavor': 'f'}), 'context': json.dumps({'auth_token': 'SECRET'})}
    with databases.main().write() as connection:
        connection.execute(
            Operation.__table__.insert().values(
                uuid=RESIZE,
                kind='resize',
                instance_uuid=S1,
                slot='run',
                position=2,
                attempt=2,
                owner='owner-1',
                host='gpu2',
                request_id='req-1',
                undoing=True,
                error=json.dumps('gpu1 refused'),
                created_at=db_utcnow(),
                outputs=json.dumps({'select': [{'host': 'gpu2'}]}),
                **values,
            )
        )
        connection.execute(Lease.__table__.insert().values(owner='owner-1', host='ctl1', expires=db_now() + 20))
    with databases.api().write() as connection:
        connection.execute(
            Operation.__table__.insert().values(
                uuid=BOOT,
                kind='boot',
                instance_uuid=S2,
                slot='run',
                not_before=db_now() + 3600,
                created_at=db_utcnow(),
                outputs=json.dumps({'tries': 3, 'reason': REASON}),
                **values,
            )
        )
    databases.dispose()
    return cloud


REASON = f'The image service did not answer: {"a" * 200}'


def test_list(working: Any) -> None:
    code, lines = working('operation', 'list', '--format', 'json')
    assert code == 0 and 'SECRET' not in '\n'.join(lines)
    rows = {row['operation']: row for row in json.loads('\n'.join(lines))}
    from kilonova.conductor.flows import FLOWS

    resize, boot = rows[RESIZE], rows[BOOT]
    assert (
        resize['kind'],
        resize['server'],
        resize['step'],
        resize['attempt'],
        resize['conductor'],
        resize['host'],
    ) == ('resize', S1, FLOWS['resize'].steps[2].name, 2, 'ctl1', 'gpu2')
    assert resize['state'] == 'running, the steps of this attempt are being undone'
    assert boot['database'] == 'api' and boot['step'] == FLOWS['boot'].steps[0].name and boot['conductor'] is None
    assert boot['state'].startswith('continues in 3') and boot['state'].endswith(' s')
    # Why it waits; a table has the beginning of it.
    assert (boot['reason'], resize['reason']) == (REASON, None)
    table = '\n'.join(working('operation', 'list')[1])
    assert 'The image service did not answer: a' in table and REASON not in table
    assert [
        row['operation']
        for row in json.loads('\n'.join(working('operation', 'list', '--server', S1, '--format', 'json')[1]))
    ] == [RESIZE]
    assert any(RESIZE in line and 'ctl1' in line for line in working('operation', 'list')[1])


def test_show(working: Any) -> None:
    code, lines = working('operation', 'show', RESIZE)
    text = '\n'.join(lines)
    assert code == 0 and 'SECRET' not in text
    for part in ('gpu1 refused', 'req-1', 'flavor, sealed', 'select', 'ctl1'):
        assert part in text
    by_server, by_operation = (
        [re.sub(r'\d+ s\b', 'some s', line) for line in working('operation', 'show', one)[1]] for one in (S2, BOOT)
    )
    assert by_server == by_operation
    assert working('operation', 'show', 'nope') == (
        1,
        ['There is no operation nope, and no operation of a server nope.'],
    )


@pytest.mark.parametrize(
    ('values', 'state'),
    [
        ({'owner': None, 'not_before': 0}, 'waits for a conductor'),
        ({'owner': 'gone', 'not_before': 0}, 'its conductor ended, another conductor will take it over'),
        ({'slot': 'wait', 'owner': None}, "waits for the server's running operation"),
        ({'cancelled': True}, 'running, cancelled: it is being undone'),
        ({'failed': True}, 'running, failed: it is being undone'),
    ],
)
def test_states(working: Any, parse: Any, values: dict[str, Any], state: str) -> None:
    databases = engine.configure(parse())
    with databases.main().write() as connection:
        connection.execute(Operation.__table__.update().values({'undoing': False, **values}))
    databases.dispose()
    (row,) = json.loads('\n'.join(working('operation', 'list', '--server', S1, '--format', 'json')[1]))
    assert row['state'] == state


def test_a_lease_that_ended_is_nobodys(working: Any, parse: Any) -> None:
    databases = engine.configure(parse())
    with databases.main().write() as connection:
        connection.execute(Lease.__table__.update().values(expires=db_now() - 1))
    databases.dispose()
    (row,) = json.loads('\n'.join(working('operation', 'list', '--server', S1, '--format', 'json')[1]))
    assert row['conductor'] is None
    assert row['state'].startswith('its conductor ended, another conductor will take it over')
