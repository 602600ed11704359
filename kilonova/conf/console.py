"""The [console] options: the connections that console proxies accept."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'console'

OPTS = [
    cfg.ListOpt('allowed_origins', default=[],
                help="Host names, without port, of pages besides the proxy's own that may open consoles: those of a "
                     'dashboard that shows them within its pages.'),
    cfg.StrOpt('ssl_ciphers',
               help='OpenSSL cipher list of the proxies for TLS 1.2, where [DEFAULT]ssl_only is set. Empty: that of '
                    'the library.'),
    cfg.StrOpt('ssl_minimum_version', default='default', choices=['default', 'tlsv1_1', 'tlsv1_2', 'tlsv1_3'],
               help='Oldest TLS that the proxies accept, where [DEFAULT]ssl_only is set.'),
]
