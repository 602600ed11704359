"""Tokens of consoles: once, in their time, while the server is where it was."""

from __future__ import annotations

import sqlalchemy as sa

from kilonova.db import engine
from kilonova.db.models.cell import ConsoleAuthToken, Instance
from kilonova.db.queries import console_tokens

SERVER, OTHER = '11111111-2222-4333-8444-555555555555', '22222222-2222-4333-8444-555555555555'
CONSOLE = {'console_type': 'novnc', 'host': '192.0.2.10', 'port': 5900, 'access_url_base': 'http://here/vnc.html'}
tokens, instances = ConsoleAuthToken.__table__, Instance.__table__


def servers(cell: engine.Database) -> None:
    with cell.write() as conn:
        conn.execute(sa.insert(instances), [{'uuid': uuid, 'host': 'gpu1', 'deleted': 0} for uuid in (SERVER, OTHER)])


def add(cell: engine.Database, server: str = SERVER, lifetime: int = 600) -> str:
    return console_tokens.add(cell, CONSOLE, compute_host='gpu1', instance_uuid=server, lifetime=lifetime)


def find(cell: engine.Database, token: str) -> dict | None:
    with cell.read() as conn:
        return console_tokens.find(conn, token)


def change(cell: engine.Database, **values: object) -> None:
    with cell.write() as conn:
        conn.execute(sa.update(instances).where(instances.c.uuid == SERVER).values(**values))


def count(cell: engine.Database) -> int:
    with cell.read() as conn:
        return conn.execute(sa.select(sa.func.count()).select_from(tokens)).scalar_one()


def test_a_token_opens_once(cell):
    servers(cell)
    token, other = add(cell), add(cell)
    found = find(cell, token)
    assert 590 < found.pop('seconds') <= 600
    assert found == {
        **CONSOLE,
        'compute_host': 'gpu1',
        'instance_uuid': SERVER,
        'tls_port': None,
        'internal_access_path': None,
    }
    assert console_tokens.take(cell, token) and not console_tokens.take(cell, token)
    assert find(cell, token) is None and find(cell, other) is not None
    assert find(cell, 'nonsense') is None and not console_tokens.take(cell, 'nonsense')


def test_it_stands_nowhere(cell):
    servers(cell)
    token = add(cell)
    with cell.read() as conn:
        (row,) = conn.execute(sa.select(tokens)).mappings()
    assert token not in str(dict(row)) and row['token_hash'] == console_tokens.digest(token)


def test_time_is_over(cell):
    """An expired token is not found, cannot be taken, and is deleted by the purge. A valid token stays."""
    servers(cell)
    token, good = add(cell, lifetime=0), add(cell)
    assert find(cell, token) is None and not console_tokens.take(cell, token)
    assert console_tokens.purge(cell) == 1 and count(cell) == 1 and find(cell, good) is not None


def test_the_server_moved_or_went(cell, statements):
    servers(cell)
    for values in ({'host': 'gpu2'}, {'host': None}, {'host': 'gpu1', 'deleted': 1}):
        token, other = add(cell), add(cell, OTHER)
        change(cell, **values)
        assert find(cell, token) is None and not console_tokens.take(cell, token)
        assert find(cell, other) is not None
        statements.clear()
        assert console_tokens.purge(cell) == 1
        assert len([text for _, text, *_ in statements if 'console_auth_tokens' in text]) == 1
        change(cell, host='gpu1', deleted=0)
    assert count(cell) == 3


def test_a_server_has_so_many(cell, monkeypatch):
    """The oldest ones go; those of other servers stay."""
    monkeypatch.setattr(console_tokens, 'MOST', 3)
    servers(cell)
    other = add(cell, OTHER)
    mine = [add(cell) for _ in range(5)]
    assert [find(cell, token) is not None for token in mine] == [False, False, True, True, True]
    assert find(cell, other) is not None and count(cell) == 4
