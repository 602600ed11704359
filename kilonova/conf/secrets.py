"""The [secrets] options: the keys that encrypt passwords and files of new servers for the servers' hosts."""

from __future__ import annotations

import os

from oslo_config import cfg

GROUP = 'secrets'

OPTS = [
    cfg.StrOpt(
        'key_file',
        default=os.path.join(os.sep, 'etc', 'kilonova', 'secrets.keys'),
        help='File of the keys with which the API encrypts the admin password and the injected files of a new '
        "server, and with which the server's host decrypts them: database rows and messages contain them "
        'only in encrypted form. kilonova-manage secrets create_key creates the file, rotate_key changes '
        'it. Each host of kilonova-api and kilonova-compute needs the same file, readable only for the '
        "daemon's user (0600 or 0640). It is read at each use, so a new file needs no restart. Without it "
        '(or with an empty value) new servers get no admin password, and requests that contain a password '
        'or files are refused.',
    ),
]
