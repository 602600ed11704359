"""[DEFAULT] options of the API: where it listens, zones and names that it gives to servers."""
from __future__ import annotations

from oslo_config import cfg

GROUP = None

OPTS = [
    cfg.StrOpt('osapi_compute_listen', default='0.0.0.0',  # noqa: S104 - an API is there to be reached
               help='Address on which the compute API listens.'),
    cfg.PortOpt('osapi_compute_listen_port', default=8774,
                help='Port on which the compute API listens.'),
    cfg.StrOpt('default_availability_zone', default='nova',
               help='Zone shown for computes that are in no aggregate with a zone. Servers may ask for it by name. '
                    'Do not change it once there are servers.'),
    cfg.StrOpt('internal_service_availability_zone', default='internal',
               help='Zone shown for services that are no computes.'),
    cfg.StrOpt('default_schedule_zone', default=None,
               help='Zone asked for on behalf of servers whose users name none. Empty: any zone.'),
    cfg.BoolOpt('allow_resize_to_same_host', default=False,
                help='Whether a resize may end on the host where the server is. Devices of the new flavor must be free '
                     'there besides those that the server holds. Leave it off where there is more than one host.'),
    cfg.IntOpt('password_length', default=12, min=0,
               help='Length of the admin passwords that are made up for servers.'),
]
