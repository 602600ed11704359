"""Give a cloud back to Nova: write what has changed since the takeover into Nova's databases.

    with cloud.opened(paths, options.new, writable=True) as nova:
        plan = back.plan(nova, databases, cells)         # reads only
        if not plan.obstacles:
            back.run(plan, print)

A row of Nova that means the same as Kilonova's row is not touched. Each transaction writes only what differs, so a run
that was interrupted is simply repeated. When everything is written, the marks of Nova's databases are removed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kilonova.adopt import begin, copy, nova_form
from kilonova.adopt.cloud import NovaCloud
from kilonova.adopt.nova_form import BackSide
from kilonova.db.engine import Connection, Databases
from kilonova.db.nova import interfaces, mark, merge, questions, remains
from kilonova.db.nova.merge import Counts, Key
from kilonova.db.queries import adoption
from kilonova.db.queries.adoption import AdoptionState, Takeover
from kilonova.db.queries.cells import CellDatabases
from kilonova.db.rows import Row

# Tables whose rows are removed at once when they are deleted, although they have a column for soft deletion in Nova.
_REMOVED_AT_ONCE = ('tags',)
# Tables whose rows are compared in Nova's form only.
# The meaning of Nova's row in such a table depends on another table, which may have changed, too.
_COMPARED_BY_FORM = ('instance_mappings',)
# Columns whose values are unique in Nova, where MySQL compares them without regard to case.
_UNIQUE_NAMES: Mapping[str, Sequence[str]] = {
    'flavors': ('name',),
    'aggregates': ('name',),
    'key_pairs': ('user_id', 'name'),
    'tags': ('resource_id', 'tag'),
}


@dataclass
class BackPlan:
    """The plan of a way back: the databases, what would be written, and what is in the way.

    Attributes:
        nova: The databases of Nova, writable.
        sides: Pairs of databases, that of the API first.
        databases: Kilonova's databases.
        obstacles: Texts that say why nothing may be written, each with what to do.
        counts: {(database, table): what would be written}, without tables that stay as they are.
        staying: {words: number} of what stays with Kilonova because Nova has nothing like it.
    """

    nova: NovaCloud
    sides: Sequence[BackSide]
    databases: Databases
    obstacles: list[str] = field(default_factory=list)
    counts: dict[tuple[str, str], Counts] = field(default_factory=dict)
    staying: dict[str, int] = field(default_factory=dict)


def plan(nova: NovaCloud, databases: Databases, cells: CellDatabases, most: int = 20) -> BackPlan:
    """Return what the way back would write, and what is in its way: at most ``most`` texts for each kind of obstacle.

    Nothing is written. Raises NotReady if these databases of Kilonova did not take over this Nova, and NovaUnreadable.
    """
    found = _begun(nova, databases)
    made = BackPlan(nova, _sides(nova, databases, cells), databases)
    report = list[str]()
    for side in made.sides:
        report += _first(remains.under_way(side.ours, side.schema, nova.report_interval), most)
    if found.state is AdoptionState.BEGUN:
        report += _first(_written_since(made.sides, found), most)
    report += _first(_moves(made.sides, found), most)
    report += _first(_unknown_cells(made.sides), most)
    report += _first(_doubled_names(made.sides), most)
    if not report:
        report += _first(_changes(made), most)
        for side in made.sides:
            for words, number in remains.only_here(side.ours, side.schema).items():
                made.staying[words] = made.staying.get(words, 0) + number
    made.obstacles = report
    return made


def run(made: BackPlan, progress: Callable[[str], object] = lambda line: None) -> dict[tuple[str, str], Counts]:
    """Write what has changed, remove the marks, and return what was done, as {(database, table): counts}.

    From the first write on, no daemon of Kilonova starts with these databases. ``progress`` gets a line for each table
    that changes. Raises NovaUnreadable; then the run must be repeated.
    """
    with made.databases.api().write() as connection:
        adoption.record_back(connection)
    done: dict[tuple[str, str], Counts] = {}
    for side in made.sides:
        for table in copy.tables_of(side.schema):
            counts = sum((_write(side, table, batch) for batch in _different(side, table)), Counts())
            if counts.inserted:
                merge.set_sequence(side.nova, side.nova.table(table), merge.key_of(side.schema, table))
            done[side.nova.name, table] = counts
        for table in reversed(copy.tables_of(side.schema)):
            done[side.nova.name, table] += sum(
                (_remove(side, table, gone) for gone in _vanished(side, table)), Counts()
            )
        for table in copy.tables_of(side.schema):
            counts = done[side.nova.name, table]
            if counts.inserted or counts.changed or counts.deleted:
                progress(_line(side.nova.name, table, counts))
    for side in made.sides:
        mark.remove(side.nova)
    return done


def _line(database: str, table: str, counts: Counts) -> str:
    return f'{database} {table}: {counts.inserted} new, {counts.changed} changed, {counts.deleted} deleted'


def _first(texts: Iterator[str], most: int) -> list[str]:
    """Return the first texts, and one that says that there are more."""
    found = list(itertools.islice(texts, most + 1))
    return found if len(found) <= most else [*found[:most], 'and more of this kind']


# --- which databases
def _begun(nova: NovaCloud, databases: Databases) -> Takeover:
    with databases.api().read() as connection:
        found = adoption.takeover(connection)
    marked = begin.marked(nova)
    if found is None or not marked:
        raise copy.NotReady(
            reason="Kilonova has not taken over this Nova: its databases have no mark of 'kilonova-manage adopt begin'"
            if not marked
            else "Kilonova's API database says nothing of a takeover, so it is not the one that took over this Nova"
        )
    return found


def _sides(nova: NovaCloud, databases: Databases, cells: CellDatabases) -> list[BackSide]:
    targets = copy.targets(nova, databases, cells, worked=True)
    numbers = {cells.id_of(targets[cell.name]): cell.id for cell in nova.cells}
    deleted = {uuid for target in targets.values() for uuid in remains.soft_deleted(target)}
    release = nova.cells[-1].database.release
    return [
        BackSide('api', databases.api(), nova.api, release, numbers, deleted),
        *(BackSide('cell', targets[cell.name], cell.database, release, numbers) for cell in nova.cells),
    ]


# --- what is in the way
def _written_since(sides: Sequence[BackSide], found: Takeover) -> Iterator[str]:
    for side in sides:
        with side.nova.read() as connection:
            now = questions.fingerprints(side.nova, connection, copy.tables_of(side.schema))
        before = found.fingerprints.get(side.nova.name, {})
        for table in sorted(now):
            if before.get(table) != now[table]:
                yield (
                    f"{side.nova.name}, table {table}: Nova has written to it since the takeover began. Restore Nova's "
                    'databases from a backup of that time, or reverse what was written'
                )


def _moves(sides: Sequence[BackSide], found: Takeover) -> Iterator[str]:
    """Yield a text for each resize that waits for its confirmation and was begun under Kilonova."""
    for side in sides:
        if side.schema == 'cell':
            _count, highest, _changed = found.fingerprints.get(side.nova.name, {}).get('migrations', (0, None, None))
            for row in remains.moves(side.ours):
                if row['status'] != 'finished' or row['id'] > (highest or 0):
                    yield (
                        f'server {row["instance_uuid"]}: its {row["migration_type"]} from {row["source_compute"]} to '
                        f'{row["dest_compute"]} is {row["status"]}. Wait for its end, and confirm or revert a resize'
                    )


def _unknown_cells(sides: Sequence[BackSide]) -> Iterator[str]:
    api = sides[0]
    for table, column in (('host_mappings', 'host'), ('instance_mappings', 'instance_uuid')):
        for name, cell_id in remains.outside(api.ours, table, column, list(api.cells)):
            yield (
                f'{table.partition("_")[0]} {name} is in a cell that Nova does not have (id {cell_id}). Move its '
                'servers to another cell, or delete them'
            )


def _doubled_names(sides: Sequence[BackSide]) -> Iterator[str]:
    """Yield a text for names that are equal for Nova's MySQL, which ignores case."""
    for side in sides:
        if side.nova.dialect == 'mysql':
            for table in _UNIQUE_NAMES.keys() & set(copy.tables_of(side.schema)):
                for names in remains.equal_but_for_case(side.ours, side.schema, table, _UNIQUE_NAMES[table]):
                    yield (
                        f'{table}: {" and ".join(names)} differ only in case, which Nova ignores. Rename or delete one'
                    )


def _changes(made: BackPlan) -> Iterator[str]:
    """Count what would be written, and yield a text for each row that does not fit into Nova's tables."""
    for side in made.sides:
        for table in copy.tables_of(side.schema):
            counts = Counts()
            names = merge.key_of(side.schema, table)
            for batch in _different(side, table):
                for row in batch.rows:
                    reason = nova_form.unfit(side, table, row)
                    if reason is not None:
                        yield (
                            f'{side.nova.name}, table {table}, row {", ".join(map(str, nova_form.key(names, row)))}: '
                            f'{reason}. Change or delete it'
                        )
                new = len(batch.rows) - len(batch.known)
                counts += Counts(new, len(batch.known))
            for gone in _vanished(side, table):
                counts += Counts(deleted=len(gone.keys) + len(gone.ended))
            if counts != Counts():
                made.counts[side.nova.name, table] = counts


# --- what has changed
@dataclass(frozen=True)
class DifferentRows:
    """Rows in Nova's form that differ from Nova's own. ``known`` are the keys of those that Nova has."""

    rows: list[Row]
    known: Collection[Key]


@dataclass(frozen=True)
class Vanished:
    """Rows of Nova that Kilonova does not have any more.

    ``keys`` are removed. ``ended`` are rows whose columns are changed, so that Nova takes them for deleted.
    """

    keys: list[Key]
    ended: list[Row]


def _different(side: BackSide, table: str) -> Iterator[DifferentRows]:
    if table == 'volume_usage_cache':
        yield from _different_usages(side)
        return
    names, columns = merge.key_of(side.schema, table), questions.common_columns(side.nova, table)
    for batch in remains.batches(side.ours, side.schema, table, columns, names):
        found = [row for row in batch if not nova_form.stays(table, row)]
        with side.nova.read() as connection:
            keys = [nova_form.key(names, row) for row in found]
            current = side.nova.by_key(connection, table, names, keys, columns)
            meant = _meant(side, connection, table, columns, current)
        changed = [row for row in found if meant.get(nova_form.key(names, row)) != row]
        by_id = {row['id']: row for row in current.values()} if 'id' in columns else {}
        rows = nova_form.rows(side, table, changed, by_id)
        rows = [row for row in rows if current.get(nova_form.key(names, row)) != row]
        if rows:
            yield DifferentRows(rows, current.keys() & {nova_form.key(names, row) for row in rows})


def _meant(
    side: BackSide, connection: Connection, table: str, columns: Sequence[str], current: Mapping[Key, Row]
) -> dict[Key, Row]:
    """Return {key: row of Nova as a copy to Kilonova would store it}, without rows that can't be converted."""
    if table in _COMPARED_BY_FORM:
        return {}
    ours = {theirs: number for number, theirs in side.cells.items()}
    forward = copy.CopySide(side.schema, side.nova, connection, side.ours, ours)

    def converted(keys: Sequence[Key]) -> dict[Key, Row]:
        rows = copy.converted(forward, table, [dict(current[key]) for key in keys])
        return {key: {column: row[column] for column in columns} for key, row in zip(keys, rows, strict=True)}

    try:
        return converted(list(current))
    except copy.NotCopied:
        # Only the rows that can't be converted are left out.
        found: dict[Key, Row] = {}
        for key in current:
            with contextlib.suppress(copy.NotCopied):
                found |= converted([key])
        return found


def _different_usages(side: BackSide) -> Iterator[DifferentRows]:
    """Yield the counters of volumes that have changed. Nova may have several rows for one volume and server."""
    table = 'volume_usage_cache'
    columns = questions.common_columns(side.nova, table)
    with side.nova.read() as connection:
        forward = copy.CopySide('cell', side.nova, connection, side.ours, {})
        meant = {row['id']: row for row in copy.usages(forward)}
    for batch in remains.batches(side.ours, 'cell', table, columns, ('id',)):
        changed = [row for row in batch if meant.get(row['id']) != row]
        rows = nova_form.rows(side, table, changed, {})
        rows = [row for row in rows if meant.get(row['id']) != row]
        if rows:
            yield DifferentRows(rows, {(row['id'],) for row in rows if row['id'] in meant})


def _vanished(side: BackSide, table: str) -> Iterator[Vanished]:
    """Yield the rows of Nova, that are not deleted, which Kilonova does not have."""
    if table == 'volume_usage_cache':
        yield from _older_usages(side)
        return
    names = merge.key_of(side.schema, table)
    soft = 'deleted' in side.nova.table(table).c and table not in _REMOVED_AT_ONCE
    for keys in questions.live_keys(side.nova, table, names, soft):
        gone = sorted(set(keys) - remains.existing(side.ours, side.schema, table, names, keys))
        if gone:
            yield Vanished([], _ended(side, table, names, gone)) if soft else Vanished(gone, [])


def _ended(side: BackSide, table: str, names: Sequence[str], keys: list[Key]) -> list[Row]:
    """Return the rows in Nova's form as deleted ones: as Kilonova archived them, or if they were purged, Nova's."""
    columns = questions.common_columns(side.nova, table)
    archived = remains.archived(side.ours, side.schema, table, columns, names, keys)
    with side.nova.read() as connection:
        current = side.nova.by_key(connection, table, names, keys, columns)
    rows = nova_form.rows(side, table, list(archived.values()), {row['id']: row for row in current.values()})
    for key in keys:
        if key not in archived:
            row = dict(current[key])
            row.update(deleted=row['id'], deleted_at=row.get('updated_at') or row.get('created_at'))
            if table == 'instances':
                row.update(vm_state='deleted', task_state=None)
            rows.append(row)
    return rows


def _older_usages(side: BackSide) -> Iterator[Vanished]:
    """Yield the rows of Nova whose counts Kilonova's row for the same volume and server contains."""
    changed = {row['id'] for different in _different_usages(side) for row in different.rows}
    with side.nova.read() as connection:
        found = questions.usage_ids(side.nova, connection)
    older = [(number,) for ids in found.values() if ids[-1] in changed for number in ids[:-1]]
    if older:
        yield Vanished(older, [])


# --- writing
def _write(side: BackSide, table: str, batch: DifferentRows) -> Counts:
    nova, names = side.nova.table(table), merge.key_of(side.schema, table)
    new = [row for row in batch.rows if nova_form.key(names, row) not in batch.known]
    with side.nova.write() as connection:
        merge.change(connection, nova, names, [row for row in batch.rows if nova_form.key(names, row) in batch.known])
        merge.insert(connection, nova, new)
        if table == 'instance_info_caches':
            tags = remains.interface_tags(side.ours, [row['instance_uuid'] for row in batch.rows])
            interfaces.write(side.nova, connection, batch.rows, tags)
    return Counts(len(new), len(batch.rows) - len(new))


def _remove(side: BackSide, table: str, gone: Vanished) -> Counts:
    nova, names = side.nova.table(table), merge.key_of(side.schema, table)
    with side.nova.write() as connection:
        merge.change(connection, nova, names, gone.ended)
        merge.delete(connection, nova, names, gone.keys)
    return Counts(deleted=len(gone.keys) + len(gone.ended))
