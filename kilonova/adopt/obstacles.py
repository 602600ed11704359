"""The kinds of obstacles to adopting a Nova: why each is one, and what to do about it.

    KINDS['task-state'].remedy
    report.add('task-state', 'cell1', 'server 6f70… (web): powering-off')

An obstacle that an operator can accept, because only something named is lost, has ``loss``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of obstacle.

    Attributes:
        why: Why the obstacle prevents the adoption of a Nova.
        remedy: How the operator removes the obstacle.
        loss: What is lost if the operator accepts the obstacle by --accept. None if it can't be accepted.
    """

    why: str
    remedy: str
    loss: str | None = None


KINDS: Mapping[str, Kind] = {
    # --- the state of Nova itself
    'mixed-schemas': Kind(
        'the databases have schemas of different releases, so Nova is in the middle of an upgrade',
        "finish the upgrade: 'nova-manage api_db sync', and 'nova-manage db sync' for each cell",
    ),
    'mixed-services': Kind(
        'computes of different releases are registered, so Nova is in the middle of an upgrade',
        "finish the upgrade of the computes, or delete services that are gone: 'openstack compute service delete'",
    ),
    'online-migrations': Kind(
        'rows are still in the form of an older release',
        "run 'nova-manage db online_data_migrations' until it has nothing to do",
    ),
    'unknown-cell': Kind(
        'rows of the API database belong to a cell that does not exist',
        "create the cell's mapping again, or delete the rows: 'nova-manage cell_v2 delete_host' for hosts",
    ),
    'unmapped-host': Kind(
        'the host has no mapping to its cell, so the API does not know where its servers are',
        "run 'nova-manage cell_v2 discover_hosts'",
    ),
    'duplicate-host': Kind(
        'the same host name stands for two hosts or two nodes, and one compute of Kilonova has one node',
        'rename one of the hosts, or delete the service and node that are gone',
    ),
    'hypervisor': Kind(
        'Kilonova has no driver for this hypervisor',
        'move the servers to hosts with QEMU/KVM, and delete the compute service',
    ),
    # --- operations under way
    'build-requests': Kind(
        'these servers are being created: they have no row in any cell yet',
        'wait until they are built; delete those that remain',
    ),
    'task-state': Kind(
        'an operation of Nova is under way on these servers, and nobody would finish it',
        "wait for its end; reset the state of those whose operation has died: 'openstack server set --state'",
    ),
    'half-deleted': Kind(
        'these servers are marked as deleted in the API database and live in their cell',
        'delete them again',
    ),
    'move-under-way': Kind(
        'these servers are moving to another host',
        'wait for the end, or abort the live migration',
    ),
    'same-host-resize': Kind(
        'these servers wait for the confirmation of a resize on their own host. Kilonova cannot tell the files of the '
        'two sizes apart and would answer a revert without doing it',
        "confirm or revert them: 'openstack server resize confirm'",
    ),
    'evacuated': Kind(
        'the former host of these servers has not removed its part since their evacuation',
        'start nova-compute on the former host once, and wait until the migration is completed',
        'the files of the server that are left on the former host stay there, until somebody removes them',
    ),
    # --- servers
    'unmapped-server': Kind(
        'the API database does not say that these servers are in this cell, so the API cannot find them',
        "run 'nova-manage cell_v2 map_instances', or delete the rows of servers that nobody has",
    ),
    'no-flavor': Kind(
        'the server has no flavor of its own in instance_extra',
        'delete the server, or restore its row from a backup',
    ),
    'no-request-spec': Kind(
        'the server has no request spec, so it can neither be moved nor unshelved',
        "run 'nova-manage db online_data_migrations' of a release that makes them, or delete the server",
        'these servers cannot be resized, moved, evacuated or unshelved',
    ),
    'unreadable-object': Kind(
        "a stored object has a version, a field or a form that Kilonova can't read",
        'report it together with this line: Kilonova must learn it',
    ),
    'no-host': Kind(
        'these servers should be on a host, and have none, or one that is no compute of this cell any more',
        'evacuate or delete the servers',
        'actions on these servers fail until they are evacuated or deleted',
    ),
    'shares': Kind('file shares are attached to these servers', 'detach them: Kilonova has no shares'),
    'persistent-memory': Kind(
        'these servers have persistent memory, which Kilonova does not give', 'delete them, or keep them with Nova'
    ),
    'server-feature': Kind(
        'the flavor or the image of these servers asks for a feature that Kilonova does not have',
        'resize to a flavor without it, or keep the server with Nova',
        'the guest loses the feature at the next start, and requests that name it are refused',
    ),
    'trusted-certificates': Kind(
        'the images of these servers are checked against certificates, which Kilonova does not do',
        'nothing can be done before',
        'signatures are not checked any more, and a rebuild with certificates is refused',
    ),
    'rescued': Kind(
        'these servers run their rescue system',
        "unrescue them: 'openstack server unrescue'",
        'after a boot of the host, the own disk starts instead of the rescue system',
    ),
    'volume': Kind(
        'a volume of these servers has no attachment of the volume service: it is being attached or detached, or was '
        'attached by a very old Nova',
        'wait for the end, or detach and attach it',
    ),
    # --- devices and flavors
    'stale-devices': Kind(
        'devices are allocated to servers that do not exist, which an audit of Nova would free',
        'wait for the next audit of nova-compute, or restart it',
        'the devices stay allocated until the first audit of Kilonova on the host',
    ),
    'flavor-feature': Kind(
        'a flavor asks for a feature that Kilonova does not have',
        'delete the flavor, or remove the extra spec',
        'servers cannot be created with these flavors',
    ),
    'lost-traits': Kind(
        'a flavor requires a trait that computes of Kilonova do not report',
        'remove the extra spec from the flavor',
        'no host is found for servers with these flavors',
    ),
}

# Kinds of obstacles that prevent every copy, because rows can't be read or belong to no cell.
# All other kinds of obstacles prevent only the last copy, which is made after Nova's API has been closed.
UNREADABLE = frozenset(('mixed-schemas', 'unknown-cell', 'duplicate-host', 'unreadable-object'))


@dataclass
class Obstacle:
    """The obstacles of one kind in one database: their number, and the first of them."""

    kind: str
    where: str
    number: int = 0
    first: list[str] = field(default_factory=list)


@dataclass
class Obstacles:
    """The obstacles that were found. At most ``most`` of each kind and database are kept, the others are counted."""

    most: int
    found: dict[tuple[str, str], Obstacle] = field(default_factory=dict)

    def add(self, kind: str, where: str, what: str) -> None:
        """Add an obstacle. ``where`` is 'api' or the name of a cell, ``what`` names the row."""
        if kind not in KINDS:
            raise KeyError(kind)
        one = self.found.setdefault((kind, where), Obstacle(kind, where))
        one.number += 1
        if len(one.first) < self.most:
            one.first.append(what)

    def sorted(self) -> list[Obstacle]:
        """Return the obstacles in the order of ``KINDS``, and of the databases."""
        order = list(KINDS)
        return sorted(self.found.values(), key=lambda one: (order.index(one.kind), one.where))

    def left(self, accepted: Collection[str]) -> list[Obstacle]:
        """Return all obstacles but those of the kinds in ``accepted``, which the operator accepts."""
        return [one for one in self.sorted() if one.kind not in accepted]


def acceptable() -> list[str]:
    """Return the kinds of obstacles that an operator can accept by --accept, sorted."""
    return sorted(name for name, kind in KINDS.items() if kind.loss is not None)
