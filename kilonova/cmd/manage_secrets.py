"""kilonova-manage secrets: the keys that seal passwords and files of new servers ([secrets]key_file)."""
from __future__ import annotations

import argparse

from kilonova.cmd.cli import Cloud, Command

COPY = ('Copy it to each host of kilonova-compute and kilonova-api, where its daemon must be able to read it and '
        'others must not.')


def create_key(cloud: Cloud, args: argparse.Namespace) -> int:
    """Make the file of keys; one that is there stays as it is. 1: it can't be made, or used."""
    from kilonova import sealing
    path = cloud.conf.secrets.key_file
    try:
        if path and sealing.create_file(path):
            print(f'Made {path}. {COPY}')
            return 0
        sealing.Keys.read(path)
    except (sealing.NoKeys, OSError) as error:
        print(error)
        return 1
    print(f'{path} has keys already.')
    return 0


def rotate_key(cloud: Cloud, args: argparse.Namespace) -> int:
    """Seal with the next key from now on, and make the one after it. Copies may arrive on the hosts in any order, but
    all of them before the next rotation. 1: there are no keys, or the file can't be written."""
    from kilonova import sealing
    path = cloud.conf.secrets.key_file
    try:
        count = sealing.rotate_file(path)
    except (sealing.NoKeys, OSError) as error:
        print(error)
        return 1
    print(f'{path} has {count} keys now. {COPY}')
    return 0


SECRETS = {'create_key': Command(create_key), 'rotate_key': Command(rotate_key)}
