"""Availability zones (``/os-availability-zone``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kilonova.api.fields import micro
from kilonova.api.rules import ADMIN, ANY, PREFIX, rule
from kilonova.api.services import hosts
from kilonova.api.wsgi import Call, Route

LIST, DETAIL = f'{PREFIX}os-availability-zone:list', f'{PREFIX}os-availability-zone:detail'
RULES = (
    rule(LIST, ANY, 'List availability zones.'),
    rule(DETAIL, ADMIN, 'List availability zones with their hosts.'),
)

Zones = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]


def _available(hosts: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
    """Return whether at least one service of the zone is enabled. ``hosts`` is a dict from host to its services."""
    return any(not row['disabled'] for rows in hosts.values() for row in rows)


def _plain(zones: Zones, internal: str) -> list[dict[str, Any]]:
    """Return the zones as every user sees them: zoneName, zoneState and no hosts ('hosts' is None).

    The zone ``internal`` ([DEFAULT]internal_service_availability_zone) is left out: it contains all services other than
    nova-compute, such as conductors and schedulers.
    """
    return [
        {'zoneName': zone, 'zoneState': {'available': _available(hosts)}, 'hosts': None}
        for zone, hosts in sorted(zones.items())
        if zone != internal
    ]


def _detailed(zones: Zones) -> list[dict[str, Any]]:
    """Return all zones with their hosts and the hosts' enabled services. Disabled services are left out.

    A zone in which all services are disabled is listed, too: as not available, and with None as 'hosts'.
    """
    return [
        {
            'zoneName': zone,
            'zoneState': {'available': _available(hosts)},
            'hosts': {host: shown for host, rows in hosts.items() if (shown := _enabled(rows))} or None,
        }
        for zone, hosts in sorted(zones.items())
    ]


def _enabled(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        row['binary']: {
            'active': True,
            'available': bool(row['up']),
            'updated_at': micro(row['last_seen_up'] or row['updated_at']),
        }
        for row in rows
        if not row['disabled']
    }


def index(call: Call) -> Any:
    """List availability zones (``GET /os-availability-zone``)."""
    zones = hosts.list_zones(call.backend)
    return {'availabilityZoneInfo': _plain(zones, call.backend.options.internal_zone)}


def detail(call: Call) -> Any:
    """List availability zones with their hosts and services (``GET /os-availability-zone/detail``)."""
    return {'availabilityZoneInfo': _detailed(hosts.list_zones(call.backend))}


ROUTES = (
    Route('GET', '/os-availability-zone', index, LIST),
    Route('GET', '/os-availability-zone/detail', detail, DETAIL),
)
