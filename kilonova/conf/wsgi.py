"""The [wsgi] options: the number of concurrent requests of the API, and Nova's paste file, which is ignored."""

from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'wsgi'
# Default value of [wsgi]api_paste_config, the path of Nova's paste file.
PASTE = 'api-paste.ini'

OPTS = [
    cfg.IntOpt(
        'default_pool_size',
        default=100,
        min=1,
        deprecated_opts=was('wsgi_default_pool_size'),
        help='Maximum number of requests that one API process works on at the same time with green threads; '
        'further requests wait. With native threads, a tenth of it (at least 1) is the number of threads, '
        'each with one request at a time. A connection counts only while the application works on its '
        'request. A process keeps at most 2560 connections open, or fewer if the limit of open files is '
        'lower (256 files are reserved for other uses). If there are more, the connections that have '
        'waited the longest for their client are closed. A connection may be idle for 75 s between two '
        'requests. The head of a request must arrive within 10 s and its body within 30 s, and the client '
        'must read the response within 60 s.',
    ),
    cfg.StrOpt(
        'api_paste_config',
        default=PASTE,
        deprecated_opts=was('api_paste_config'),
        help='A paste file of a Nova installation, next to the configuration files or with its full path. '
        'Kilonova does not read it: the order of the filters of the API is part of the program. At its '
        'start kilonova-api logs one WARNING if the file exists or this option is set. Other options '
        'replace what operators change in that file: [oslo_middleware]max_request_body_size is the maximum '
        'size of a body, [keystone_authtoken] sets how tokens are checked. Remove the file and the option '
        'to get rid of the warning.',
    ),
]
