"""Server groups: list, get, create and delete them, and find and check the group that a create request names.

A group belongs to a project, and users of other projects don't learn that it exists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from oslo_utils import uuidutils

from kilonova.api.services import quota
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.db.queries import instance_groups, quotas
from kilonova.db.queries.instance_groups import GroupNotFound
from kilonova.db.queries.owners import Owner
from kilonova.errors import Forbidden, Invalid
from kilonova.objects import InstanceGroup

ANTI_AFFINITY = 'anti-affinity'
MEMBERS = 'server_group_members'


class TooManyGroups(Forbidden):
    """Error 403: the quota allows no more server groups."""

    msg_fmt = 'Quota exceeded, too many server groups.'


class TooManyMembers(Forbidden):
    """Error 403: the quota allows no more servers in the group."""

    msg_fmt = 'Quota exceeded, too many servers in group'


class RulesNotSupported(Invalid):
    """Error 400: rules are given for a policy other than anti-affinity."""

    msg_fmt = 'Only anti-affinity policy supports rules.'


def list_groups(backend: Backend, owner: Owner, limit: int, offset: int) -> list[dict[str, Any]]:
    """Return at most ``limit`` server groups of ``owner`` with their members, oldest first, after ``offset`` groups."""
    with backend.api_db.read() as conn:
        return instance_groups.page(conn, owner, limit, offset)


def get(backend: Backend, ctxt: RequestContext, uuid: str) -> dict[str, Any]:
    """Return a server group.

    Raises GroupNotFound (404) if it does not exist, or belongs to another project.
    """
    found = None
    if uuidutils.is_uuid_like(uuid):
        with backend.api_db.read() as conn:
            found = instance_groups.get(conn, uuid)
    if found is None or not _may_use(ctxt, found):
        raise GroupNotFound(group_uuid=uuid)
    return found


def _may_use(ctxt: RequestContext, group: Mapping[str, Any]) -> bool:
    return ctxt.is_admin or group['project_id'] == ctxt.project_id


def create(backend: Backend, ctxt: RequestContext, name: str, policy: str, rules: Mapping[str, Any]) -> dict[str, Any]:
    """Create a server group without servers, and return it.

    Raises RulesNotSupported (400) if ``policy`` allows no rules, and TooManyGroups (403) if the quota is exceeded.
    """
    if rules and policy != ANTI_AFFINITY:
        raise RulesNotSupported
    allowed = quota.limits(backend, ctxt.project_id, ctxt.user_id)
    _check_count(backend, allowed, added=1)
    kept = {key: str(int(value)) for key, value in rules.items()}
    values = {'uuid': uuidutils.generate_uuid(), 'name': name, 'project_id': ctxt.project_id, 'user_id': ctxt.user_id}
    instance_groups.create(backend.api_db, values, policy, kept)
    if backend.options.recheck_quota:
        try:
            _check_count(backend, allowed)
        except TooManyGroups:
            # Concurrent requests have also created groups, so the limit is exceeded now. Delete the new group.
            instance_groups.destroy(backend.api_db, values['uuid'])
            raise
    made: dict[str, Any] = {**values, 'policy': policy, 'rules': kept, 'members': []}
    backend.notify.emit(ctxt, 'server_group.create', group=made)
    return made


def delete(backend: Backend, ctxt: RequestContext, uuid: str) -> None:
    """Delete a server group. Its servers stay on their hosts, and are in no group any more.

    Raises GroupNotFound (404) if the group does not exist, or belongs to another project.
    """
    group = get(backend, ctxt, uuid)
    if not instance_groups.destroy(backend.api_db, group['uuid']):
        raise GroupNotFound(group_uuid=uuid)
    backend.notify.emit(ctxt, 'server_group.delete', group=group)


def _check_count(backend: Backend, allowed: quota.UserLimits, added: int = 0) -> None:
    """Raise TooManyGroups if ``added`` more groups exceed the project's limit or the user's own limit."""
    sides = (allowed.shared.get('server_groups', -1), allowed.own.get('server_groups', -1))
    if max(sides) < 0:
        return
    with backend.api_db.read() as conn:
        counted = quotas.server_groups(conn, allowed.project_id or '', allowed.user_id)
    if any(0 <= limit < number + added for limit, number in zip(sides, counted, strict=True)):
        raise TooManyGroups


# --- groups of servers -----------------------------------------------------------------------------------------------
def of_server(backend: Backend, server: str) -> list[str]:
    """Return the uuids of the server groups that the server is in."""
    with backend.api_db.read() as conn:
        return instance_groups.of_server(conn, server)


def asked_for(backend: Backend, ctxt: RequestContext, uuid: str | None) -> dict[str, Any] | None:
    """Return the server group that the scheduler hint ``group`` of a create names, or None without this hint.

    Raises Invalid (400) if the group does not exist or belongs to another project.
    """
    if uuid is None:
        return None
    with backend.api_db.read() as conn:
        found = instance_groups.get(conn, uuid)
    if found is None or not _may_use(ctxt, found):
        raise Invalid(GroupNotFound(group_uuid=uuid).message)
    return found


def as_object(ctxt: RequestContext, group: Mapping[str, Any] | None) -> InstanceGroup | None:
    """Return the group as an InstanceGroup for the request spec, or None if ``group`` is None.

    The object has no members and hosts: they are read when the scheduler chooses a host.
    """
    if group is None:
        return None
    return InstanceGroup(
        ctxt,
        id=group['id'],
        uuid=group['uuid'],
        name=group['name'],
        user_id=group['user_id'],
        project_id=group['project_id'],
        policy=group['policy'],
        _rules=group['rules'],
        members=[],
        hosts=[],
    )


@contextlib.contextmanager
def refused_as_asked() -> Iterator[None]:
    """Return a context manager that raises Invalid (400) if its block raises GroupNotFound (404).

    The block writes the new servers of a create request. The group of the scheduler hint ``group`` existed when the
    request was checked. If another request deletes it before the write, the error is the same as for an unknown group.
    """
    try:
        yield
    except GroupNotFound as error:
        raise Invalid(error.message) from error


def check_members(allowed: quota.UserLimits, group: Mapping[str, Any] | None, count: int) -> None:
    """Raise TooManyMembers (403) if the quota has no room for ``count`` more servers in the group."""
    if group is not None and 0 <= allowed[MEMBERS] < len(group['members']) + count:
        raise TooManyMembers


def recheck(
    backend: Backend, allowed: quota.UserLimits, group: Mapping[str, Any] | None, withdraw: Callable[[], bool]
) -> None:
    """Count the members of a server group again, after a create request has written its new servers.

    ``group`` is the group's row, or None if the request names no group. Then do nothing. If the members exceed the
    limit server_group_members in ``allowed``, call ``withdraw``, which removes the new servers. If ``withdraw`` returns
    True, raise quota.LostRace, so that the request is repeated. If ``withdraw`` returns False, because a conductor
    already builds some of the servers, raise TooManyMembers.
    """
    if group is None or allowed[MEMBERS] < 0 or not backend.options.recheck_quota:
        return
    with backend.api_db.read() as conn:
        number = instance_groups.count_members(conn, group['id'])
    if number > allowed[MEMBERS]:
        raise quota.LostRace(TooManyMembers().message) if withdraw() else TooManyMembers


def tell_members(backend: Backend, ctxt: RequestContext, group: Mapping[str, Any] | None) -> None:
    """Send the notification ``server_group.add_member``. Do nothing if ``group`` is None."""
    if group is None:
        return
    uuid = group['uuid']

    def read() -> dict[str, Any] | None:
        with backend.api_db.read() as conn:
            found = instance_groups.get(conn, uuid)
        return None if found is None else {'group': found}

    backend.notify.later(ctxt, 'server_group.add_member', read)
