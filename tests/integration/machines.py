"""Two computes of a site as two machines: each in mount, network, pid and uts namespaces of its own, with its own
machine id, address and ssh server; neither sees the other's disks, but for the storage that both may use. Needs root.

    with Machines(site, directory) as machines:
        machines.start('gpu1', bandwidth=4)     # the compute, as a daemon of that machine
        machines.start('gpu1', shared=True)     # with its servers in machines.storage
        machines.kill('gpu1')                   # kill -9
        machines.stop_ssh('gpu2')

The services of the cloud answer there under the addresses that the configuration names: relays listen in the machines.
"""
from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.links import Links
from tests.integration.site import Site
from tools.cloud import control, process

ADDRESSES = {'gpu1': '10.77.0.1', 'gpu2': '10.77.0.2'}
SERVED = ('rabbitmq', 'keystone', 'placement', 'glance')
NEEDED = ('unshare', 'nsenter', 'ip', 'ssh', 'ssh-keygen', '/usr/sbin/sshd', 'rsync')
CLONE_NEWNET = 0x40000000

# What the first process of a machine does; the directory that it is given holds its files.
_INIT = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir /run/sshd
mount -t tmpfs tmpfs "$2"
mount --bind "$1/machine-id" /etc/machine-id
mount --bind "$1/shadow" /etc/shadow
mount --bind "$1/ssh" /etc/ssh
hostname "$3"
ip link set lo up
echo up > "$1/state"
exec sleep infinity
"""
_SSHD = """
Port 22
ListenAddress {address}
HostKey {directory}/ssh/host
AuthorizedKeysFile {directory}/ssh/user.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
PidFile none
"""
_SSH = """
Host *
    IdentityFile {directory}/ssh/user
    IdentitiesOnly yes
    UserKnownHostsFile {directory}/ssh/known_hosts
"""


class Machines:
    """``gpu1`` and ``gpu2``; their computes of the site are stopped meanwhile."""

    def __init__(self, site: Site, directory: Path) -> None:
        missing = [name for name in NEEDED if shutil.which(name) is None]
        assert not missing, f'not installed: {", ".join(missing)}'
        self._site, self._directory = site, directory
        self._inits: dict[str, subprocess.Popen[bytes]] = {}
        self._computes: dict[str, subprocess.Popen[bytes]] = {}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._begun: dict[str, float] = {}
        self._links = Links()
        self.storage = directory / 'storage'
        self.storage.mkdir()

    # -- their life --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._links.__enter__()
        try:
            for host in ADDRESSES:
                self._site.stop(f'compute-{host}')
                self._boot(host)
            self._connect()
            for host in ADDRESSES:
                self._serve(host)
                self.start_ssh(host)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        for child in (*self._computes.values(), *self._servers.values(), *self._inits.values()):
            child.kill()
            child.wait()
        self._links.__exit__(None, None, None)

    def _boot(self, host: str) -> None:
        own = self._directory / host
        (own / 'ssh').mkdir(parents=True)
        (own / 'machine-id').write_text(f'{host:0<32}\n')
        (own / 'shadow').write_text('root:*:19000:0:99999:7:::\n')
        for name in ('host', 'user'):
            subprocess.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', str(own / 'ssh' / name)], check=True)
        (own / 'ssh' / 'sshd_config').write_text(_SSHD.format(address=ADDRESSES[host], directory=own))
        (own / 'ssh' / 'ssh_config').write_text(_SSH.format(directory=own))
        other = next(name for name in ADDRESSES if name != host)
        self._inits[host] = subprocess.Popen(
            ['setpriv', '--pdeathsig', 'KILL', 'unshare', '--mount', '--uts', '--net', '--pid', '--fork',
             '--kill-child', 'sh', '-c', _INIT, 'sh', str(own), str(self._site.layout.instances(other)), host])
        deadline = time.monotonic() + 20
        while not (own / 'state').exists():
            assert self._inits[host].poll() is None and time.monotonic() < deadline, f'{host} did not come up'
            time.sleep(0.02)

    def pid(self, host: str) -> int:
        """Of the machine's first process."""
        parent = self._inits[host].pid
        return int(Path(f'/proc/{parent}/task/{parent}/children').read_text().split()[0])

    def inside(self, host: str, *argv: str) -> list[str]:
        """The command that runs ``argv`` on that machine; it ends with this process."""
        return ['setpriv', '--pdeathsig', 'KILL', 'nsenter', '--target', str(self.pid(host)), '--mount', '--uts',
                '--net', '--pid', *argv]

    def run(self, host: str, *argv: str) -> str:
        """What a program prints there."""
        return subprocess.run(self.inside(host, *argv), check=True, capture_output=True, text=True).stdout

    def _connect(self) -> None:
        one, two = ADDRESSES
        subprocess.run(['ip', 'link', 'add', 'lan', 'netns', str(self.pid(one)), 'type', 'veth', 'peer', 'name', 'lan',
                        'netns', str(self.pid(two))], check=True)
        for host, address in ADDRESSES.items():
            self.run(host, 'ip', 'address', 'add', f'{address}/24', 'dev', 'lan')
            self.run(host, 'ip', 'link', 'set', 'lan', 'up')
            other = two if host == one else one
            own, far = self._directory / host / 'ssh', self._directory / other / 'ssh'
            (own / 'known_hosts').write_text(f'{ADDRESSES[other]} {(far / "host.pub").read_text()}')
        keys = ''.join((self._directory / host / 'ssh' / 'user.pub').read_text() for host in ADDRESSES)
        for host in ADDRESSES:
            (self._directory / host / 'ssh' / 'user.pub').write_text(keys)

    def _serve(self, host: str) -> None:
        """The cloud's services, listening in the machine's network."""
        for name in SERVED:
            address = ('127.0.0.1', self._site.cloud.ports[name])
            self._links.add(f'{host} to {name}', listening(self.pid(host), address), address)

    # -- what runs there ---------------------------------------------------------------------------------------------

    def start(self, host: str, *, shared: bool = False, **settings: object) -> None:
        """Start the compute with [libvirt]remote_filesystem_… ``settings``; returns when it reports. ``shared``: what
        it has of servers is in ``storage``."""
        path = self._directory / host / 'machine.conf'
        where = f'instances_path = {self.storage}\n' if shared else ''
        path.write_text(f'[DEFAULT]\nmy_ip = {ADDRESSES[host]}\n{where}[libvirt]\n' + ''.join(
            f'remote_filesystem_{name} = {value}\n' for name, value in settings.items()))
        service = control.pick(self._site.cloud, f'compute-{host}')
        log_path = self._site.layout.log(service.name)
        self._begun[host] = time.time()
        size = log_path.stat().st_size if log_path.exists() else 0
        with log_path.open('ab') as log:
            self._computes[host] = subprocess.Popen(
                self.inside(host, *service.argv, '--config-file', str(path)), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, env=process.child_environment(self._site.layout, service.name, service.env))
        deadline = time.monotonic() + 60
        # The last report of the compute before may be written after this one has started.
        while b'Starting compute node' not in log_path.read_bytes()[size:] or not self._serves(host):
            assert self._computes[host].poll() is None and time.monotonic() < deadline, control.tail(log_path)
            time.sleep(0.1)

    def _serves(self, host: str) -> bool:
        """Whether the compute reported after it was started here."""
        return any(row['host'] == host and row['binary'] == 'nova-compute' and row['state'] == 'up'
                   and control.reported(row) > self._begun[host]
                   for row in self._site.call('GET', '/os-services', user='admin')['services'])

    def kill(self, host: str) -> None:
        """kill -9 of the compute, and of nothing that it started."""
        for pid in self.run(host, 'pgrep', '-f', 'kilonova-compute|kilonova.cmd.compute').split():
            subprocess.run(self.inside(host, 'kill', '-9', pid), check=False)
        self._computes[host].wait()

    def start_ssh(self, host: str) -> None:
        self._servers[host] = subprocess.Popen(self.inside(host, '/usr/sbin/sshd', '-D', '-e'),
                                               stderr=(self._directory / host / 'sshd.log').open('ab'))
        deadline = time.monotonic() + 20
        while ':22 ' not in self.run(host, 'ss', '-Hltn'):
            assert self._servers[host].poll() is None and time.monotonic() < deadline, f'no sshd on {host}'
            time.sleep(0.02)

    def stop_ssh(self, host: str) -> None:
        """The server and all connections."""
        subprocess.run(self.inside(host, 'pkill', '-9', 'sshd'), check=False)
        self._servers[host].wait()

    def cut_ssh(self, source: str) -> None:
        """End the connections that the compute has open, in the middle of whatever they do."""
        subprocess.run(self.inside(source, 'pkill', '-9', '-x', 'ssh'), check=True)


def listening(pid: int, address: tuple[str, int]) -> socket.socket:
    """A socket that listens in the network namespace of a process."""
    made: list[socket.socket] = []
    libc = ctypes.CDLL(None, use_errno=True)

    def make() -> None:
        # A namespace is a thread's.
        descriptor = os.open(f'/proc/{pid}/ns/net', os.O_RDONLY)
        try:
            if libc.setns(descriptor, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), 'setns')
        finally:
            os.close(descriptor)
        made.append(socket.create_server(address))
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert made, 'no socket in the namespace'
    return made[0]


