"""kilonova-manage placement sync_aggregates."""

from __future__ import annotations

import pytest

from kilonova import errors
from kilonova.clients.placement import ProviderNotFound
from kilonova.cmd.daemon import parts
from kilonova.cmd.manage import main as manage
from kilonova.db import engine
from kilonova.db.queries import aggregates, cells, compute_nodes
from tests.unit.db.rows import node


class Placement:
    """Knows which node is in which aggregate."""

    def __init__(self):
        self.members, self.fails = set(), None

    def list_providers(self, member_of):
        return [{'uuid': uuid} for uuid, aggregate in sorted(self.members) if aggregate == member_of]

    def set_member(self, uuid, aggregate, member):
        if self.fails is not None:
            raise self.fails
        (self.members.add if member else self.members.discard)((uuid, aggregate))


def test_aggregates_are_synchronised(synced, write_conf, monkeypatch, capsys):
    synced()
    path, placement = write_conf(), Placement()
    monkeypatch.setattr(parts, 'placement', lambda conf: placement)
    databases = engine.Databases(*(f'sqlite:///{path.rpartition("/")[0]}/{name}.db' for name in ('api', 'main')))
    cell = cells.create_cell(databases, name='c', transport_url='fake://', database_connection=databases.main().url)
    with databases.main().write() as connection:
        for host in ('h1', 'h2'):
            compute_nodes.get_or_create(connection, node(host))
    with databases.api().write() as connection:
        cells.map_hosts(connection, cells.get_cell(connection, cell)['id'], ['h1', 'h2'])
        made = aggregates.create(connection, 'rack1')
        aggregates.add_host(connection, made['id'], 'h1')
    databases.dispose()
    placement.members = {(node('h2')['uuid'], made['uuid']), ('elsewhere', made['uuid'])}

    def run(*arguments):
        return manage.main(['--config-file', path, 'placement', 'sync_aggregates', *arguments]), capsys.readouterr().out

    assert run('--verbose') == (0, 'Successfully synchronized h1: rack1\nSuccessfully synchronized h2: rack1\n')
    assert placement.members == {(node('h1')['uuid'], made['uuid']), ('elsewhere', made['uuid'])}
    assert run('--verbose') == (0, '')
    placement.members.clear()
    for error, code in (
        (errors.Unanswered(who='Placement', reason='gone'), 2),
        (errors.PlacementConflict(detail='x', placement_code='y'), 3),
        (ProviderNotFound(uuid='u'), 6),
    ):
        placement.fails = error
        assert run()[0] == code


@pytest.mark.parametrize('arguments', [(), ('nosuch',)])
def test_what_there_is_not(arguments, write_conf):
    with pytest.raises(SystemExit) as ended:
        manage.main(['--config-file', write_conf(), 'placement', *arguments])
    assert ended.value.code != 0
