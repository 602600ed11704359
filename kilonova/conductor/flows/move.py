"""What resize, confirm and revert share: the migration, the row's request spec, its end states."""
from __future__ import annotations

from typing import Any

from kilonova import objects
from kilonova.conductor.work import Work, silence
from kilonova.db import engine
from kilonova.db.queries import instances, migrations, request_specs
from kilonova.errors import MigrationNotFound


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


def image(work: Work) -> dict[str, Any]:
    """The image's metadata as the API knew it."""
    return work.args.get('image') or {}


@engine.retried
def save_spec(work: Work, spec: objects.RequestSpec) -> None:
    """Store the request spec of the server's flavor (api database)."""
    with work.env.api.write() as conn:
        request_specs.save(conn, work.instance_uuid, spec.to_json())


def was_active(work: Work) -> bool:
    """Whether the guest ran before the move (and is to run after it)."""
    instance = work.instance()
    return instance.system_metadata.get('old_vm_state', instance.vm_state) != 'stopped'


def stored_event(work: Work, name: str, result: str = 'Success') -> dict[str, Any]:
    """An event of the conductor's own, written with the end state."""
    error = work.error or {}
    return {'event': name, 'result': result, 'start_time': work.created_at, 'finish_time': instances.utcnow(),
            'host': work.env.host, 'details': error.get('message'), 'traceback': error.get('details')}
