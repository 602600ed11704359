"""A machine for a host of the one-machine cloud: namespaces with an address and an ssh server of their own.

It has mount, network, pid and uts namespaces with their own machine id, boot id, address, /etc, /run and libvirt
directories. Two hosts see neither the other's disks nor its processes. They reach each other by the machines' network,
which this machine itself has no part in. Needs root.

    prepare(directory, {'gpu1': Machine(…), 'gpu2': Machine(…)})
    machine.argv                     # the command that is the machine: SIGTERM shuts it down, SIGKILL is a power cut
    machine.inside('libvirtd')       # the command that runs a program there, and passes signals on to it
    machine.pid()                    # of its first process, None when it is off

``python -m tools.cloud.machine boot|init|enter DIRECTORY …`` are these processes. Services of the cloud answer there
under the addresses that they have here, 127.0.0.1: relays carry the connections.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from tools.cloud import process
from tools.cloud.layout import ROOT, CloudError, write_private
from tools.cloud.links import Links, connected, listening

# The network device of a machine with tunnels that leads to the cables, and the cables' bridge.
UPLINK, CABLES = 'up0', 'cables'
# The same for the network outside of the cloud.
OUTWARD, OUTER = 'out0', 'outer'
# What mounts a share: a file system that passes everything on to a directory. By its name libvirt takes it for one of
# the network, as NFS is; guests whose volumes are files of a local one it doesn't migrate.
_SHARING = ('bindfs', '-o', 'nonempty,subtype=glusterfs,attr_timeout=0,entry_timeout=0,big_writes')
NEEDED = ('unshare', 'ip', 'mount', 'hostname', 'cp', 'setpriv', 'ssh', 'ssh-keygen', 'sshd', 'rsync')
# Seconds for the programs of a machine that is shut down, and for one to come up.
GRACE, UP_WITHIN = 10.0, 60.0
_PR_SET_PDEATHSIG = 1
_LIBVIRT = ('lib', 'cache', 'log')
QEMU_CONF = """user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
namespaces = []
cgroup_controllers = []
security_driver = "none"
stdio_handler = "file"
"""
_LIBVIRTD_CONF = """listen_tls = 0
listen_tcp = 1
listen_addr = "{address}"
auth_tcp = "none"
auth_unix_rw = "none"
auth_unix_ro = "none"
unix_sock_group = "root"
host_uuid_source = "machine-id"
log_outputs = "2:stderr"
"""
# libvirtd looks for that user whatever qemu.conf says.
USER = 'libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin\n'
GROUP = 'libvirt-qemu:x:64055:\n'
# Of a machine's root: a shell that reads no file of the real one's home when a command comes by ssh.
HOME = '/run/root'
_ROOT = f'root:x:0:0:root:{HOME}:/bin/sh\n'
_SSHD_CONF = """Port 22
ListenAddress {address}
HostKey /etc/ssh/host
AuthorizedKeysFile /etc/ssh/cloud.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
PidFile none
"""
_SSH_CONF = """Host *
    IdentityFile /etc/ssh/cloud
    IdentitiesOnly yes
    UserKnownHostsFile /etc/ssh/known_hosts
"""


@dataclass(frozen=True)
class Machine:
    """A machine of namespaces: what it sees, and which cables and ports it has.

    ``directory`` is its own, beside those of the other machines. ``hides`` are directories of which it sees nothing but
    ``keeps``. ``services`` are ports of 127.0.0.1 here that answer there; ``offers`` are ports there that answer here.

    ``tunnels``: there are cables, too, for what guests send one another (``tools.cloud.switch``), behind UPLINK.
    ``outside``: there are cables of the network outside of the cloud, behind OUTWARD; ``routes``: the routers of guests
    have their legs on that network here; ``outer_address`` is the machine's own address on that network, with its mask.
    ``shares`` are directories that all machines and their host share. Each is mounted upon itself, where libvirt takes
    it for a file system of the network.
    """

    directory: str
    name: str
    address: str
    hides: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    services: tuple[int, ...] = ()
    offers: tuple[int, ...] = ()
    tunnels: bool = False
    outside: bool = False
    routes: bool = False
    outer_address: str = ''
    shares: tuple[str, ...] = ()

    @classmethod
    def load(cls, directory: Path) -> Machine:
        """Return the machine that ``prepare`` wrote into a directory."""
        kept: dict[str, Any] = json.loads((directory / 'machine.json').read_text())
        kept |= {name: tuple(kept[name]) for name in ('hides', 'keeps', 'services', 'offers', 'shares')}
        return cls(**kept)

    @property
    def path(self) -> Path:
        """The machine's directory."""
        return Path(self.directory)

    @property
    def number(self) -> int:
        """The last number of the machine's address."""
        return int(self.address.rpartition('.')[2])

    @property
    def argv(self) -> tuple[str, ...]:
        """The command that is the machine: SIGTERM shuts it down, SIGKILL is a power cut."""
        return (*_OURSELVES, 'boot', self.directory)

    def inside(self, *argv: str) -> tuple[str, ...]:
        """Return the command that runs a program on the machine."""
        return (*_OURSELVES, 'enter', self.directory, *argv)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that the commands need."""
        return {'PYTHONPATH': str(ROOT)}

    def pid(self) -> int | None:
        """Return the id of the machine's first process, or None if the machine is off."""
        try:
            number, start = json.loads((self.path / 'pid.json').read_text())
        except (OSError, ValueError):
            return None
        return number if process.start_time(number) == start else None

    @property
    def libvirt_socket(self) -> Path:
        """libvirtd's, as programs of this machine reach it."""
        return Path(f'/proc/{self.pid()}/root/run/libvirt/libvirt-sock')

    def run(self, *argv: str) -> str:
        """Run a program on the machine and return its output."""
        return subprocess.run(
            self.inside(*argv), check=True, capture_output=True, text=True, env={**os.environ, **self.environment}
        ).stdout


_OURSELVES = (sys.executable, '-P', '-m', 'tools.cloud.machine')


def addresses(kept: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return an address of the machines' network for each name. A name keeps the address that it has."""
    found = {name: kept[name] for name in names if name in kept}
    free = (address for number in range(1, 255) if (address := f'10.77.0.{number}') not in kept.values())
    for name in names:
        if name not in found:
            found[name] = next(free)
    return found


def prepare(directory: Path, machines: Iterable[Machine]) -> None:
    """Write what the machines in ``directory`` start from; their keys are made once. CloudError: it can't be."""
    machines = list(machines)
    needed = (*NEEDED, *(_SHARING[:1] if any(machine.shares for machine in machines) else ()))
    missing = [name for name in needed if shutil.which(name, path=_PATH) is None]
    if missing or os.geteuid() != 0:
        raise CloudError(
            f'not installed: {", ".join(missing)}'
            if missing
            else 'machines of namespaces, libvirtd and QEMU in system mode need root'
        )
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    for path in (directory / 'cloud', *(machine.path / 'host' for machine in machines)):
        path.parent.mkdir(exist_ok=True)
        if not path.with_suffix('.pub').exists():
            path.unlink(missing_ok=True)
            subprocess.run(
                ['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-C', 'kilonova', '-f', str(path)], check=True
            )
    known = ''.join(f'{machine.address} {(machine.path / "host.pub").read_text()}' for machine in machines)
    (directory / 'known_hosts').write_text(known)
    for machine in machines:
        for name in _LIBVIRT:
            (machine.path / name).mkdir(exist_ok=True)
            # Where libvirt keeps its things is compiled in.
            Path('/var', name, 'libvirt').mkdir(parents=True, exist_ok=True)
        write_private(machine.path / 'machine.json', json.dumps(asdict(machine), indent=1) + '\n')


_PATH = f'{os.environ.get("PATH", "")}:/usr/sbin:/sbin'


def _do(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CloudError(f'{" ".join(argv)}: {done.stderr.strip()}')


# -- the process of this machine that stands for the other ------------------------------------------------------------
def boot(directory: Path) -> int:
    """Run the machine until it ends. It is up when pid.json names its first process."""
    machine = Machine.load(directory)
    (directory / 'pid.json').unlink(missing_ok=True)
    with subprocess.Popen(
        [
            'setpriv',
            '--pdeathsig',
            'KILL',
            'unshare',
            '--mount',
            '--uts',
            '--net',
            '--pid',
            '--fork',
            '--kill-child',
            *_OURSELVES,
            'init',
            str(directory),
        ],
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        if child.stdout.readline() != b'up\n':
            child.kill()
            return 1
        first = int(Path(f'/proc/{child.pid}/task/{child.pid}/children').read_text().split()[0])

        def shut_down(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGTERM)

        signal.signal(signal.SIGTERM, shut_down)
        with Links() as links:
            for port in machine.services:
                address = ('127.0.0.1', port)
                links.add(f'to {port}', listening(first, address), address)
            for port in machine.offers:
                address = ('127.0.0.1', port)
                links.add(f'from {port}', address, partial(connected, first, address))
            with _alone(directory.parent):
                _connect(machine, first)
                write_private(directory / 'pid.json', json.dumps([first, process.start_time(first)]))
            return child.wait()


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _connect(machine: Machine, first: int) -> None:
    """Lay a cable to each machine that is up. Machines that come later lay theirs."""
    for path in machine.path.parent.glob('*/machine.json'):
        peer = Machine.load(path.parent)
        other = peer.pid()
        if peer.name == machine.name or other is None:
            continue
        ours, theirs = f'm{peer.number}', f'm{machine.number}'
        _lay((first, ours), (other, theirs))
        for pid, name, near, far in ((first, ours, machine, peer), (other, theirs, peer, machine)):
            _do(*_in_network(pid, 'ip', 'route', 'add', far.address, 'dev', name, 'src', near.address))
        for letter, bridge, wanted in (
            ('t', CABLES, machine.tunnels and peer.tunnels),
            ('o', OUTER, machine.outside and peer.outside),
        ):
            if wanted:
                _lay_to_bridges((first, f'{letter}{peer.number}'), (other, f'{letter}{machine.number}'), bridge)


def _lay_to_bridges(near: tuple[int, str], far: tuple[int, str], bridge: str) -> None:
    """Lay a cable between the bridges of this name in the networks of two processes."""
    _lay(near, far)
    for pid, name in (near, far):
        _do(*_in_network(pid, 'ip', 'link', 'set', name, 'master', bridge))
        # What comes by one cable never leaves by another: each pair of machines has its own.
        _do(*_in_network(pid, 'ip', 'link', 'set', name, 'type', 'bridge_slave', 'isolated', 'on'))


def _lay(near: tuple[int, str], far: tuple[int, str]) -> None:
    """Lay a cable between the networks of two processes, with a name for each end."""
    (first, ours), (other, theirs) = near, far
    # What is left of the cable to this machine before it ended; it may be gone by itself meanwhile.
    subprocess.run(_in_network(other, 'ip', 'link', 'del', theirs), capture_output=True, check=False)
    _do('ip', 'link', 'add', ours, 'netns', str(first), 'type', 'veth', 'peer', 'name', theirs, 'netns', str(other))
    for pid, name in (near, far):
        _do(*_in_network(pid, 'ip', 'link', 'set', name, 'up'))


def _in_network(pid: int, *argv: str) -> tuple[str, ...]:
    return ('nsenter', '--target', str(pid), '--net', *argv)


# -- the first process there -------------------------------------------------------------------------------------------
def init(directory: Path) -> int:
    """Furnish the namespaces, start the ssh server, collect what ends; SIGTERM shuts down."""
    machine = Machine.load(directory)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    _furnish(machine)
    subprocess.Popen(['/usr/sbin/sshd', '-D', '-e'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    os.write(1, b'up\n')
    while not stopping:
        _collect()
        # A signal between the look and the pause would be seen only after the next child's end: so not for ever.
        time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while _collect() and time.monotonic() < deadline:
        time.sleep(0.1)
    return 0


def _collect() -> bool:
    """Take the exit codes of those that ended; whether others run."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _furnish(machine: Machine) -> None:
    own = machine.path
    _do('mount', '--make-rprivate', '/')
    _do('mount', '-t', 'proc', 'proc', '/proc')
    _do('mount', '-t', 'tmpfs', '-o', 'mode=755', 'tmpfs', '/run')
    for name in ('sshd', 'libvirt', 'lock', 'kept'):
        Path('/run', name).mkdir()
    Path(HOME).mkdir(mode=0o700)
    Path('/run/boot_id').write_text(f'{uuid.uuid4()}\n')
    _do('mount', '--bind', '/run/boot_id', '/proc/sys/kernel/random/boot_id')
    _do('cp', '-a', '/etc', '/run/etc')
    _write_etc(Path('/run/etc'), machine)
    _do('mount', '--bind', '/run/etc', '/etc')
    for name in _LIBVIRT:
        _do('mount', '--bind', str(own / name), f'/var/{name}/libvirt')
    for hidden in machine.hides:
        kept = [Path(path) for path in machine.keeps if Path(path).is_relative_to(hidden)]
        for number, path in enumerate(kept):
            Path(f'/run/kept/{number}').mkdir(exist_ok=True)
            _do('mount', '--bind', str(path), f'/run/kept/{number}')
        _do('mount', '-t', 'tmpfs', '-o', 'mode=700', 'tmpfs', hidden)
        for number, path in enumerate(kept):
            path.mkdir(parents=True)
            _do('mount', '--bind', f'/run/kept/{number}', str(path))
            _do('umount', f'/run/kept/{number}')
    for share in machine.shares:
        _do(*_SHARING, share, share)
    _do('hostname', machine.name)
    _do('ip', 'link', 'set', 'lo', 'up')
    _do('ip', 'address', 'add', f'{machine.address}/32', 'dev', 'lo')
    if machine.tunnels:
        _add_bridge(CABLES, UPLINK)
    if machine.outer_address:
        _do('ip', 'link', 'add', OUTER, 'type', 'bridge')
        # Open vSwitch in user space passes frames on as they are: nothing is left to a network card.
        _do('ethtool', '-K', OUTER, 'tx', 'off', 'sg', 'off', 'tso', 'off', 'gso', 'off')
        _do('ip', 'link', 'set', OUTER, 'up')
        _do('ip', 'address', 'add', machine.outer_address, 'dev', OUTER)
    elif machine.outside:
        _add_bridge(OUTER, OUTWARD)


def _add_bridge(bridge: str, device: str) -> None:
    """Add a bridge for cables, and a device that leads to it."""
    other = f'{device}-far'
    _do('ip', 'link', 'add', bridge, 'type', 'bridge')
    _do('ip', 'link', 'add', device, 'type', 'veth', 'peer', 'name', other)
    _do('ip', 'link', 'set', other, 'master', bridge)
    for name in (bridge, device, other):
        # It would answer for addresses that others of its devices have.
        _do('ip', 'link', 'set', name, 'arp', 'off', 'up')


def _write_etc(etc: Path, machine: Machine) -> None:
    (etc / 'machine-id').unlink(missing_ok=True)
    (etc / 'machine-id').write_text(f'{machine_id(machine)}\n')
    (etc / 'hostname').write_text(f'{machine.name}\n')
    (etc / 'shadow').write_text('root:*:19000:0:99999:7:::\n')
    others = [line for line in (etc / 'passwd').read_text().splitlines(True) if not line.startswith('root:')]
    (etc / 'passwd').write_text(_ROOT + ''.join(others))
    for name, line in (('passwd', USER), ('group', GROUP)):
        text = (etc / name).read_text()
        if 'libvirt-qemu:' not in text:
            (etc / name).write_text(text + line)
    for name in ('ssh', 'libvirt'):
        shutil.rmtree(etc / name, ignore_errors=True)
        (etc / name).mkdir()
    (etc / 'libvirt' / 'qemu.conf').write_text(QEMU_CONF)
    (etc / 'libvirt' / 'libvirtd.conf').write_text(_LIBVIRTD_CONF.format(address=machine.address))
    ssh = etc / 'ssh'
    (ssh / 'sshd_config').write_text(_SSHD_CONF.format(address=machine.address))
    (ssh / 'ssh_config').write_text(_SSH_CONF)
    for path in (
        machine.path / 'host',
        machine.path.parent / 'cloud',
        machine.path.parent / 'cloud.pub',
        machine.path.parent / 'known_hosts',
    ):
        shutil.copy(path, ssh / path.name)


def machine_id(machine: Machine) -> str:
    """Return the machine's id, which is the same at each of its boots."""
    return uuid.uuid5(uuid.NAMESPACE_URL, machine.directory).hex


# -- any other process there -------------------------------------------------------------------------------------------
def enter(directory: Path, argv: Sequence[str]) -> int:
    """Run a program in the machine; it gets our signals, and ends when we are killed. Its exit code."""
    pid = Machine.load(directory).pid()
    if pid is None:
        print(f'the machine {directory.name} is off', file=sys.stderr)
        return 1
    here, libc = os.getcwd(), ctypes.CDLL(None, use_errno=True)
    opened = [os.open(f'/proc/{pid}/ns/{name}', os.O_RDONLY) for name in ('pid', 'uts', 'net', 'mnt')]
    for descriptor in opened:
        if libc.setns(descriptor, 0):
            raise OSError(ctypes.get_errno(), 'setns')
        os.close(descriptor)
    with contextlib.suppress(FileNotFoundError):
        os.chdir(here)
    # The namespace of processes is that of our children.
    child = os.fork()
    if not child:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.environ.pop('PYTHONPATH', None)
        try:
            os.execvp(argv[0], list(argv))
        except OSError as error:
            print(f'{argv[0]}: {error}', file=sys.stderr)
            os._exit(127)

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, pass_on)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def main(argv: Sequence[str]) -> int:
    """Be one of the machine's processes: boot, init or enter."""
    match argv:
        case ['boot', directory]:
            return boot(Path(directory))
        case ['init', directory]:
            return init(Path(directory))
        case ['enter', directory, *rest] if rest:
            return enter(Path(directory), rest)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
