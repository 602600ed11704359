"""[api] options: who may ask, page sizes, links and the admin password."""
from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'api'

OPTS = [
    cfg.StrOpt('auth_strategy', default='keystone', choices=['keystone', 'noauth2'],
               deprecated_opts=was('auth_strategy'),
               help='keystone: tokens are validated by keystonemiddleware, set up in [keystone_authtoken]. noauth2: '
                    'the X-Auth-Token header says user:project and is believed; for tests only.'),
    cfg.IntOpt('max_limit', default=1000, min=0,
               deprecated_opts=was('osapi_max_limit'),
               help='The longest page that a list answers with, whatever limit is asked for.'),
    cfg.IntOpt('max_servers_per_request', default=200, min=1,
               help='Servers that one request may create (max_count), as far as the quota allows as many: of more the '
                    'user is told 400. Each takes some milliseconds of one API process and 100 kB while the request is '
                    'worked on, and nobody else is answered by that process meanwhile. Raise it where projects without '
                    'a quota start larger batches.'),
    cfg.StrOpt('compute_link_prefix', default=None,
               deprecated_opts=was('osapi_compute_link_prefix'),
               help='Scheme, host and path put in front of links to this API, where clients reach it through '
                    'something that hides its own address.'),
    cfg.StrOpt('glance_link_prefix', default=None,
               deprecated_opts=was('osapi_glance_link_prefix'),
               help='Scheme, host and path put in front of links to images at the image service, where clients reach '
                    'it under another address than this API does. Without it: its endpoint.'),
    cfg.BoolOpt('list_records_by_skipping_down_cells', default=True,
                help='What a list of servers does when the database of a cell does not answer: leave its servers '
                     'out (from 2.69 show them as UNKNOWN), or fail.'),
    cfg.BoolOpt('enable_instance_password', default=True,
                deprecated_opts=was('enable_instance_password'),
                help='Whether the answer to a create carries adminPass.'),
]
