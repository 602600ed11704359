"""Read the columns of ``instance_extra`` into fields of an Instance; used by ``objects.instance``.

    values = instance_columns.read(ctxt, uuid, {'flavor': '{"cur": …}', 'numa_topology': None})
    # {'flavor': Flavor(…), 'old_flavor': None, 'new_flavor': None, 'numa_topology': None}

The functions expect that a text may be damaged, for example by a restore of the database or by an operator's script.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

from kilonova import errors
from kilonova.context import RequestContext
from kilonova.objects.base import KilonovaObject
from kilonova.objects.flavor import Flavor
from kilonova.objects.instance_extra import InstancePCIRequests
from kilonova.objects.instance_tables import BlockDeviceMappingList, InstanceInfoCache
from kilonova.texts import BROKEN

LOG = logging.getLogger(__name__)

FLAVOR_FIELDS = {'flavor': 'cur', 'old_flavor': 'old', 'new_flavor': 'new'}
# Columns of ``instance_extra`` whose text is one serialised object (an envelope).
ENVELOPES = (
    'numa_topology',
    'migration_context',
    'vcpu_model',
    'keypairs',
    'device_metadata',
    'trusted_certs',
    'resources',
)


def read(ctxt: RequestContext | None, uuid: str, extra: Mapping[str, Any], *, lenient: bool = False) -> dict[str, Any]:
    """Return {field: value} for the columns in ``extra``.

    ``extra`` may also have the text of the info cache (key ``network_info``) and the rows of the volumes (key
    ``volumes``). Raises ServerUnreadable for a text that cannot be read. If ``lenient`` is True, such a text is only
    logged, and its fields are left out or None.
    """
    values: dict[str, Any] = {}
    for name, value in extra.items():
        try:
            match name:
                case 'flavor' if value:
                    values.update(_flavors(ctxt, value))
                case 'pci_requests':
                    values[name] = InstancePCIRequests.from_list(json.loads(value), uuid, ctxt) if value else None
                case 'network_info' if value:
                    values['info_cache'] = InstanceInfoCache(ctxt, instance_uuid=uuid, network_info=value)
                case 'volumes' if value:
                    values['block_devices'] = BlockDeviceMappingList.of_server(ctxt, uuid, value)
                case _ if name in ENVELOPES:
                    values[name] = KilonovaObject.from_json(value, ctxt)
        except BROKEN as error:
            problem = errors.ServerUnreadable(uuid=uuid, column=name, reason=f'{type(error).__name__}: {error}')
            if not lenient:
                raise problem from error
            LOG.error('%s', problem, instance_uuid=uuid)
            values.update(_INSTEAD.get(name, {name: None}))
    if 'keypairs' in values and values['keypairs'] is None:
        del values['keypairs']
    return values


def check(uuid: str, texts: Mapping[str, Any]) -> None:
    """Raise ServerUnreadable for the first text that cannot be read. ``texts`` is {column: JSON text} of the server."""
    read(None, uuid, texts)


def _flavors(ctxt: RequestContext | None, text: str) -> dict[str, Any]:
    stored = json.loads(text)
    found: dict[str, Any] = {}
    for field, key in FLAVOR_FIELDS.items():
        envelope = stored[key] if field == 'flavor' else stored.get(key)
        found[field] = Flavor.obj_from_primitive(envelope, ctxt) if envelope is not None else None
    if not isinstance(found['flavor'], Flavor):
        raise TypeError('it contains no flavor')
    return found


# {column: {field: value}}: the values that fields of a server get if the column's text cannot be read.
# If the text of any other column cannot be read, the field with the column's name is set to None.
_INSTEAD: Mapping[str, dict[str, Any]] = {
    'flavor': {'old_flavor': None, 'new_flavor': None},
    'network_info': {},
    'volumes': {},
}
