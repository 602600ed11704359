"""Unified limits: quotas whose limits are stored in Keystone. The flavors of the servers determine the usage.

    amounts(flavor, aliases)  # {'servers': 1, 'class:VCPU': 8, 'class:CUSTOM_PCI_10DE_20B5': 2, 'alias:a100': 2}

The flavor of this example has 8 vCPUs and the extra spec pci_passthrough:alias='a100:2', which asks for two GPUs.

The names of limits are Nova's (``servers``, ``class:<resource class>``, ``server_groups`` …). In addition,
``alias:<name>`` limits the devices of a PCI alias. The two GPUs count against both of their limits. The limit of the
alias works even if the hosts do not report their PCI devices to Placement.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from kilonova.api.services.backend import Backend
from kilonova.api.services.scatter_gather import ask_cells
from kilonova.db.engine import Database
from kilonova.db.queries import flavor_usage
from kilonova.errors import Invalid, KilonovaError
from kilonova.pci import request as pci_request
from kilonova.pci.request import Aliases
from kilonova.virt.hardware import amounts as hardware_amounts
from kilonova.virt.hardware import constraints

SERVERS, CLASS, ALIAS = 'servers', 'class:', 'alias:'
# A dict from the names of limits in the compute API to their names in Keystone.
NAMES = {
    'instances': SERVERS,
    'cores': f'{CLASS}VCPU',
    'ram': f'{CLASS}MEMORY_MB',
    'metadata_items': 'server_metadata_items',
    'injected_files': 'server_injected_files',
    'injected_file_content_bytes': 'server_injected_file_content_bytes',
    'injected_file_path_length': 'server_injected_file_path_bytes',
    'key_pairs': 'server_key_pairs',
    'server_groups': 'server_groups',
    'server_group_members': 'server_group_members',
}
REQUIRE, IGNORE = 'require', 'ignore'


class Registered(Mapping[str, int]):
    """The limits of a project, as a mapping from resource to limit (-1: no limit).

    A resource can be named as in Nova or as in Keystone. A resource that is not registered in Keystone has no limit or
    the limit 0, depending on [quota]unified_limits_resource_strategy and unified_limits_resource_list.
    """

    def __init__(self, limits: Mapping[str, int], strategy: str, listed: Iterable[str]) -> None:
        self._limits, self._strategy, self._listed = limits, strategy, frozenset(listed)

    def __getitem__(self, name: str) -> int:
        name = NAMES.get(name, name)
        if name in self._limits:
            return self._limits[name]
        if self._strategy == REQUIRE:
            return 0 if name in self._listed else -1
        # The resource has no registered limit in Keystone. The result -1 means unlimited.
        # A PCI alias needs no limit of its own, because its devices also count against the limit of a resource class.
        # All other resources get the limit 0, unless [quota]unified_limits_resource_list names them.
        return -1 if name in self._listed or name.startswith(ALIAS) else 0

    def __iter__(self) -> Iterator[str]:
        return iter({**NAMES, **self._limits})

    def __len__(self) -> int:
        return len({**NAMES, **self._limits})


def limits(backend: Backend, project_id: str | None) -> Registered:
    """Return the limits of a project, or the default limits if ``project_id`` is None, from Keystone.

    Raises Unanswered if Keystone does not answer.
    """
    registered, own = backend.limits.limits(project_id)
    options = backend.options
    return Registered({**registered, **own}, options.unified_limits_strategy, options.unified_limits_list)


# --- usage of servers ------------------------------------------------------------------------------------------------
def amounts(flavor: Mapping[str, Any], aliases: Aliases, pcpu_as_vcpu: bool = False) -> dict[str, int]:
    """Return a dict from limit name to the amount that one server of a flavor uses.

    The scheduler requests the same amounts from Placement. ``flavor`` has vcpus, memory_mb, root_gb, ephemeral_gb,
    swap, extra_specs, and the properties of the image under the key ``image``. If ``pcpu_as_vcpu`` is true, dedicated
    CPUs count as VCPU.
    """
    extra_specs = flavor.get('extra_specs') or {}
    resources = _resources(flavor, extra_specs)
    devices, classes = _devices(extra_specs, aliases)
    for name, number in classes.items():
        resources[name] = resources.get(name, 0) + number
    if pcpu_as_vcpu and resources.get('PCPU'):
        resources['VCPU'] = resources.get('VCPU', 0) + resources.pop('PCPU')
    found = {
        SERVERS: 1,
        **{f'{CLASS}{name}': number for name, number in resources.items()},
        **{f'{ALIAS}{name}': number for name, number in devices.items()},
    }
    return {name: number for name, number in found.items() if number}


def _resources(flavor: Mapping[str, Any], extra_specs: Mapping[str, str]) -> dict[str, int]:
    shape = SimpleNamespace(
        vcpus=flavor['vcpus'],
        memory_mb=flavor['memory_mb'],
        extra_specs=extra_specs,
        **{name: flavor.get(name) or 0 for name in ('root_gb', 'ephemeral_gb', 'swap')},
    )
    image, cpus = flavor.get('image') or {}, (flavor['vcpus'], 0)
    with contextlib.suppress(Invalid):
        # A server that an older release accepted may have a flavor and an image that contradict each other.
        # For example, hw:cpu_policy and hw_cpu_policy may have different values. ``cpus_asked`` then raises Invalid.
        # If ``cpus_asked`` raises Invalid, all vCPUs of the server count as shared CPUs.
        cpus = constraints.cpus_asked(shape, image)
    return hardware_amounts.of(shape, *cpus, encrypted=hardware_amounts.wants_encryption(extra_specs, image))


def _devices(extra_specs: Mapping[str, str], aliases: Aliases) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many PCI devices the extra specs ask for, as a tuple of two dicts.

    The first dict counts the devices by PCI alias, and the second one by resource class.
    """
    value = extra_specs.get(pci_request.EXTRA_SPEC)
    by_alias: dict[str, int] = {}
    classes: dict[str, int] = {}
    for name, number in pci_request.parse_value(value) if value else ():
        by_alias[name] = by_alias.get(name, 0) + number
        try:
            groups = pci_request.request_groups(
                pci_request.requests_from_flavor({pci_request.EXTRA_SPEC: f'{name}:{number}'}, aliases)
            )
        except KilonovaError:
            # The alias is not configured any more, or its devices have several resource classes.
            # Count the devices only against the limit of the alias, and against no resource class.
            continue
        for group in groups:
            for resource_class, count in group.resources.items():
                classes[resource_class] = classes.get(resource_class, 0) + count
    return by_alias, classes


def usage(backend: Backend, project_id: str) -> dict[str, int]:
    """Return a dict from limit name to the amount that all servers of a project use.

    Until a resize of a server is confirmed or reverted, each resource counts with the larger amount of the old and the
    new flavor. For servers of a cell that does not answer, the flavors are read from the request specs in the API
    database. Runs one SQL statement for each database, for any number of servers.
    """
    # Read the build requests before the cells. Otherwise a server that moves into a cell in the meantime is missed.
    with backend.api_db.read() as conn:
        waiting = flavor_usage.waiting(conn, project_id)
    rows, besides = [row for _, row in waiting], [uuid for uuid, _ in waiting]

    def ask(cell: Database) -> list[flavor_usage.Alike]:
        with cell.read() as conn:
            return flavor_usage.in_cell(conn, project_id, besides)

    silent: list[Any] = []
    for _, found in ask_cells(backend.all_cells(), ask, silent):
        rows += found
    if silent:
        with backend.api_db.read() as conn:
            rows += flavor_usage.of_silent(conn, [cell.cell.id for cell in silent], project_id, besides)
    total: dict[str, int] = {}
    for row in rows:
        have, want = (_of(backend, flavor) for flavor in (row.flavor, row.wanted))
        for name in have.keys() | want.keys():
            total[name] = total.get(name, 0) + row.number * max(have.get(name, 0), want.get(name, 0))
    return total


def _of(backend: Backend, flavor: Mapping[str, Any] | None) -> dict[str, int]:
    return amounts(flavor, backend.aliases, backend.options.pcpu_as_vcpu) if flavor else {}
