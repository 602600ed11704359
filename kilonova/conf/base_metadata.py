"""The [DEFAULT] options of the metadata service: whether it runs, and its address."""

from __future__ import annotations

from oslo_config import cfg, types

GROUP = None

OPTS = [
    cfg.ListOpt(
        'enabled_apis',
        default=['osapi_compute'],
        item_type=types.String(choices=['osapi_compute', 'metadata']),
        help='What kilonova-api serves. osapi_compute: the compute API. metadata: the metadata service, which '
        'guests reach at 169.254.169.254. Name one of them only, if they are to run on different '
        'machines. metadata needs [neutron]service_metadata_proxy.',
    ),
    cfg.StrOpt(
        'metadata_listen',
        default='0.0.0.0',  # noqa: S104 - agents on all hosts are to reach it
        help='Address on which the metadata service listens. Only the metadata agents need to reach it.',
    ),
    cfg.PortOpt('metadata_listen_port', default=8775, help='Port on which the metadata service listens.'),
]
