"""View of all hosts for filters and weighers that compute with arrays.

    arrays = HostArrays(snapshot)
    arrays.table['free_ram_mb'], arrays.having(uuids), arrays.by_aggregates(answer), arrays.named(hosts)

Each call of ``select_destinations`` creates one view, so that the hosts of servers are read only once. Callers must
hold the host table's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from kilonova.objects import InstanceGroup, RequestSpec
from kilonova.scheduler.hosts.columns import Mask, Values
from kilonova.scheduler.hosts.snapshot import HostSnapshot


class HostArrays:
    """View of all hosts for ``mask`` of filters and ``values`` of weighers.

    It gives access to the host table, to the hosts of servers, and to hosts by name and by aggregate.
    """

    def __init__(self, snapshot: HostSnapshot) -> None:
        self.snapshot, self.table = snapshot, snapshot.table
        self._hosts_of: dict[str, tuple[str, str | None] | None] = {}
        self._answers: dict[tuple[int, str], Any] = {}

    def forget(self) -> None:
        """Drop the stored results of filters and weighers, because a host was chosen since they were computed."""
        self._answers.clear()

    def answer(self, plugin: object, form: str, spec_obj: RequestSpec) -> Any:
        """Return the array that ``plugin.mask`` or ``plugin.values`` returns, with one value for each host.

        ``plugin`` is a filter or weigher, and ``form`` is the name of the method. The array is computed once and kept
        until ``forget`` is called. A filter or weigher that has no method for a single host takes the host's value from
        it.
        """
        key = id(plugin), form
        if key not in self._answers:
            self._answers[key] = getattr(plugin, form)(self, spec_obj)
        return self._answers[key]

    def learn(self, uuids: Collection[str]) -> None:
        """Read and store the hosts of these servers. Only servers that are not stored yet are read, all at once."""
        missing = [uuid for uuid in uuids if uuid not in self._hosts_of]
        if missing:
            found = self.snapshot.servers.hosts_of(missing)
            self._hosts_of.update({uuid: found.get(uuid) for uuid in missing})

    def counts(self, uuids: Collection[str]) -> Values:
        """Return an array with the number of these servers on each host.

        A server that has a reservation of this scheduler is counted on the host of the reservation.
        """
        self.learn(uuids)
        found = np.zeros(len(self.table['live']))
        for uuid in uuids:
            at = self._hosts_of[uuid]
            places = self.table.places.named([at[0]]) if at is not None else self.table.reservations.sent_to(uuid)
            for host_index in places:
                if at is None or at[1] in (None, self.table.node(host_index)[1]['hypervisor_hostname']):
                    found[host_index] += 1
        return found

    def having(self, uuids: Collection[str]) -> Mask:
        """Return a boolean array that is True for the hosts that have at least one of these servers."""
        return self.counts(uuids) > 0

    def members(self, group: InstanceGroup, without: str | None = None) -> Values:
        """Return an array with the number of servers of the group on each host.

        A server that is being moved counts on both of its hosts. The server with the uuid ``without`` is not counted.
        """
        found = np.zeros(len(self.table['live']))
        for server, hosts in (group.places or {}).items():
            if server != without:
                found[list(self.table.places.named(hosts))] += 1
        return found

    def by_aggregates(self, answer: Callable[[list[Mapping[str, str]]], Any], kind: DTypeLike = np.bool_) -> Any:
        """Return an array with one value for each host: ``answer(metadata of the aggregates that contain the host)``.

        The argument of ``answer`` is a list of dicts, which is empty for a host in no aggregate. Hosts in the same
        aggregates share one call of ``answer``. ``kind`` is the type of the array's values.
        """
        found = np.full(len(self.table['live']), answer([]), kind)
        hosts: dict[tuple[int, ...], list[str]] = {}
        metadata: dict[tuple[int, ...], list[Any]] = {}
        for host, of_host in self.snapshot.aggregates.metadata_of_hosts().items():
            key = tuple(map(id, of_host))
            hosts.setdefault(key, []).append(host)
            metadata[key] = of_host
        for key, names in hosts.items():
            found[list(self.table.places.named(names))] = answer(metadata[key])
        return found

    def named(self, hosts: Iterable[str]) -> Mask:
        """Return a boolean array that is True for the hosts that have these names."""
        return self.table.places.mask(self.table.places.named(hosts))
