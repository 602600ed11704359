"""The [vnc] options: the guests' screens over VNC, and kilonova-novncproxy."""
from __future__ import annotations

from oslo_config import cfg, types

GROUP = 'vnc'

OPTS = [
    cfg.BoolOpt('enabled', default=True,
                help='Give guests a screen that VNC shows: a graphics adapter, a pointer, and a VNC server of QEMU. '
                     'Guests that exist get it when they are started the next time.'),
    cfg.HostAddressOpt('server_listen', default='127.0.0.1',
                       help="Address of the compute's host at which the VNC servers of its guests listen. They ask for "
                            'no password: it must be one that only kilonova-novncproxy reaches.'),
    cfg.HostAddressOpt('server_proxyclient_address', default='127.0.0.1',
                       help="Address at which kilonova-novncproxy reaches that of server_listen, mostly the "
                            "host's own."),
    cfg.URIOpt('novncproxy_base_url', default='http://127.0.0.1:6080/vnc_auto.html', schemes=['http', 'https'],
               max_length=255,
               help='Address of noVNC as browsers see it; the token is added. From noVNC 1.0 on vnc_auto.html shows a '
                    'button by which the user connects, and vnc_lite.html connects at once. Read by the computes.'),
    cfg.HostAddressOpt('novncproxy_host', default='0.0.0.0',  # noqa: S104 - the field's default
                       help='Address at which kilonova-novncproxy listens.'),
    cfg.PortOpt('novncproxy_port', default=6080, min=1, help='Port on which kilonova-novncproxy listens.'),
    cfg.ListOpt('auth_schemes', default=['none'],
                item_type=types.String(choices=['none', 'vencrypt'], ignore_case=True),
                help='How kilonova-novncproxy logs in to the VNC servers: none. vencrypt (TLS between the two) is '
                     'known by name, and the proxy does not start with it.'),
]
