"""[wsgi] options: how many requests the API works on at once."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'wsgi'

OPTS = [
    cfg.IntOpt('default_pool_size', default=100, min=1,
               help='Requests that one API process works on at once with green threads; more wait. Ten times as many '
                    'connections may be open; one that is silent for 75 s is closed. With native threads a tenth of '
                    'it (at least one) is the number of threads, each with one request at a time; more requests '
                    'wait, connections without one need no thread.'),
]
