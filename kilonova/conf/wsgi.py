"""[wsgi] options: how many requests the API works on at once."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'wsgi'

OPTS = [
    cfg.IntOpt('default_pool_size', default=100, min=1,
               help='Requests that one API process works on at once; more wait. Under native threads a tenth of it '
                    'is the number of threads that are started, all of it the number that may queue.'),
]
