"""Check a server group's policy once more in the transaction that claims a host for one of its servers.

Several schedulers choose hosts at the same time and don't see each other's choices. So claims of one group run one
after the other. Each claim locks the group's row in the API database until the claim in the cell is committed. It reads
the members and their hosts while it holds this lock. If the group's servers must be on different hosts, a host can be
claimed for only one of them. If they must be on the same host, the second server can claim only the host of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from kilonova.db import engine
from kilonova.db.queries import claims, instance_groups
from kilonova.db.queries.cells import CellDatabases
from kilonova.errors import GroupPolicyViolated

AFFINITY, ANTI_AFFINITY = 'affinity', 'anti-affinity'


@engine.retried
def claim(
    api_db: engine.Database,
    cells: CellDatabases,
    cell_db: engine.Database,
    request: claims.ClaimWrite,
    group: Mapping[str, str],
) -> dict[str, Any]:
    """Claim ``group['host']`` for a server of the group ``group['uuid']``, if the group's policy allows the host.

    The group is locked in the API database until ``claims.claim`` has written the claim. Raises GroupPolicyViolated if
    the policy doesn't allow the host. A group that was deleted, or that has a soft policy, allows every host.
    """
    with api_db.write() as conn:
        found = instance_groups.locked(conn, group['uuid'])
        if found is None or found[0]['policy'] not in (AFFINITY, ANTI_AFFINITY):
            return claims.claim(cell_db, request)
        row, members = found
        members.pop(request.instance_uuid, None)
        # The policy affinity needs the hosts of all members, so read those of members in other cells, too.
        # The policy anti-affinity needs only the members on hosts of this cell.
        elsewhere = _elsewhere(cells, cell_db, members) if row['policy'] == AFFINITY else {}

        def look(cell_conn: sa.Connection) -> None:
            refuse(row, {**elsewhere, **instance_groups.places(cell_conn, members)}, group['host'])

        return claims.claim(cell_db, request, look)


def refuse(group: Mapping[str, Any], places: Mapping[str, set[str]], host: str) -> None:
    """Raise GroupPolicyViolated if the group's policy doesn't allow another server on ``host``.

    ``places`` is {other server of the group: its hosts}. A server that is being moved has two hosts.
    """
    if group['policy'] == ANTI_AFFINITY:
        most = int(group['rules'].get('max_server_per_host', 1))
        if sum(host in hosts for hosts in places.values()) >= most:
            raise GroupPolicyViolated(policy='Anti-affinity')
    elif places and {host} not in places.values():
        raise GroupPolicyViolated(policy='Affinity')


def _elsewhere(cells: CellDatabases, here: engine.Database, members: Mapping[str, int | None]) -> dict[str, set[str]]:
    by_cell: dict[int, list[str]] = {}
    for server, cell_id in members.items():
        if cell_id is not None:
            by_cell.setdefault(cell_id, []).append(server)
    found: dict[str, set[str]] = {}
    for cell_id, servers in by_cell.items():
        database = cells.by_id(cell_id)
        if database.url != here.url:
            found |= _places(database, servers)
    return found


def _places(database: engine.Database, servers: Iterable[str]) -> dict[str, set[str]]:
    with database.read() as conn:
        return instance_groups.places(conn, servers)
