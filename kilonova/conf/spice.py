"""The [spice] options: the guests' screens over SPICE, and kilonova-spicehtml5proxy."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'spice'

OPTS = [
    cfg.BoolOpt('enabled', default=False,
                help='Give guests a screen that SPICE shows. The QEMU of the host must have SPICE: the compute does '
                     'not start otherwise. Usually [vnc]enabled is switched off then.'),
    cfg.BoolOpt('agent_enabled', default=True,
                help="Give guests the port of SPICE's agent (resolution, clipboard); such guests get no USB tablet."),
    cfg.HostAddressOpt('server_listen', default='127.0.0.1',
                       help="Address of the compute's host at which the SPICE servers of its guests listen. They ask "
                            'for no password.'),
    cfg.HostAddressOpt('server_proxyclient_address', default='127.0.0.1',
                       help='Address at which kilonova-spicehtml5proxy reaches that of server_listen.'),
    cfg.URIOpt('html5proxy_base_url', default='http://127.0.0.1:6082/spice_auto.html', schemes=['http', 'https'],
               max_length=255,
               help='Address of the SPICE client as browsers see it; the token is added. Read by the computes.'),
    cfg.URIOpt('spice_direct_proxy_base_url', default='http://127.0.0.1:13002/nova', schemes=['http', 'https'],
               max_length=255,
               help='Address of the proxy for native SPICE clients (spice-direct, from 2.99 on): a program of its own, '
                    'which asks GET /os-console-auth-tokens where the guest is. Read by the computes.'),
    cfg.BoolOpt('require_secure', default=False,
                help="Let SPICE servers accept TLS alone. libvirt's qemu.conf must have spice_tls and its "
                     'certificates; kilonova-spicehtml5proxy speaks no TLS to them, spice-direct does.'),
    cfg.StrOpt('image_compression', choices=['auto_glz', 'auto_lz', 'quic', 'glz', 'lz', 'off'],
               help="How images are compressed. Empty: QEMU's choice, as with the options below."),
    cfg.StrOpt('jpeg_compression', choices=['auto', 'never', 'always'], help='JPEG over slow links.'),
    cfg.StrOpt('zlib_compression', choices=['auto', 'never', 'always'], help='zlib over slow links.'),
    cfg.BoolOpt('playback_compression', help='Compress sound.'),
    cfg.StrOpt('streaming_mode', choices=['filter', 'all', 'off'], help='Which moving pictures are sent as video.'),
    cfg.HostAddressOpt('html5proxy_host', default='0.0.0.0',  # noqa: S104 - the field's default
                       help='Address at which kilonova-spicehtml5proxy listens.'),
    cfg.PortOpt('html5proxy_port', default=6082, min=1, help='Port on which kilonova-spicehtml5proxy listens.'),
]
