"""The [api] options: authentication, page sizes, links and the administrator's password."""

from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'api'

OPTS = [
    cfg.StrOpt(
        'auth_strategy',
        default='keystone',
        choices=['keystone', 'noauth2'],
        deprecated_opts=was('auth_strategy'),
        help='keystone: keystonemiddleware validates tokens, as configured in [keystone_authtoken]. noauth2: '
        'the API trusts the X-Auth-Token header, which has the form user:project; for tests only.',
    ),
    cfg.IntOpt(
        'max_limit',
        default=1000,
        min=0,
        deprecated_opts=was('osapi_max_limit'),
        help='Maximum number of entries in one page of a list, even if the request asks for a larger limit.',
    ),
    cfg.IntOpt(
        'max_servers_per_request',
        default=200,
        min=1,
        help='Maximum number of servers that one request may create (max_count). A request for more fails with '
        '400. The quota of the project applies as well. Each server takes some milliseconds of one API '
        'process and 100 kB of memory while the request is processed, and that process answers no other '
        'request meanwhile. Raise it if projects without a quota create larger batches.',
    ),
    cfg.StrOpt(
        'compute_link_prefix',
        default=None,
        deprecated_opts=was('osapi_compute_link_prefix'),
        help='Scheme, host and path of the links to this API. Set it if clients reach the API through a proxy '
        'that hides its own address.',
    ),
    cfg.StrOpt(
        'glance_link_prefix',
        default=None,
        deprecated_opts=was('osapi_glance_link_prefix'),
        help='Scheme, host and path of the links to images. Set it if clients reach the image service at '
        'another address than this API does. Unset: the endpoint of the image service.',
    ),
    cfg.BoolOpt(
        'list_records_by_skipping_down_cells',
        default=True,
        help='What a list of servers does if the database of a cell does not answer. True: it leaves out the '
        'servers of that cell (from microversion 2.69 on it shows them as UNKNOWN). False: it fails.',
    ),
    cfg.BoolOpt(
        'enable_instance_password',
        default=True,
        deprecated_opts=was('enable_instance_password'),
        help='Whether the response to a create contains adminPass.',
    ),
    cfg.StrOpt(
        'dhcp_domain',
        default='novalocal',
        deprecated_opts=was('dhcp_domain'),
        help="Domain that is appended to a server's host name in its metadata (config drives, metadata "
        'service). Empty: no domain. The API and the computes read it.',
    ),
    cfg.IntOpt(
        'metadata_cache_expiration',
        default=15,
        min=0,
        deprecated_opts=was('metadata_cache_expiration'),
        help='Seconds for which the metadata service keeps the data of a server in memory. A guest usually '
        'requests several documents one after the other; within this time they need no database query. 0: '
        'the service queries the database for each request.',
    ),
    cfg.ListOpt(
        'vendordata_providers',
        default=['StaticJSON'],
        deprecated_opts=was('vendordata_providers'),
        help='Sources of vendordata for guests: StaticJSON (vendordata_jsonfile_path), DynamicJSON '
        '(vendordata_dynamic_targets). The API and the computes read these options: the API for the '
        'metadata service, the computes for config drives.',
    ),
    cfg.StrOpt(
        'vendordata_jsonfile_path',
        deprecated_opts=was('vendordata_jsonfile_path'),
        help='A JSON file of at most 256 KiB that every guest can read as vendor_data.json. It is read again '
        'for each request.',
    ),
    cfg.ListOpt(
        'vendordata_dynamic_targets',
        default=[],
        deprecated_opts=was('vendordata_dynamic_targets'),
        help='Services that return vendordata for each server, as NAME@URL. Each receives a POST with a JSON '
        'object (project-id, instance-id, image-id, user-data, hostname, metadata, boot-roles). Its '
        'response, JSON of at most 256 KiB, is added to vendor_data2.json under the name.',
    ),
    cfg.StrOpt(
        'vendordata_dynamic_ssl_certfile',
        default='',
        deprecated_opts=was('vendordata_dynamic_ssl_certfile'),
        help='File of CA certificates for verifying the vendordata services. Empty: those of '
        '[vendordata_dynamic_auth]cafile, or of the system.',
    ),
    cfg.IntOpt(
        'vendordata_dynamic_connect_timeout',
        default=5,
        min=3,
        deprecated_opts=was('vendordata_dynamic_connect_timeout'),
        help='Maximum seconds for connecting to a vendordata service.',
    ),
    cfg.IntOpt(
        'vendordata_dynamic_read_timeout',
        default=5,
        min=0,
        deprecated_opts=was('vendordata_dynamic_read_timeout'),
        help='Maximum seconds for the response of a vendordata service after the connection is made; 0 counts as 1.',
    ),
    cfg.BoolOpt(
        'vendordata_dynamic_failure_fatal',
        default=False,
        deprecated_opts=was('vendordata_dynamic_failure_fatal'),
        help='What happens if a vendordata service does not answer. False: its part of the vendordata is {}. '
        'True: the build of a server with a config drive fails, and the metadata service answers 500.',
    ),
]
