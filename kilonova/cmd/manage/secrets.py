"""kilonova-manage secrets: manage the keys that encrypt passwords and files of new servers ([secrets]key_file)."""

from __future__ import annotations

import argparse

from kilonova.cmd.cli import Cloud, Command

COPY = (
    'Copy it to each host of kilonova-compute and kilonova-api, and make it readable there only for the user of '
    'the daemon.'
)


def create_key(cloud: Cloud, args: argparse.Namespace) -> int:
    """Create the key file. An existing file stays as it is. Exit code 1: the file cannot be created or used."""
    from kilonova import sealing

    path = cloud.conf.secrets.key_file
    try:
        if path and sealing.create_file(path):
            print(f'Created {path}. {COPY}')
            return 0
        sealing.SealingKeys.read(path)
    except (sealing.NoKeys, OSError) as error:
        print(error)
        return 1
    print(f'{path} already has keys.')
    return 0


def rotate_key(cloud: Cloud, args: argparse.Namespace) -> int:
    """Rotate the keys in the key file.

    The first key encrypts; all keys decrypt. The last key becomes the first one, the former first key is kept, a new
    last key is added, and other keys are deleted. Copy the new file to all hosts, in any order, before the next
    rotation. Exit code 1: there are no keys, or the file cannot be written.
    """
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
