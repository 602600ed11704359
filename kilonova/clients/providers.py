"""Compare a compute's provider tree in Placement with the tree that the host reports, and write the differences.

``PlacementClient.sync_compute`` calls this module. The tree from the last call is cached. If a provider's generation in
Placement has changed, its cached inventories and traits are normally still used, because each new allocation changes
the generation, too. They are read again only with ``refresh``.
"""

from __future__ import annotations

import threading
import uuid as uuidlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from oslo_log import log as logging

from kilonova import errors

LOG = logging.getLogger(__name__)

STATUS_DISABLED = 'COMPUTE_STATUS_DISABLED'
MANAGED_PCI = 'COMPUTE_MANAGED_PCI_DEVICE'
OWNER = 'OWNER_NOVA'
# Standard traits with these prefixes are removed from a compute's root provider if the compute does not report them.
# Standard traits with other prefixes stay on the provider, because an operator may have added them.
OWNED_PREFIXES = ('COMPUTE_', 'HW_CPU_', 'OWNER_')
INVENTORY_DEFAULTS = {'reserved': 0, 'min_unit': 1, 'max_unit': 2147483647, 'step_size': 1, 'allocation_ratio': 1.0}
SYNC_ATTEMPTS = 4
_IN_USE = ('placement.inventory.inuse', 'placement.resource_provider.inuse')


class PciReportingTurnedOff(errors.Invalid):
    """A compute has reported its PCI devices to Placement but is now configured not to, which is not allowed."""

    msg_fmt = (
        'The PCI devices of %(nodename)s are reported in Placement (%(name)s), but [pci]report_in_placement is '
        'off. Turn it on again: it cannot be turned off once PCI devices are reported.'
    )


class NodenameTaken(errors.Conflict):
    """Placement has a resource provider with the compute's name, but with another uuid than the compute's."""

    msg_fmt = (
        'Resource provider %(name)s exists with uuid %(found)s; this compute is %(uuid)s. Was its compute_id file lost?'
    )


class PlacementRequests(Protocol):
    """The requests to Placement that this module sends. ``PlacementClient`` implements them."""

    def list_providers(self, *, in_tree: str | None = None) -> list[dict[str, Any]]:
        """Return the providers of the tree that contains the provider ``in_tree``."""

    def ensure_provider(self, name: str, uuid: str, parent: str | None = None) -> dict[str, Any]:
        """Return the provider with this name. If there is none, create it with this ``uuid``."""

    def delete_provider(self, uuid: str) -> bool:
        """Delete a provider. Return False if the provider did not exist."""

    def get_inventory(self, uuid: str) -> tuple[dict[str, dict[str, Any]], int]:
        """Return the inventories of a provider, and the provider's generation."""

    def set_inventory(self, uuid: str, generation: int, inventory: dict[str, dict[str, Any]]) -> int:
        """Replace all inventories of a provider and return its new generation."""

    def get_traits(self, uuid: str) -> tuple[set[str], int]:
        """Return the traits of a provider and the provider's generation."""

    def set_traits(self, uuid: str, generation: int, traits: Iterable[str]) -> int:
        """Replace all traits of a provider and return its new generation."""

    def ensure_traits(self, names: Iterable[str]) -> set[str]:
        """Create those CUSTOM_ traits in ``names`` that do not exist yet. Return the traits that Placement now has.

        The result is a subset of ``names``. Standard traits that this Placement does not know are left out.
        """

    def ensure_resource_class(self, name: str) -> None:
        """Create a CUSTOM_ resource class if the class does not exist."""


@dataclass
class PlacementProvider:
    """A resource provider with the values that were last read from or written to Placement."""

    uuid: str
    name: str
    parent: str | None
    generation: int
    inventory: dict[str, dict[str, Any]] = field(default_factory=dict)
    traits: set[str] = field(default_factory=set)


class Trees:
    """The provider trees that this process reports, by the uuid of their root."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, PlacementProvider]] = {}
        self._reported: dict[str, set[str]] = {}
        self._leaving: set[str] = set()
        self._lock = threading.Lock()

    def drop(self, root_uuid: str) -> None:
        """Delete the cached tree of this root, so that the next ``sync`` reads it from Placement."""
        self._seen.pop(root_uuid, None)

    def sync(
        self,
        client: PlacementRequests,
        root_uuid: str,
        nodename: str,
        inventory: dict[str, dict[str, Any]],
        traits: set[str],
        devices: dict[str, dict[str, Any]],
        *,
        has_pci: bool,
        refresh: bool,
    ) -> dict[str, str]:
        """Change a provider tree in Placement to what the compute reports. See ``PlacementClient.sync_compute``."""
        with self._lock:
            for left in reversed(range(SYNC_ATTEMPTS)):
                try:
                    tree = self._load(client, root_uuid, refresh=refresh)
                    self._write(client, tree, root_uuid, nodename, inventory, traits, devices, has_pci)
                    return {provider.name: provider.uuid for provider in tree.values()}
                except errors.PlacementConflict as error:
                    self.drop(root_uuid)
                    if not left or error.placement_code in _IN_USE:
                        raise
                except errors.KilonovaError:
                    self.drop(root_uuid)
                    raise
        raise AssertionError('unreachable')

    def _load(self, client: PlacementRequests, root_uuid: str, *, refresh: bool) -> dict[str, PlacementProvider]:
        """Return the tree as a dict from provider name to provider. It is empty if Placement has no tree yet.

        Inventories and traits of providers that an earlier call has read are taken from a cache. If ``refresh`` is
        True, they are read again for each provider whose generation has changed since.
        """
        before = {provider.uuid: provider for provider in self._seen.get(root_uuid, {}).values()}
        tree: dict[str, PlacementProvider] = {}
        for row in client.list_providers(in_tree=root_uuid):
            provider = before.get(row['uuid'])
            if provider is None or (refresh and provider.generation != row['generation']):
                provider = PlacementProvider(row['uuid'], row['name'], row['parent_provider_uuid'], row['generation'])
                provider.inventory, _ = client.get_inventory(provider.uuid)
                provider.traits, provider.generation = client.get_traits(provider.uuid)
            else:
                provider.generation = row['generation']
            tree[provider.name] = provider
        self._seen[root_uuid] = tree
        return tree

    def _write(
        self,
        client: PlacementRequests,
        tree: dict[str, PlacementProvider],
        root_uuid: str,
        nodename: str,
        inventory: dict[str, dict[str, Any]],
        traits: set[str],
        view: dict[str, dict[str, Any]],
        has_pci: bool,
    ) -> None:
        managed = {name for name, provider in tree.items() if MANAGED_PCI in provider.traits}
        if not has_pci and managed:
            raise PciReportingTurnedOff(nodename=nodename, name=min(managed))
        # This service also created the providers of cards with mediated devices, so it may change and delete them, too.
        managed |= {
            name for name, provider in tree.items() if OWNER in provider.traits and provider.parent == root_uuid
        }
        root = _ensure(client, tree, nodename, root_uuid, None)
        if root.uuid != root_uuid:
            raise NodenameTaken(name=nodename, found=root.uuid, uuid=root_uuid)
        known = client.ensure_traits(traits.union({OWNER}, *(given['traits'] for given in view.values())))
        for resource_class in {*inventory, *(given['resource_class'] for given in view.values())}:
            client.ensure_resource_class(resource_class)
        wanted = (traits | {OWNER}) & known
        _set_inventory(client, root, inventory)
        _set_traits(client, root, wanted | _foreign(root.traits, self._reported.get(root_uuid, set())))
        self._reported[root_uuid] = wanted
        for name, given in view.items():
            child = _ensure(client, tree, name, str(uuidlib.uuid5(uuidlib.UUID(root_uuid), name)), root_uuid)
            total, reserved = given['total'], given.get('reserved')
            kept = {} if reserved is None else {'reserved': reserved}
            _set_inventory(client, child, {given['resource_class']: {'total': total, 'max_unit': total, **kept}})
            more = child.traits if given.get('more_traits') else set()
            _set_traits(client, child, set(given['traits']) & known | more)
        for name in managed - view.keys():
            self._remove(client, tree, name)

    def _remove(self, client: PlacementRequests, tree: dict[str, PlacementProvider], name: str) -> None:
        uuid = tree[name].uuid
        try:
            client.delete_provider(uuid)
        except errors.PlacementConflict as error:
            if error.placement_code not in _IN_USE:
                raise
            if uuid not in self._leaving:
                LOG.warning(
                    'Device provider %s is no longer on the host, but a server still has an allocation of it; '
                    'keeping the provider until the allocation is deleted',
                    name,
                )
                self._leaving.add(uuid)
        else:
            self._leaving.discard(uuid)
            del tree[name]


def _foreign(traits: set[str], reported: set[str]) -> set[str]:
    """Return those traits of a root provider that an operator or another service has added.

    ``traits`` are all traits of the provider. ``reported`` are the traits that this process wrote in the last call.
    """
    return {name for name in traits - reported if name == STATUS_DISABLED or not name.startswith(OWNED_PREFIXES)}


def _ensure(
    client: PlacementRequests, tree: dict[str, PlacementProvider], name: str, uuid: str, parent: str | None
) -> PlacementProvider:
    if name not in tree:
        row = client.ensure_provider(name, uuid, parent)
        tree[name] = PlacementProvider(row['uuid'], name, parent, row['generation'])
    return tree[name]


def _set_inventory(
    client: PlacementRequests, provider: PlacementProvider, inventory: dict[str, dict[str, Any]]
) -> None:
    # The host does not report all fields of an inventory, such as ``reserved``.
    # A field that the host does not report keeps its value in Placement.
    # In a new inventory, a field that the host does not report gets the value in INVENTORY_DEFAULTS.
    wanted = {
        name: {**INVENTORY_DEFAULTS, **provider.inventory.get(name, {}), **given} for name, given in inventory.items()
    }
    if wanted == provider.inventory:
        return
    try:
        provider.generation = client.set_inventory(provider.uuid, provider.generation, wanted)
    except errors.PlacementConflict as error:
        if error.placement_code not in _IN_USE:
            raise
        LOG.warning(
            'Provider %s no longer has %s, but servers still have allocations of it; keeping the inventory '
            'until the allocations are deleted',
            provider.name,
            _names(provider.inventory.keys() - wanted.keys()),
        )
        wanted = {**provider.inventory, **wanted}
        if wanted == provider.inventory:
            return
        provider.generation = client.set_inventory(provider.uuid, provider.generation, wanted)
    provider.inventory = wanted


def _set_traits(client: PlacementRequests, provider: PlacementProvider, traits: set[str]) -> None:
    if traits != provider.traits:
        provider.generation = client.set_traits(provider.uuid, provider.generation, traits)
        provider.traits = traits


def _names(names: Iterable[str]) -> str:
    return ', '.join(sorted(names))
