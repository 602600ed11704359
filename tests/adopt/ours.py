"""Kilonova's databases as SQLite files, into which a Nova is copied, and from which it is given back."""

from __future__ import annotations

import pathlib
import sqlite3
from typing import Any

from kilonova.adopt import back, begin, cloud, copy
from kilonova.cmd import options
from kilonova.db import engine
from kilonova.db.migration import METADATA
from kilonova.db.nova.merge import Counts
from kilonova.db.queries import cells as cell_queries
from tests.adopt.nova import Nova
from tests.unit.api.conftest import database_urls


class Target:
    """Kilonova's databases in a directory, with cell0 and cell1."""

    def __init__(self, directory: pathlib.Path, templates: pathlib.Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.urls = database_urls(directory, templates)
        self.databases = engine.Databases(self.urls['api'], self.urls['cell1'])
        # Another cell before, so that the ids of the cells differ from Nova's.
        for name in ('cell2', 'cell1'):
            cell_queries.create_cell(
                self.databases, name=name, transport_url=f'fake://{name}/', database_connection=self.urls[name]
            )
        cell_queries.map_cell0(self.databases, self.urls['cell0'])
        self.cells = cell_queries.CellDatabases(self.databases)
        self.ids = {one.cell.name: one.cell.id for one in self.cells.databases()}

    def copy(self, nova: Nova) -> copy.Copied:
        """Copy, as a process of its own would do."""
        with cloud.opened([nova.conf], options.new) as opened:
            return copy.run(opened, self.databases, self.cells)

    def begin(self, nova: Nova) -> None:
        """Mark the databases of Nova."""
        with cloud.opened([nova.conf], options.new, writable=True) as opened:
            begin.run(opened, self.databases, self.cells)

    def plan(self, nova: Nova) -> back.BackPlan:
        """Plan the way back, and return the plan, whose databases are closed."""
        with cloud.opened([nova.conf], options.new, writable=True) as opened:
            return back.plan(opened, self.databases, self.cells)

    def back(self, nova: Nova) -> dict[tuple[str, str], Counts]:
        """Go back, as a process of its own would do."""
        with cloud.opened([nova.conf], options.new, writable=True) as opened:
            plan = back.plan(opened, self.databases, self.cells)
            assert plan.obstacles == []
            return back.run(plan)

    def run(self, name: str, statement: str, *values: Any) -> None:
        """Run a statement in a database."""
        connection = sqlite3.connect(self.directory / f'{name}.db')
        try:
            with connection:
                connection.execute(statement, values)
        finally:
            connection.close()

    def rows(self, name: str, table: str) -> list[dict[str, Any]]:
        connection = sqlite3.connect(self.directory / f'{name}.db')
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute(f'SELECT * FROM {table} ORDER BY 1, 2')]
        finally:
            connection.close()

    def everything(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """{(database, table): its rows}."""
        return {
            (name, table): self.rows(name, table)
            for name in ('api', 'cell0', 'cell1')
            for table in METADATA['api' if name == 'api' else 'cell'].tables
        }
