"""The options of Nova 27 to 34, by name, and what Kilonova does instead of the options that it lacks.

    nova_options.find(('libvirt', 'inject_password'))    # NovaOption(default='False', ...), None for another name

``nova_options.json`` holds names, defaults and former names; ``tools/nova_options.py`` writes it.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from kilonova.conf.known import Name

# Helpers of Nova and its libraries that run commands as root. Each has a section with the options of [privsep].
PRIVSEP = 'privsep'
PRIVILEGED = (
    'nova_sys_admin',
    'privsep_osbrick',
    'vif_plug_linux_bridge_privileged',
    'vif_plug_ovs_privileged',
)
_NAME = re.compile(r'\[([^]]*)](.*)')


@dataclass(frozen=True)
class NovaOption:
    """An option of Nova. ``default`` is the text of its default, ``former`` the older names that Nova still reads.

    ``until`` is the last release that has the option, or None if Nova 34 has it.
    """

    name: Name
    default: str | None
    former: tuple[Name, ...]
    until: str | None


@functools.cache
def known() -> Mapping[Name, NovaOption]:
    """Return {(section, name): NovaOption} with all options of Nova 27 to 34. Former names are not among the keys."""
    stored = json.loads(importlib.resources.files(__package__).joinpath('nova_options.json').read_text())
    return MappingProxyType(
        {
            _name(text): NovaOption(
                _name(text),
                facts.get('default'),
                tuple(_name(old) for old in facts.get('former', ())),
                facts.get('until'),
            )
            for text, facts in stored.items()
        }
    )


@functools.cache
def _former() -> Mapping[Name, NovaOption]:
    return {old: option for option in known().values() for old in option.former if old not in known()}


def find(name: Name) -> NovaOption | None:
    """Return the option that Nova reads under this current or former name, or None if Nova has none."""
    section, option = name
    if section in PRIVILEGED:
        general = known().get((PRIVSEP, option))
        return None if general is None else replace(general, name=name)
    return known().get(name) or _former().get(name)


def _name(text: str) -> Name:
    found = _NAME.fullmatch(text)
    assert found is not None, text
    return found[1], found[2]


def loss_of(option: NovaOption) -> str:
    """Return a text that says what Kilonova does without an option that it lacks, such as 'there are no shares'."""
    return LOSSES.get(option.name) or SECTIONS.get(option.name[0]) or 'has no counterpart'


# LOSSES has the options of Nova that Kilonova lacks and that users or operators would miss.
# Each value of LOSSES is a text for the operator: what Kilonova does without the option.
LOSSES: Mapping[Name, str] = MappingProxyType(
    {
        ('DEFAULT', 'compute_monitors'): 'hosts report no metrics, so the metrics weigher and filter see none',
        ('DEFAULT', 'enable_new_services'): 'new hosts are enabled as soon as they report',
        ('DEFAULT', 'flat_injected'): 'no network settings are written into guests; use a config drive',
        ('DEFAULT', 'osapi_compute_unique_server_name_scope'): 'two servers may have the same name',
        ('DEFAULT', 'resize_fs_using_block_device'): 'file systems in images are not resized',
        ('DEFAULT', 'vcpu_pin_set'): 'use [compute]cpu_dedicated_set and [compute]cpu_shared_set',
        ('cinder', 'os_region_name'): 'use [cinder]region_name',
        ('cinder', 'catalog_info'): 'use [cinder]service_type, valid_interfaces and region_name',
        ('cinder', 'endpoint_template'): 'use [cinder]endpoint_override',
        ('compute', 'image_type_exclude_list'): 'no image format is kept away from a host',
        ('compute', 'provider_config_location'): 'files with custom inventories and traits of providers are not read; '
        'write the traits with the openstack resource provider commands',
        ('ephemeral_storage_encryption', 'enabled'): 'ephemeral disks are not encrypted',
        ('glance', 'api_servers'): 'use [glance]endpoint_override, or the endpoint in the service catalog',
        ('glance', 'default_trusted_certificate_ids'): 'signatures of images are not verified',
        ('glance', 'enable_certificate_validation'): 'signatures of images are not verified',
        ('glance', 'enable_rbd_download'): 'images are downloaded from the image service by HTTP',
        ('glance', 'verify_glance_signatures'): 'signatures of images are not verified',
        ('libvirt', 'cpu_power_management'): 'dedicated CPUs that no guest uses keep their power state',
        ('libvirt', 'file_backed_memory'): 'the memory of guests is not backed by files',
        ('libvirt', 'gid_maps'): 'there are no containers',
        ('libvirt', 'images_volume_group'): 'disks on LVM are not supported: these servers cannot be taken over',
        ('libvirt', 'inject_key'): 'no keys are written into the disks of guests; they get them as metadata',
        ('libvirt', 'inject_password'): 'no passwords are written into the disks of guests',
        ('libvirt', 'live_migration_parallel_connections'): 'a live migration uses one connection',
        ('libvirt', 'live_migration_tunnelled'): 'use [libvirt]live_migration_with_native_tls',
        ('libvirt', 'max_queues'): 'the number of queues of an interface follows the vCPUs of the guest',
        ('libvirt', 'pmem_namespaces'): 'persistent memory is not supported: these servers cannot be taken over',
        ('libvirt', 'rx_queue_size'): 'virtio interfaces have the queue size that QEMU chooses',
        ('libvirt', 'snapshot_compression'): 'snapshots are uploaded without compression',
        ('libvirt', 'swtpm_enabled'): 'emulated TPMs are not supported: servers with one cannot be taken over',
        ('libvirt', 'tx_queue_size'): 'virtio interfaces have the queue size that QEMU chooses',
        ('libvirt', 'uid_maps'): 'there are no containers',
        ('neutron', 'ovs_bridge'): 'the bridge is the one that the network service names for each port',
        ('neutron', 'physnets'): 'the NUMA nodes of physical networks are not considered',
        ('scheduler', 'discover_hosts_in_cells_interval'): 'map new hosts by kilonova-manage cell_v2 discover_hosts',
        ('scheduler', 'query_placement_for_routed_network_aggregates'): 'segments of routed networks do not limit '
        'the choice of hosts',
    }
)

# Sections of nova.conf that Kilonova lacks.
# Each value is a text for the operator: what Kilonova does without the section.
SECTIONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys((PRIVSEP, *PRIVILEGED), 'commands run with the rights of the daemon, without a helper process'),
        'cache': 'nothing is kept in memcached',
        'hyperv': 'there is no driver for Hyper-V',
        'ironic': 'there is no driver for Ironic',
        'keystone': 'the identity service is asked with the account of [keystone_authtoken]',
        'manila': 'there are no shares',
        'mks': 'there is no driver for VMware',
        'rdp': 'there are no RDP consoles',
        'service_user': "each request for a user carries a service token of this service's own account",
        'vmware': 'there is no driver for VMware',
        'zvm': 'there is no driver for z/VM',
    }
)
