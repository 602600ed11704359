"""A host's devices as resource providers: pure data, the caller talks to Placement.

    view = host_devices.providers(nodename)         # of PCI functions: placement_view(nodename, devices, specs)
    for provider in view.values():            # child of the node's root provider, by name
        provider.inventory(), provider.traits
    ledger.set_providers({provider.address: uuid, …})
    wanted = allocations(view, {provider.address: uuid, …})      # {instance uuid: {provider uuid: {class: n}}}
    lacking(there, wanted[instance_uuid])     # what Placement's allocations ``there`` don't have of it

One provider for each device, and one for each physical function with the functions below it. Devices of a
physical_network, and remote_managed ones, are for ports and are never reported.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import os_traits

from kilonova.objects import PciDevice
from kilonova.pci.device import OWNED, describe, is_child, pool_address, unit, units
from kilonova.pci.spec import DeviceSpec, DeviceSpecs, PlacementPciException, default_resource_class, group_class

OWN_TRAITS = frozenset((os_traits.COMPUTE_MANAGED_PCI_DEVICE, os_traits.OWNER_NOVA))


class PlacementPciDependentDeviceException(PlacementPciException):
    msg_fmt = ('Invalid [pci]device_spec configuration. Both the physical function %(parent)s and its '
               'virtual functions %(children)s are configured; only one side can be reported to Placement.')


class PlacementPciMixedResourceClassException(PlacementPciException):
    msg_fmt = ('Invalid [pci]device_spec configuration. The devices below %(parent)s have different resource '
               'classes: %(device)s has %(new)s instead of %(current)s.')


class PlacementPciMixedTraitsException(PlacementPciException):
    msg_fmt = ('Invalid [pci]device_spec configuration. The devices below %(parent)s have different traits: '
               '%(device)s has %(new)s instead of %(current)s.')


@dataclass
class Provider:
    """One provider. ``resource_class`` None: none of its devices is configured any more, some are still in
    use: leave what Placement has. ``reserved`` None: keep Placement's value (the operator may have set
    it, or an earlier use of a one_time_use device, which nothing takes back). ``more_traits``: those that an operator
    gave it in Placement stay."""

    name: str
    address: str
    resource_class: str | None = None
    traits: frozenset[str] = frozenset()
    reserved: int | None = None
    more_traits: bool = False
    devices: list[PciDevice] = field(default_factory=list)

    @property
    def total(self) -> int:
        return units(self.devices)

    def inventory(self) -> dict[str, dict[str, int]]:
        """{resource class: inventory}; all fields that are left out are Placement's defaults (or what it
        has)."""
        if self.resource_class is None:
            return {}
        inventory = {'total': self.total, 'max_unit': self.total}
        if self.reserved is not None:
            inventory['reserved'] = self.reserved
        return {self.resource_class: inventory}

    def __str__(self) -> str:
        return f'RP({self.name}, {self.resource_class}={self.total}, traits={",".join(sorted(self.traits))})'


def provider_name(nodename: str, address: str) -> str:
    """``host1_0000:81:00.0``."""
    return f'{nodename}_{address.upper()}'


def placement_view(nodename: str, devices: Iterable[PciDevice], specs: DeviceSpecs) -> dict[str, Provider]:
    """All providers by name, from all tracked devices.

    Raises PlacementPciDependentDeviceException, PlacementPciMixedResourceClassException,
    PlacementPciMixedTraitsException, PlacementPciException (one_time_use below a physical function).
    """
    view: dict[str, Provider] = {}
    leftover = []
    for device in sorted(devices, key=lambda device: device.address):
        spec = specs.match(describe(device))
        if spec is None:
            leftover.append(device)
        elif 'physical_network' not in spec.tags and not spec.remote_managed:
            _add(view, nodename, device, spec)
    # In use though no longer configured: their providers stay, and count them, until they are free.
    for device in leftover:
        if device.status in OWNED and 'rp_uuid' in device.extra_info:
            _provider(view, nodename, device).devices.append(device)
    return view


def describe_view(nodename: str, view: Mapping[str, Provider]) -> str:
    """One line for the log."""
    return f'Placement PCI view on {nodename}: {", ".join(map(str, view.values()))}'


def allocations(view: Mapping[str, Provider],
                uuids: Mapping[str, str]) -> dict[str, dict[str, dict[str, int]]]:
    """What Placement should say about devices in use: {instance uuid: {provider uuid: {resource class:
    count}}}.

    ``uuids``: provider uuid by the provider's address.
    """
    found: dict[str, dict[str, dict[str, int]]] = {}
    for provider in view.values():
        for device in {unit(device): device for device in provider.devices}.values():
            if device.status in OWNED and provider.resource_class is not None:
                resources = found.setdefault(device.instance_uuid, {}).setdefault(uuids[provider.address], {})
                resources[provider.resource_class] = resources.get(provider.resource_class, 0) + 1
    return found


def in_use(view: Mapping[str, Provider]) -> dict[str, frozenset[tuple[str, str | None]]]:
    """The devices that servers hold: {instance uuid: {(address, request id)}}."""
    found: dict[str, set[tuple[str, str | None]]] = {}
    for provider in view.values():
        for device in provider.devices:
            if device.status in OWNED and provider.resource_class is not None:
                found.setdefault(device.instance_uuid, set()).add((device.address, device.request_id))
    return {instance_uuid: frozenset(devices) for instance_uuid, devices in found.items()}


def lacking(there: Mapping[str, Mapping[str, Any]],
            wanted: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return the providers of which a server's allocations have less than ``wanted``, with all that is wanted there.

    ``there``: the allocations in Placement, {provider uuid: {'resources': {resource class: count}}}.
    """
    return {uuid: dict(resources) for uuid, resources in wanted.items()
            if any(count > there.get(uuid, {}).get('resources', {}).get(name, 0) for name, count in resources.items())}


def with_devices(there: Mapping[str, Mapping[str, Any]],
                 more: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Any]]:
    """Return a server's allocations with what ``lacking`` found, and all else as it is.

    A provider of a device has one resource class. What a server holds there of another class is the same device under
    the class that [pci]device_spec gave it before: it is exchanged, or the device would count twice.
    """
    return {uuid: {'resources': dict(resources)}
            for uuid, resources in {**{uuid: given['resources'] for uuid, given in there.items()}, **more}.items()}


def _provider(view: dict[str, Provider], nodename: str, device: PciDevice) -> Provider:
    address = pool_address(device)
    name = provider_name(nodename, address)
    return view.setdefault(name, Provider(name, address))


def _add(view: dict[str, Provider], nodename: str, device: PciDevice, spec: DeviceSpec) -> None:
    provider = _provider(view, nodename, device)
    _check_family(provider, device)
    if is_child(device) and 'one_time_use' in spec.tags:
        raise PlacementPciException(
            error='Only type-PCI and type-PF devices may set one_time_use and '
                  f'{device.address} does not qualify')
    resource_class = spec.resource_class or (group_class(spec.grouping.name) if spec.grouping is not None
                                             else default_resource_class(device.vendor_id, device.product_id))
    traits = _traits(spec)
    if provider.devices and unit(device) != device.address:
        # What the head's spec says is said of the group.
        provider.devices.append(device)
        return
    if provider.devices:
        _check_same(provider, device, resource_class, traits)
    provider.resource_class, provider.traits = resource_class, traits
    provider.devices.append(device)
    if _once(spec) and device.status in OWNED:
        provider.reserved = provider.total


def one_time_use(device: PciDevice, specs: DeviceSpecs) -> bool:
    """Whether a device is given away only once (until an operator sets ``reserved`` back)."""
    spec = specs.match(describe(device))
    return spec is not None and _once(spec)


def _once(spec: DeviceSpec) -> bool:
    return spec.tags.get('one_time_use') == 'true'


def _traits(spec: DeviceSpec) -> frozenset[str]:
    traits = set(spec.traits | OWN_TRAITS)
    if spec.tags.get('live_migratable') == 'true':
        traits.add(os_traits.HW_PCI_LIVE_MIGRATABLE)
    if _once(spec):
        traits.add(os_traits.HW_PCI_ONE_TIME_USE)
    return frozenset(traits)


def _check_family(provider: Provider, device: PciDevice) -> None:
    other_side = [other.address for other in provider.devices if is_child(other) != is_child(device)]
    if other_side:
        parent, children = (other_side[0], device.address) if is_child(device) else (
            device.address, ', '.join(other_side))
        raise PlacementPciDependentDeviceException(parent=parent, children=children)


def _check_same(provider: Provider, device: PciDevice, resource_class: str, traits: frozenset[str]) -> None:
    if provider.resource_class != resource_class:
        raise PlacementPciMixedResourceClassException(
            parent=provider.address, device=device.address, new=resource_class,
            current=provider.resource_class)
    if provider.traits != traits:
        raise PlacementPciMixedTraitsException(
            parent=provider.address, device=device.address, new=', '.join(sorted(traits)),
            current=', '.join(sorted(provider.traits)))


def guarantors(uuids: Mapping[str, str]) -> dict[str, str]:
    """Of a host's providers, {name: uuid}, those that Neutron's agents reported of interfaces, as their names say
    ('HOST:kind of agent:interface'): {interface: provider uuids, comma text}."""
    found: dict[str, list[str]] = {}
    for name, uuid in uuids.items():
        if len(words := name.split(':')) == 3:
            found.setdefault(words[2], []).append(uuid)
    return {interface: ','.join(sorted(given)) for interface, given in found.items()}
