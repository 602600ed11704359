"""The [serial_console] options: the guests' serial ports, and kilonova-serialproxy."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'serial_console'

OPTS = [
    cfg.BoolOpt(
        'enabled',
        default=False,
        help='Give each serial port of a guest a TCP port of the host, so that users can write to it. The '
        'output of the first serial port is logged in any case.',
    ),
    cfg.StrOpt(
        'port_range',
        default='10000:20000',
        regex=r'^[0-9]{1,5}:[0-9]{1,5}$',
        help='TCP ports of the host for serial ports, as first:last; the last one is not included. Each serial '
        'port of each guest on the host uses one. Change it only on a host without guests.',
    ),
    cfg.URIOpt(
        'base_url',
        default='ws://127.0.0.1:6083/',
        schemes=['ws', 'wss'],
        max_length=255,
        help='Address of kilonova-serialproxy for users; the token is appended. Read by the computes.',
    ),
    cfg.HostAddressOpt(
        'proxyclient_address',
        default='127.0.0.1',
        help='Address of the host on which the serial ports listen, and at which kilonova-serialproxy '
        'reaches them. Anybody who can reach it can write to the guests: choose an address that '
        'only the proxy can reach.',
    ),
    cfg.HostAddressOpt(
        'serialproxy_host',
        default='0.0.0.0',  # noqa: S104 - the field's default
        help='Address on which kilonova-serialproxy listens.',
    ),
    cfg.PortOpt('serialproxy_port', default=6083, min=1, help='Port on which kilonova-serialproxy listens.'),
]
