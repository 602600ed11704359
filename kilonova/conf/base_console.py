"""The [DEFAULT] options of the console proxies."""
from __future__ import annotations

from oslo_config import cfg

GROUP = None

OPTS = [
    cfg.StrOpt('web',
               help='Directory of the pages that a proxy of consoles serves. Empty: /usr/share/novnc for '
                    'kilonova-novncproxy, /usr/share/spice-html5 for kilonova-spicehtml5proxy, none for '
                    'kilonova-serialproxy. A directory that is not there: no pages, consoles alone.'),
    cfg.BoolOpt('ssl_only', default=False,
                help='Let the proxies of consoles speak TLS, and nothing else. Set it, or put a proxy that speaks TLS '
                     'in front of them: the address of a console is a secret.'),
    cfg.StrOpt('cert', default='self.pem', help='File with their certificate, for ssl_only.'),
    cfg.StrOpt('key', help='File with the key of the certificate. Empty: it is in the same file.'),
]
