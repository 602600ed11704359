"""PciDevice: a device of a compute node that a server may own (table ``pci_devices``).

This module only has the objects. The transitions of ``status`` are in ``kilonova.pci``.
"""

from __future__ import annotations

import json
from typing import Any, Self

from kilonova import texts
from kilonova.context import RequestContext
from kilonova.objects import fields, storage
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register, remotable_classmethod

NOT_INSERTED = frozenset(('id', 'created_at', 'updated_at', 'deleted_at', 'deleted'))

# Name of the instance action that is recorded when a device that a server holds becomes unavailable.
BARRED = 'device_barred'


@register
class PciDevice(PersistentObject, KilonovaObject):
    """One PCI device or mediated device.

    ``status`` is one of the words of ``fields.PciDeviceStatusField``. The ``address`` of a mediated device is its UUID,
    and its ``parent_addr`` is the address of its PCI function.
    """

    VERSION = '1.8'
    fields = {
        'id': fields.IntegerField(),
        'uuid': fields.UUIDField(),
        'compute_node_id': fields.IntegerField(nullable=True),
        'address': fields.StringField(),
        'vendor_id': fields.StringField(),
        'product_id': fields.StringField(),
        'dev_type': fields.PciDeviceTypeField(),
        'status': fields.PciDeviceStatusField(),
        'dev_id': fields.StringField(nullable=True),
        'label': fields.StringField(nullable=True),
        'instance_uuid': fields.StringField(nullable=True),
        'request_id': fields.StringField(nullable=True),
        'extra_info': fields.DictOfStringsField(default={}),
        'numa_node': fields.IntegerField(nullable=True),
        'parent_addr': fields.StringField(nullable=True),
    }

    @classmethod
    def from_row(cls, ctxt: RequestContext | None, row: dict[str, Any]) -> Self:
        """Return the device that a row of ``pci_devices`` describes.

        If the text in ``extra_info`` can't be read, it is treated as empty.
        """
        info = texts.read(f'extra_info of device {row.get("address")}', row.get('extra_info'), texts.mapping, {})
        values = {**row, 'deleted': bool(row.get('deleted')), 'extra_info': info}
        return cls.loaded(ctxt, ((name, values[name]) for name in cls.fields if name in values))

    def to_row(self, changed_only: bool = False) -> dict[str, Any]:
        """Return {column: value} of the fields that are set, or only of changed fields if ``changed_only`` is True.

        The id and the timestamps are left out.
        """
        row = self.columns(NOT_INSERTED, changed_only)
        if 'extra_info' in row:
            row['extra_info'] = json.dumps(row['extra_info'])
        return row


@register
class PciDeviceList(ListBase, KilonovaObject):
    """A list of devices."""

    VERSION = '1.3'
    fields = {'objects': fields.ListOfObjectsField('PciDevice')}

    @remotable_classmethod
    def get_by_compute_node(cls, ctxt: RequestContext, compute_node_id: int) -> Self:
        """Return the devices of a node, sorted by address."""
        with storage.database(ctxt).read() as conn:
            return cls.from_rows(ctxt, storage.queries('pci_devices').by_node(conn, compute_node_id))

    @remotable_classmethod
    def save_all(cls, ctxt: RequestContext, compute_node_id: int, changes: dict[str, list[Any]]) -> dict[str, int]:
        """Write the results of a check of a node's PCI devices in one transaction.

        Return a dict from the address of each created device to its id. A repeated call has the same result.

        ``changes`` has these lists:

        - created: new PciDevices.
        - updated: PciDevices with changed fields.
        - removed: PciDevices to delete.
        - statuses: dicts {id, to} of free devices that get the new status ``to``.
        - told: dicts {instance_uuid, message}. Each of these servers gets an instance action with this message: a
          device of the server has become unavailable. The server keeps it, but no other server gets it afterwards.
        """
        queries = storage.queries('pci_devices')
        changed = [{'id': device.id, **device.to_row(changed_only=True)} for device in changes.get('updated') or ()]
        changed += [{'id': change['id'], 'status': change['to']} for change in changes.get('statuses') or ()]
        created = {device.address: device.to_row() for device in changes.get('created') or ()}
        with storage.database(ctxt).write() as conn:
            queries.save(
                conn,
                compute_node_id,
                changed=[row for row in changed if len(row) > 1],
                removed=[device.id for device in changes.get('removed') or ()],
            )
            storage.queries('instances').tell_once(
                conn,
                {
                    'action': BARRED,
                    'request_id': ctxt.request_id,
                    'user_id': ctxt.user_id,
                    'project_id': ctxt.project_id,
                },
                changes.get('told') or (),
            )
            if not created:
                return {}
            # Do not insert devices that already have a row: an earlier try of the same call may have inserted them.
            there = {row['address'] for row in queries.by_node(conn, compute_node_id)}
            queries.save(
                conn, compute_node_id, created=[row for address, row in created.items() if address not in there]
            )
            return {
                row['address']: row['id'] for row in queries.by_node(conn, compute_node_id) if row['address'] in created
            }
