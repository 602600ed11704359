"""[scheduler]: how a select asks Placement and how many hosts it names."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'scheduler'

OPTS: list[cfg.Opt] = [
    cfg.IntOpt('max_attempts', default=3, min=1,
               help='How many hosts a build or move may try. A select names one host and max_attempts - 1 alternates; '
                    '1 means no second try.'),
    cfg.IntOpt('max_placement_results', default=1000, min=1,
               help='How many allocation candidates Placement is asked for. Too small a number in a large cloud hides '
                    'hosts from filters and weighers; hints for groups, other hosts and one host lift it.'),
    cfg.BoolOpt('query_placement_for_image_type_support', default=False,
                help="Ask Placement for hosts that can boot the image's disk format (their COMPUTE_IMAGE_TYPE_* "
                     'traits).'),
]
