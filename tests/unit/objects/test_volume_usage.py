"""What guests read and write of volumes: how counters add up over starts, hosts and servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova import objects
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.engine import Database
from kilonova.db.models import cell as models

SERVERS = [f'{number}1111111-1111-4111-8111-111111111111' for number in (1, 2, 3)]
FIRST, SECOND, THIRD = SERVERS
VOLUME, OTHER = '5d5d5d5d-0000-4000-8000-000000000001', '5d5d5d5d-0000-4000-8000-000000000002'
COUNTERS = ('reads', 'read_bytes', 'writes', 'write_bytes')
TABLE, DISKS = models.VolumeUsage.__table__, models.BlockDeviceMapping.__table__


@pytest.fixture
def give(insert: Callable[..., int]) -> Callable[..., None]:
    """Three servers, which get volumes."""
    for uuid in SERVERS:
        insert('Instance', uuid=uuid)

    def add(*servers: str, volume: str = VOLUME) -> None:
        for server in servers:
            insert('BlockDeviceMapping', instance_uuid=server, volume_id=volume, destination_type='volume', deleted=0)

    return add


@pytest.fixture
def withdraw(cell: Database) -> Callable[[str], None]:
    def remove(server: str) -> None:
        with cell.write() as conn:
            conn.execute(DISKS.update().where(DISKS.c.instance_uuid == server).values(deleted=DISKS.c.id))

    return remove


def told(ctxt: RequestContext, server: str, *counters: int, volume: str = VOLUME) -> objects.VolumeUsage:
    return objects.VolumeUsage(
        ctxt,
        volume_id=volume,
        instance_uuid=server,
        project_id='p',
        user_id='u',
        availability_zone='nova',
        **{f'curr_{name}': counter for name, counter in zip(COUNTERS, counters, strict=True)},
    )


def count(ctxt: RequestContext, *found: objects.VolumeUsage) -> list[objects.VolumeUsage]:
    return objects.VolumeUsage.count(ctxt, list(found))


def before(usage: objects.VolumeUsage) -> list[int]:
    return [getattr(usage, f'tot_{name}') for name in COUNTERS]


def totals(usage: objects.VolumeUsage) -> list[int]:
    return [usage.total(name) for name in COUNTERS]


def rows(cell: Database) -> list[Any]:
    with cell.read() as conn:
        return list(conn.execute(sa.select(TABLE).order_by(TABLE.c.id)).mappings())


def test_counters_of_one_run_are_replaced(ctxt: RequestContext, cell: Database, give: Callable[..., None]) -> None:
    give(FIRST)
    (usage,) = count(ctxt, told(ctxt, FIRST, 1, 512, 2, 1024))
    assert (usage.volume_id, usage.instance_uuid, usage.project_id, usage.user_id, usage.availability_zone) == (
        VOLUME,
        FIRST,
        'p',
        'u',
        'nova',
    )
    assert totals(usage) == [1, 512, 2, 1024] and usage.tot_last_refreshed is None
    seen = usage.curr_last_refreshed
    # Equal counters are those of a guest that did nothing.
    for counters in ((1, 512, 2, 1024), (3, 2**40, 2, 1024)):
        (usage,) = count(ctxt, told(ctxt, FIRST, *counters))
        assert totals(usage) == list(counters) and before(usage) == [0] * 4
    assert usage.curr_last_refreshed > seen
    (row,) = rows(cell)
    assert (row['id'], row['curr_read_bytes'], row['deleted']) == (usage.id, 2**40, 0) and row['updated_at']


@pytest.mark.parametrize('smaller', range(4))
def test_a_counter_that_went_back_began_anew(ctxt: RequestContext, give: Callable[..., None], smaller: int) -> None:
    """The guest was started again, here or on another host: what it did before stays counted. Twice."""
    give(FIRST)
    (first,) = count(ctxt, told(ctxt, FIRST, 10, 20, 30, 40))
    counters = [10, 20, 30, 40]
    counters[smaller] -= 1
    (usage,) = count(ctxt, told(ctxt, FIRST, *counters))
    assert before(usage) == [10, 20, 30, 40] and usage.tot_last_refreshed == first.curr_last_refreshed
    assert totals(usage) == [10 + counters[0], 20 + counters[1], 30 + counters[2], 40 + counters[3]]
    (usage,) = count(ctxt, told(ctxt, FIRST, 0, 0, 0, 0))
    assert totals(usage) == before(usage) == [10 + counters[0], 20 + counters[1], 30 + counters[2], 40 + counters[3]]


def test_a_volume_goes_on_counting_with_its_next_server(
    ctxt: RequestContext, cell: Database, give: Callable[..., None], withdraw: Callable[[str], None]
) -> None:
    """Though that one has done more than the one before."""
    give(FIRST)
    count(ctxt, told(ctxt, FIRST, 1, 2, 3, 4))
    count(ctxt, told(ctxt, FIRST, 0, 1, 1, 1))
    withdraw(FIRST)
    give(SECOND)
    (usage,) = count(ctxt, told(ctxt, SECOND, 100, 100, 100, 100))
    assert (usage.instance_uuid, before(usage), totals(usage)) == (SECOND, [1, 3, 4, 5], [101, 103, 104, 105])
    assert [row['instance_uuid'] for row in rows(cell)] == [SECOND]
    # It comes back to the first.
    withdraw(SECOND)
    give(FIRST)
    (usage,) = count(ctxt, told(ctxt, FIRST, 1, 1, 1, 1))
    assert totals(usage) == [102, 104, 105, 106]
    assert [row['instance_uuid'] for row in rows(cell)] == [FIRST]


def test_servers_that_share_a_volume_count_for_themselves(
    ctxt: RequestContext, cell: Database, give: Callable[..., None], withdraw: Callable[[str], None]
) -> None:
    give(FIRST, SECOND)
    for times in (1, 2, 3):
        both = count(ctxt, told(ctxt, FIRST, *[100 * times] * 4), told(ctxt, SECOND, *[times] * 4))
        assert {usage.instance_uuid: totals(usage) for usage in both} == {FIRST: [100 * times] * 4, SECOND: [times] * 4}
    # What a server did that has it no more is counted once, for one of the others that is told of.
    give(THIRD)
    count(ctxt, told(ctxt, THIRD, 7, 7, 7, 7))
    withdraw(THIRD)
    both = count(ctxt, told(ctxt, FIRST, *[300] * 4), told(ctxt, SECOND, *[3] * 4))
    assert {usage.instance_uuid: totals(usage) for usage in both} == {FIRST: [307] * 4, SECOND: [3] * 4}
    assert sorted(row['instance_uuid'] for row in rows(cell)) == [FIRST, SECOND]


def test_a_server_that_has_it_no_more_is_not_counted(
    ctxt: RequestContext, cell: Database, give: Callable[..., None], withdraw: Callable[[str], None]
) -> None:
    """What its host looked at just before; or the server is gone with all that it had."""
    give(FIRST)
    give(SECOND, volume=OTHER)
    assert [
        usage.instance_uuid for usage in count(ctxt, told(ctxt, FIRST, 1, 1, 1, 1), told(ctxt, SECOND, 9, 9, 9, 9))
    ] == [FIRST]
    withdraw(FIRST)
    assert count(ctxt, told(ctxt, FIRST, 2, 2, 2, 2)) == []
    (row,) = rows(cell)
    assert (row['instance_uuid'], row['curr_reads']) == (FIRST, 1)


def test_statements_do_not_grow_with_the_volumes(ctxt: RequestContext, give: Callable[..., None]) -> None:
    volumes = [f'5d5d5d5d-0000-4000-8000-{number:012}' for number in range(40)]
    for volume in volumes:
        give(FIRST, volume=volume)
    # Half of them are known.
    count(ctxt, *(told(ctxt, FIRST, 1, 1, 1, 1, volume=volume) for volume in volumes[:20]))
    seen: list[str] = []
    stop = engine.listen(lambda database, statement, many: seen.append(statement.split()[0]))
    assert len(count(ctxt, *(told(ctxt, FIRST, 2, 2, 2, 2, volume=volume) for volume in volumes))) == 40
    stop()
    assert sorted(word for word in seen if word in ('SELECT', 'UPDATE', 'INSERT', 'DELETE')) == [
        'INSERT',
        'SELECT',
        'SELECT',
        'SELECT',
        'UPDATE',
    ]
