"""The [secrets] options: the keys that seal passwords and files of new servers on their way to the hosts."""
from __future__ import annotations

import os

from oslo_config import cfg

GROUP = 'secrets'

OPTS = [
    cfg.StrOpt('key_file', default=os.path.join(os.sep, 'etc', 'kilonova', 'secrets.keys'),
               help='File of the keys with which the API seals the admin password and the injected files of a new '
                    'server, and with which its host opens them: rows and messages hold nothing of them in clear. '
                    'kilonova-manage secrets create_key makes it, rotate_key changes it; the same file belongs on '
                    'each host of kilonova-api and kilonova-compute, readable for its daemon and for nobody else '
                    '(0600 or 0640). It is read each time it is needed, so a new one needs no restart. Without it (or '
                    'with an empty value) new servers get no admin password, and requests that bring a password or '
                    'files are refused.'),
]
