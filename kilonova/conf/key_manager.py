"""The [key_manager] options: the store of the keys of encrypted volumes.

The library castellan has further options in this section.
"""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'key_manager'

OPTS = [
    cfg.StrOpt(
        'fixed_key',
        secret=True,
        help='Key of all volumes that Cinder encrypts with its own fixed_key (their key id consists of zeros), '
        'in hexadecimal digits. It must have the value of [key_manager]fixed_key in cinder.conf. For tests '
        'only: anybody who can read one of the two files can read all these volumes. Read by '
        'kilonova-compute.',
    ),
]
