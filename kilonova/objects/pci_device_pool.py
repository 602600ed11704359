"""PciDevicePool: the number of free PCI devices with equal properties (``compute_nodes.pci_stats``)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, register

OWN_KEYS = ('product_id', 'vendor_id', 'numa_node', 'count')


@register
class PciDevicePool(KilonovaObject):
    """A pool of free devices with equal properties; ``count`` is their number.

    ``tags`` contains all other properties that a request can match, such as dev_type, address, and tags of the device
    spec.
    """

    VERSION = '1.1'
    fields = {
        'product_id': fields.StringField(),
        'vendor_id': fields.StringField(),
        'numa_node': fields.IntegerField(nullable=True),
        'tags': fields.DictOfNullableStringsField(),
        'count': fields.IntegerField(),
    }

    @classmethod
    def from_dict(cls, pool: dict[str, Any]) -> Self:
        """Return the pool for a flat dict {product_id, vendor_id, numa_node, count, tag: value, …}.

        A member ``devices`` is ignored.
        """
        tags = {key: value for key, value in pool.items() if key not in OWN_KEYS and key != 'devices'}
        return cls(
            product_id=pool['product_id'],
            vendor_id=pool['vendor_id'],
            numa_node=pool.get('numa_node'),
            count=pool['count'],
            tags=tags,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the flat dict that ``from_dict`` reads."""
        return {
            'product_id': self.product_id,
            'vendor_id': self.vendor_id,
            'numa_node': self.numa_node if 'numa_node' in self else None,
            'count': self.count,
            **(self.tags if 'tags' in self else {}),
        }


@register
class PciDevicePoolList(ListBase, KilonovaObject):
    """A list of pools."""

    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('PciDevicePool')}

    @classmethod
    def from_dicts(cls, pools: Iterable[dict[str, Any]]) -> Self:
        """Return the list object for pools that are given as flat dicts (see ``PciDevicePool.from_dict``)."""
        return cls(objects=[PciDevicePool.from_dict(pool) for pool in pools])

    @classmethod
    def from_column(cls, text: str | None, ctxt: RequestContext | None = None) -> Self | None:
        """Return the pools of ``compute_nodes.pci_stats``, or None for an empty column.

        The text is a serialised PciDevicePoolList, or a list of flat dicts, which older releases wrote.
        """
        value = json.loads(text) if text else None
        if isinstance(value, list):
            return cls.from_dicts(value)
        return None if value is None else cls.obj_from_primitive(value, ctxt)
