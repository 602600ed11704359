"""Change the administrator's password of a server: an agent in its guest sets it."""
from __future__ import annotations

from oslo_utils import strutils

from kilonova.api.services import accept, passwords
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.db.queries import instances
from kilonova.db.queries.operations import Operation
from kilonova.errors import GuestAgentNotEnabled
from kilonova.objects.image_meta import SYSMETA_PREFIX

EVENT = 'set_admin_password.start'


def change_password(backend: Backend, ctxt: RequestContext, server: Found, password: str) -> None:
    """Accepted and begun; an agent that doesn't answer is seen in the event of the action.

    InstanceInvalidState, InstanceIsLocked, InstanceNotReady, GuestAgentNotEnabled (the image doesn't say that its
    guests have one): 409. NothingToSealWith: 503.
    """
    accept.check(ctxt, server, EVENT)
    with server.cell.read() as conn:
        kept = instances.get_system_metadata(conn, server.uuid)
    if not strutils.bool_from_string(kept.get(f'{SYSMETA_PREFIX}hw_qemu_guest_agent')):
        raise GuestAgentNotEnabled
    sealed = passwords.seal(passwords.keys(backend, True), password, (), server.uuid)
    row = Operation.new(ctxt, 'set_admin_password', server.uuid, {'sealed': sealed})
    accept.accept(ctxt, server, EVENT, row, 'changePassword')
    backend.conductor.run_operation(ctxt, operation=row.uuid)
