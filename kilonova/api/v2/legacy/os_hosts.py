"""The resource ``/os-hosts``, until microversion 2.42. It was replaced by ``/os-hypervisors`` and ``/os-services``.

The libvirt driver cannot start, shut down or reboot a whole host, and has no maintenance mode. Requests for these
actions get error 501, as in Nova for drivers without them, if the caller passes the policy rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kilonova.api.rules import ADMIN, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, QuerySchema
from kilonova.api.services import hosts
from kilonova.api.wsgi import Call, Route

# --- policy rules ----------------------------------------------------------------------------------------------------
LIST, SHOW, UPDATE, START, SHUTDOWN, REBOOT = (
    f'{PREFIX}os-hosts:{verb}' for verb in ('list', 'show', 'update', 'start', 'shutdown', 'reboot')
)
RULES = (
    rule(LIST, ADMIN, 'List hosts with their services.'),
    rule(SHOW, ADMIN, 'Show the total and the used resources of a host.'),
    rule(UPDATE, ADMIN, 'Enable or disable a host.'),
    rule(START, ADMIN, 'Power a host on (no driver supports it).'),
    rule(SHUTDOWN, ADMIN, 'Power a host off (no driver supports it).'),
    rule(REBOOT, ADMIN, 'Reboot a host (no driver supports it).'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
_SWITCH = t.one_of('enable', 'disable', 'Enable', 'Disable', 'ENABLE', 'DISABLE')

QUERY = QuerySchema.of(Prop('zone', t.ANY_TEXT))
BODY = Obj(Prop('status', _SWITCH), Prop('maintenance_mode', _SWITCH), minProperties=1)


# --- response fields -------------------------------------------------------------------------------------------------
Row = Mapping[str, Any]


def _brief(row: Row) -> dict[str, Any]:
    """Return the list entry of one service. A host has as many entries in the list as it has services."""
    return {'host_name': row['host'], 'service': row['topic'], 'zone': row['zone']}


def _resources(host: str, nodes: Iterable[Row], projects: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the rows of the response: CPUs, memory and disk of a host, as in Nova.

    The row '(total)' has what the host has, and '(used_now)' what its compute service reports as used. '(used_max)' has
    the sum of the flavors of all servers on the host. Each project with servers on the host has one more row: the sum
    of the flavors of its servers. ``nodes`` are the rows of the host's compute nodes, ``projects`` the sums by project.
    """
    nodes, projects = list(nodes), list(projects)

    def line(name: str, cpu: int, memory: int, disk: int) -> dict[str, Any]:
        return {'resource': {'host': host, 'project': name, 'cpu': cpu, 'memory_mb': memory, 'disk_gb': disk}}

    def sums(rows: list[Row], *names: str) -> list[int]:
        return [sum(int(row[name] or 0) for row in rows) for name in names]

    promised = ('vcpus', 'memory_mb', 'disk_gb')
    return [
        line('(total)', *sums(nodes, 'vcpus', 'memory_mb', 'local_gb')),
        line('(used_now)', *sums(nodes, 'vcpus_used', 'memory_mb_used', 'local_gb_used')),
        line('(used_max)', *sums(projects, *promised)),
        *(line(row['project_id'], *sums([row], *promised)) for row in projects),
    ]


# --- handlers of requests --------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """List the hosts, one entry for each enabled service (``GET /os-hosts``)."""
    rows = [service.row for service in hosts.list_services(call.backend, silent=[]) if not service.row['disabled']]
    zone = call.one('zone')
    return {'hosts': [_brief(row) for row in rows if not zone or row['zone'] == zone]}


def show(call: Call) -> Any:
    """Return the resources of a host (``GET /os-hosts/{host_name}``)."""
    host = call.path['host_name']
    nodes, projects = hosts.resources(call.backend, host)
    return {'host': _resources(host, nodes, projects)}


def update(call: Call) -> Any:
    """Enable or disable the compute service of a host (``PUT /os-hosts/{host_name}``).

    Raises NotSupported (501) if the body contains maintenance_mode.
    """
    host = call.path['host_name']
    service = _compute(call)
    if 'maintenance_mode' in call.body:
        raise hosts.NotSupported
    disabled = call.body['status'].lower() == 'disable'
    hosts.change(call.backend, call.ctxt, service, {'disabled': disabled, 'disabled_reason': None})
    return {'host': host, 'status': 'disabled' if disabled else 'enabled'}


def power(call: Call) -> None:
    """Refuse to start, shut down or reboot a host (``GET /os-hosts/{host_name}/startup``, ``/shutdown``, ``/reboot``).

    Raises NotFound (404) if the host does not exist, otherwise NotSupported (501).
    """
    _compute(call)
    raise hosts.NotSupported


def _compute(call: Call) -> hosts.InCell:
    return hosts.find_binary(call.backend, call.path['host_name'], hosts.COMPUTE)


# --- routes of the handlers ------------------------------------------------------------------------------------------
_ALL, _ONE = '/os-hosts', '/os-hosts/{host_name}'
ROUTES = (
    Route('GET', _ALL, index, LIST, query=QUERY, until=42),
    Route('GET', _ONE, show, SHOW, until=42),
    Route('PUT', _ONE, update, UPDATE, body=BODY, until=42),
    Route('GET', f'{_ONE}/startup', power, START, status=501, until=42),
    Route('GET', f'{_ONE}/shutdown', power, SHUTDOWN, status=501, until=42),
    Route('GET', f'{_ONE}/reboot', power, REBOOT, status=501, until=42),
)
