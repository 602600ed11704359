"""Devices and their history in the form in which the REST API and the command line show them to administrators.

    shown(pci_devices.find(connection, host='gpu1', address='0000:81:00.0'))['kind']      # 'pci'

``shown`` and ``shown_entry`` convert a database row to the dict that is returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova import texts
from kilonova.pci.device import BARS, GROUP, GROUP_HEAD, KIND_OF

# Keys of ``extra_info`` that are shown as tags if the device has them.
TAGS = ('managed', 'live_migratable', 'trusted', 'parent_ifname', 'mac_address')


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device in the form that administrators see, made from a row of ``queries.pci_devices.page``.

    Some keys of the result: ``resource_provider`` is the UUID of the device's provider in Placement. ``tags`` has
    properties such as trusted or mac_address. ``barred`` has the reasons why the device is not offered to servers, for
    example {'disabled': 'the fan is loud'}.
    """
    info = texts.read(f'extra_info of device {row["address"]}', row['extra_info'], texts.mapping, {})
    return {
        'id': row['uuid'],
        'host': row['host'],
        'node': row['hypervisor_hostname'],
        'address': row['address'],
        'parent_address': row['parent_addr'],
        'kind': KIND_OF[row['dev_type']],
        'vendor_id': row['vendor_id'],
        'product_id': row['product_id'],
        'numa_node': row['numa_node'],
        'status': row['status'],
        'server_id': row['instance_uuid'],
        'server_name': row['server_name'],
        'project_id': row['project_id'],
        'request_id': row['request_id'],
        'resource_provider': info.get('rp_uuid'),
        'mdev_type': info.get('mdev_type'),
        'mdev_class': info.get('mdev_class'),
        'group': info.get(GROUP),
        'group_head': info.get(GROUP_HEAD),
        'tags': {name: info[name] for name in TAGS if name in info},
        'barred': {name: info[name] for name in BARS if name in info},
        'held_since': row['held_since'],
        'created_at': row['created_at'],
        'updated_at': row['updated_at'],
    }


def shown_entry(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return one entry of a device's history in the form that administrators see.

    ``row`` is a row of ``queries.device_history.page``. The entry's ``id`` is <device uuid>.<row id>. The row id alone
    is unique only in the database of one cell.
    """
    return {
        'id': f'{row["device_uuid"]}.{row["id"]}',
        'device_id': row['device_uuid'],
        'host': row['host'],
        'address': row['address'],
        'kind': KIND_OF[row['dev_type']],
        'vendor_id': row['vendor_id'],
        'product_id': row['product_id'],
        'server_id': row['instance_uuid'],
        'project_id': row['project_id'],
        'began_at': row['began_at'],
        'ended_at': row['ended_at'],
    }
