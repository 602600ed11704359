"""The [vnc] options: the guests' screens over VNC, and kilonova-novncproxy."""

from __future__ import annotations

from oslo_config import cfg, types

GROUP = 'vnc'

OPTS = [
    cfg.BoolOpt(
        'enabled',
        default=True,
        help='Give guests a VNC console: a graphics adapter, a pointer device, and a VNC server of QEMU. '
        'Existing guests get it at their next start.',
    ),
    cfg.HostAddressOpt(
        'server_listen',
        default='127.0.0.1',
        help="Address of the compute's host on which the VNC servers of its guests listen. They require "
        'no password: choose an address that only kilonova-novncproxy can reach.',
    ),
    cfg.HostAddressOpt(
        'server_proxyclient_address',
        default='127.0.0.1',
        help='Address at which kilonova-novncproxy reaches the address of server_listen, usually an '
        'address of the host.',
    ),
    cfg.URIOpt(
        'novncproxy_base_url',
        default='http://127.0.0.1:6080/vnc_auto.html',
        schemes=['http', 'https'],
        max_length=255,
        help='Address of noVNC for browsers; the token is appended. From noVNC 1.0 on vnc_auto.html shows a '
        'button with which the user connects, and vnc_lite.html connects at once. Read by the computes.',
    ),
    cfg.HostAddressOpt(
        'novncproxy_host',
        default='0.0.0.0',  # noqa: S104 - the field's default
        help='Address on which kilonova-novncproxy listens.',
    ),
    cfg.PortOpt('novncproxy_port', default=6080, min=1, help='Port on which kilonova-novncproxy listens.'),
    cfg.ListOpt(
        'auth_schemes',
        default=['none'],
        item_type=types.String(choices=['none', 'vencrypt'], ignore_case=True),
        help='How kilonova-novncproxy logs in to the VNC servers. Only none is supported. vencrypt (TLS '
        'between the proxy and the VNC servers) is a valid value, but the proxy does not start with it.',
    ),
]
