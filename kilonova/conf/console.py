"""The [console] options: the connections that console proxies accept."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'console'

OPTS = [
    cfg.ListOpt(
        'allowed_origins',
        default=[],
        help="Host names, without port, of web pages that may open consoles in addition to the proxy's own: "
        'those of a dashboard that embeds consoles in its pages.',
    ),
    cfg.StrOpt(
        'ssl_ciphers',
        help='OpenSSL cipher list of the proxies for TLS 1.2, if [DEFAULT]ssl_only is set. Empty: the default '
        'of the library.',
    ),
    cfg.StrOpt(
        'ssl_minimum_version',
        default='default',
        choices=['default', 'tlsv1_1', 'tlsv1_2', 'tlsv1_3'],
        help='Oldest TLS version that the proxies accept, if [DEFAULT]ssl_only is set.',
    ),
]
