"""Begin the takeover of a Nova: mark its databases, so that Nova and Kilonova never act at once.

    with cloud.opened(paths, options.new, writable=True) as nova:
        begin.run(nova, databases, cells)

Nova's tables themselves are not changed, except for the versions of compute services (``db.nova.mark``).
"""

from __future__ import annotations

from kilonova.adopt import copy
from kilonova.adopt.cloud import NovaCloud
from kilonova.db.engine import Database, Databases
from kilonova.db.migration import Schema
from kilonova.db.nova import mark, questions
from kilonova.db.nova.questions import Fingerprints
from kilonova.db.nova.source import NovaDatabase
from kilonova.db.queries import adoption
from kilonova.db.queries.adoption import AdoptionState
from kilonova.db.queries.cells import CellDatabases


def marked(nova: NovaCloud) -> list[str]:
    """Return the names of the databases of Nova that are marked."""
    return mark.marked(nova.api, *(cell.database for cell in nova.cells))


def run(nova: NovaCloud, databases: Databases, cells: CellDatabases) -> None:
    """Mark Nova's databases, and record in Kilonova's that the takeover has begun. A repetition does no harm.

    Raises NotReady, before anything is written, if Nova has changed since the last copy, if a conductor or scheduler
    of Nova runs, or if Kilonova's databases have been used before.
    """
    with databases.api().read() as connection:
        found = adoption.takeover(connection)
    if found is not None and found.state is AdoptionState.BACK:
        raise copy.NotReady(reason='this cloud was given back to Nova: make new databases for Kilonova, and copy again')
    running = copy.running(nova)
    if running:
        raise copy.NotReady(reason=f'Nova still runs: {"; ".join(running)}. Stop it, and wait for some seconds')
    targets = copy.targets(nova, databases, cells, worked=found is not None)
    prints: dict[str, Fingerprints] = {}
    pairs: list[tuple[Schema, NovaDatabase, Database]] = [
        ('api', nova.api, databases.api()),
        *(('cell', cell.database, targets[cell.name]) for cell in nova.cells),
    ]
    for schema, source, target in pairs:
        with source.read() as connection:
            prints[source.name] = questions.fingerprints(source, connection, copy.tables_of(schema))
        if found is None:
            with target.read() as connection:
                copied = questions.fingerprints(schema, connection, copy.tables_of(schema))
            for table in copied:
                if copied[table] != prints[source.name][table]:
                    raise copy.NotReady(
                        reason=f"table {table} of Nova's {source.name} database has changed since the last copy: run "
                        "'kilonova-manage adopt copy --last' again"
                    )
    for database in (nova.api, *(cell.database for cell in nova.cells)):
        mark.put(database)
    if found is None:
        with databases.api().write() as connection:
            adoption.record_begin(connection, prints)
