"""The [key_manager] options: the store of the keys of encrypted volumes.

The library castellan has further options in this section.
"""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'key_manager'

OPTS = [
    cfg.StrOpt('fixed_key', secret=True,
               help='Key of all volumes that Cinder encrypts with its own fixed_key (they have a key id of zeros), in '
                    'hexadecimal digits; give it the same value as [key_manager]fixed_key of cinder.conf. For trials: '
                    'whoever reads either file reads all these volumes. Read by kilonova-compute.'),
]
