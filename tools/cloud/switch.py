"""The network of real guests (``make up NETWORK=1 GUESTS=qemu``): Open vSwitch and an ovn-controller on each machine.

Open vSwitch runs in user space, with tunnels between the machines. No kernel module is needed.

    switch.argv(machine, 6642)        # the command that runs both in the machine, until it ends
    switch.tunnel_address(machine)    # where its end of the tunnels is

libvirt plugs guests into the bridge br-int, and ovn-controller does what OVN's southbound database says about them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from tools.cloud.layout import ROOT, CloudError
from tools.cloud.machine import OUTWARD, UPLINK, Machine

RUN = Path('/run/openvswitch')
SOCKET = RUN / 'db.sock'
VSCTL, TOOL = '/usr/bin/ovs-vsctl', '/usr/bin/ovsdb-tool'
SERVER, SWITCH, CONTROLLER = '/usr/sbin/ovsdb-server', '/usr/sbin/ovs-vswitchd', '/usr/bin/ovn-controller'
SCHEMA = Path('/usr/share/openvswitch/vswitch.ovsschema')
# Programs and files of which each is in a package of its own (bindep.txt).
NEEDED = (VSCTL, SWITCH, CONTROLLER, '/usr/sbin/haproxy', '/usr/sbin/ethtool', '/usr/bin/ping')
# The bridge that guests are plugged into, and the one with the end of the tunnels and the cables of the machine.
GUESTS, TUNNELS = 'br-int', 'br-phy'
# The bridge to the network outside of the cloud, and what Neutron calls that network.
OUTER, OUTSIDE = 'br-ex', 'outside'
_QUIET = ('-vconsole:warn', '-vsyslog:off')
_WITHIN = 60.0


def argv(machine: Machine, southbound: int) -> tuple[str, ...]:
    """Return the command that runs a machine's switch; ``southbound`` is the port of OVN's southbound database."""
    return machine.inside(
        'env',
        f'PYTHONPATH={ROOT}',
        sys.executable,
        '-P',
        '-m',
        'tools.cloud.switch',
        machine.name,
        tunnel_address(machine),
        f'tcp:127.0.0.1:{southbound}',
        *(('outside',) if machine.outside else ()),
        *(('routes',) if machine.routes else ()),
    )


def tunnel_address(machine: Machine) -> str:
    """Return the address of a machine's end of the tunnels."""
    return f'10.78.0.{machine.number}'


# -- in the machine ---------------------------------------------------------------------------------------------------
def serve(name: str, address: str, southbound: str, *roles: str) -> int:
    """Run until one of the programs ends, or SIGTERM; return the exit code.

    ``roles`` are ``outside``, with a bridge to the network outside, and ``routes``, where routers have their legs on
    that network. The database belongs to the machine, not to this process: a process that is started again has the
    ports of guests that run.
    """
    RUN.mkdir(exist_ok=True)
    database, running, stopping = RUN / 'conf.db', {}, Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    if not database.exists():
        _do(TOOL, 'create', str(database), str(SCHEMA))
    running[SERVER] = _start(SERVER, f'--remote=punix:{SOCKET}', str(database))
    _wait_for('--no-wait', 'init')
    running[SWITCH] = _switch(name, address, southbound, roles)
    running[CONTROLLER] = _start(CONTROLLER, f'unix:{SOCKET}')
    while not stopping.is_set() and all(child.poll() is None for child in running.values()):
        time.sleep(0.2)
        # Its connection tracking in user space may fail (3.1: an assertion, when a guest that boots again repeats
        # connections from before); elsewhere, too, it is watched and started again.
        if running[SWITCH].poll() == -signal.SIGABRT:
            print('ovs-vswitchd failed an assertion and is started again', flush=True)
            running[SWITCH] = _switch(name, address, southbound, roles)
    for child in running.values():
        child.terminate()
    for child in running.values():
        child.wait()
    return 0


def _switch(name: str, address: str, southbound: str, roles: Sequence[str]) -> subprocess.Popen[bytes]:
    """Open vSwitch, with its bridges."""
    child = _start(SWITCH, f'unix:{SOCKET}')
    _wait_for(
        'set',
        'Open_vSwitch',
        '.',
        *(
            f'external_ids:{key}={value}'
            for key, value in (
                ('system-id', name),
                ('hostname', name),
                ('ovn-remote', southbound),
                ('ovn-encap-type', 'geneve'),
                ('ovn-encap-ip', address),
                ('ovn-bridge-datapath-type', 'netdev'),
                *((('ovn-bridge-mappings', f'{OUTSIDE}:{OUTER}'),) if 'outside' in roles else ()),
                *((('ovn-cms-options', 'enable-chassis-as-gw'),) if 'routes' in roles else ()),
            )
        ),
        *(
            part
            for bridge in (GUESTS, TUNNELS, *((OUTER,) if 'outside' in roles else ()))
            for part in ('--', '--may-exist', 'add-br', bridge, '--', 'set', 'Bridge', bridge, 'datapath_type=netdev')
        ),
        '--',
        'set',
        'Bridge',
        GUESTS,
        'fail_mode=secure',
        '--',
        '--may-exist',
        'add-port',
        TUNNELS,
        UPLINK,
        *(('--', '--may-exist', 'add-port', OUTER, OUTWARD) if 'outside' in roles else ()),
    )
    for command in (
        ('address', 'replace', f'{address}/24', 'dev', TUNNELS),
        ('link', 'set', TUNNELS, 'up'),
        ('link', 'set', GUESTS, 'up'),
        *((('link', 'set', OUTER, 'up'),) if 'outside' in roles else ()),
    ):
        _do('ip', *command)
    return child


def _start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a program that ends with this process."""
    places = {f'{name}_RUNDIR': str(RUN) for name in ('OVS', 'OVN')}
    return subprocess.Popen(
        ['setpriv', '--pdeathsig', 'KILL', program, '--no-chdir', *_QUIET, *arguments],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **places},
    )


def _wait_for(*arguments: str) -> None:
    """Run ovs-vsctl, which answers when the programs have done what it asks for."""
    deadline = time.monotonic() + _WITHIN
    while True:
        try:
            return _do(VSCTL, '--timeout=10', f'--db=unix:{SOCKET}', *arguments)
        except CloudError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CloudError(f'{" ".join(command[:3])}: {done.stderr.strip()}')


if __name__ == '__main__':
    sys.exit(serve(*sys.argv[1:]))
