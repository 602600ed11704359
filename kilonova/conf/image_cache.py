"""The [image_cache] options: the directory with the base images of the servers' disks on a host."""

from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'image_cache'

OPTS = [
    cfg.IntOpt(
        'manager_interval',
        default=2400,
        min=-1,
        deprecated_opts=was('image_cache_manager_interval'),
        help="Seconds between two checks of a host's image cache. A check removes images that no disk uses and "
        'that were not used for remove_unused_original_minimum_age_seconds. 0: the default period of 60 s; '
        '-1: never.',
    ),
    cfg.BoolOpt(
        'remove_unused_base_images',
        default=True,
        deprecated_opts=was('remove_unused_base_images'),
        help='Remove cached images that no disk uses. Off: the checks only record which images are in use, and '
        'the cache grows with every image.',
    ),
    cfg.IntOpt(
        'remove_unused_original_minimum_age_seconds',
        default=24 * 3600,
        min=0,
        deprecated_opts=was('remove_unused_original_minimum_age_seconds'),
        help='Seconds for which a cached image is kept after its last use: the boot of a server, a move, or a '
        'check that found it in use. At least 10 minutes, because a disk that will use the image may not '
        'be created yet. Lower it if disk space is short and there are many images; an image that is '
        'needed again is downloaded again.',
    ),
    cfg.StrOpt(
        'subdirectory_name',
        default='_base',
        deprecated_opts=was('image_cache_subdirectory_name'),
        help='Directory of cached images in [DEFAULT]instances_path. Overlays contain its full path: do not '
        'change it on a host that has servers.',
    ),
]
