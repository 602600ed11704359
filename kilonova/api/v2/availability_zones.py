"""Availability zones."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import hosts
from kilonova.api.views import availability_zones as views
from kilonova.api.wsgi import Call


def index(call: Call) -> Any:
    """GET /os-availability-zone."""
    zones = hosts.list_zones(call.backend)
    return {'availabilityZoneInfo': views.plain(zones, call.backend.options.internal_zone)}


def detail(call: Call) -> Any:
    """GET /os-availability-zone/detail."""
    return {'availabilityZoneInfo': views.detailed(hosts.list_zones(call.backend))}
