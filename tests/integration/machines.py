"""Two computes of a site, whose guests are those of libvirt's test driver, as two machines of tools.cloud.machine:
neither sees the other's disks, but for the storage that both may use. Needs root.

    with Machines(site, directory) as machines:
        machines.start('gpu1', bandwidth=4)     # the compute, as a daemon of that machine
        machines.start('gpu1', shared=True)     # with its servers in machines.storage
        machines.kill('gpu1')                   # kill -9
        machines.stop_ssh('gpu2')

The services of the cloud answer there under the addresses that the configuration names: relays listen in the machines.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.site import Site
from tools.cloud import control, machine, process

HOSTS = ('gpu1', 'gpu2')
SERVED = ('rabbitmq', 'keystone', 'placement', 'glance')


class Machines:
    """``gpu1`` and ``gpu2``; their computes of the site are stopped meanwhile."""

    def __init__(self, site: Site, directory: Path) -> None:
        self._site, self._directory = site, directory
        layout, served = site.layout, tuple(site.cloud.ports[name] for name in SERVED)
        self._machines = {
            host: machine.Machine(
                str(directory / 'machines' / host),
                host,
                address,
                (str(layout.var / 'hosts'),),
                (str(layout.host(host)),),
                served,
            )
            for host, address in machine.addresses({}, HOSTS).items()
        }
        self._inits: dict[str, subprocess.Popen[bytes]] = {}
        self._computes: dict[str, subprocess.Popen[bytes]] = {}
        self._servers: list[subprocess.Popen[bytes]] = []
        self._begun: dict[str, float] = {}
        # What each compute was started with last.
        self._settings: dict[str, dict[str, object]] = {}
        self.storage = directory / 'storage'
        self.storage.mkdir()

    # -- their life --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        machine.prepare(self._directory / 'machines', self._machines.values())
        try:
            for host in HOSTS:
                self._site.stop(f'compute-{host}')
                self._boot(host)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for child in (*self._computes.values(), *self._servers, *self._inits.values()):
            child.kill()
            child.wait()

    def _boot(self, host: str) -> None:
        made = self._machines[host]
        with (self._directory / f'{host}.log').open('ab') as log:
            self._inits[host] = subprocess.Popen(
                ['setpriv', '--pdeathsig', 'KILL', *made.argv],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **made.environment},
            )
        deadline = time.monotonic() + machine.UP_WITHIN
        while made.pid() is None:
            assert self._inits[host].poll() is None and time.monotonic() < deadline, f'{host} did not come up'
            time.sleep(0.02)

    def inside(self, host: str, *argv: str) -> list[str]:
        """The command that runs ``argv`` on that machine; it ends with this process."""
        return ['setpriv', '--pdeathsig', 'KILL', *self._machines[host].inside(*argv)]

    def address(self, host: str) -> str:
        return self._machines[host].address

    def run(self, host: str, *argv: str) -> str:
        """What a program prints there."""
        return self._machines[host].run(*argv)

    # -- what runs there ---------------------------------------------------------------------------------------------

    def start(self, host: str, *, shared: bool = False, **settings: object) -> None:
        """Start the compute with [libvirt]remote_filesystem_… ``settings``; returns when it reports. ``shared``: what
        it has of servers is in ``storage``."""
        self._settings[host] = {'shared': shared, **settings}
        path = self._directory / f'{host}.conf'
        where = f'instances_path = {self.storage}\n' if shared else ''
        path.write_text(
            f'[DEFAULT]\nmy_ip = {self._machines[host].address}\n{where}[libvirt]\n'
            + ''.join(f'remote_filesystem_{name} = {value}\n' for name, value in settings.items())
        )
        service = control.pick(self._site.cloud, f'compute-{host}')
        log_path = self._site.layout.log(service.name)
        self._begun[host] = time.time()
        size = log_path.stat().st_size if log_path.exists() else 0
        with log_path.open('ab') as log:
            self._computes[host] = subprocess.Popen(
                self.inside(host, *service.argv, '--config-file', str(path)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=process.child_environment(
                    self._site.layout, service.name, {**service.env, **self._machines[host].environment}
                ),
            )
        deadline = time.monotonic() + 60
        # The last report of the compute before may be written after this one has started.
        while b'Starting compute node' not in log_path.read_bytes()[size:] or not self._serves(host):
            assert self._computes[host].poll() is None and time.monotonic() < deadline, control.tail(log_path)
            time.sleep(0.1)

    def restore(self, host: str, **settings: object) -> None:
        """Start the compute anew where it does not run, or not with these settings: tests come in any order."""
        runs = self._computes[host].poll() is None
        if runs and self._settings[host] == {'shared': False, **settings}:
            return
        if runs:
            self.kill(host)
        self.start(host, **settings)

    def _serves(self, host: str) -> bool:
        """Whether the compute reported after it was started here."""
        return any(
            row['host'] == host
            and row['binary'] == 'nova-compute'
            and row['state'] == 'up'
            and control.reported(row) > self._begun[host]
            for row in self._site.call('GET', '/os-services', user='admin')['services']
        )

    def kill(self, host: str) -> None:
        """kill -9 of the compute, and of nothing that it started."""
        self._computes[host].kill()
        self._computes[host].wait()
        deadline = time.monotonic() + 60
        while self.run(host, 'sh', '-c', 'pgrep -f bin/[k]ilonova-compute || true').strip():
            assert time.monotonic() < deadline, f'the compute of {host} did not end'
            time.sleep(0.05)

    def start_ssh(self, host: str) -> None:
        """Again; a machine comes up with it."""
        with (self._directory / f'{host}.log').open('ab') as log:
            self._servers.append(
                subprocess.Popen(
                    self.inside(host, '/usr/sbin/sshd', '-D', '-e'),
                    stderr=log,
                    env={**os.environ, **self._machines[host].environment},
                )
            )
        deadline = time.monotonic() + 60
        while ':22 ' not in self.run(host, 'ss', '-Hltn'):
            assert self._servers[-1].poll() is None and time.monotonic() < deadline, f'no sshd on {host}'
            time.sleep(0.02)

    def stop_ssh(self, host: str) -> None:
        """The server and all connections."""
        self.run(host, 'pkill', '-9', 'sshd')
        deadline = time.monotonic() + 60
        while self.run(host, 'sh', '-c', 'pgrep sshd || true').strip():
            assert time.monotonic() < deadline, f'the sshd of {host} did not end'
            time.sleep(0.02)

    def cut_ssh(self, source: str) -> None:
        """End the connections that the compute has open, in the middle of whatever they do."""
        self.run(source, 'pkill', '-9', '-x', 'ssh')
