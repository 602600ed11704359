"""[image_cache] options: where a host keeps the images that its servers' disks are built on."""
from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'image_cache'

OPTS = [
    cfg.StrOpt('subdirectory_name', default='_base',
               deprecated_opts=was('image_cache_subdirectory_name'),
               help='Directory of cached images below [DEFAULT]instances_path. Overlays hold its full path: do not '
                    'change it on a host that has servers.'),
]
