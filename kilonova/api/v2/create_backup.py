"""The server action createBackup: create an image, and delete older backups of the same type."""

from __future__ import annotations

import functools

from kilonova.api.rules import MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services.snapshot import Making
from kilonova.api.v2.create_image import made
from kilonova.api.wsgi import Call, Reply, server_action
from kilonova.db.arguments.servers import BackupArguments

CREATE_BACKUP = f'{PREFIX}os-create-backup'
RULES = (rule(CREATE_BACKUP, MEMBER, 'Create a backup of a server, and delete its oldest backups.'),)

BODY = Obj(
    Prop(
        'createBackup',
        Obj(
            Prop('name', t.NAME, required=True),
            Prop('backup_type', {'type': 'string', 'maxLength': 255}, required=True),
            Prop('rotation', t.integer(), required=True),
            Prop('metadata', t.METADATA),
        ),
        required=True,
    )
)


def create_backup(call: Call) -> Reply:
    """Accept the action createBackup: create an image of the server and delete older backups of the same type.

    ``rotation`` is the number of backups of this type that are kept. If it is 0, not even the new backup is kept, and
    the response does not name an image.
    """
    body = call.body['createBackup']
    backup_type, rotation = body['backup_type'], int(body['rotation'])
    reply = made(
        call,
        Making(
            'backup.start',
            'backup',
            'createBackup',
            body['name'],
            functools.partial(BackupArguments, backup_type=backup_type, rotation=rotation),
            metadata=body.get('metadata') or {},
            properties={'image_type': 'backup', 'backup_type': backup_type},
        ),
    )
    return reply if rotation else Reply()


ROUTES = (server_action('createBackup', create_backup, CREATE_BACKUP, BODY),)
