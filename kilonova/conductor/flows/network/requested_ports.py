"""Requested ports: the network interfaces that a user requested, as a request spec contains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kilonova.db import envelopes

# Value of RequestedPort.network_id if the network service must choose or create the network of the project.
AUTO = 'auto'


@dataclass(frozen=True)
class RequestedPort:
    """A requested port: one network interface that a user requested.

    Attributes:
        network_id: Id of the network, or AUTO if the network service must choose or create the project's network.
        port_id: Id of the user's own port, or None if a port is to be created.
        address: Requested IP address, or None.
        device: Id of the PCI request of the port if the port is a function of a PCI device, else None.
        tag: Tag by which the guest identifies the interface, or None.
        profile: Name of the device profile if the port is an accelerator, else None.
    """

    network_id: str
    port_id: str | None = None
    address: str | None = None
    device: str | None = None
    tag: str | None = None
    profile: str | None = None


def wishes(request_spec: Mapping[str, Any]) -> list[RequestedPort]:
    """Return the requested ports of a request spec, in the user's order. ``request_spec`` is a serialized object."""
    return [
        RequestedPort(
            one['network_id'],
            one.get('port_id'),
            one.get('address'),
            one.get('pci_request_id'),
            one.get('tag'),
            one.get('device_profile'),
        )
        for one in _members(request_spec, 'requested_networks')
    ]


def profiles(request_spec: Mapping[str, Any]) -> dict[str, str]:
    """Return a dict from port id to device profile, for the requested ports that are accelerators."""
    return {wish.port_id: wish.profile for wish in wishes(request_spec) if wish.port_id and wish.profile}


def groups(request_spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the requested security groups of a serialized request spec, as a dict from id to name."""
    return {one['uuid']: one['name'] for one in _members(request_spec, 'security_groups') if one.get('uuid')}


def _members(request_spec: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = envelopes.fields(request_spec).get(name)
    return envelopes.members(found) if found else []


def given(request_spec: Mapping[str, Any]) -> list[str]:
    """Return the ids of the requested ports that exist already, because the user created them."""
    return [wish.port_id for wish in wishes(request_spec) if wish.port_id]
