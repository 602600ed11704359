"""Dry runs of the scheduler for administrators: which host a request would get, and how many more servers fit.

    spec = request(conf, flavor_row, image=image, zone='east')
    capacity(conf, manager, spec, {'<cell uuid>': 'cell1'}).total
    manager.try_out(spec, [uuid], trace)

Dry runs use the code of real requests, but nothing is claimed and nothing is written. ``capacity`` reads Placement's
complete answer (real inventories and usages). Then it adds server after server to each host, as long as the filters and
the remaining amounts allow it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import uuidutils

from kilonova import errors
from kilonova.context import get_admin_context
from kilonova.objects import Flavor, ImageMeta, InstanceGroup, InstancePCIRequests, RequestSpec
from kilonova.objects.image_meta import NOTHING
from kilonova.pci import request as pci_request
from kilonova.pci.pools import numa_policy_of
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.hosts.snapshot import HostSnapshot
from kilonova.scheduler.manager import SchedulerManager
from kilonova.scheduler.placement.candidates import PlacementCandidates
from kilonova.scheduler.select import Select, SelectSettings
from kilonova.virt.hardware import constraints

LOG = logging.getLogger(__name__)

# Maximum number of servers that are counted on one host.
MOST = 10_000


@dataclass
class FittingServers:
    """Number of additional servers of a request that fit, in total and by host, zone and cell.

    ``devices`` is {alias: {NUMA policy: {vendor:product: free devices}}}. ``silent`` has the names of the cells that do
    not answer; the hosts of these cells are not counted.
    """

    total: int = 0
    hosts: dict[str, int] = field(default_factory=dict)
    zones: dict[str, int] = field(default_factory=dict)
    cells: dict[str, int] = field(default_factory=dict)
    devices: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)

    def free_devices(self) -> list[tuple[str, str, str, int]]:
        """Return a sorted list of (alias, NUMA policy, vendor:product, free devices)."""
        return sorted(
            (alias, policy, device, number)
            for alias, policies in self.devices.items()
            for policy, counts in policies.items()
            for device, number in counts.items()
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as a dict that can be written as JSON."""
        return asdict(self)


def request(
    conf: cfg.ConfigOpts,
    flavor: Mapping[str, Any],
    *,
    image: Mapping[str, Any] | None = None,
    zone: str | None = None,
    hints: Mapping[str, Any] | None = None,
    project_id: str = '',
    count: int = 1,
) -> RequestSpec:
    """Return the request that the API would make to create servers with this flavor and image.

    ``flavor`` is a flavor's row with its extra specs, ``image`` is an image record as a plain dict. ``zone`` has the
    form ZONE, ZONE:HOST or ZONE:HOST:NODE. An empty ``project_id`` means a project that owns no aggregates or servers.
    Raises Invalid if the API would refuse the request.
    """
    ctxt = get_admin_context()
    image_meta = ImageMeta.from_dict(dict(image)) if image else None
    properties = image_meta.properties if image_meta is not None else NOTHING
    made = Flavor.from_row(ctxt, dict(flavor))
    policy = pci_request.numa_affinity_policy(made.extra_specs, dict((image or {}).get('properties') or {}))
    devices = pci_request.requests_from_flavor(made.extra_specs, pci_request.Aliases.from_conf(conf), policy)
    uuid = uuidutils.generate_uuid()
    name, host, node = [*(part or None for part in (zone or '').split(':')), None, None][:3]
    group = (hints or {}).get('group')
    return RequestSpec.from_components(
        ctxt,
        instance_uuid=uuid,
        flavor=made,
        image=image_meta,
        scheduler_hints=dict(hints or {}),
        num_instances=count,
        availability_zone=name or conf.default_schedule_zone,
        pci_requests=InstancePCIRequests(instance_uuid=uuid, requests=devices),
        numa_topology=constraints.of(made, properties),
        project_id=project_id or 'nobody',
        user_id='nobody',
        instance_group=InstanceGroup(ctxt, uuid=group, members=[], hosts=[]) if group else None,
        force_hosts=[host] if host else None,
        force_nodes=[node] if node else None,
    )


def capacity(
    conf: cfg.ConfigOpts, manager: SchedulerManager, spec: RequestSpec, cell_names: Mapping[str, str]
) -> FittingServers:
    """Return how many more servers of this request fit, if each server is requested separately.

    ``cell_names`` is {cell uuid: name}. The total in the result is 0 if no host fits. Raises Unanswered if Placement
    does not answer, or if no cell answers.
    """
    try:
        candidates = manager.candidates(spec)
    except errors.NoValidHost as error:
        LOG.info('No server of this flavor fits: %s', error)
        return FittingServers()
    found = FittingServers(silent=list(candidates.silent))
    free: dict[tuple[str, str], Counter[str]] = {}
    offers = candidates.offers(spec)
    with candidates.snapshot.table.lock:
        hosts = dict(offers.states())
        for host_index, host in hosts.items():
            _count_devices(spec, host, free)
            number = _fits_on(manager.filters, spec, host_index, offers, candidates.snapshot)
            zone = host.availability_zone or conf.default_availability_zone
            cell = cell_names.get(host.cell_uuid, host.cell_uuid)
            found.total += number
            for where, name in ((found.hosts, host.host), (found.zones, zone), (found.cells, cell)):
                where[name] = where.get(name, 0) + number
    for (alias, policy), counts in free.items():
        found.devices.setdefault(alias, {})[policy] = dict(counts)
    return found


def _fits_on(
    filters: list[Any], spec: RequestSpec, host_index: int, offers: PlacementCandidates, snapshot: HostSnapshot
) -> int:
    """Return how many servers fit on one host if they are requested one after the other."""
    with contextlib.ExitStack() as stack:
        for number in range(MOST):
            # Each turn of the loop simulates one more server on the host.
            # ``stack`` keeps the reservations of all simulated servers until the loop ends: their resources are in use.
            # With ``building=False``, simulated servers do not count as builds in progress on the host.
            # So a limit of concurrent builds does not end the loop.
            choice = Select(snapshot, spec, filters, (), SelectSettings(), offers.only(host_index), building=False)
            plan = stack.enter_context(choice).plan([uuidutils.generate_uuid()])
            if plan is None or plan.choices[0].request is None:
                return number
    return MOST


def _count_devices(spec: RequestSpec, host: HostState, free: dict[tuple[str, str], Counter[str]]) -> None:
    asked: dict[tuple[str, str], list[dict[str, str]]] = {}
    for one in pci_request.as_list(spec.pci_requests if 'pci_requests' in spec else None):
        # A request may name an alias several times, but its devices are counted once.
        asked.setdefault((one.alias_name or 'pci', numa_policy_of(one)), []).extend(one.spec)
    for key, specs in asked.items():
        counts = free.setdefault(key, Counter())
        for pool in host.pci_stats.pools:
            if any(pool.matches(wanted) for wanted in specs):
                counts[pool.keys.get('group') or f'{pool.keys["vendor_id"]}:{pool.keys["product_id"]}'] += pool.count


def prometheus(found: FittingServers, flavor: str) -> list[str]:
    """Return the capacity as lines of a text file for Prometheus's node_exporter."""
    name = 'kilonova_capacity_servers'
    lines = [
        f'# HELP {name} Number of additional servers that fit.',
        f'# TYPE {name} gauge',
        f'{name}{{{_labels(flavor=flavor)}}} {found.total}',
    ]
    for kind, values in (('host', found.hosts), ('availability_zone', found.zones), ('cell', found.cells)):
        lines += [
            f'# HELP {name}_by_{kind} Number of additional servers that fit, by {kind}.',
            f'# TYPE {name}_by_{kind} gauge',
        ]
        lines += [
            f'{name}_by_{kind}{{{_labels(**{"flavor": flavor, kind: key})}}} {number}'
            for key, number in sorted(values.items())
        ]
    lines += [
        '# HELP kilonova_free_devices Free PCI devices on hosts that may take the flavor.',
        '# TYPE kilonova_free_devices gauge',
    ]
    lines += [
        f'kilonova_free_devices{{{_labels(flavor=flavor, alias=alias, numa_policy=policy, device=device)}}} {number}'
        for alias, policy, device, number in found.free_devices()
    ]
    return lines


def _labels(**labels: str) -> str:
    # The format requires that backslash, quote and line feed are escaped.
    return ','.join(
        '{}="{}"'.format(name, value.replace('\\', r'\\').replace('"', r'\"').replace('\n', r'\n'))
        for name, value in labels.items()
    )
