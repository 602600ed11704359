"""Server actions that change a server's power state, flavor, host or administrator's password, one handler each.

The actions are start, stop, reboot, pause, unpause, suspend, resume, resize, migrate (cold and live), the confirmation
and the revert of a resize, changePassword, trigger_crash_dump, os-resetState and injectNetworkInfo.
"""

from __future__ import annotations

from oslo_utils import strutils

from kilonova.api.rules import ADMIN, MANAGER, MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Window, Windows
from kilonova.api.services import delete, live_migrate, passwords, resize, server_operations
from kilonova.api.wsgi import Call, server_action
from kilonova.db.arguments.servers import PasswordArguments, RebootArguments
from kilonova.db.queries import instances
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import GuestAgentNotEnabled
from kilonova.objects.image_meta import SYSMETA_PREFIX

# --- policy rules ----------------------------------------------------------------------------------------------------
START, STOP, REBOOT = (f'{PREFIX}servers:{verb}' for verb in ('start', 'stop', 'reboot'))
PAUSE, UNPAUSE = (f'{PREFIX}os-pause-server:{verb}' for verb in ('pause', 'unpause'))
SUSPEND, RESUME = (f'{PREFIX}os-suspend-server:{verb}' for verb in ('suspend', 'resume'))
TRIGGER_CRASH_DUMP = f'{PREFIX}servers:trigger_crash_dump'
RESIZE, CONFIRM_RESIZE, REVERT_RESIZE = (
    f'{PREFIX}servers:{verb}' for verb in ('resize', 'confirm_resize', 'revert_resize')
)
MIGRATE, MIGRATE_HOST = f'{PREFIX}os-migrate-server:migrate', f'{PREFIX}os-migrate-server:migrate:host'
MIGRATE_LIVE = f'{PREFIX}os-migrate-server:migrate_live'
MIGRATE_LIVE_HOST = f'{MIGRATE_LIVE}:host'
CHANGE_PASSWORD = f'{PREFIX}os-admin-password'
RESET_STATE, INJECT = (f'{PREFIX}os-admin-actions:{verb}' for verb in ('reset_state', 'inject_network_info'))
RULES = (
    rule(START, MEMBER, 'Start a server.'),
    rule(STOP, MEMBER, 'Stop a server.'),
    rule(REBOOT, MEMBER, 'Reboot a server.'),
    rule(PAUSE, MEMBER, 'Pause a server.'),
    rule(UNPAUSE, MEMBER, 'Unpause a server.'),
    rule(SUSPEND, MEMBER, 'Suspend a server.'),
    rule(RESUME, MEMBER, 'Resume a suspended server.'),
    rule(TRIGGER_CRASH_DUMP, MEMBER, 'Trigger a crash dump in the guest of a server.'),
    rule(RESIZE, MEMBER, 'Resize a server.'),
    rule(CONFIRM_RESIZE, MEMBER, 'Confirm a resize or a cold migration.'),
    rule(REVERT_RESIZE, MEMBER, 'Revert a resize or a cold migration.'),
    rule(MIGRATE, MANAGER, 'Cold migrate a server.'),
    rule(MIGRATE_HOST, ADMIN, 'Cold migrate a server to a given host.'),
    rule(MIGRATE_LIVE, MANAGER, 'Live migrate a server.'),
    rule(MIGRATE_LIVE_HOST, ADMIN, 'Live migrate a server to a given host.'),
    rule(CHANGE_PASSWORD, MEMBER, "Change the administrator's password of a server."),
    rule(RESET_STATE, ADMIN, 'Reset the state of a server.'),
    rule(INJECT, ADMIN, 'Update the network information of a server from the network service.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
START_BODY = Obj(Prop('os-start', t.ANYTHING, required=True))
STOP_BODY = Obj(Prop('os-stop', t.ANYTHING, required=True))
REBOOT_BODY = Obj(
    Prop(
        'reboot',
        Obj(Prop('type', t.one_of('HARD', 'Hard', 'hard', 'SOFT', 'Soft', 'soft'), required=True)),
        required=True,
    )
)
PAUSE_BODY = Obj(Prop('pause', t.ANYTHING, required=True))
UNPAUSE_BODY = Obj(Prop('unpause', t.ANYTHING, required=True))
SUSPEND_BODY = Obj(Prop('suspend', t.ANYTHING, required=True))
RESUME_BODY = Obj(Prop('resume', t.ANYTHING, required=True))
TRIGGER_CRASH_DUMP_BODY = Obj(Prop('trigger_crash_dump', t.NULL, required=True))
RESIZE_BODY = Obj(
    Prop(
        'resize',
        Obj(
            Prop(
                'flavorRef',
                {'type': ['string', 'integer'], 'minLength': 1, 'maxLength': 255, 'minimum': 0, 'maximum': t.MAX_INT},
                required=True,
            ),
            Prop('OS-DCF:diskConfig', t.DISK_CONFIG),
        ),
        required=True,
    )
)
CONFIRM_RESIZE_BODY = Obj(Prop('confirmResize', t.ANYTHING, required=True))
REVERT_RESIZE_BODY = Obj(Prop('revertResize', t.ANYTHING, required=True))
MIGRATE_BODY = Obj(
    Prop(
        'migrate',
        Windows(
            Window(t.ANYTHING, until=55),
            Window({'oneOf': [t.NULL, Obj(Prop('host', t.HOST_OR_NONE, required=True))]}, since=56),
        ),
        required=True,
    )
)
MIGRATE_LIVE_BODY = Obj(
    Prop(
        'os-migrateLive',
        Obj(
            Prop('host', t.HOST_OR_NONE, required=True),
            Prop(
                'block_migration',
                Windows(
                    Window(t.BOOLEAN, until=24),
                    Window({'type': ['boolean', 'string'], 'enum': [*t.BOOLEANS, 'auto']}, since=25),
                ),
                required=True,
            ),
            Prop('disk_over_commit', t.BOOLEAN, required=True, until=24),
            Prop('force', t.BOOLEAN, since=30, until=67),
        ),
        required=True,
    )
)
CHANGE_PASSWORD_BODY = Obj(Prop('changePassword', Obj(Prop('adminPass', t.PASSWORD, required=True)), required=True))
RESET_STATE_BODY = Obj(
    Prop('os-resetState', Obj(Prop('state', t.one_of('active', 'error'), required=True)), required=True)
)
INJECT_BODY = Obj(Prop('injectNetworkInfo', t.ANYTHING, required=True))


# --- handlers of requests --------------------------------------------------------------------------------------------
def start(call: Call) -> None:
    """Accept the action os-start: start the guest with the same devices as before."""
    server_operations.run(call.backend, call.ctxt, call.server, 'start', 'start.start')


def stop(call: Call) -> None:
    """Accept the action os-stop: shut the guest down. The server keeps its devices and disks."""
    server_operations.run(call.backend, call.ctxt, call.server, 'stop', 'stop.start')


def reboot(call: Call) -> None:
    """Accept the action reboot: restart the guest.

    With type SOFT the guest's operating system is asked to reboot. With type HARD a new guest is created with the same
    disks and devices.
    """
    kind = call.body['reboot']['type'].upper()
    event = 'reboot_hard.start' if kind == 'HARD' else 'reboot.start'
    server_operations.run(call.backend, call.ctxt, call.server, 'reboot', event, RebootArguments(reboot_type=kind))


def pause(call: Call) -> None:
    """Accept the action pause: stop the guest's CPUs. The server keeps its memory, disks and devices."""
    server_operations.run(call.backend, call.ctxt, call.server, 'pause', 'pause.start')


def unpause(call: Call) -> None:
    """Accept the action unpause: let the CPUs of a paused guest run again."""
    server_operations.run(call.backend, call.ctxt, call.server, 'unpause', 'unpause.start')


def suspend(call: Call) -> None:
    """Accept the action suspend: save the guest's memory on the host's disk and stop the guest.

    The devices of the host, such as GPUs, stay allocated to the server, so that it can be resumed.
    """
    server_operations.run(call.backend, call.ctxt, call.server, 'suspend', 'suspend.start')


def resume(call: Call) -> None:
    """Accept the action resume: restore a suspended guest from its saved memory, with the same devices."""
    server_operations.run(call.backend, call.ctxt, call.server, 'resume', 'resume.start')


def trigger_crash_dump(call: Call) -> None:
    """Accept the action trigger_crash_dump: send the guest a non-maskable interrupt.

    The reaction of the guest depends on its operating system.
    """
    server_operations.run(call.backend, call.ctxt, call.server, 'trigger_crash_dump', 'trigger_crash_dump.start')


def resize_server(call: Call) -> None:
    """Accept the action resize: change the server's flavor."""
    body = call.body['resize']
    resize.resize(call.backend, call.ctxt, call.server, str(body['flavorRef']), body.get('OS-DCF:diskConfig'))


def migrate(call: Call) -> None:
    """Accept the action migrate: move a server that is shut down for the move (cold migration).

    From microversion 2.56 on the request may name a host, which needs the policy rule MIGRATE_HOST.
    """
    body = call.body['migrate']
    host = body.get('host') if isinstance(body, dict) and call.version >= 56 else None
    if host is not None:
        call.authorise(MIGRATE_HOST)
    resize.migrate(call.backend, call.ctxt, call.server, host)


def migrate_live(call: Call) -> None:
    """Accept the action os-migrateLive: move a server to another host while its guest runs.

    A request that names a host needs the policy rule MIGRATE_LIVE_HOST. Until microversion 2.29 a named host is forced:
    the scheduler's filters are skipped. From 2.30 on the named host must pass the filters unless the request sets
    ``force``. From 2.68 on ``force`` does not exist.
    """
    body = call.body['os-migrateLive']
    host = body['host']
    if host is not None:
        call.authorise(MIGRATE_LIVE_HOST)
    block, over_commit = body['block_migration'], body.get('disk_over_commit')
    forced = strutils.bool_from_string(body.get('force', False)) if call.version >= 30 else host is not None
    live_migrate.live_migrate(
        call.backend,
        call.ctxt,
        call.server,
        live_migrate.LiveMigrationOptions(
            host=host,
            force=forced,
            block=None if block == 'auto' else strutils.bool_from_string(block),
            over_commit=over_commit is None or strutils.bool_from_string(over_commit),
        ),
    )


def confirm(call: Call) -> None:
    """Accept the action confirmResize: confirm a resize or a cold migration."""
    resize.confirm(call.backend, call.ctxt, call.server)


def revert(call: Call) -> None:
    """Accept the action revertResize: revert a resize or a cold migration."""
    resize.revert(call.backend, call.ctxt, call.server)


def change_admin_password(call: Call) -> None:
    """Accept the action changePassword: the agent in the guest sets the administrator's password.

    The request is accepted before the agent is asked. If the agent does not answer, only the event of the instance
    action shows the failure.

    Raises:
        InstanceInvalidState, InstanceIsLocked, InstanceNotReady: The server's state or lock forbids the change (409).
        GuestAgentNotEnabled: The server's image does not declare that guests have an agent (409).
        NothingToSealWith: No key is configured to encrypt the password (503).
    """
    server, event = call.server, 'set_admin_password.start'
    server_operations.check(call.ctxt, server, event)
    with server.cell.read() as conn:
        kept = instances.get_system_metadata(conn, server.uuid)
    if not strutils.bool_from_string(kept.get(f'{SYSMETA_PREFIX}hw_qemu_guest_agent')):
        raise GuestAgentNotEnabled
    password = call.body['changePassword']['adminPass']
    sealed = passwords.seal(passwords.keys(call.backend, True), password, (), server.uuid)
    row = OperationRow.new(call.ctxt, 'set_admin_password', server.uuid, PasswordArguments(sealed=sealed))
    server_operations.accept(call.ctxt, server, event, row, 'changePassword')
    call.backend.conductor.run_operation(call.ctxt, operation=row.uuid)


def reset_state(call: Call) -> None:
    """Accept the action os-resetState: set the server's state to active or error."""
    delete.reset_state(call.backend, call.ctxt, call.server, call.body['os-resetState']['state'])


def inject_network_info(call: Call) -> None:
    """Accept the action injectNetworkInfo: read the server's ports from the network service again.

    The network metadata that the guest can read changes accordingly. Do nothing if the cloud has no network service.
    """
    server_operations.check_lock(call.ctxt, call.server)
    server_operations.check_ready(call.server)
    if call.backend.networks is not None:
        server_operations.run_beside(call.backend, call.ctxt, call.server, 'network_changed')


# --- routes of the handlers ------------------------------------------------------------------------------------------
ROUTES = (
    server_action('os-start', start, START, START_BODY),
    server_action('os-stop', stop, STOP, STOP_BODY),
    server_action('reboot', reboot, REBOOT, REBOOT_BODY),
    server_action('pause', pause, PAUSE, PAUSE_BODY),
    server_action('unpause', unpause, UNPAUSE, UNPAUSE_BODY),
    server_action('suspend', suspend, SUSPEND, SUSPEND_BODY),
    server_action('resume', resume, RESUME, RESUME_BODY),
    server_action('trigger_crash_dump', trigger_crash_dump, TRIGGER_CRASH_DUMP, TRIGGER_CRASH_DUMP_BODY, since=17),
    server_action('resize', resize_server, RESIZE, RESIZE_BODY),
    server_action('confirmResize', confirm, CONFIRM_RESIZE, CONFIRM_RESIZE_BODY, status=204),
    server_action('revertResize', revert, REVERT_RESIZE, REVERT_RESIZE_BODY),
    server_action('migrate', migrate, MIGRATE, MIGRATE_BODY, asks=(MIGRATE_HOST,)),
    server_action('os-migrateLive', migrate_live, MIGRATE_LIVE, MIGRATE_LIVE_BODY, asks=(MIGRATE_LIVE_HOST,)),
    server_action('changePassword', change_admin_password, CHANGE_PASSWORD, CHANGE_PASSWORD_BODY),
    server_action('os-resetState', reset_state, RESET_STATE, RESET_STATE_BODY),
    server_action('injectNetworkInfo', inject_network_info, INJECT, INJECT_BODY),
)
