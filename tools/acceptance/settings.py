"""tempest.conf for a one-machine cloud, as text, and the images and flavors that it names.

seen = prepare(cloud)
text = tempest_conf(cloud, seen, Path('build/tempest'))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.cloud import control, identity, image, render, switch
from tools.cloud.http import call, send
from tools.cloud.layout import CloudError
from tools.cloud.services import Cloud
from tools.guest import system

# What the tests need beside the cloud's own configuration: filters of hints, and guests that can be migrated live,
# which serial consoles on ports of their host forbid.
_NEEDED: dict[str, render.Section] = {
    'filter_scheduler': {
        'enabled_filters': (
            'ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,'
            'ServerGroupAffinityFilter,PciPassthroughFilter,NUMATopologyFilter,SameHostFilter,DifferentHostFilter'
        )
    },
    'serial_console': {'enabled': 'false'},
}
# Emulated guests leave little of the CPU to services: what waits for another one waits longer.
_PATIENT: dict[str, render.Section] = {
    'DEFAULT': {'rpc_response_timeout': 60, 'long_rpc_timeout': 600, 'service_down_time': 120},
    **{name: {'timeout': 300} for name in ('neutron', 'cinder', 'glance', 'placement')},
}

# Flavors by name: MiB of memory, GiB of disk. A resize goes from the first to the second.
FLAVORS = {'tempest-small': (128, 1), 'tempest-large': (256, 2)}
OTHER_IMAGE, EXTERNAL = 'demo-alt', switch.OUTSIDE
# Names of the images whose guests one can log in to.
SYSTEMS = ('system', 'system-alt')
# Seconds in which a server has to reach a state; the machine may be busy. Real guests are emulated.
PATIENCE, REAL_PATIENCE = 300, 600


def daemon_settings(guests: str) -> str:
    """Return the configuration file more of a cloud with this kind of guests."""
    return render.ini(_NEEDED | (_PATIENT if guests == 'qemu' else {}))


@dataclass(frozen=True)
class Seen:
    """The images, flavors and networks of a cloud that the tests use.

    It has the ids of two images and of two flavors, and the newest microversion. ``outside`` is the id of the network
    outside of the cloud. ``disk`` is the file of the first image if guests are real.
    """

    images: tuple[str, str]
    flavors: tuple[str, str]
    newest: str
    outside: str
    disk: Path | None = None


def prepare(cloud: Cloud) -> Seen:
    """Make the images and both flavors, unless they are there. CloudError where a service refuses one."""
    keystone = identity.Keystone(render.url(cloud.ports, 'keystone'), cloud.secrets['admin'])
    compute, glance = render.url(cloud.ports, 'api'), render.url(cloud.ports, 'glance')
    disk = system.build(control.GUEST_DIRECTORY) if cloud.machines else None
    if disk:
        # Of two images with the same properties Tempest can't tell one from the other.
        first, other = (image.ensure_system(glance, keystone.token, disk, name) for name in SYSTEMS)
    else:
        image.ensure_image(glance, keystone.token, cloud.layout, OTHER_IMAGE)
        images = {
            row['name']: str(row['id'])
            for row in call('GET', f'{glance}/v2/images', token=keystone.token).data['images']
        }
        first, other = images[image.NAME], images[OTHER_IMAGE]
    for name, (ram, size) in FLAVORS.items():
        reply = send('GET', f'{compute}/flavors/{name}', headers={'X-Auth-Token': keystone.token})
        if reply.status == 404:
            call(
                'POST',
                f'{compute}/flavors',
                {'flavor': {'id': name, 'name': name, 'vcpus': 1, 'ram': ram, 'disk': size}},
                token=keystone.token,
            )
        elif reply.status != 200:
            raise CloudError(f'flavor {name}: {reply.status} {reply.body[:300].decode(errors="replace")}')
    outside = external_network(keystone, render.url(cloud.ports, 'neutron'))
    small, large = FLAVORS
    version = call('GET', f'{compute}/', token=keystone.token).data['version']['version']
    return Seen((first, other), (small, large), str(version), outside, disk)


def external_network(keystone: identity.Keystone, url: str) -> str:
    """Return the id of a network outside of the cloud, for routers and floating addresses; make it if there is none.

    If guests are real, the machine ``outside`` is on it. Otherwise it leads nowhere.
    """
    there = call('GET', f'{url}/v2.0/networks?name={EXTERNAL}', token=keystone.token).data['networks']
    if there:
        return str(there[0]['id'])
    made = call(
        'POST',
        f'{url}/v2.0/networks',
        {
            'network': {
                'name': EXTERNAL,
                'router:external': True,
                'provider:network_type': 'flat',
                'provider:physical_network': EXTERNAL,
            }
        },
        token=keystone.token,
    ).data['network']
    call(
        'POST',
        f'{url}/v2.0/subnets',
        {'subnet': {'network_id': made['id'], 'ip_version': 4, 'cidr': '203.0.113.0/24', 'enable_dhcp': False}},
        token=keystone.token,
    )
    return str(made['id'])


def tempest_conf(cloud: Cloud, seen: Seen, directory: Path) -> str:
    """Return the text of tempest.conf, in which all that Kilonova has is switched on.

    There is no object service. ``directory`` is for logs and locks.
    """
    return render.ini(_sections(cloud, seen, directory))


def _sections(cloud: Cloud, seen: Seen, directory: Path) -> Mapping[str, render.Section]:
    keystone, real = render.url(cloud.ports, 'keystone'), bool(cloud.machines)
    patience = REAL_PATIENCE if real else PATIENCE
    return {
        'DEFAULT': {'log_dir': str(directory), 'log_file': 'tempest.log'},
        'oslo_concurrency': {'lock_path': str(directory / 'lock')},
        'auth': {
            'use_dynamic_credentials': 'true',
            'create_isolated_networks': 'true',
            'admin_username': 'admin',
            'admin_password': cloud.secrets['admin'],
            'admin_project_name': 'admin',
            'admin_domain_name': 'Default',
        },
        'identity': {'auth_version': 'v3', 'uri_v3': keystone, 'region': 'RegionOne', 'v3_endpoint_type': 'public'},
        'identity-feature-enabled': {'api_v2': 'false', 'api_v3': 'true'},
        'service_available': {
            'nova': 'true',
            'glance': 'true',
            'neutron': 'true',
            'cinder': 'true',
            'swift': 'false',
            'horizon': 'false',
        },
        'network': {
            'public_network_id': seen.outside,
            'floating_network_name': EXTERNAL,
            'project_network_cidr': '10.100.0.0/16',
        },
        'volume': {
            'catalog_type': 'block-storage',
            'min_microversion': '3.0',
            'max_microversion': '3.71',
            'volume_type_multiattach': 'shared',
            'build_timeout': patience,
        },
        'volume-feature-enabled': {'backup': 'false'},
        'enforce_scope': {'nova': 'true'},
        'validation': _validation() if real else {'run_validation': 'false'},
        # An answer that waits for the network service may take minutes on a busy machine.
        'service-clients': {'http_timeout': patience},
        'scenario': {'img_file': str(seen.disk), 'img_disk_format': 'qcow2', 'dhcp_client': 'udhcpc'} if real else {},
        'image': {'build_timeout': patience},
        'compute': {
            'image_ref': seen.images[0],
            'image_ref_alt': seen.images[1],
            'flavor_ref': seen.flavors[0],
            'flavor_ref_alt': seen.flavors[1],
            'min_microversion': '2.1',
            'max_microversion': seen.newest,
            'min_compute_nodes': len(cloud.hosts),
            'hypervisor_type': 'QEMU',
            'build_timeout': patience,
            # [DEFAULT]shelved_offload_time of Kilonova is 0 by default, as here.
            'shelved_offload_time': 0,
            **(_between(cloud) if real else {}),
        },
        'network-feature-enabled': {'port_security': 'true'},
        'compute-feature-enabled': _features(real=real),
    }


def _between(cloud: Cloud) -> dict[str, str]:
    """Return the hosts of the tests that move a server from a certain host to another one."""
    source, dest, *_ = sorted(cloud.hosts)
    return {'migration_source_host': source, 'migration_dest_host': dest}


def _validation() -> dict[str, str | int]:
    """Return how tests get into guests: by a floating address, with the key of the server."""
    return {
        'run_validation': 'true',
        'connect_method': 'floating',
        'image_ssh_user': system.USER,
        'image_alt_ssh_user': system.USER,
        'ssh_timeout': REAL_PATIENCE,
        'ping_timeout': REAL_PATIENCE,
        # Emulated guests of a busy machine move in more than five seconds.
        'allowed_network_downtime': 60,
        'allowed_metadata_downtime': 60,
    }


def _features(*, real: bool) -> dict[str, str]:
    """Return what the compute service has, as options. Pretended volumes have no data that could be swapped."""
    on = (
        'disk_config',
        'hostname_fqdn_sanitization',
        'console_output',
        'resize',
        'pause',
        'shelve',
        'shelve_migrate',
        'suspend',
        'cold_migration',
        'live_migration',
        'live_migrate_back_and_forth',
        'metadata_service',
        'block_migration_for_live_migration',
        'can_migrate_between_any_hosts',
        'vnc_console',
        'rescue',
        'stable_rescue',
        'enable_instance_password',
        'snapshot',
        'personality',
        'config_drive',
        'ide_bus',
        'interface_attach',
        'volume_backed_live_migration',
        'volume_multiattach',
    )
    off = (
        'change_password',
        'serial_console',
        'spice_console',
        'attach_encrypted_volume',
        'unified_limits',
        'vtpm_live_migration',
    )
    return (
        dict.fromkeys(on, 'true')
        | dict.fromkeys(off, 'false')
        | {
            'swap_volume': str(real).lower(),
            'scheduler_enabled_filters': 'all',
            'nova_policy_roles': 'admin,manager,member,reader',
        }
    )
