"""Members and hosts of the server group of a scheduling request.

    groups.prepare(spec, uuids, snapshot, filters, weighers)
    spec.instance_group.places      # {server: hosts}

The stored request contains only the group's uuid. Members and hosts are read again for each call of
``select_destinations``, with two SQL statements and one more for each cell. If two schedulers choose at the same time,
the claim on the host enforces the policy (``db.queries.group_claims``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kilonova import errors
from kilonova.objects import RequestSpec
from kilonova.scheduler.hosts.snapshot import HostSnapshot

AFFINITY, ANTI_AFFINITY = 'affinity', 'anti-affinity'
# {policy of a server group: filter or weigher that must be enabled for it}
NEEDED = {
    AFFINITY: 'ServerGroupAffinityFilter',
    ANTI_AFFINITY: 'ServerGroupAntiAffinityFilter',
    'soft-affinity': 'ServerGroupSoftAffinityWeigher',
    'soft-anti-affinity': 'ServerGroupSoftAntiAffinityWeigher',
}


def prepare(
    spec: RequestSpec, uuids: Sequence[str], snapshot: HostSnapshot, filters: Sequence[Any], weighers: Sequence[Any]
) -> None:
    """Write the group's current members and hosts into the request, or remove a deleted group from the request.

    ``uuids`` are the servers for which hosts are chosen. For policy affinity, the group's ``hosts`` are only the hosts
    of members that are not being moved. Raises NoValidHost if no filter or weigher for the group's policy is enabled.
    Also raises it if all other members of an affinity group are being moved, because each of them has two hosts until
    its move is confirmed or reverted.
    """
    group = spec.instance_group if 'instance_group' in spec else None
    if group is None or 'uuid' not in group:
        return
    found = snapshot.servers.group(group.uuid)
    if found is None:
        spec.instance_group = None
        return
    row, members = found
    _check_supported(row['policy'], [*filters, *weighers])
    group.policy = row['policy']
    group._rules = row['rules']  # noqa: SLF001 - the field's name begins so
    group.members = members
    group.places = _places(members, uuids, snapshot)
    others = {server: hosts for server, hosts in group.places.items() if server not in uuids}
    if row['policy'] == AFFINITY:
        # A server that is being moved has two hosts. It is not known which one it keeps, so neither of them is used.
        group.hosts = sorted({host for hosts in others.values() if len(hosts) == 1 for host in hosts})
        if others and not group.hosts:
            raise errors.NoValidHost(
                reason=f'The servers of server group {group.uuid} are being moved: confirm or revert these moves first.'
            )
    else:
        group.hosts = sorted({host for hosts in others.values() for host in hosts})


def _check_supported(policy: str, enabled: Sequence[Any]) -> None:
    name = NEEDED.get(policy, policy)
    if not any(cls.__name__ == name for one in enabled for cls in type(one).__mro__):
        raise errors.NoValidHost(reason=f'ServerGroup policy is not supported: {name} not configured')


def _places(members: Collection[str], uuids: Sequence[str], snapshot: HostSnapshot) -> dict[str, set[str]]:
    places = snapshot.servers.places_of(members)
    table = snapshot.table
    with table.lock:
        for server in members:
            # Another member without a host may have a reservation. Servers of this request are just being scheduled.
            if server not in places and server not in uuids:
                sent = {table.node(host_index)[1]['host'] for host_index in table.reservations.sent_to(server)}
                if sent:
                    places[server] = sent
    return places
