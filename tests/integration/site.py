"""A one-machine cloud of a test run's own: real processes on their own ports, asked over HTTP, killed by pid.

    site = Site(directory)
    site.up()
    server = site.create('one', site.flavor('gpu1', gpus=1))
    site.settle([server])                               # {server: what GET /servers/detail says of it}
    site.audit()                                        # raises with its lines unless all four agree
    site.end()

A guard process takes the cloud down when the run ends, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.integration import manage_shell
from tools.cloud import control, demo, http, identity, process, render
from tools.cloud.layout import DEFAULT_HOSTS, ROOT, Layout
from tools.cloud.services import Cloud

ALIAS = 'QuadroM4000-video'
GPUS = 8
# The issue's line: a server whose daemon was killed has ended within a minute of its restart.
SETTLED_WITHIN = 60.0
ENDED = ('ACTIVE', 'ERROR', 'VERIFY_RESIZE', 'SHUTOFF', 'PAUSED', 'SUSPENDED', 'RESCUE', 'SHELVED', 'SHELVED_OFFLOADED')
MICROVERSION = '2.90'
_GUARD = """
import sys
sys.stdin.buffer.read()
from pathlib import Path
from tools.cloud import control
from tools.cloud.layout import Layout
control.down(Layout.at(Path(sys.argv[1])))
"""


class Site:
    """The cloud under ``directory/var``; ``directory/extra.conf`` is one more configuration file of all daemons.
    ``guests``: test or qemu, as ``make up GUESTS=``; ``hosts``: descriptions, as ``make up HOSTS=``;
    ``accelerators``: as ``make up CYBORG=1``; ``network``: as ``make up NETWORK=1``; ``volume``: ``VOLUME=1``."""

    def __init__(
        self,
        directory: Path,
        guests: str = 'test',
        hosts: Path = DEFAULT_HOSTS,
        *,
        accelerators: bool = False,
        network: bool = False,
        volume: bool = False,
    ) -> None:
        self._kind, self._hosts = guests, hosts
        self._accelerators, self._network, self._volume = accelerators, network, volume
        self.layout = Layout.at(directory / 'var')
        self.extra = directory / 'extra.conf'
        self.configure('')
        self.cloud: Cloud
        self._tokens: dict[str, str] = {}
        self._flavors: dict[str, str] = {}
        self._image: str | None = None
        self._commands: manage_shell.Commands | None = None
        # Its other end of the pipe closes with this process, whatever ends that.
        self._guard = subprocess.Popen(
            [sys.executable, '-c', _GUARD, str(self.layout.var)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    # -- the cloud as a whole -------------------------------------------------------------------------------------
    def up(self) -> None:
        """What ``make up CONF=extra.conf`` does."""
        self.cloud = control.up(
            self.layout,
            hosts=self._hosts,
            extra=self.extra,
            kind=self._kind,
            accelerators=self._accelerators,
            network=self._network,
            volume=self._volume,
        )

    def down(self) -> None:
        """What ``make down`` does."""
        control.down(self.layout)

    def forget(self) -> None:
        """Know nothing of the cloud that was: it is made anew."""
        self._tokens.clear()
        self._flavors.clear()
        self._image = None

    def end(self) -> None:
        """Take it down; returns when nothing of it runs."""
        if self._commands is not None:
            self._commands.end()
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(120)
        assert process.marked(self.layout.var) == {}

    def configure(self, text: str) -> None:
        """The text of the additional configuration file; daemons read it at their next start or SIGHUP."""
        self.extra.write_text(text)

    # -- daemons --------------------------------------------------------------------------------------------------
    def pid(self, name: str) -> int:
        """The process id of a service that runs."""
        record = process.running(self.layout, name)
        assert record is not None, f'{name} does not run'
        return record.pid

    def pids(self) -> dict[str, int]:
        """Process ids of all daemons of Kilonova."""
        return {name: self.pid(name) for name in ('conductor', 'scheduler', 'api', 'compute-gpu1', 'compute-gpu2')}

    def kill(self, name: str) -> None:
        """kill -9."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def terminate(self, name: str, within: float) -> int | None:
        """SIGTERM; the exit code, None when it still ran after ``within`` seconds."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        return None

    def start(self, name: str) -> None:
        """What ``make start SERVICE=name`` does: returns when it serves."""
        control.start_again(self.layout, name, end_first=False)

    def restart(self, name: str) -> None:
        """What ``make restart SERVICE=name`` does."""
        control.start_again(self.layout, name, end_first=True)

    def stop(self, name: str) -> None:
        """What ``make stop SERVICE=name`` does."""
        control.stop_one(self.layout, name)

    def lose(self, host: str) -> None:
        """The host is gone, and known to be."""
        self.stop(f'compute-{host}')
        assert self._force_down(host, True) == 200

    def find(self, host: str) -> None:
        """It is there again, and has removed what was evacuated meanwhile: before that nobody may say that it is up."""
        self.start(f'compute-{host}')
        deadline = time.monotonic() + SETTLED_WITHIN
        while self._force_down(host, False) != 200:
            assert time.monotonic() < deadline, f'{host} is still forced down'
            time.sleep(0.2)

    def _force_down(self, host: str, forced: bool) -> int:
        """The status of the answer."""
        (row,) = self.call('GET', f'/os-services?binary=nova-compute&host={host}', user='admin')['services']
        return self.send('PUT', f'/os-services/{row["id"]}', {'forced_down': forced}, user='admin').status

    def log(self, name: str) -> str:
        """All that a service logged."""
        return self.layout.log(name).read_text(errors='replace')

    def log_size(self, name: str) -> int:
        return self.layout.log(name).stat().st_size

    def log_after(self, name: str, size: int) -> str:
        """What it logged since its log had ``size`` bytes."""
        return self.layout.log(name).read_bytes()[size:].decode(errors='replace')

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """kilonova-manage on this cloud."""
        if self._commands is None:
            self._commands = manage_shell.Commands(self.layout.bin('python'), self.extra.parent)
        return self._commands.run(
            [*self.cloud.config_arguments, *arguments], process.child_environment(self.layout, 'manage', {})
        )

    def audit(self) -> str:
        """Database, Placement, libvirt and files agree, or it raises with what doesn't; what it printed."""
        done = self.manage('audit')
        assert done.returncode == 0, f'audit ended with {done.returncode}:\n{done.stdout}{done.stderr[-2000:]}'
        return done.stdout

    def devices(self) -> list[dict[str, Any]]:
        """``kilonova-manage device list``: host, address, status, instance_uuid …"""
        done = self.manage('device', 'list', '--format', 'json')
        assert done.returncode == 0, done.stderr[-2000:]
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows

    def allocations(self) -> dict[str, list[str]]:
        """Provider → consumers, as Placement says."""
        return demo.allocations(self.cloud)

    def hostdevs(self, host: str, server: str) -> tuple[str, ...]:
        """The PCI addresses in the XML that libvirt holds."""
        return demo.read_guest((self.layout.instances(host) / server / 'libvirt.xml').read_text()).devices

    def directories(self, host: str) -> list[str]:
        """What is left in a host's instances_path beside its own directories."""
        return sorted(
            path.name
            for path in self.layout.instances(host).iterdir()
            if path.is_dir() and path.name not in demo.OWN_DIRECTORIES
        )

    # -- requests -------------------------------------------------------------------------------------------------
    def url(self, service: str) -> str:
        return render.url(self.cloud.ports, service)

    def token(self, user: str) -> str:
        """``demo`` is a plain member of its project, ``admin`` the administrator of another."""
        if user not in self._tokens:
            self._tokens[user] = identity.issue_token(self.url('keystone'), user, user, self.cloud.secrets[user])
        return self._tokens[user]

    def send(
        self, method: str, path: str, body: object = None, *, user: str = 'demo', version: str | None = MICROVERSION
    ) -> http.Reply:
        """A request to the compute API; any answer is a reply."""
        headers = {'Accept': 'application/json', 'Content-Type': 'application/json', 'X-Auth-Token': self.token(user)}
        if version:
            headers['OpenStack-API-Version'] = f'compute {version}'
        data = None if body is None else json.dumps(body).encode()
        return http.send(method, self.url('api') + path, data=data, headers=headers, timeout=60)

    def call(
        self, method: str, path: str, body: object = None, *, user: str = 'demo', version: str | None = MICROVERSION
    ) -> Any:
        """The same; an answer below 400, as data."""
        reply = self.send(method, path, body, user=user, version=version)
        assert reply.status < 400, f'{method} {path}: {reply.status} {reply.body.decode(errors="replace")}'
        return reply.data

    @property
    def image(self) -> str:
        """The id of the image ``demo``."""
        if self._image is None:
            images = http.call('GET', self.url('glance') + '/v2/images', token=self.token('demo')).data['images']
            self._image = next(row['id'] for row in images if row['name'] == 'demo')
        return self._image

    def flavor(
        self,
        name: str,
        *,
        gpus: int = 0,
        vcpus: int = 1,
        ram: int = 512,
        disk: int = 1,
        specs: dict[str, str] | None = None,
    ) -> str:
        """The id of a flavor, made when it isn't there."""
        if name not in self._flavors:
            self.send('DELETE', f'/flavors/{name}', user='admin')
            body = {'flavor': {'id': name, 'name': name, 'vcpus': vcpus, 'ram': ram, 'disk': disk}}
            self.call('POST', '/flavors', body, user='admin')
            wanted = ({'pci_passthrough:alias': f'{ALIAS}:{gpus}'} if gpus else {}) | (specs or {})
            if wanted:
                self.call('POST', f'/flavors/{name}/os-extra_specs', {'extra_specs': wanted}, user='admin')
            self._flavors[name] = name
        return name

    def ask_create(self, name: str, flavor: str, **more: Any) -> http.Reply:
        """POST /servers, whatever it answers. ``host`` needs the administrator."""
        user = more.pop('user', 'demo')
        body = {'name': name, 'flavorRef': flavor, 'imageRef': self.image, 'networks': 'none', **more}
        return self.send('POST', '/servers', {'server': body}, user=user)

    def create(self, name: str, flavor: str, **more: Any) -> str:
        """A server's id; it is being built."""
        reply = self.ask_create(name, flavor, **more)
        assert reply.status == 202, f'{reply.status} {reply.body.decode(errors="replace")}'
        identifier: str = reply.data['server']['id']
        return identifier

    def boot(self, count: int, flavor: str, **more: Any) -> list[str]:
        """Several servers, ACTIVE."""
        servers = self.at_once(lambda number: self.create(f'{flavor}-{number}', flavor, **more), range(count))
        shown = self.settle(servers)
        assert {row['status'] for row in shown.values()} == {'ACTIVE'}, self.tell(shown)
        return servers

    def action(self, server: str, name: str, argument: Any = None, *, user: str = 'admin') -> http.Reply:
        """POST /servers/ID/action."""
        return self.send('POST', f'/servers/{server}/action', {name: argument}, user=user)

    def act(self, server: str, name: str, argument: Any = None) -> None:
        """The same; accepted."""
        reply = self.action(server, name, argument)
        assert reply.status in (200, 202, 204), f'{name}: {reply.status} {reply.body.decode(errors="replace")}'

    def at_once(self, work: Callable[[Any], Any], items: Iterable[Any], threads: int = 16) -> list[Any]:
        """``work`` for each item, many at a time; results in the items' order."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(work, items))

    # -- waiting --------------------------------------------------------------------------------------------------
    def servers(self) -> dict[str, dict[str, Any]]:
        """All servers of all projects by id."""
        rows = self.call('GET', '/servers/detail?all_tenants=1', user='admin')['servers']
        return {row['id']: row for row in rows}

    def at(self, server: str) -> str:
        """A server's host."""
        host: str = self.servers()[server]['OS-EXT-SRV-ATTR:host']
        return host

    def settle(self, servers: Iterable[str], within: float = SETTLED_WITHIN) -> dict[str, dict[str, Any]]:
        """Wait until nothing works on these servers; each as the administrator sees it."""
        wanted, deadline, pauses = set(servers), time.monotonic() + within, growing()
        mine: dict[str, dict[str, Any]] = {}
        last = ''
        while True:
            try:
                mine = {name: row for name, row in self.servers().items() if name in wanted}
                if set(mine) == wanted and not any(map(under_way, mine.values())):
                    return mine
            except (OSError, AssertionError) as error:
                last = str(error)
            assert time.monotonic() < deadline, (
                f'not ended after {within:.0f} s: {self.tell(mine)} missing {wanted - set(mine)} {last}'
            )
            time.sleep(next(pauses))

    def await_status(self, servers: Iterable[str], status: str) -> dict[str, dict[str, Any]]:
        """Wait until all of these have the status and nothing works on them."""
        wanted, deadline, pauses = set(servers), time.monotonic() + SETTLED_WITHIN, growing()
        while True:
            shown = self.settle(wanted)
            if all(row['status'] == status for row in shown.values()):
                return shown
            assert time.monotonic() < deadline, f'not {status}: {self.tell(shown)}'
            time.sleep(next(pauses))

    def tell(self, shown: dict[str, dict[str, Any]]) -> str:
        """States and faults in a line each."""
        return '\n'.join(
            f'{name} {row["status"]} {row["OS-EXT-STS:task_state"]} {row.get("fault", {}).get("message", "")}'
            for name, row in shown.items()
        )

    def clean(self) -> None:
        """Delete every server; afterwards every device is available and nothing is held anywhere."""
        servers = list(self.servers())
        self.at_once(lambda name: self.send('DELETE', f'/servers/{name}', user='admin'), servers)
        deadline, pauses = time.monotonic() + SETTLED_WITHIN, growing()
        while left := self.servers():
            assert time.monotonic() < deadline, f'not deleted: {self.tell(left)}'
            time.sleep(next(pauses))

    def last_message(self, server: str) -> str:
        """What the newest action of a server says to its owner."""
        actions = self.call('GET', f'/servers/{server}/os-instance-actions', user='admin')['instanceActions']
        message: str | None = max(actions, key=lambda action: action['start_time'])['message']
        return message or ''

    def last_migration(self, server: str) -> dict[str, Any]:
        """The newest migration's row, as the database has it."""
        return self._row('SELECT * FROM migrations WHERE instance_uuid = ? ORDER BY id DESC', server)

    def task_state(self, server: str) -> str | None:
        """As the database has it: more looks than the API could answer, and answers while that is gone."""
        found: str | None = self._row('SELECT task_state FROM instances WHERE uuid = ?', server)['task_state']
        return found

    def _row(self, statement: str, server: str) -> dict[str, Any]:
        with contextlib.closing(sqlite3.connect(self.layout.data('kilonova') / 'cell1.sqlite', timeout=30)) as database:
            database.row_factory = sqlite3.Row
            return dict(database.execute(statement, [server]).fetchone() or {})

    def assert_nothing_held(self) -> None:
        """Devices, allocations, directories: all given back."""
        busy = [row for row in self.devices() if row['status'] != 'available' or row['instance_uuid']]
        assert busy == []
        assert self.allocations() == {}
        assert [directory for host in self.cloud.hosts for directory in self.directories(host)] == []
        assert 'in flight' not in self.audit()


def growing() -> Iterator[float]:
    """Seconds between looks at what may be over at once, or take long: each costs the API as much as a request."""
    pause = 0.1
    while True:
        yield pause
        pause = min(pause * 1.3, 0.6)


def under_way(row: dict[str, Any]) -> bool:
    """Whether something works on the server that a listing shows."""
    return row['OS-EXT-STS:task_state'] is not None or row['status'] not in ENDED
