"""A network card that is a switch and isn't there: a /sys with it, and os-vif that plugs the representor of one of its
virtual functions.

    unshare --mount --net python -m tests.integration.eswitch DIRECTORY DATABASE PORT

In namespaces of its own, whose interfaces are one pair: an end is the physical function, the other the representor.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kilonova.virt.libvirt.devices.vif.openvswitch import OpenVSwitch
from tests.unit.virt.builders import new_conf, new_vif

PHYSICAL, VIRTUAL = '0000:81:00.0', ('0000:81:00.2', '0000:81:00.3')
# Interfaces of the physical function, and what the kernel calls their ports.
INTERFACES = {'uplink': 'p0', 'represents': 'pf0vf1'}


def make(root: Path) -> None:
    """The card, as it is to be below /sys."""
    home, known = root / 'devices/pci0000:80', root / 'bus/pci/devices'
    known.mkdir(parents=True)
    for address in (PHYSICAL, *VIRTUAL):
        (home / address).mkdir(parents=True)
        (known / address).symlink_to(f'/sys/devices/pci0000:80/{address}')
    (home / PHYSICAL / 'sriov_totalvfs').write_text('2\n')
    for number, address in enumerate(VIRTUAL):
        (home / address / 'physfn').symlink_to(f'../{PHYSICAL}')
        (home / PHYSICAL / f'virtfn{number}').symlink_to(f'../{address}')
    (root / 'class/net').mkdir(parents=True)
    for name, port in INTERFACES.items():
        own = home / PHYSICAL / 'net' / name
        own.mkdir(parents=True)
        (own / 'phys_switch_id').write_text('b8cef6030f5a\n')
        (own / 'phys_port_name').write_text(f'{port}\n')
        (own / 'device').symlink_to(f'../../../{PHYSICAL}')
        (own / 'subsystem').symlink_to('/sys/class/net')
        (root / 'class/net' / name).symlink_to(f'/sys/devices/pci0000:80/{PHYSICAL}/net/{name}')


def main(directory: Path, database: str, port: str) -> None:
    uplink, represents = INTERFACES
    subprocess.run(['ip', 'link', 'add', uplink, 'type', 'veth', 'peer', 'name', represents], check=True)
    make(directory / 'sys')
    subprocess.run(['mount', '--bind', directory / 'sys', '/sys'], check=True)
    switch = OpenVSwitch(new_conf(directory, os_vif_ovs={'ovsdb_connection': database}))
    vif = new_vif(
        id=port,
        vnic_type='direct',
        details={'bridge_name': 'br-kn', 'datapath_type': 'system'},
        profile={'capabilities': ['switchdev'], 'pci_slot': VIRTUAL[1]},
    )
    for act in (switch.plug, switch.plug, switch.unplug, switch.unplug):
        act(vif, port)
        listed, link = (
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
            for command in (
                [
                    'ovs-vsctl',
                    f'--db={database}',
                    '--no-wait',
                    '--columns=name,external_ids',
                    'find',
                    'Interface',
                    f'external_ids:iface-id={port}',
                ],
                ['ip', 'link', 'show', represents],
            )
        )
        print(act.__name__, represents in listed, ',UP' in link)


if __name__ == '__main__':
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
