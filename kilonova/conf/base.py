"""The [DEFAULT] options that all daemons share: identity, paths, RPC, heartbeats."""

from __future__ import annotations

import os
import socket

from oslo_config import cfg
from oslo_utils import netutils

GROUP = None

OPTS = [
    cfg.HostDomainOpt(
        'host',
        default=socket.gethostname(),
        sample_default='<current hostname>',
        help='Name of this service in the tables services and compute_nodes, and in its RPC address. '
        'Change it only before the first start of the service.',
    ),
    cfg.StrOpt(
        'my_ip', default=netutils.get_my_ipv4(), sample_default='<host ipv4>', help='Management address of this host.'
    ),
    cfg.StrOpt(
        'my_block_storage_ip',
        default='$my_ip',
        help='Address from which this host reaches the storage of volumes. It is sent to the volume service.',
    ),
    cfg.StrOpt(
        'state_path',
        default=os.path.join(os.sep, 'var', 'lib', 'kilonova'),
        help='Directory for state that must survive a restart, such as the file compute_id.',
    ),
    cfg.IntOpt(
        'report_interval',
        default=10,
        min=1,
        help='Seconds between two heartbeats of a service. Set service_down_time to at least 2.5 times this value.',
    ),
    cfg.IntOpt(
        'service_down_time',
        default=60,
        min=1,
        help='Seconds after the last heartbeat of a service until the service counts as down.',
    ),
    cfg.IntOpt(
        'reclaim_instance_interval',
        default=0,
        min=0,
        help='Seconds for which a deleted server can be restored. In this time the server is powered off and '
        'keeps its host, disks and devices; afterwards it is deleted. 0: servers are deleted immediately. '
        'Set the same value for the API and the conductors. Servers that were soft-deleted before the '
        'value was set to 0 stay until they are restored or deleted by a request.',
    ),
    cfg.IntOpt(
        'rpc_send_timeout',
        default=15,
        min=1,
        help='Maximum seconds until the message broker accepts a message, and until it creates the reply queue '
        'at the first call of a process. After this time the message counts as not sent: a call fails as '
        'if the receiver had not answered, and the work of a cast is done when the conductors next look '
        'for abandoned operations. Raise it if a broker cluster has many nodes: each node that hangs takes '
        '5 s before the next node is tried. A call always ends after the sum of this time and '
        'rpc_response_timeout (or long_rpc_timeout).',
    ),
    cfg.IntOpt(
        'long_rpc_timeout',
        default=1800,
        min=1,
        help='Maximum seconds for a long call (select_destinations, builds, moves), as long as its receiver '
        'keeps sending heartbeats.',
    ),
    cfg.StrOpt(
        'concurrency_backend',
        default='auto',
        choices=['auto', 'eventlet', 'native', 'threading'],
        help='eventlet (auto means the same), or native threads (native and threading mean the same). It is '
        'read before all other options of the daemon; the environment variable KILONOVA_CONCURRENCY '
        'overrides it.',
    ),
]
