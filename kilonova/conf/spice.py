"""The [spice] options: the guests' screens over SPICE, and kilonova-spicehtml5proxy."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'spice'

OPTS = [
    cfg.BoolOpt(
        'enabled',
        default=False,
        help='Give guests a SPICE console. The QEMU of the host must support SPICE, otherwise the compute does '
        'not start. Usually [vnc]enabled is turned off then.',
    ),
    cfg.BoolOpt(
        'agent_enabled',
        default=True,
        help='Give guests the port of the SPICE agent (resolution, clipboard). Such guests get no USB tablet.',
    ),
    cfg.HostAddressOpt(
        'server_listen',
        default='127.0.0.1',
        help="Address of the compute's host on which the SPICE servers of its guests listen. They require no password.",
    ),
    cfg.HostAddressOpt(
        'server_proxyclient_address',
        default='127.0.0.1',
        help='Address at which kilonova-spicehtml5proxy reaches the address of server_listen.',
    ),
    cfg.URIOpt(
        'html5proxy_base_url',
        default='http://127.0.0.1:6082/spice_auto.html',
        schemes=['http', 'https'],
        max_length=255,
        help='Address of the SPICE client for browsers; the token is appended. Read by the computes.',
    ),
    cfg.URIOpt(
        'spice_direct_proxy_base_url',
        default='http://127.0.0.1:13002/nova',
        schemes=['http', 'https'],
        max_length=255,
        help='Address of the proxy for native SPICE clients (spice-direct, from microversion 2.99 on). That '
        'proxy is a separate program, which requests the address of the guest with GET '
        '/os-console-auth-tokens. Read by the computes.',
    ),
    cfg.BoolOpt(
        'require_secure',
        default=False,
        help="Make SPICE servers accept only TLS. libvirt's qemu.conf must have spice_tls and its "
        'certificates. kilonova-spicehtml5proxy does not support TLS to them, spice-direct does.',
    ),
    cfg.StrOpt(
        'image_compression',
        choices=['auto_glz', 'auto_lz', 'quic', 'glz', 'lz', 'off'],
        help="Compression of images. Empty: QEMU's default; the same holds for the options below.",
    ),
    cfg.StrOpt('jpeg_compression', choices=['auto', 'never', 'always'], help='JPEG compression on slow links.'),
    cfg.StrOpt('zlib_compression', choices=['auto', 'never', 'always'], help='zlib compression on slow links.'),
    cfg.BoolOpt('playback_compression', help='Compress audio.'),
    cfg.StrOpt(
        'streaming_mode', choices=['filter', 'all', 'off'], help='Which moving images SPICE sends as a video stream.'
    ),
    cfg.HostAddressOpt(
        'html5proxy_host',
        default='0.0.0.0',  # noqa: S104 - the field's default
        help='Address on which kilonova-spicehtml5proxy listens.',
    ),
    cfg.PortOpt('html5proxy_port', default=6082, min=1, help='Port on which kilonova-spicehtml5proxy listens.'),
]
