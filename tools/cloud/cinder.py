"""Cinder, the volume service, in the one-machine cloud (``make up VOLUME=1``).

This file writes its configuration and makes the types of its volumes.

    text = cinder.conf(layout, ports, secrets)
    cinder.seed(url, token)

It is one process (``cinder_process``) with a back end that stores nothing (``pretended_volumes``): volumes have every
state that Cinder gives them, and no data. If guests are real, volumes are files (``volume_files``) in a directory that
all hosts have, which each takes for a share of NFS.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from tools.cloud import http, render
from tools.cloud.layout import Layout

BACKEND, FILES = 'pretended', 'files'
# What the share of real volumes is called.
SHARE = '127.0.0.1:/volumes'
# {name: what tells the back end and Cinder's scheduler about its volumes}; a volume is of the first one unless its user
# says otherwise.
TYPES: dict[str, dict[str, str]] = {
    'rbd': {'connection:kind': 'rbd'},
    'shared': {'connection:kind': 'rbd', 'multiattach': '<is> True'},
    'iscsi': {'connection:kind': 'iscsi'},
    'encrypted': {'connection:kind': 'rbd'},
    'fast': {'connection:kind': 'rbd', 'connection:pool': 'fast'},
}
ENCRYPTED = {
    'encrypted': {'provider': 'luks', 'cipher': 'aes-xts-plain64', 'key_size': 256, 'control_location': 'front-end'}
}
DEFAULT_TYPE = next(iter(TYPES))
# The same of volumes in files.
STORED_TYPES: dict[str, dict[str, str]] = {'files': {}, 'shared': {'multiattach': '<is> True'}, 'encrypted': {}}


def types(*, stored: bool) -> dict[str, dict[str, str]]:
    """Return the types that there are; the first one is the default."""
    return STORED_TYPES if stored else TYPES


def conf(layout: Layout, ports: Mapping[str, int], secrets: Mapping[str, str], *, stored: bool = False) -> str:
    """Return cinder.conf. ``stored``: volumes have data."""
    backend = FILES if stored else BACKEND
    account = render.account(ports, secrets, 'cinder')
    data = layout.data('cinder')
    return render.ini(
        {
            'DEFAULT': {
                'host': 'volumes',
                'my_ip': '127.0.0.1',
                'log_file': str(layout.log('cinder')),
                'state_path': str(data),
                'api_paste_config': str(layout.cinder_venv / 'etc' / 'cinder' / 'api-paste.ini'),
                'resource_query_filters_file': str(layout.cinder_venv / 'etc' / 'cinder' / 'resource_filters.json'),
                'osapi_volume_listen': '127.0.0.1',
                'osapi_volume_listen_port': ports['cinder'],
                # Within the process.
                'transport_url': 'fake:/',
                'glance_api_servers': render.url(ports, 'glance'),
                'enabled_backends': backend,
                'default_volume_type': next(iter(types(stored=stored))),
                # The scheduler waits so long for the back end's report at the start.
                'scheduler_driver_init_wait_time': 1,
                'report_interval': 5,
                'service_down_time': 20,
            },
            backend: (_files(layout) if stored else {'volume_driver': 'tools.cloud.pretended_volumes.Driver'})
            | {'volume_backend_name': backend},
            'database': render.services_database(layout, 'cinder'),
            'keystone_authtoken': render.token_check(ports, secrets, 'cinder')
            | {'service_token_roles_required': 'true'},
            # It asks the compute API in the catalog whose an attachment is that a user deletes.
            'nova': account,
            'service_user': account | {'send_service_user_token': 'true'},
            'key_manager': {
                'backend': 'cinder.keymgr.conf_key_mgr.ConfKeyManager',
                'fixed_key': render.volume_key(secrets),
            },
            'coordination': {'backend_url': f'file://{data}'},
            'oslo_concurrency': {'lock_path': str(layout.var / 'lock')},
            'oslo_messaging_notifications': {'driver': 'noop'},
        }
    )


def _files(layout: Layout) -> dict[str, str]:
    """Return the options of volumes in files."""
    return {
        'volume_driver': 'tools.cloud.volume_files.Driver',
        'nfs_shares_config': str(shares_path(layout)),
        'nfs_mount_point_base': str(shares(layout)),
        'nfs_snapshot_support': 'true',
        'nas_secure_file_operations': 'false',
        'nas_secure_file_permissions': 'false',
    }


def shares(layout: Layout) -> Path:
    """Return the directory in which each share is a directory."""
    return layout.var / 'shares'


def share_path(layout: Layout) -> Path:
    """Return the directory of SHARE: os-brick calls it so."""
    return shares(layout) / hashlib.md5(SHARE.encode(), usedforsecurity=False).hexdigest()


def shares_path(layout: Layout) -> Path:
    """Return the file that names the shares."""
    return layout.etc / 'cinder' / 'shares'


def conf_path(layout: Layout) -> Path:
    """Return the path of cinder.conf."""
    return layout.etc / 'cinder' / 'cinder.conf'


def more_path(layout: Layout) -> Path:
    """Return the path of one more file that Cinder reads if it exists, for another back end."""
    return layout.etc / 'cinder' / 'more.conf'


def seed(url: str, token: str, wanted: Mapping[str, dict[str, str]] = TYPES) -> bool:
    """Make the types of volumes that are missing; return whether any was."""
    there = {row['name'] for row in http.call('GET', f'{url}/types?is_public=None', token=token).data['volume_types']}
    for name in wanted.keys() - there:
        made = http.call(
            'POST', f'{url}/types', {'volume_type': {'name': name, 'extra_specs': wanted[name]}}, token=token
        ).data['volume_type']
        if name in ENCRYPTED:
            http.call('POST', f'{url}/types/{made["id"]}/encryption', {'encryption': ENCRYPTED[name]}, token=token)
    return not there.issuperset(wanted)
