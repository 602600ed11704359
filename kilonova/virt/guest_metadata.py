"""Metadata of a server in the formats of OpenStack and EC2, for config drives and the metadata service.

    about = GuestFacts.of(instance, domain='novalocal', zone='nova')
    openstack(about, 'latest')          # {'meta_data.json': b'{…}', 'user_data': b'#cloud-config', …}
    ec2(about)                          # {'instance-id': 'i-00000001', 'placement': {'availability-zone': 'nova'}, …}

The formats have versions, and each version has all entries of the earlier versions. A guest reads the newest version
that it knows.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from kilonova import objects
from kilonova.objects.vif import Vif, VifSubnet

LATEST = 'latest'
# Versions (dates) of OpenStack's metadata. Each name says what was added, for example NETWORK_DATA network_data.json.
FIRST, RANDOM_SEED, VENDOR_DATA, NETWORK_DATA, DEVICES, VENDOR_DATA2, CPUS = (
    '2012-08-10',
    '2013-04-04',
    '2013-10-17',
    '2015-10-15',
    '2016-06-30',
    '2016-10-06',
    '2020-10-14',
)
VERSIONS = (FIRST, RANDOM_SEED, VENDOR_DATA, NETWORK_DATA, DEVICES, VENDOR_DATA2, '2017-02-22', '2018-08-27', CPUS)
EC2_VERSIONS = (
    '1.0',
    '2007-01-19',
    '2007-03-01',
    '2007-08-29',
    '2007-10-10',
    '2007-12-15',
    '2008-02-01',
    '2008-09-01',
    '2009-04-04',
)
# Types of interfaces that cloud-init knows. Interfaces of all other types are reported with type 'phy'.
LINK_TYPES = frozenset(('bridge', 'dvs', 'hw_veb', 'hyperv', 'ovs', 'tap', 'vhostuser', 'vif'))
CARD = 'phy'
# Number of random bytes that a guest gets as the seed of its random numbers.
SEED = 512

EC2 = dict[str, Any]


@dataclass(frozen=True)
class GuestFacts:
    """The properties of a server that its guest may read.

    ``hostname`` includes the domain. ``keys`` are dicts {name, type, data}. ``devices`` are the entries for devices in
    meta_data.json. ``user_data`` is decoded from base64. ``boot_roles`` are the roles of the user who
    created the server, as comma-separated text.
    """

    uuid: str
    number: int
    name: str | None
    hostname: str | None
    project_id: str | None
    image_id: str | None
    flavor: str | None
    launch_index: int
    availability_zone: str | None
    reservation_id: str | None
    kernel_id: str | None
    ramdisk_id: str | None
    root_device: str | None
    metadata: Mapping[str, str]
    keys: Sequence[Mapping[str, str]]
    user_data: bytes | None
    boot_roles: str = ''
    devices: Sequence[Mapping[str, Any]] = field(default=())
    vifs: Sequence[Vif] = field(default=())

    @classmethod
    def of(cls, instance: objects.Instance, domain: str, zone: str | None = None) -> Self:
        """Return the properties of an instance. Fields of the instance that were not loaded are empty.

        If ``domain`` is '', the host name has no domain. ``zone`` is used if the server has no availability zone.
        """

        def given(name: str) -> Any:
            return getattr(instance, name, None)

        keys = []
        if given('key_name'):
            kinds = {pair.name: pair.type for pair in given('keypairs') or ()}
            keys = [{'name': instance.key_name, 'type': kinds.get(instance.key_name, 'ssh'), 'data': given('key_data')}]
        name, flavor = given('hostname'), given('flavor')
        return cls(
            uuid=instance.uuid,
            number=given('id') or 0,
            name=given('display_name'),
            hostname=f'{name}.{domain}' if name and domain else name,
            project_id=given('project_id'),
            image_id=given('image_ref'),
            flavor=flavor.name if flavor else None,
            launch_index=given('launch_index') or 0,
            availability_zone=given('availability_zone') or zone,
            reservation_id=given('reservation_id'),
            kernel_id=given('kernel_id'),
            ramdisk_id=given('ramdisk_id'),
            root_device=given('root_device_name'),
            metadata=dict(given('metadata') or {}),
            keys=keys,
            user_data=_decoded(given('user_data')),
            boot_roles=(given('system_metadata') or {}).get('boot_roles') or '',
            devices=_devices(given('device_metadata')),
            vifs=tuple(given('vifs') or ()),
        )


def _decoded(text: str | None) -> bytes | None:
    try:
        return base64.b64decode(text) if text else None
    except (binascii.Error, ValueError):
        return None


_BUSES = (
    (objects.PCIDeviceBus, 'pci'),
    (objects.SCSIDeviceBus, 'scsi'),
    (objects.IDEDeviceBus, 'ide'),
    (objects.USBDeviceBus, 'usb'),
)


def _devices(known: objects.InstanceDeviceMetadata | None) -> list[dict[str, Any]]:
    """Return entries for meta_data.json: disks and interfaces with tags, and PCI network functions in a VLAN."""
    found = []
    for device in known.devices if known is not None else ():
        place = {
            'bus': next((name for kind, name in _BUSES if isinstance(device.bus, kind)), 'none'),
            'address': getattr(device.bus, 'address', 'none'),
        }
        if isinstance(device, objects.DiskMetadata):
            found.append(
                {
                    'type': 'disk',
                    **place,
                    **({'serial': device.serial} if device.serial else {}),
                    'path': device.path,
                    'tags': list(device.tags),
                }
            )
        elif isinstance(device, objects.NetworkInterfaceMetadata):
            found.append(
                {
                    'type': 'nic',
                    **place,
                    'mac': device.mac,
                    'tags': list(device.tags),
                    **{name: getattr(device, name) for name in ('vlan', 'vf_trusted') if name in device},
                }
            )
    return found


# --- metadata in OpenStack's format
def meta_data(about: GuestFacts, version: str, **more: Any) -> dict[str, Any]:
    """Return the content of meta_data.json. ``more`` has entries that only config drives have (admin_pass, files)."""
    found: dict[str, Any] = {
        'uuid': about.uuid,
        'name': about.name,
        'hostname': about.hostname,
        'launch_index': about.launch_index,
        'availability_zone': about.availability_zone,
    }
    if about.metadata:
        found['meta'] = dict(about.metadata)
    if about.keys:
        found['public_keys'] = {key['name']: key['data'] for key in about.keys}
        found['keys'] = [dict(key) for key in about.keys]
    if _has(version, RANDOM_SEED):
        found['random_seed'] = base64.b64encode(secrets.token_bytes(SEED)).decode()
    if _has(version, NETWORK_DATA):
        found['project_id'] = about.project_id
    if _has(version, DEVICES):
        found['devices'] = [dict(device) for device in about.devices]
    if _has(version, CPUS):
        found['dedicated_cpus'] = []
    return {**found, **more}


def openstack(about: GuestFacts, version: str, **more: Any) -> dict[str, bytes]:
    """Return {file name: content} of the metadata files of a format version, except the vendordata files.

    ``more`` has additional entries for meta_data.json.
    """
    found = {'meta_data.json': _json(meta_data(about, version, **more))}
    if about.user_data:
        found['user_data'] = about.user_data
    if _has(version, NETWORK_DATA):
        found['network_data.json'] = _json(network_data(about.vifs))
    return found


def network_data(vifs: Iterable[Vif]) -> dict[str, Any]:
    """Return the content of network_data.json as {'links': […], 'networks': […], 'services': […]}.

    A link is an interface, a network is a way in which an interface gets addresses, and a service is a DNS server. The
    MTU of a link is null if one of its interface's subnets has DHCP, because the guest then gets the MTU from DHCP.
    """
    links: list[dict[str, Any]] = []
    networks: list[dict[str, Any]] = []
    servers: list[str] = []
    for vif in vifs:
        links.append(
            {
                'id': vif.device_name,
                'vif_id': vif.id,
                'type': vif.type if vif.type in LINK_TYPES else CARD,
                'mtu': None if any(subnet.dhcp for subnet in vif.subnets) else vif.mtu,
                'ethernet_mac_address': vif.mac,
            }
        )
        for subnet in vif.subnets:
            networks.extend({'link': vif.device_name, 'network_id': vif.network_id, **way} for way in _ways(subnet))
            servers.extend(subnet.dns)
    return {
        'links': links,
        'networks': [{'id': f'network{number}', **way} for number, way in enumerate(networks)],
        'services': _dns(dict.fromkeys(servers)),
    }


def _ways(subnet: VifSubnet) -> list[dict[str, Any]]:
    """Return a subnet's entries for the list ``networks`` in network_data.json.

    If the subnet has DHCP or SLAAC, there is one entry without an address. Otherwise there is one entry for each
    address, with netmask, routes and DNS servers.
    """
    if subnet.version == 6 and subnet.ipv6_mode is not None:
        return [{'type': f'ipv6_{subnet.ipv6_mode}'}]
    if subnet.dhcp:
        return [{'type': f'ipv{subnet.version}_dhcp'}]
    everywhere = [('0.0.0.0/0' if subnet.version == 4 else '::/0', subnet.gateway)] if subnet.gateway else []
    routes = [{**_place(cidr), 'gateway': gateway} for cidr, gateway in (*everywhere, *subnet.routes)]
    return [
        {
            'type': f'ipv{subnet.version}',
            'ip_address': one.address,
            'netmask': _place(subnet.cidr)['netmask'],
            'routes': routes,
            'services': _dns(subnet.dns),
        }
        for one in subnet.addresses
    ]


def _place(cidr: str) -> dict[str, str]:
    network = ipaddress.ip_network(cidr, strict=False)
    return {'network': str(network.network_address), 'netmask': str(network.netmask)}


def _dns(addresses: Iterable[str]) -> list[dict[str, str]]:
    return [{'type': 'dns', 'address': address} for address in addresses]


def vendor_files(version: str) -> tuple[str, ...]:
    """Return the names of the vendordata files that a version of the metadata format has."""
    return (
        *(['vendor_data.json'] if _has(version, VENDOR_DATA) else []),
        *(['vendor_data2.json'] if _has(version, VENDOR_DATA2) else []),
    )


def _has(version: str, since: str) -> bool:
    # A version is a date or 'latest'. Versions are compared as texts, so 'latest' is greater than all dates.
    return version >= since


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def question(about: GuestFacts) -> dict[str, Any]:
    """Return the JSON body of the POST to an operator's dynamic vendordata service: the properties of the server."""
    return {
        'project-id': about.project_id,
        'instance-id': about.uuid,
        'image-id': about.image_id,
        'user-data': about.user_data.decode(errors='replace') if about.user_data else None,
        'hostname': about.hostname,
        'metadata': dict(about.metadata),
        'boot-roles': about.boot_roles,
    }


# --- metadata in EC2's format
def ec2(about: GuestFacts) -> EC2:
    """Return the tree of EC2's meta-data/ directory: a dict from name to text, or to a nested dict for a directory."""
    root = about.root_device or '/dev/vda'
    fixed = next(
        (
            address
            for vif in about.vifs
            for subnet in vif.subnets
            if subnet.version == 4
            for address in subnet.addresses
        ),
        None,
    )
    # For a server without interfaces, the project's default security group is reported.
    groups = dict.fromkeys(name for vif in about.vifs for name in vif.security_groups) if about.vifs else ['default']
    found: EC2 = {
        'ami-id': f'ami-{(about.image_id or "").replace("-", "")[:8] or "00000000"}',
        'ami-launch-index': str(about.launch_index),
        'ami-manifest-path': 'FIXME',
        'block-device-mapping': {'ami': root.removeprefix('/dev/'), 'root': root},
        'hostname': about.hostname or '',
        'instance-action': 'none',
        'instance-id': f'i-{about.number:08x}',
        'instance-type': about.flavor or '',
        'local-hostname': about.hostname or '',
        'local-ipv4': fixed.address if fixed else '',
        'placement': {'availability-zone': about.availability_zone or ''},
        'public-hostname': about.hostname or '',
        'public-ipv4': fixed.floating[0] if fixed and fixed.floating else '',
        'reservation-id': about.reservation_id or '',
        'security-groups': '\n'.join(groups),
    }
    if about.keys:
        found['public-keys'] = {
            f'{number}={key["name"]}': {'openssh-key': key['data']} for number, key in enumerate(about.keys)
        }
    for name, image_id in (('kernel-id', about.kernel_id), ('ramdisk-id', about.ramdisk_id)):
        if image_id:
            found[name] = f'{"aki" if name == "kernel-id" else "ari"}-{image_id.replace("-", "")[:8]}'
    return found
