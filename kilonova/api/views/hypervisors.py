"""Bodies of hypervisors (rest-api.md §2.7)."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kilonova.api.views.base import ABSENT, Field, Fields, column
from kilonova.api.views.servers import instance_name

BRIEF, DETAIL = 'brief', 'detail'
_DETAIL = frozenset((DETAIL,))
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Look:
    """``servers``: host → its servers, None where they weren't asked for; ``uptimes``: host → what it told."""

    version: int
    instance_name_template: str
    servers: Mapping[str, Sequence[Row]] | None = None
    uptimes: Mapping[str, str] = field(default_factory=dict)


def _cpu_info(row: Row, look: Look) -> Any:
    try:
        return json.loads(row['cpu_info'] or '{}')
    except ValueError:
        return {}


def _service(row: Row, look: Look) -> dict[str, Any]:
    service = row['service']
    return {'host': row['host'], 'id': service['uuid'] if look.version >= 53 else service['id'],
            'disabled_reason': service['disabled_reason']}


def _servers(row: Row, look: Look) -> Any:
    if look.servers is None:
        return ABSENT
    found = [{'name': instance_name(look.instance_name_template, server), 'uuid': server['uuid']}
             for server in look.servers.get(row['host'], ())]
    # Before 2.75 a hypervisor without servers said nothing about them.
    return found if found or look.version >= 75 else ABSENT


def _number(name: str) -> Field:
    return Field(name, column(name), until=87, kinds=_DETAIL)


FIELDS = Fields(
    Field('id', column('id'), until=52),
    Field('id', column('uuid'), since=53),
    Field('hypervisor_hostname', column('hypervisor_hostname')),
    Field('state', lambda row, look: 'up' if row['service']['up'] else 'down'),
    Field('status', lambda row, look: 'disabled' if row['service']['disabled'] else 'enabled'),
    Field('hypervisor_type', column('hypervisor_type'), kinds=_DETAIL),
    Field('hypervisor_version', column('hypervisor_version'), kinds=_DETAIL),
    Field('host_ip', lambda row, look: None if row['host_ip'] is None else str(row['host_ip']), kinds=_DETAIL),
    Field('service', _service, kinds=_DETAIL),
    *(_number(name) for name in (
        'vcpus', 'memory_mb', 'local_gb', 'vcpus_used', 'memory_mb_used', 'local_gb_used', 'free_ram_mb',
        'free_disk_gb', 'current_workload', 'running_vms', 'disk_available_least')),
    Field('cpu_info', column('cpu_info', ''), until=27, kinds=_DETAIL),
    Field('cpu_info', _cpu_info, since=28, until=87, kinds=_DETAIL),
    Field('uptime', lambda row, look: look.uptimes.get(row['host']), since=88, kinds=_DETAIL),
    Field('servers', _servers),
)


def show(row: Row, look: Look, kind: str) -> dict[str, Any]:
    """The body of a node; its row has ``service``."""
    return FIELDS.render(row, look, look.version, kind)
