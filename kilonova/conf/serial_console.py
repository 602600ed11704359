"""The [serial_console] options: the guests' serial ports, and kilonova-serialproxy."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'serial_console'

OPTS = [
    cfg.BoolOpt('enabled', default=False,
                help="Give the guests' serial ports a TCP port of the host each, so that users can write to them. What "
                     'the first one prints is logged either way.'),
    cfg.StrOpt('port_range', default='10000:20000', regex=r'^[0-9]{1,5}:[0-9]{1,5}$',
               help='TCP ports of the host for serial ports: first:last, the last one not included. Each serial port '
                    'of each guest on the host holds one. Change it only where no guest is left.'),
    cfg.URIOpt('base_url', default='ws://127.0.0.1:6083/', schemes=['ws', 'wss'], max_length=255,
               help='Address of kilonova-serialproxy as users see it; the token is added. Read by the computes.'),
    cfg.HostAddressOpt('proxyclient_address', default='127.0.0.1',
                       help='Address of the host at which the serial ports listen, and at which kilonova-serialproxy '
                            'reaches them. Whoever reaches it writes to the guests: it must be one that only the proxy '
                            'reaches.'),
    cfg.HostAddressOpt('serialproxy_host', default='0.0.0.0',  # noqa: S104 - the field's default
                       help='Address at which kilonova-serialproxy listens.'),
    cfg.PortOpt('serialproxy_port', default=6083, min=1, help='Port on which kilonova-serialproxy listens.'),
]
