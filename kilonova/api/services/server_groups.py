"""Server groups: create, show, delete; and the group that new servers ask for.

A group belongs to a project: others don't learn that it exists. Its policy binds servers from their create on.
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
    msg_fmt = 'Quota exceeded, too many server groups.'


class TooManyMembers(Forbidden):
    msg_fmt = 'Quota exceeded, too many servers in group'


class RulesNotSupported(Invalid):
    msg_fmt = 'Only anti-affinity policy supports rules.'


def list_groups(backend: Backend, owner: Owner, limit: int, offset: int) -> list[dict[str, Any]]:
    """Groups of a project with their members, by age."""
    with backend.api_db.read() as conn:
        return instance_groups.page(conn, owner, limit, offset)


def get(backend: Backend, ctxt: RequestContext, uuid: str) -> dict[str, Any]:
    """One group. GroupNotFound (404), also for those of other projects."""
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
    """A group without servers. RulesNotSupported (400), TooManyGroups (403)."""
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
            # Others were made at the same time.
            instance_groups.destroy(backend.api_db, values['uuid'])
            raise
    made: dict[str, Any] = {**values, 'policy': policy, 'rules': kept, 'members': []}
    backend.notify.emit(ctxt, 'server_group.create', group=made)
    return made


def delete(backend: Backend, ctxt: RequestContext, uuid: str) -> None:
    """Its servers stay where they are and belong to no group. GroupNotFound (404)."""
    group = get(backend, ctxt, uuid)
    if not instance_groups.destroy(backend.api_db, group['uuid']):
        raise GroupNotFound(group_uuid=uuid)
    backend.notify.emit(ctxt, 'server_group.delete', group=group)


def _check_count(backend: Backend, allowed: quota.Limits, added: int = 0) -> None:
    """The project's limit first, then what was given to the user."""
    sides = (allowed.shared.get('server_groups', -1), allowed.own.get('server_groups', -1))
    if max(sides) < 0:
        return
    with backend.api_db.read() as conn:
        counted = quotas.server_groups(conn, allowed.project_id or '', allowed.user_id)
    if any(0 <= limit < number + added for limit, number in zip(sides, counted, strict=True)):
        raise TooManyGroups


# --- groups of servers -----------------------------------------------------------------------------------------------
def of_server(backend: Backend, server: str) -> list[str]:
    """uuids of the groups that a server is in."""
    with backend.api_db.read() as conn:
        return instance_groups.of_server(conn, server)


def asked_for(backend: Backend, ctxt: RequestContext, uuid: str | None) -> dict[str, Any] | None:
    """The group that the hint ``group`` of a create names. Invalid (400) where there is none that the user may use."""
    if uuid is None:
        return None
    with backend.api_db.read() as conn:
        found = instance_groups.get(conn, uuid)
    if found is None or not _may_use(ctxt, found):
        raise Invalid(GroupNotFound(group_uuid=uuid).message)
    return found


def as_object(ctxt: RequestContext, group: Mapping[str, Any] | None) -> InstanceGroup | None:
    """As a request for a host carries it: which one it is; its members are looked up when a host is chosen."""
    if group is None:
        return None
    return InstanceGroup(ctxt, id=group['id'], uuid=group['uuid'], name=group['name'], user_id=group['user_id'],
                         project_id=group['project_id'], policy=group['policy'], _rules=group['rules'], members=[],
                         hosts=[])


@contextlib.contextmanager
def refused_as_asked() -> Iterator[None]:
    """A group that is deleted between the look and the write is unknown to the create."""
    try:
        yield
    except GroupNotFound as error:
        raise Invalid(error.message) from error


def check_members(allowed: quota.Limits, group: Mapping[str, Any] | None, count: int) -> None:
    """TooManyMembers (403) when ``count`` more servers don't fit the group (seed map 3.26)."""
    if group is not None and 0 <= allowed[MEMBERS] < len(group['members']) + count:
        raise TooManyMembers


def recheck(backend: Backend, allowed: quota.Limits, group: Mapping[str, Any] | None,
            withdraw: Callable[[], bool]) -> None:
    """Count again what was just written; ``withdraw`` as in ``quota.recheck``."""
    if group is None or allowed[MEMBERS] < 0 or not backend.options.recheck_quota:
        return
    with backend.api_db.read() as conn:
        number = instance_groups.count_members(conn, group['id'])
    if number > allowed[MEMBERS]:
        raise quota.LostRace(TooManyMembers().message) if withdraw() else TooManyMembers


def tell_members(backend: Backend, ctxt: RequestContext, group: Mapping[str, Any] | None) -> None:
    """Notify that servers were added to the group."""
    if group is None:
        return
    uuid = group['uuid']

    def read() -> dict[str, Any] | None:
        with backend.api_db.read() as conn:
            found = instance_groups.get(conn, uuid)
        return None if found is None else {'group': found}
    backend.notify.later(ctxt, 'server_group.add_member', read)
