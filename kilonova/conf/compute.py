"""[compute] options: details of what one host does."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'compute'

OPTS = [
    cfg.IntOpt('consecutive_build_service_disable_threshold', default=10,
               help="Whether failed builds in a row are counted in the node's stats, where the BuildFailureWeigher of "
                    'the scheduler finds them. 0: not counted. The service is never disabled by itself.'),
    cfg.IntOpt('resource_provider_association_refresh', default=300, min=0,
               help='Seconds after which everything that Placement holds of this host is read again, so that changes '
                    'by others are seen; so is a change of enabled and disabled that this host missed. 0: never.'),
    cfg.IntOpt('shutdown_retry_interval', default=10, min=1,
               help='Seconds between two requests to a guest to shut down, within shutdown_timeout.'),
]
