"""Rules of the actions on servers."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, MANAGER, MEMBER, PREFIX, rule

START, STOP, REBOOT = (f'{PREFIX}servers:{verb}' for verb in ('start', 'stop', 'reboot'))
RESIZE, CONFIRM_RESIZE, REVERT_RESIZE = (f'{PREFIX}servers:{verb}'
                                         for verb in ('resize', 'confirm_resize', 'revert_resize'))
MIGRATE, MIGRATE_HOST = f'{PREFIX}os-migrate-server:migrate', f'{PREFIX}os-migrate-server:migrate:host'
RESET_STATE = f'{PREFIX}os-admin-actions:reset_state'

RULES = (
    rule(START, MEMBER, 'Start a server.'),
    rule(STOP, MEMBER, 'Stop a server.'),
    rule(REBOOT, MEMBER, 'Reboot a server.'),
    rule(RESIZE, MEMBER, 'Resize a server.'),
    rule(CONFIRM_RESIZE, MEMBER, 'Confirm a resize or a cold migration.'),
    rule(REVERT_RESIZE, MEMBER, 'Revert a resize or a cold migration.'),
    rule(MIGRATE, MANAGER, 'Migrate a server cold.'),
    rule(MIGRATE_HOST, ADMIN, 'Migrate a server cold to a named host.'),
    rule(RESET_STATE, ADMIN, 'Set the state of a server by hand.'),
)
