"""Interfaces that users asked for, as they stand in a request spec."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# In the place of a network's id.
AUTO = 'auto'


@dataclass(frozen=True)
class Wish:
    """One interface that a user asked for: a port of their own, or one of a network (AUTO: of one that is made for the
    project), with an address if they named one. ``device``: the request for the function that the port is; ``profile``:
    the device profile of the accelerator that it is; ``tag``: by which the guest is to know it."""

    network_id: str
    port_id: str | None = None
    address: str | None = None
    device: str | None = None
    tag: str | None = None
    profile: str | None = None


def wishes(request_spec: Mapping[str, Any]) -> list[Wish]:
    """Of a request spec as it stands in an operation's arguments, in the user's order."""
    return [Wish(one['network_id'], one.get('port_id'), one.get('address'), one.get('pci_request_id'), one.get('tag'),
                 one.get('device_profile'))
            for one in _members(request_spec, 'requested_networks')]


def profiles(request_spec: Mapping[str, Any]) -> dict[str, str]:
    """{port: device profile} of those that are accelerators."""
    return {wish.port_id: wish.profile for wish in wishes(request_spec) if wish.port_id and wish.profile}


def groups(request_spec: Mapping[str, Any]) -> dict[str, str]:
    """{id: name} of the security groups that were asked for."""
    return {one['uuid']: one['name'] for one in _members(request_spec, 'security_groups') if one.get('uuid')}


def _members(request_spec: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = request_spec['nova_object.data'].get(name)
    return [one['nova_object.data'] for one in found['nova_object.data']['objects']] if found else []


def given(request_spec: Mapping[str, Any]) -> list[str]:
    """Ids of the ports that are their user's own."""
    return [wish.port_id for wish in wishes(request_spec) if wish.port_id]
