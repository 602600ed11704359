"""A host's devices as resource providers of Placement. The functions here send no requests; the caller does.

    view = host_devices.providers(nodename)         # of PCI functions: placement_view(nodename, devices, specs)
    for provider in view.values():            # each is a child of the node's root provider
        provider.inventory(), provider.traits
    host_devices = host_devices.provided({provider.address: uuid, …})
    wanted = allocations(view, {provider.address: uuid, …})      # {instance uuid: {provider uuid: {class: n}}}
    lacking(there, wanted[instance_uuid])     # devices that the allocations ``there`` in Placement lack

Each device is one provider, except that the virtual functions of a physical function share one provider, and so do the
devices of a group. Devices with a physical_network and remote_managed devices are for ports and are never reported.
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
    """The device_specs name a physical function and also its virtual functions."""

    msg_fmt = (
        'Invalid [pci]device_spec configuration. Both the physical function %(parent)s and its '
        'virtual functions %(children)s are configured; only one of the two can be reported to Placement.'
    )


class PlacementPciMixedResourceClassException(PlacementPciException):
    """Devices of one provider have different resource classes."""

    msg_fmt = (
        'Invalid [pci]device_spec configuration. The devices below %(parent)s have different resource '
        'classes: %(device)s has %(new)s instead of %(current)s.'
    )


class PlacementPciMixedTraitsException(PlacementPciException):
    """Devices of one provider have different traits."""

    msg_fmt = (
        'Invalid [pci]device_spec configuration. The devices below %(parent)s have different traits: '
        '%(device)s has %(new)s instead of %(current)s.'
    )


@dataclass
class DeviceProvider:
    """One resource provider, as it should be in Placement.

    ``resource_class`` is None if no device of the provider is configured any more, but servers still use some. Then the
    inventory in Placement is kept. If ``reserved`` is None, the value of ``reserved`` in Placement is kept, which an
    operator or the first use of a one_time_use device may have set. If ``more_traits`` is True, traits that an operator
    added in Placement are kept.
    """

    name: str
    address: str
    resource_class: str | None = None
    traits: frozenset[str] = frozenset()
    reserved: int | None = None
    more_traits: bool = False
    devices: list[PciDevice] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The number of devices. Devices that form a group count as one."""
        return units(self.devices)

    def inventory(self) -> dict[str, dict[str, int]]:
        """Return {resource class: inventory}. Fields that the inventory lacks keep their values in Placement."""
        if self.resource_class is None:
            return {}
        inventory = {'total': self.total, 'max_unit': self.total}
        if self.reserved is not None:
            inventory['reserved'] = self.reserved
        return {self.resource_class: inventory}

    def __str__(self) -> str:
        return f'RP({self.name}, {self.resource_class}={self.total}, traits={",".join(sorted(self.traits))})'


def provider_name(nodename: str, address: str) -> str:
    """Return the name of a device's provider, for example ``host1_0000:81:00.0``."""
    return f'{nodename}_{address.upper()}'


def placement_view(nodename: str, devices: Iterable[PciDevice], specs: DeviceSpecs) -> dict[str, DeviceProvider]:
    """Return a dict from name to provider, made from all tracked devices.

    Raises:
        PlacementPciDependentDeviceException: A physical function and its virtual functions are configured.
        PlacementPciMixedResourceClassException: Devices of one provider have different resource classes.
        PlacementPciMixedTraitsException: Devices of one provider have different traits.
        PlacementPciException: A virtual function has one_time_use.
    """
    view: dict[str, DeviceProvider] = {}
    leftover = []
    for device in sorted(devices, key=lambda device: device.address):
        spec = specs.match(describe(device))
        if spec is None:
            leftover.append(device)
        elif 'physical_network' not in spec.tags and not spec.remote_managed:
            _add(view, nodename, device, spec)
    # While a server holds a device, the device stays in its provider, even if it is no longer configured.
    for device in leftover:
        if device.status in OWNED and 'rp_uuid' in device.extra_info:
            _provider(view, nodename, device).devices.append(device)
    return view


def describe_view(nodename: str, view: Mapping[str, DeviceProvider]) -> str:
    """Return one line for the log that describes the providers."""
    return f'Placement PCI view on {nodename}: {", ".join(map(str, view.values()))}'


def allocations(view: Mapping[str, DeviceProvider], uuids: Mapping[str, str]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the allocations that Placement should have for devices in use.

    The result is {instance uuid: {provider uuid: {resource class: count}}}. ``uuids`` is a dict from the provider's
    address to its uuid.
    """
    found: dict[str, dict[str, dict[str, int]]] = {}
    for provider in view.values():
        for device in {unit(device): device for device in provider.devices}.values():
            if device.status in OWNED and provider.resource_class is not None:
                resources = found.setdefault(device.instance_uuid, {}).setdefault(uuids[provider.address], {})
                resources[provider.resource_class] = resources.get(provider.resource_class, 0) + 1
    return found


def in_use(view: Mapping[str, DeviceProvider]) -> dict[str, frozenset[tuple[str, str | None]]]:
    """Return the devices that servers hold as {instance uuid: {(address, request id)}}."""
    found: dict[str, set[tuple[str, str | None]]] = {}
    for provider in view.values():
        for device in provider.devices:
            if device.status in OWNED and provider.resource_class is not None:
                found.setdefault(device.instance_uuid, set()).add((device.address, device.request_id))
    return {instance_uuid: frozenset(devices) for instance_uuid, devices in found.items()}


def lacking(
    there: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Return the part of ``wanted`` that a server's allocations in Placement lack.

    ``there`` are the allocations in Placement: {provider uuid: {'resources': {resource class: count}}}. If any amount
    of a provider is too low, the result has all amounts that ``wanted`` has for this provider.
    """
    return {
        uuid: dict(resources)
        for uuid, resources in wanted.items()
        if any(count > there.get(uuid, {}).get('resources', {}).get(name, 0) for name, count in resources.items())
    }


def with_devices(
    there: Mapping[str, Mapping[str, Any]], more: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, Any]]:
    """Return a server's allocations ``there`` in Placement, with the allocations ``more`` of its devices added.

    ``more`` is {provider uuid: {resource class: count}}. It replaces the existing allocation of a provider. This
    allocation may be for the same device and another resource class, which an earlier ``[pci]device_spec`` had. Then
    the device would count twice.
    """
    return {
        uuid: {'resources': dict(resources)}
        for uuid, resources in {**{uuid: given['resources'] for uuid, given in there.items()}, **more}.items()
    }


def _provider(view: dict[str, DeviceProvider], nodename: str, device: PciDevice) -> DeviceProvider:
    address = pool_address(device)
    name = provider_name(nodename, address)
    return view.setdefault(name, DeviceProvider(name, address))


def _add(view: dict[str, DeviceProvider], nodename: str, device: PciDevice, spec: DeviceSpec) -> None:
    provider = _provider(view, nodename, device)
    _check_family(provider, device)
    if is_child(device) and 'one_time_use' in spec.tags:
        raise PlacementPciException(
            error=f'Only type-PCI and type-PF devices may set one_time_use and {device.address} does not qualify'
        )
    resource_class = spec.resource_class or (
        group_class(spec.grouping.name)
        if spec.grouping is not None
        else default_resource_class(device.vendor_id, device.product_id)
    )
    traits = _traits(spec)
    if provider.devices and unit(device) != device.address:
        # All devices of a group have the resource class and traits of its first device, which was added before.
        provider.devices.append(device)
        return
    if provider.devices:
        _check_same(provider, device, resource_class, traits)
    provider.resource_class, provider.traits = resource_class, traits
    provider.devices.append(device)
    if _once(spec) and device.status in OWNED:
        provider.reserved = provider.total


def one_time_use(device: PciDevice, specs: DeviceSpecs) -> bool:
    """Return whether a device can be used only once, until an operator sets ``reserved`` of its provider to 0."""
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


def _check_family(provider: DeviceProvider, device: PciDevice) -> None:
    other_side = [other.address for other in provider.devices if is_child(other) != is_child(device)]
    if other_side:
        parent, children = (
            (other_side[0], device.address) if is_child(device) else (device.address, ', '.join(other_side))
        )
        raise PlacementPciDependentDeviceException(parent=parent, children=children)


def _check_same(provider: DeviceProvider, device: PciDevice, resource_class: str, traits: frozenset[str]) -> None:
    if provider.resource_class != resource_class:
        raise PlacementPciMixedResourceClassException(
            parent=provider.address, device=device.address, new=resource_class, current=provider.resource_class
        )
    if provider.traits != traits:
        raise PlacementPciMixedTraitsException(
            parent=provider.address,
            device=device.address,
            new=', '.join(sorted(traits)),
            current=', '.join(sorted(provider.traits)),
        )


def guarantors(uuids: Mapping[str, str]) -> dict[str, str]:
    """Return a dict from interface to the uuids of the providers that Neutron's agents reported for it.

    ``uuids`` is a dict from provider name to uuid. An agent's provider is named 'HOST:kind of agent:interface'. The
    uuids for an interface are joined as comma-separated text.
    """
    found: dict[str, list[str]] = {}
    for name, uuid in uuids.items():
        if len(words := name.split(':')) == 3:
            found.setdefault(words[2], []).append(uuid)
    return {interface: ','.join(sorted(given)) for interface, given in found.items()}
