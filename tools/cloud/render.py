"""The configuration files of the cloud, as text: pure functions from ports and passwords.

text = ini({'DEFAULT': {'debug': 'false'}, 'pci': {'alias': ['{...}', '{...}']}})
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from tools.cloud.layout import Layout
from tools.cloud.ports import WATCHED

Section = Mapping[str, str | int | Sequence[str]]

# Needed by api, scheduler, conductor and compute alike. The A16 entries name resource classes, as PF and VF of
# one card have the same product id.
ALIASES: tuple[dict[str, str], ...] = (
    {'name': 'QuadroM4000-video', 'vendor_id': '10de', 'product_id': '13f1', 'device_type': 'type-PCI'},
    {
        'name': 'A16-VF',
        'vendor_id': '10de',
        'product_id': '25b6',
        'device_type': 'type-VF',
        'resource_class': 'CUSTOM_A16_VF',
    },
    {
        'name': 'A16',
        'vendor_id': '10de',
        'product_id': '25b6',
        'device_type': 'type-PF',
        'resource_class': 'CUSTOM_A16',
    },
)


def ini(sections: Mapping[str, Section]) -> str:
    """Return a file of oslo.config. A list becomes the option repeated. ``$`` is literal, not oslo's substitution."""
    lines: list[str] = []
    for name, options in sections.items():
        lines.append(f'[{name}]')
        for option, value in options.items():
            values = [value] if isinstance(value, str | int) else value
            lines += [f'{option} = {str(item).replace("$", "$$")}' for item in values]
        lines.append('')
    return '\n'.join(lines)


def url(ports: Mapping[str, int], service: str) -> str:
    """Return the URL of a service. Those of Keystone, Cyborg, Cinder and the compute API have their version."""
    path = {'keystone': '/v3', 'api': '/v2.1', 'cyborg': '/v2', 'cinder': '/v3'}.get(service, '')
    return f'http://127.0.0.1:{ports[service]}{path}'


def broker(ports: Mapping[str, int], secrets: Mapping[str, str]) -> str:
    """Return the URL of RabbitMQ."""
    return f'rabbit://kilonova:{secrets["rabbitmq"]}@127.0.0.1:{ports["rabbitmq"]}/'


def sqlite(path: Path) -> str:
    """Return the URL of a database of SQLite."""
    return f'sqlite:///{path}'


def account(ports: Mapping[str, int], secrets: Mapping[str, str], user: str) -> dict[str, str | int]:
    """Return the options by which a service logs in to Keystone under its own account."""
    return {
        'auth_type': 'password',
        'auth_url': url(ports, 'keystone'),
        'username': user,
        'password': secrets[user],
        'project_name': 'service',
        'user_domain_name': 'Default',
        'project_domain_name': 'Default',
        'region_name': 'RegionOne',
    }


def token_check(ports: Mapping[str, int], secrets: Mapping[str, str], user: str) -> dict[str, str | int]:
    """Return the options by which a service has tokens checked."""
    return account(ports, secrets, user) | {'www_authenticate_uri': url(ports, 'keystone')}


def services_database(layout: Layout, service: str) -> dict[str, str | int]:
    """Return the options of the SQLite file of a service."""
    # Without fsync a write costs a hundredth; what a killed process wrote is still there.
    return {'connection': sqlite(layout.data(service) / f'{service}.sqlite'), 'sqlite_synchronous': 'false'}


def keystone(layout: Layout) -> str:
    """Return the text of keystone.conf."""
    data = layout.data('keystone')
    return ini(
        {
            'DEFAULT': {'log_file': str(layout.log('keystone')), 'notification_format': 'basic'},
            'database': services_database(layout, 'keystone'),
            'token': {'provider': 'fernet', 'expiration': 86400},
            'fernet_tokens': {'key_repository': str(data / 'fernet-keys')},
            'fernet_receipts': {'key_repository': str(data / 'fernet-keys')},
            'credential': {'key_repository': str(data / 'credential-keys')},
            'cache': {'enabled': 'true', 'backend': 'dogpile.cache.memory'},
            # The passwords are random; the lowest cost keeps each log-in in milliseconds.
            'identity': {'password_hash_rounds': 4},
            'oslo_messaging_notifications': {'driver': 'noop'},
        }
    )


def glance(layout: Layout, ports: Mapping[str, int], secrets: Mapping[str, str]) -> str:
    """Return the text of glance-api.conf."""
    data = layout.data('glance')
    return ini(
        {
            'DEFAULT': {
                'log_file': str(layout.log('glance')),
                'enabled_backends': 'local:file',
                'node_staging_uri': f'file://{data / "staging"}',
                'worker_self_reference_url': url(ports, 'glance'),
            },
            'database': services_database(layout, 'glance'),
            'glance_store': {'default_backend': 'local'},
            'local': {'filesystem_store_datadir': str(data / 'images')},
            'os_glance_staging_store': {'filesystem_store_datadir': str(data / 'staging')},
            'os_glance_tasks_store': {'filesystem_store_datadir': str(data / 'tasks')},
            'keystone_authtoken': token_check(ports, secrets, 'glance'),
            'paste_deploy': {
                'flavor': 'keystone',
                'config_file': str(layout.services_venv / 'etc' / 'glance' / 'glance-api-paste.ini'),
            },
            'oslo_concurrency': {'lock_path': str(layout.var / 'lock')},
            'oslo_messaging_notifications': {'driver': 'noop'},
        }
    )


def placement(layout: Layout, ports: Mapping[str, int], secrets: Mapping[str, str]) -> str:
    """Return the text of placement.conf."""
    return ini(
        {
            'DEFAULT': {'log_file': str(layout.log('placement'))},
            'api': {'auth_strategy': 'keystone'},
            'placement_database': services_database(layout, 'placement') | {'sync_on_startup': 'true'},
            'keystone_authtoken': token_check(ports, secrets, 'placement'),
        }
    )


def gunicorn(ports: Mapping[str, int], service: str) -> str:
    """Return gunicorn.conf.py of a service.

    Each has one process with one thread: with more of them Placement answers 500 (SQLite: "database is locked"). Glance
    has four threads: a client that uploads an image while it still downloads another one would wait without end for the
    only one. Connections stay open between requests: a worker that closes them waits up to two seconds for the client
    to do so, too.
    """
    settings = {
        'wsgi_app': f'{service}.wsgi.api:application',
        'bind': f'127.0.0.1:{ports[service]}',
        'worker_class': 'gthread',
        'workers': 1,
        'threads': 4 if service == 'glance' else 1,
        'keepalive': 3600,
        'timeout': 120,
        'loglevel': 'warning',
        'control_socket_disable': True,
    }
    return (_LOCK_FIRST if service == 'glance' else '') + ''.join(
        f'{name} = {value!r}\n' for name, value in settings.items()
    )


# Of two threads that read and then write, SQLite refuses one at once ("database is locked"), and Glance doesn't try a
# deleted location again. With the lock taken before the first read the second one waits.
_LOCK_FIRST = """def post_fork(server, worker):
    from sqlalchemy import Engine, event

    @event.listens_for(Engine, 'before_cursor_execute', retval=True)
    def lock_first(connection, cursor, statement, parameters, context, executemany):
        return 'BEGIN IMMEDIATE' if statement == 'BEGIN' else statement, parameters


"""


def rabbitmq(layout: Layout, ports: Mapping[str, int], secrets: Mapping[str, str]) -> str:
    """Return the text of rabbitmq.conf."""
    return '\n'.join(
        [
            f'listeners.tcp.1 = 127.0.0.1:{ports["rabbitmq"]}',
            'default_user = kilonova',
            f'default_pass = {secrets["rabbitmq"]}',
            'log.console = false',
            f'log.file = {layout.log("rabbitmq")}',
            'log.file.level = warning',
            # One machine that others use too: stop publishers only when it is nearly full.
            'vm_memory_high_watermark.relative = 0.8',
            'disk_free_limit.absolute = 100MB',
            '',
        ]
    )


def volume_key(secrets: Mapping[str, str]) -> str:
    """Return the key of all encrypted volumes: 32 bytes in hexadecimal digits."""
    return hashlib.sha256(secrets['cinder'].encode()).hexdigest()


def kilonova(
    layout: Layout,
    ports: Mapping[str, int],
    secrets: Mapping[str, str],
    *,
    accelerators: bool = False,
    networks: bool = False,
    volumes: bool = False,
    metadata: bool = False,
) -> str:
    """Return the text of kilonova.conf, which all four daemons and kilonova-manage read.

    ``accelerators``: there is Cyborg; ``networks``: there is Neutron; ``volumes``: there is Cinder; ``metadata``:
    Neutron's agents ask for it.
    """
    databases = layout.data('kilonova')
    proxy: dict[str, str | int] = {
        'service_metadata_proxy': 'true',
        'metadata_proxy_shared_secret': secrets['metadata'],
    }
    return ini(
        {
            'DEFAULT': {
                'transport_url': broker(ports, secrets),
                'my_ip': '127.0.0.1',
                'state_path': str(layout.data('kilonova')),
                'osapi_compute_listen': '127.0.0.1',
                'osapi_compute_listen_port': ports['api'],
                # One process each: more of them cost memory, and on one machine nobody needs them.
                'osapi_compute_workers': 1,
                'compute_driver': 'libvirt.LibvirtDriver',
                # Short, so that a daemon that dies is noticed while somebody watches.
                'rpc_response_timeout': 10,
                'long_rpc_timeout': 120,
                'report_interval': 2,
                'service_down_time': 10,
                'initial_disk_allocation_ratio': '100.0',
                **(
                    {
                        'enabled_apis': 'osapi_compute, metadata',
                        'metadata_listen': '127.0.0.1',
                        'metadata_listen_port': ports['metadata'],
                    }
                    if metadata
                    else {}
                ),
            },
            'conductor': {'workers': 1},
            'scheduler': {'workers': 1},
            'health': {f'{name}_port': ports[f'health-{name}'] for name in WATCHED},
            'api': {'auth_strategy': 'keystone'},
            'api_database': {'connection': sqlite(databases / 'api.sqlite')},
            'database': {'connection': sqlite(databases / 'cell1.sqlite')},
            'keystone_authtoken': token_check(ports, secrets, 'kilonova'),
            'placement': account(ports, secrets, 'kilonova'),
            'glance': account(ports, secrets, 'kilonova'),
            **({'cyborg': account(ports, secrets, 'kilonova')} if accelerators else {}),
            **({'neutron': account(ports, secrets, 'kilonova') | (proxy if metadata else {})} if networks else {}),
            **(
                {'cinder': account(ports, secrets, 'kilonova'), 'key_manager': {'fixed_key': volume_key(secrets)}}
                if volumes
                else {}
            ),
            'pci': {'alias': [json.dumps(alias) for alias in ALIASES]},
            'secrets': {'key_file': str(layout.keys)},
            'filter_scheduler': {'pci_in_placement': 'true'},
            'vnc': {
                'novncproxy_host': '127.0.0.1',
                'novncproxy_port': ports['novncproxy'],
                'novncproxy_base_url': f'http://127.0.0.1:{ports["novncproxy"]}/vnc_lite.html',
            },
            'serial_console': {
                'enabled': 'true',
                'serialproxy_host': '127.0.0.1',
                'serialproxy_port': ports['serialproxy'],
                'base_url': f'ws://127.0.0.1:{ports["serialproxy"]}/',
            },
            'quota': {'instances': 1000, 'cores': 10000, 'ram': 64 * 1024 * 1024},
        }
    )


def compute(
    layout: Layout,
    ports: Mapping[str, int],
    host: str,
    node_file: Path,
    settings: str,
    machine: tuple[str, str] | None = None,
    *,
    share: Path | None = None,
) -> str:
    """Return compute-HOST.conf: what is that host's own, then ``settings``, the text of its description's ``.conf``.

    ``machine`` is its address and the kind of its guests if these are real; ``share`` is the directory of the shares
    with their volumes.
    """
    libvirt: dict[str, str | int] = {'virt_type': machine[1] if machine else 'qemu'}
    if machine is None:
        libvirt['connection_uri'] = f'test://{quote(str(node_file))}'
    if share is not None:
        libvirt['nfs_mount_point_base'] = str(share)
    own = ini(
        {
            'DEFAULT': {
                'host': host,
                'state_path': str(layout.host(host)),
                'instances_path': str(layout.instances(host)),
                'resume_guests_state_on_host_boot': 'true',
                **({'my_ip': machine[0]} if machine else {}),
            },
            'libvirt': libvirt,
            **(_consoles(machine[0]) if machine else {}),
            'pci': {'report_in_placement': 'true'},
            'health': {'compute_port': ports[f'health-compute-{host}']},
        }
    )
    return own + (f'\n{settings}' if settings else '')


def _consoles(address: str) -> dict[str, dict[str, str]]:
    """Return the options of the consoles of a machine's guests, which listen at its address."""
    return {
        'vnc': {'server_listen': address, 'server_proxyclient_address': address},
        'serial_console': {'proxyclient_address': address},
    }


def clouds(ports: Mapping[str, int], secrets: Mapping[str, str]) -> str:
    """Return the text of clouds.yaml with an administrator and a plain member of another project."""
    text = 'clouds:\n'
    for name, user, project in (('kilonova-admin', 'admin', 'admin'), ('kilonova-demo', 'demo', 'demo')):
        text += (
            f'  {name}:\n'
            f'    auth:\n'
            f'      auth_url: {url(ports, "keystone")}\n'
            f'      username: {user}\n'
            f'      password: {secrets[user]}\n'
            f'      project_name: {project}\n'
            f'      user_domain_name: Default\n'
            f'      project_domain_name: Default\n'
            f'    region_name: RegionOne\n'
            f'    identity_api_version: 3\n'
        )
    return text
