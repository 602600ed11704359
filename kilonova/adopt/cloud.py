"""Find and open the databases of a running Nova by its configuration files.

    with opened([Path('/etc/nova/nova.conf')], options.new) as nova:
        nova.api, [cell.name for cell in nova.cells]

The URLs of the cells are in Nova's API database; templates in them are filled in as Nova fills them in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from oslo_config import cfg

from kilonova import errors
from kilonova.adopt import config
from kilonova.db.nova.source import NovaDatabase
from kilonova.db.queries import cells

# The most cells that are opened.
MOST_CELLS = 1000


class NoNova(errors.Invalid):
    """The configuration files name no databases of Nova."""

    msg_fmt = '%(reason)s'


@dataclass(frozen=True)
class NovaCell:
    """A cell of Nova: its mapping's id, uuid and name, whether it is disabled, and its database."""

    id: int
    uuid: str
    name: str
    disabled: bool
    database: NovaDatabase

    @property
    def is_cell0(self) -> bool:
        """Whether this is cell0, which has servers that never got a host."""
        return self.uuid == cells.CELL0_UUID


@dataclass(frozen=True)
class NovaCloud:
    """The API database of a Nova, its cells sorted by id, and the seconds between two reports of its services."""

    api: NovaDatabase
    cells: Sequence[NovaCell]
    report_interval: int


@contextlib.contextmanager
def opened(paths: Sequence[Path], blank: Callable[[], cfg.ConfigOpts], writable: bool = False) -> Iterator[NovaCloud]:
    """Open the databases that Nova's configuration files name, and provide them in a ``with`` block.

    ``blank`` returns a configuration with all options of Kilonova. The databases are read-only unless ``writable`` is
    True. Raises UnreadableFile, NoNova, NovaUnknown for a
    database of another release, and NovaUnreadable for one that does not answer.
    """
    with config.parsed(paths, blank) as conf:
        api_url, main_url = conf.api_database.connection, conf.database.connection
        interval = conf.report_interval
    if not api_url:
        raise NoNova(reason=f'[api_database]connection is set in none of the files {", ".join(map(str, paths))}')
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(NovaDatabase(api_url, 'api', 'api', writable))
        yield NovaCloud(
            api, [stack.enter_context(_of_cell(cell)) for cell in _cells(api, main_url, writable)], interval
        )


@contextlib.contextmanager
def _of_cell(cell: NovaCell) -> Iterator[NovaCell]:
    with cell.database:
        yield cell


def _cells(api: NovaDatabase, main_url: str | None, writable: bool) -> list[NovaCell]:
    with api.read() as connection:
        rows = [row for batch in api.batches(connection, 'cell_mappings') for row in batch]
    if not rows:
        raise NoNova(reason="Nova's API database has no cell mapping: check with 'nova-manage cell_v2 list_cells'")
    if len(rows) > MOST_CELLS:
        raise NoNova(reason=f'there are {len(rows)} cells; at most {MOST_CELLS} can be adopted')
    found = []
    for row in rows:
        name = row['name'] or row['uuid']
        try:
            url = cells.fill(row['database_connection'], main_url)
        except errors.Invalid as error:
            raise NoNova(reason=f'the database URL of cell {name} cannot be used: {error}') from None
        database = NovaDatabase(url, 'cell', name, writable)
        found.append(NovaCell(row['id'], row['uuid'], name, bool(row['disabled']), database))
    return found
