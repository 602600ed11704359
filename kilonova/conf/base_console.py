"""The [DEFAULT] options of the console proxies."""

from __future__ import annotations

from oslo_config import cfg

GROUP = None

OPTS = [
    cfg.StrOpt(
        'web',
        help='Directory of the pages that a console proxy serves. Empty: /usr/share/novnc for '
        'kilonova-novncproxy, /usr/share/spice-html5 for kilonova-spicehtml5proxy, none for '
        'kilonova-serialproxy. If the directory does not exist, the proxy serves consoles but no pages.',
    ),
    cfg.BoolOpt(
        'ssl_only',
        default=False,
        help='Make the console proxies accept only TLS. Set it, or put a proxy that terminates TLS in front of '
        'them: the address of a console is a secret.',
    ),
    cfg.StrOpt('cert', default='self.pem', help='File with the certificate of the console proxies, for ssl_only.'),
    cfg.StrOpt('key', help='File with the key of the certificate. Empty: the key is in the file of the certificate.'),
]
