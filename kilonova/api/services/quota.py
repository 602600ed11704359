"""Quotas: limits and usage of projects and users, and checks whether a request fits.

    allowed = limits(backend, project_id, user_id)                       # the limits of the user in the project
    count = check_create(backend, allowed, flavor, minimum, maximum)     # how many servers fit, or OverQuota
    ...                                                                  # write the rows of the servers
    recheck(backend, allowed, wanted, withdraw)                          # ``wanted``: the resources of the new rows

There are no quota reservations: the usage is counted from the rows of the servers. Two concurrent requests may both
count the usage before one of them writes, so both fit, but together they exceed the limit. Therefore each request
counts again after its write. If a limit is exceeded, ``recheck`` calls ``withdraw``, which removes the new rows, and
raises LostRace. The decorator ``settled`` then repeats the request, up to four attempts.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from oslo_log import log as logging

from kilonova.api.services import unified_limits
from kilonova.api.services.backend import Backend
from kilonova.api.services.scatter_gather import ask_cells
from kilonova.db.engine import Database
from kilonova.db.queries import quotas
from kilonova.errors import Forbidden, Invalid, OverQuota
from kilonova.objects import Flavor

LOG = logging.getLogger(__name__)

P = ParamSpec('P')
R = TypeVar('R')

# The supported drivers: the last part of the option [quota]driver.
DB, UNIFIED, NOOP = 'DbQuotaDriver', 'UnifiedLimitsDriver', 'NoopQuotaDriver'
COUNTED = tuple(sorted(quotas.COUNTED))
# Quotas of the former service nova-network. The API shows them in microversions until 2.35. They have no effect.
NETWORK = {'fixed_ips': -1, 'floating_ips': -1, 'security_groups': -1, 'security_group_rules': -1}
# A dict from option of the group [quota] to resource, for options that have another name than the resource.
# The resource names are those in the API and in the database. ``_OPTIONS`` is the reverse dict.
_RESOURCES = {'injected_file_path_length': 'injected_file_path_bytes'}
_OPTIONS = {resource: name for name, resource in _RESOURCES.items()}
# The number of attempts for a request that raises LostRace, and the bounds of the pause between attempts in seconds.
TRIES, PAUSES = 4, (0.02, 0.2)


class MetadataLimitExceeded(Forbidden):
    """Error 403: the request has more metadata items than the quota allows."""

    msg_fmt = 'Maximum number of metadata items exceeds %(allowed)d'


class LimitTooSmall(Invalid):
    """Error 400: the new limit is below the current usage, or below the limits of the project's users."""

    msg_fmt = (
        'Quota limit %(limit)s for %(resource)s must be greater than or equal to already used and reserved %(minimum)s.'
    )


class LimitTooLarge(Invalid):
    """Error 400: a user's new limit is above the project's limit minus the limits of the project's other users."""

    msg_fmt = 'Quota limit %(limit)s for %(resource)s must be less than or equal to %(maximum)s.'


class LostRace(OverQuota):
    """Error: this request and concurrent requests together exceeded the quota, so the new rows were removed again.

    The decorator ``settled`` repeats a request that raises this error.
    """


@dataclass(frozen=True, eq=False)
class UserLimits(Mapping[str, int]):
    """The limits that apply to a user, as a mapping from resource to limit (-1: no limit).

    ``own`` has the limits that were set for the user. For all other resources the limits of the project, ``shared``,
    apply.
    """

    project_id: str | None
    user_id: str | None
    shared: Mapping[str, int]
    own: Mapping[str, int]

    def __getitem__(self, name: str) -> int:
        return self.own.get(name, self.shared[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.shared)

    def __len__(self) -> int:
        return len(self.shared)


class _Named(Mapping[str, int]):
    """The limits of a project from Keystone, as a mapping from resource to limit (-1: no limit).

    The mapping also has the limits of the former nova-network, which are not in Keystone and are always -1. The API
    shows them until microversion 2.35.
    """

    def __init__(self, registered: Mapping[str, int]) -> None:
        self._registered = registered

    def __getitem__(self, name: str) -> int:
        return NETWORK[name] if name in NETWORK else self._registered[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**NETWORK, **self._registered})

    def __len__(self) -> int:
        return len({**NETWORK, **self._registered})


# --- limits and usage ------------------------------------------------------------------------------------------------
def limits(backend: Backend, project_id: str | None, user_id: str | None = None) -> UserLimits:
    """Return the limits of a project and, if ``user_id`` is given, of this user in the project.

    If ``project_id`` is None, return the default limits. Raises Unanswered if the limits are in Keystone and Keystone
    does not answer.
    """
    if backend.options.quota_driver == UNIFIED:
        return UserLimits(project_id, user_id, _Named(unified_limits.limits(backend, project_id)), {})
    if backend.options.quota_driver == NOOP:
        return UserLimits(project_id, user_id, dict.fromkeys(_defaults(backend), -1), {})
    with backend.api_db.read() as conn:
        found = quotas.limits(conn, project_id, user_id)
    own = {
        name: found.own[_RESOURCES.get(name, name)]
        for name in _defaults(backend)
        if _RESOURCES.get(name, name) in found.own
    }
    return UserLimits(project_id, user_id, _over_defaults(backend, found.shared), own)


def class_limits(backend: Backend, name: str) -> dict[str, int]:
    """Return the limits of a quota class.

    The class 'default' has the default limits of all projects. Limits of other classes have no effect.
    """
    if not is_ours(backend):
        return dict(limits(backend, None).shared)
    with backend.api_db.read() as conn:
        return _over_defaults(backend, quotas.class_limits(conn, name))


def _defaults(backend: Backend) -> dict[str, int]:
    return {**NETWORK, **backend.options.quotas}


def _over_defaults(backend: Backend, found: Mapping[str, int]) -> dict[str, int]:
    return {name: found.get(_RESOURCES.get(name, name), default) for name, default in _defaults(backend).items()}


def usage(backend: Backend, project_id: str, user_id: str | None = None) -> quotas.Parts:
    """Return how many instances, cores and MiB of RAM a project's servers use, also for one user of the project.

    The result has two dicts from resource to amount: ``shared`` for all servers of the project, and ``own`` for the
    servers of the user ``user_id`` in this project. Servers that have no cell yet are counted, too. For a cell that
    does not answer, the amounts are computed from the flavors in the request specs of its servers (in the API
    database). Runs one SQL statement for each database.
    """
    # Read the build requests before the cells. Otherwise a server that moves into a cell in the meantime is missed.
    with backend.api_db.read() as conn:
        rows = quotas.waiting(conn, project_id)
    total = quotas.Parts(
        *(
            {name: sum(row[name] for row in each) for name in COUNTED}
            for each in (rows, [row for row in rows if row['user_id'] == user_id])
        )
    )
    besides = [row['uuid'] for row in rows]

    def ask(cell: Database) -> quotas.Parts:
        with cell.read() as conn:
            return quotas.usage(conn, project_id, user_id, besides)

    silent: list[Any] = []
    answers = [found for _, found in ask_cells(backend.all_cells(), ask, silent)]
    if silent:
        with backend.api_db.read() as conn:
            answers.append(quotas.of_silent(conn, [cell.cell.id for cell in silent], project_id, user_id, besides))
    for answer in answers:
        for part, found in zip(total, answer, strict=True):
            for name, value in found.items():
                part[name] += value
    return total


def usage_and_groups(backend: Backend, project_id: str, user_id: str | None = None) -> quotas.Parts:
    """Return the result of ``usage``, with the number of server groups added under the key 'server_groups'."""
    found = usage(backend, project_id, user_id)
    with backend.api_db.read() as conn:
        found.shared['server_groups'], found.own['server_groups'] = quotas.server_groups(conn, project_id, user_id)
    return found


def is_ours(backend: Backend) -> bool:
    """Return whether quota limits are stored in the API database. If not, writing limits has no effect."""
    return backend.options.quota_driver == DB


# --- checks of a request ---------------------------------------------------------------------------------------------
def of_servers(backend: Backend, count: int, flavor: Mapping[str, Any]) -> dict[str, int]:
    """Return a dict from resource to the amount that ``count`` servers of a flavor need.

    ``flavor`` has vcpus, memory_mb, root_gb, ephemeral_gb, swap, extra_specs and image (the image's properties).
    """
    if backend.options.quota_driver == UNIFIED:
        each = unified_limits.amounts(flavor, backend.aliases, backend.options.pcpu_as_vcpu)
    else:
        each = {'instances': 1, 'cores': flavor['vcpus'], 'ram': flavor['memory_mb']}
    return {name: number * count for name, number in each.items()}


def sizes(flavor: Flavor, image: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict with the values of a flavor and an image that determine the quota usage of a server.

    The keys are vcpus, memory_mb, root_gb, ephemeral_gb, swap, extra_specs and image (the image's properties). The
    functions of this module expect such a dict as ``flavor``.
    """
    names = ('vcpus', 'memory_mb', 'root_gb', 'ephemeral_gb', 'swap', 'extra_specs')
    return {**{name: getattr(flavor, name) for name in names}, 'image': image.get('properties') or {}}


def check_create(backend: Backend, allowed: UserLimits, flavor: Mapping[str, Any], minimum: int, maximum: int) -> int:
    """Return the number of servers, from ``minimum`` to ``maximum``, that fit into the limits.

    Raises OverQuota if ``minimum`` servers don't fit.
    """
    each = of_servers(backend, 1, flavor)
    if not _bounded(allowed, each):
        return maximum
    used = _used(backend, allowed)
    rooms = [
        max(limit - used_of.get(name, 0), 0) // each[name]
        for limits_of, used_of in _sides(allowed, used)
        for name, limit in _bounds(limits_of, each)
    ]
    count = min([maximum, *rooms])
    if count < max(minimum, 1):
        _refuse(allowed, {name: needed * minimum for name, needed in each.items()}, used)
    return count


def check(backend: Backend, allowed: UserLimits, wanted: Mapping[str, int]) -> None:
    """Raise OverQuota if the resources ``wanted`` (a dict from resource to amount) do not fit into the limits."""
    if _bounded(allowed, wanted):
        _refuse(allowed, wanted, _used(backend, allowed))


def more(backend: Backend, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, int]:
    """Return a dict from resource to the additional amount that a server needs after a resize: new minus old flavor.

    ``old`` and ``new`` are dicts as ``sizes`` returns them. Resources of which the new flavor has no more than the old
    flavor are left out.
    """
    before, after = of_servers(backend, 1, old), of_servers(backend, 1, new)
    return {name: number - before.get(name, 0) for name, number in after.items() if number > before.get(name, 0)}


def check_metadata(allowed: Mapping[str, int], metadata: Mapping[str, str]) -> None:
    """Raise MetadataLimitExceeded (403) if there are more metadata items than the limit."""
    limit = allowed['metadata_items']
    if 0 <= limit < len(metadata):
        raise MetadataLimitExceeded(allowed=limit)


def recheck(backend: Backend, allowed: UserLimits, wanted: Mapping[str, int], withdraw: Callable[[], bool]) -> None:
    """Count the usage again after a request has written its rows, and withdraw the rows if the usage exceeds a limit.

    ``wanted`` is a dict from resource to the amount that the new rows need. ``withdraw`` is a function that removes the
    rows. It returns False if some of them could not be removed completely.

    Raises:
        LostRace: The limit is exceeded, and the rows were removed, so the request can be repeated.
        OverQuota: The limit is exceeded, and ``withdraw`` returned False, so the request must not be repeated.
    """
    if not backend.options.recheck_quota or not _bounded(allowed, wanted):
        return
    used = _used(backend, allowed)
    before = quotas.Parts(
        *(
            {name: part.get(name, 0) - wanted.get(name, 0) for name in {**part, **wanted}} if part else part
            for part in used
        )
    )
    try:
        _refuse(allowed, wanted, before)
    except OverQuota as error:
        LOG.info(
            'Concurrent requests together exceed the quota of project %s: the new rows of one request are removed, and '
            'the request is repeated or refused',
            allowed.project_id,
        )
        raise (LostRace if withdraw() else OverQuota)(error.message) from None


def settled(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function, so that it is called again after a random pause if it raises LostRace.

    The function is called at most four times. If the last call raises LostRace, the caller gets this error.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for _ in range(TRIES - 1):
            try:
                return function(*args, **kwargs)
            except LostRace:
                # Concurrent requests exceeded the quota together, and each of these requests may be repeated.
                # Wait for a random time, so that these requests do not run at the same moment again.
                time.sleep(random.uniform(*PAUSES))
        return function(*args, **kwargs)

    return wrapper


def _used(backend: Backend, allowed: UserLimits) -> quotas.Parts:
    if backend.options.quota_driver == UNIFIED:
        return quotas.Parts(unified_limits.usage(backend, allowed.project_id or ''), {})
    return usage(backend, allowed.project_id or '', allowed.user_id if allowed.own else None)


def _sides(allowed: UserLimits, used: quotas.Parts) -> list[tuple[Mapping[str, int], dict[str, int]]]:
    return [(allowed.shared, used.shared), (allowed.own, used.own)]


def _bounds(limits_of: Mapping[str, int], wanted: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return pairs (resource, limit) for the requested resources that are limited.

    ``limits_of`` is a dict from resource to limit, and ``wanted`` from resource to the requested amount. Resources with
    the limit -1 (unlimited) or the amount 0 are left out.
    """
    return [(name, limits_of[name]) for name in sorted(wanted) if wanted[name] and limits_of.get(name, -1) >= 0]


def _bounded(allowed: UserLimits, wanted: Mapping[str, int]) -> bool:
    return bool(_bounds(allowed.shared, wanted) or _bounds(allowed.own, wanted))


def _refuse(allowed: UserLimits, wanted: Mapping[str, int], used: quotas.Parts) -> None:
    """Raise OverQuota if the sum of the resources ``wanted`` and ``used`` exceeds a limit of ``allowed``.

    ``wanted`` is a dict from resource to the requested amount. ``used`` has two dicts with the current usage:
    ``shared`` of the project and ``own`` of the user. The project's limits are checked before the user's limits.
    """
    for limits_of, used_of in _sides(allowed, used):
        overs = {
            name: limit for name, limit in _bounds(limits_of, wanted) if limit < used_of.get(name, 0) + wanted[name]
        }
        if overs:
            names = ', '.join(overs)
            raise OverQuota(
                overs=names,
                req=', '.join(str(wanted[name]) for name in overs),
                used=', '.join(str(used_of.get(name, 0)) for name in overs),
                allowed=', '.join(str(limit) for limit in overs.values()),
            )


# --- setting limits --------------------------------------------------------------------------------------------------
def give(backend: Backend, project_id: str, user_id: str | None, values: Mapping[str, int], force: bool) -> None:
    """Set limits of a project, or of one of its users. ``values`` is a dict from resource to limit.

    With ``force`` the limits are set without the checks below. If [quota]driver does not read limits from the API
    database, only log a warning.

    Raises (both error 400, and only without ``force``):
        LimitTooSmall: A limit is below the current usage, or a project's limit is below the sum of its users' limits.
        LimitTooLarge: A user's limit is above the project's limit minus the limits of its other users.
    """
    if not is_ours(backend):
        LOG.warning(
            'Limits of project %s are not changed: [quota]driver is %s', project_id, backend.options.quota_driver
        )
        return
    if not force:
        _check_limits(backend, project_id, user_id, values)
    quotas.set_limits(backend.api_db, project_id, user_id, values)


def _check_limits(backend: Backend, project_id: str, user_id: str | None, values: Mapping[str, int]) -> None:
    used = usage_and_groups(backend, project_id, user_id)
    with backend.api_db.read() as conn:
        given = quotas.given_to_users(conn, project_id, user_id)
    shared = limits(backend, project_id).shared
    for name, limit in values.items():
        if user_id is None:
            minimum, maximum = max(used.shared.get(name, 0), given.get(name, 0)), -1
        else:
            whole = shared[_OPTIONS.get(name, name)]
            minimum, maximum = used.own.get(name, 0), whole if whole < 0 else max(whole - given.get(name, 0), 0)
        if 0 <= limit < minimum:
            raise LimitTooSmall(limit=limit, resource=name, minimum=minimum)
        if maximum >= 0 and (limit < 0 or limit > maximum):
            raise LimitTooLarge(limit=limit, resource=name, maximum=maximum)


def give_class(backend: Backend, name: str, values: Mapping[str, int]) -> None:
    """Set limits of a quota class. ``values`` is a dict from resource to limit.

    Do nothing if [quota]driver does not read limits from the API database.
    """
    if is_ours(backend):
        quotas.set_class_limits(backend.api_db, name, values)


def forget(backend: Backend, project_id: str, user_id: str | None) -> None:
    """Delete the limits of a user, or of a project and all its users if ``user_id`` is None.

    Do nothing if [quota]driver does not read limits from the API database.
    """
    if is_ours(backend):
        quotas.delete_limits(backend.api_db, project_id, user_id)
