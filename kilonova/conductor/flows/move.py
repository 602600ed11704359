"""What resize, confirm and revert share: the migration, the row's request spec, its end states."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilonova import objects, states
from kilonova.conductor.environment import silence
from kilonova.conductor.work import GuestMayRun, Work
from kilonova.db import engine
from kilonova.db.queries import instances, migrations, request_specs
from kilonova.errors import MigrationNotFound, Unanswered


def migration(work: Work) -> objects.Migration:
    """The migration of this move as its row stands now."""
    uuid = work.args['migration_uuid']
    with silence(), work.db.read() as conn:
        row = migrations.get(conn, uuid=uuid)
    if row is None:
        raise MigrationNotFound(migration_id=uuid)
    return objects.Migration.from_row(work.ctxt, row)


def request_spec(work: Work, name: str = 'request_spec') -> objects.RequestSpec:
    """The request spec that travels in the row."""
    return objects.base.Serializer().deserialize_entity(work.ctxt, work.args[name])


def as_before(work: Work) -> Callable[[Any], None]:
    """What is to be written when a move failed: the server as it was, whatever its hosts could still write of that
    themselves. ``write(conn)``; it must be made before the transaction."""
    with silence(), work.db.read() as conn:
        row = migrations.get(conn, uuid=work.args['migration_uuid'])
    server = work.instance(fresh=True)
    if row is None or (server.host, server.instance_type_id) == (row['source_compute'], row['old_instance_type_id']):
        return lambda conn: instances.update_extra(conn, work.instance_uuid, {'migration_context': None})
    context = server.migration_context
    extra = server.go_back(context if context is not None and context.migration_id == row['id'] else None)
    values = {**server.flavor_columns(), 'host': row['source_compute'], 'node': row['source_node']}

    def write(conn: Any) -> None:
        instances.update_extra(conn, work.instance_uuid, {**extra, 'migration_context': None})
        instances.put_back(conn, work.instance_uuid, values, {row['source_compute'], row['dest_compute']})
    return write


def image(work: Work) -> dict[str, Any]:
    """The image's metadata as the API knew it."""
    return work.args.get('image') or {}


# How often a request spec is read again that changed before it was written.
SAVES = 5


def save_spec(work: Work, spec: objects.RequestSpec) -> None:
    """Store the request spec of the server's flavor (api database).

    The row that says whose turn it is lies in another database: it is compared between reading the spec and writing it,
    and a spec that somebody else wrote meanwhile stays.
    """
    for _ in range(SAVES):
        with silence(), work.env.api.read() as conn:
            seen = request_specs.get(conn, work.instance_uuid)
        work.compare_now()
        if seen is None:
            return
        with silence():
            if _save(work.env.api, seen, spec.to_json()):
                return
    raise Unanswered(who='the api database', reason=f'the request spec of {work.instance_uuid} changes all the time')


@engine.retried
def _save(api: Any, seen: dict[str, Any], text: str) -> bool:
    with api.write() as conn:
        return request_specs.save(conn, seen, text)


def was_active(work: Work) -> bool:
    """Whether the guest ran before the move (and is to run after it)."""
    instance = work.instance()
    return instance.system_metadata.get('old_vm_state', instance.vm_state) != 'stopped'


def second_guest(work: Work, instance: objects.Instance, host: str) -> Exception | None:
    """What to wait for before the source starts the guest again: a destination that is down may still run it. None:
    it is off for sure, or the source will not start it."""
    if not was_active(work) or instance.task_state in states.ENDING:
        return None
    with silence():
        return None if work.env.hearing.is_fenced(work.db, host) else GuestMayRun(host=host)


def stored_event(work: Work, name: str, result: str = 'Success') -> dict[str, Any]:
    """An event of the conductor's own, written with the end state."""
    error = work.error or {}
    return {'event': name, 'result': result, 'start_time': work.created_at, 'finish_time': instances.utcnow(),
            'host': work.env.host, 'details': error.get('message'), 'traceback': error.get('details')}
