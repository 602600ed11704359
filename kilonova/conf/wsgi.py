"""The [wsgi] options: the number of concurrent requests of the API, and Nova's paste file, which is ignored."""
from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'wsgi'
# The name of the paste file if none is configured.
PASTE = 'api-paste.ini'

OPTS = [
    cfg.IntOpt('default_pool_size', default=100, min=1,
               deprecated_opts=was('wsgi_default_pool_size'),
               help='Requests that one API process works on at once with green threads; more wait. With native '
                    'threads a tenth of it (at least one) is the number of threads, each with one request at a time. '
                    'Connections take part in it only while the application works on their request. 2560 of '
                    'them may be open, as far as the limit of open files allows (256 are kept for other things): '
                    'behind that those that have kept the server waiting the longest are closed. A connection may be '
                    'silent for 75 s between two requests; a head must arrive within 10 s, a body within 30 s, and an '
                    'answer be read within 60 s.'),
    cfg.StrOpt('api_paste_config', default=PASTE,
               deprecated_opts=was('api_paste_config'),
               help='A paste file from an installation of Nova, beside the configuration files or with its whole path. '
                    'Nothing is read from it: the order of the filters in front of the API is part of the program. '
                    'kilonova-api names the file in one WARNING at its start when it is there, or when this option '
                    'is set. What people changed in it is set elsewhere: the largest body by '
                    '[oslo_middleware]max_request_body_size, how tokens are checked by [keystone_authtoken]. Remove '
                    'the file and the option to be rid of the warning.'),
]
