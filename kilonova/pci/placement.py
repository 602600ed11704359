"""A host's devices as resource providers of Placement. The functions here send no requests; the compute service does.

    view = host_devices.providers(nodename)   # {provider name: DeviceProvider}, as Placement should have the providers
    for provider in view.values():            # each is a child of the node's root provider
        provider.inventory(), provider.traits
    host_devices = host_devices.provided({provider.address: uuid, …})
    wanted = allocations(view, {provider.address: uuid, …})      # {instance uuid: {provider uuid: {class: n}}}
    lacking(there, wanted[instance_uuid])     # the amounts that a server's present allocations ``there`` lack

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

    ``address`` is the PCI address of its device or of the parent of its devices. ``resource_class`` is None if the
    configuration no longer offers its devices, but servers still hold some: Placement then keeps the inventory.
    ``reserved`` is None if Placement keeps its value, which an operator may have set. If ``more_traits`` is True,
    Placement keeps traits that an operator added.
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
        """Return {resource class: {field: value}} with the fields total and max_unit, and reserved if it is set.

        For all other fields, the caller keeps the values that Placement has. The result is {} if there is no class.
        """
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
    """Return a dict from name to resource provider, for a node's PCI functions that are reported to Placement.

    Raises:
        PlacementPciDependentDeviceException: Device specs match a physical function and also its virtual functions.
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
    # A device that no [pci]device_spec matches any more stays in its resource provider while a server holds the device.
    for device in leftover:
        if device.status in OWNED and 'rp_uuid' in device.extra_info:
            _provider(view, nodename, device).devices.append(device)
    return view


def describe_view(nodename: str, view: Mapping[str, DeviceProvider]) -> str:
    """Return one line for the log that describes the providers."""
    return f'Placement PCI view on {nodename}: {", ".join(map(str, view.values()))}'


def allocations(view: Mapping[str, DeviceProvider], uuids: Mapping[str, str]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the allocations that Placement should have for devices in use.

    The result is {instance uuid: {provider uuid: {resource class: count}}}. ``view`` is {provider name: provider}, and
    ``uuids`` is a dict from the attribute ``address`` of a provider to the provider's uuid in Placement.
    """
    found: dict[str, dict[str, dict[str, int]]] = {}
    for provider in view.values():
        for device in {unit(device): device for device in provider.devices}.values():
            if device.status in OWNED and provider.resource_class is not None:
                resources = found.setdefault(device.instance_uuid, {}).setdefault(uuids[provider.address], {})
                resources[provider.resource_class] = resources.get(provider.resource_class, 0) + 1
    return found


def in_use(view: Mapping[str, DeviceProvider]) -> dict[str, frozenset[tuple[str, str | None]]]:
    """Return the devices that servers hold as {instance uuid: {(address of the device, id of the PCI request)}}.

    ``view`` is {provider name: provider}. The id is None if the device's row names no PCI request.
    """
    found: dict[str, set[tuple[str, str | None]]] = {}
    for provider in view.values():
        for device in provider.devices:
            if device.status in OWNED and provider.resource_class is not None:
                found.setdefault(device.instance_uuid, set()).add((device.address, device.request_id))
    return {instance_uuid: frozenset(devices) for instance_uuid, devices in found.items()}


def lacking(
    there: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Return the providers in ``wanted`` for which a server's allocations in Placement are too low.

    ``wanted`` and the result are {provider uuid: {resource class: count}}. ``there`` are the server's present
    allocations: {provider uuid: {'resources': {resource class: count}}}. The result has all classes that ``wanted`` has
    for such a provider, because the allocation of a provider is replaced as a whole.
    """
    return {
        uuid: dict(resources)
        for uuid, resources in wanted.items()
        if any(count > there.get(uuid, {}).get('resources', {}).get(name, 0) for name, count in resources.items())
    }


def with_devices(
    there: Mapping[str, Mapping[str, Any]], more: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, Any]]:
    """Return the new allocations of a server: ``there``, its allocations in Placement, and ``more`` for its devices.

    ``more`` is {provider uuid: {resource class: count}}. For a provider in ``more``, the allocation in ``there`` is
    dropped. The old allocation may be for the same device with the resource class of an earlier ``[pci]device_spec``.
    If it were kept, the device would count twice.
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
            error='Only type-PCI and type-PF devices may set one_time_use and '
            f'{device.address} does not qualify, because it is a virtual function'
        )
    resource_class = spec.resource_class or (
        group_class(spec.grouping.name)
        if spec.grouping is not None
        else default_resource_class(device.vendor_id, device.product_id)
    )
    traits = _traits(spec)
    if provider.devices and unit(device) != device.address:
        # The first device of the group has already set the provider's resource class and traits.
        provider.devices.append(device)
        return
    if provider.devices:
        _check_same(provider, device, resource_class, traits)
    provider.resource_class, provider.traits = resource_class, traits
    provider.devices.append(device)
    if _once(spec) and device.status in OWNED:
        provider.reserved = provider.total


def one_time_use(device: PciDevice, specs: DeviceSpecs) -> bool:
    """Return whether the device_spec of a device has one_time_use=true.

    Placement keeps such a device reserved after its first use, until an operator sets ``reserved`` to 0.
    """
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
    """Return {network interface: comma-separated uuids of its QoS providers in Placement}.

    Neutron's agents report these providers, which have minimum bandwidth and packet rate. Their names have the form
    'HOST:kind of agent:interface', for example 'gpu1:NIC Switch agent:ens1f0'. ``uuids`` is a dict from the name of
    each provider of the host to its uuid. Providers with other names are ignored.
    """
    found: dict[str, list[str]] = {}
    for name, uuid in uuids.items():
        if len(words := name.split(':')) == 3:
            found.setdefault(words[2], []).append(uuid)
    return {interface: ','.join(sorted(given)) for interface, given in found.items()}
