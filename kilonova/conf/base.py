"""The [DEFAULT] options that all daemons share: identity, paths, RPC, heartbeats."""
from __future__ import annotations

import os
import socket

from oslo_config import cfg
from oslo_utils import netutils

GROUP = None

OPTS = [
    cfg.HostDomainOpt('host', default=socket.gethostname(), sample_default='<current hostname>',
                      help='Name of this service: its row in services and compute_nodes and its part of the RPC '
                           'address. Change it only before the service first starts.'),
    cfg.StrOpt('my_ip', default=netutils.get_my_ipv4(), sample_default='<host ipv4>',
               help='Management address of this host.'),
    cfg.StrOpt('my_block_storage_ip', default='$my_ip',
               help='Address from which this host reaches the storage of volumes, for the volume service.'),
    cfg.StrOpt('state_path', default=os.path.join(os.sep, 'var', 'lib', 'kilonova'),
               help='Directory of state that must survive a restart; the compute_id file lives here.'),
    cfg.IntOpt('report_interval', default=10, min=1,
               help='Seconds between two heartbeats of a service. Keep service_down_time at 2.5 times or more.'),
    cfg.IntOpt('service_down_time', default=60, min=1,
               help='Age in seconds of the last heartbeat at which a service counts as down.'),
    cfg.IntOpt('reclaim_instance_interval', default=0, min=0,
               help='Seconds for which a deleted server can be restored: it is off, keeps its host, disks and devices, '
                    'and is deleted when they are over. 0: a delete deletes at once. The API and the conductors read '
                    'it, give both the same value. Servers that were soft-deleted before it was set to 0 stay until '
                    'somebody restores or deletes them.'),
    cfg.IntOpt('rpc_send_timeout', default=15, min=1,
               help='Seconds that the broker may take to accept a message, and to open the queue for the replies of a '
                    'process with its first call. Then the message counts as not sent: a call ends as if nobody had '
                    'answered, a cast is left to the sweep of the conductors. Raise it where a cluster of brokers has '
                    'many nodes: each that hangs takes 5 s before the next is asked. A call ends after this time and '
                    'rpc_response_timeout (or long_rpc_timeout) together, whatever happens.'),
    cfg.IntOpt('long_rpc_timeout', default=1800, min=1,
               help='Seconds that a long call (select_destinations, builds, moves) may take while its server '
                    'keeps sending heartbeats.'),
    cfg.StrOpt('concurrency_backend', default='auto', choices=['auto', 'eventlet', 'native', 'threading'],
               help='eventlet (what auto means) or native threads (native, threading). Read before anything else '
                    'of the daemon; the environment variable KILONOVA_CONCURRENCY wins over it.'),
]
