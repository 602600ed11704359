"""Rules of the actions on servers."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, MANAGER, MEMBER, PREFIX, rule

START, STOP, REBOOT = (f'{PREFIX}servers:{verb}' for verb in ('start', 'stop', 'reboot'))
RESIZE, CONFIRM_RESIZE, REVERT_RESIZE = (f'{PREFIX}servers:{verb}'
                                         for verb in ('resize', 'confirm_resize', 'revert_resize'))
MIGRATE, MIGRATE_HOST = f'{PREFIX}os-migrate-server:migrate', f'{PREFIX}os-migrate-server:migrate:host'
RESET_STATE = f'{PREFIX}os-admin-actions:reset_state'


def _action(name: str, default: str, description: str, key: str) -> object:
    return rule(name, default, description, f'POST /servers/{{server_id}}/action ({key})')


_RULES = (
    _action(START, MEMBER, 'Start a server.', 'os-start'),
    _action(STOP, MEMBER, 'Stop a server.', 'os-stop'),
    _action(REBOOT, MEMBER, 'Reboot a server.', 'reboot'),
    _action(RESIZE, MEMBER, 'Resize a server.', 'resize'),
    _action(CONFIRM_RESIZE, MEMBER, 'Confirm a resize or a cold migration.', 'confirmResize'),
    _action(REVERT_RESIZE, MEMBER, 'Revert a resize or a cold migration.', 'revertResize'),
    _action(MIGRATE, MANAGER, 'Migrate a server cold.', 'migrate'),
    _action(MIGRATE_HOST, ADMIN, 'Migrate a server cold to a named host.', 'migrate'),
    _action(RESET_STATE, ADMIN, 'Set the state of a server by hand.', 'os-resetState'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
