"""The [api] options: authentication, page sizes, links and the administrator's password."""
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
    cfg.StrOpt('dhcp_domain', default='novalocal',
               deprecated_opts=was('dhcp_domain'),
               help="Domain that is put behind a server's host name in its metadata (config drives, metadata service). "
                    'Empty: none. The API and the computes read it.'),
    cfg.IntOpt('metadata_cache_expiration', default=15, min=0,
               deprecated_opts=was('metadata_cache_expiration'),
               help='Seconds for which the metadata service answers about a server without looking at the database '
                    'again: a guest asks for several documents, one after the other. 0: it always looks.'),
    cfg.ListOpt('vendordata_providers', default=['StaticJSON'],
                deprecated_opts=was('vendordata_providers'),
                help='Where vendordata for guests comes from: StaticJSON (vendordata_jsonfile_path), DynamicJSON '
                     '(vendordata_dynamic_targets). The API and the computes read these options: the first serves '
                     'them, the second write them into config drives.'),
    cfg.StrOpt('vendordata_jsonfile_path',
               deprecated_opts=was('vendordata_jsonfile_path'),
               help='A JSON file that every guest can read as vendor_data.json, 256 KiB at most. It is read anew each '
                    'time.'),
    cfg.ListOpt('vendordata_dynamic_targets', default=[],
                deprecated_opts=was('vendordata_dynamic_targets'),
                help='Services that are asked about each server, as NAME@URL. They get a POST of a JSON object '
                     '(project-id, instance-id, image-id, user-data, hostname, metadata, boot-roles); what they '
                     'answer, JSON of 256 KiB at most, stands in vendor_data2.json under the name.'),
    cfg.StrOpt('vendordata_dynamic_ssl_certfile', default='',
               deprecated_opts=was('vendordata_dynamic_ssl_certfile'),
               help='File of certificates that the services are compared with. Empty: those of '
                    '[vendordata_dynamic_auth]cafile, or of the system.'),
    cfg.IntOpt('vendordata_dynamic_connect_timeout', default=5, min=3,
               deprecated_opts=was('vendordata_dynamic_connect_timeout'),
               help='Seconds that a service may take to accept the connection.'),
    cfg.IntOpt('vendordata_dynamic_read_timeout', default=5, min=0,
               deprecated_opts=was('vendordata_dynamic_read_timeout'),
               help='Seconds that it may take to answer then; 0 counts as 1.'),
    cfg.BoolOpt('vendordata_dynamic_failure_fatal', default=False,
                deprecated_opts=was('vendordata_dynamic_failure_fatal'),
                help='What becomes of a service that does not answer: off, its part is {}; on, a server with a config '
                     'drive is not built, and the metadata service answers 500.'),
]
