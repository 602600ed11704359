"""Three RabbitMQ nodes in one cluster, whose links to each other and to their clients can be cut.

    with cluster(directory) as brokers:
        brokers.url                             # transport_url with all three
        brokers.kill(2)                         # kill -9
        brokers.start(2)
        brokers.cut_off(3, clients=False)       # from the other nodes alone
        brokers.heal()
        brokers.await_whole()                   # each node sees all three run

Nothing of the machine's own RabbitMQ or network is used: own epmd, ports, directories, names. Each node finds the
others by an address of its own (127.1.FROM.TO), where a link (``tools/cloud/links.py``) goes on to the node's true one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.integration.beside import free_port
from tests.integration.site import _GUARD
from tools.cloud import process
from tools.cloud.layout import ROOT, Layout, write_private
from tools.cloud.links import Links
from tools.cloud.services import RABBITMQ_SERVER, listens, speaks_amqp

NODES = (1, 2, 3)
# Generous: three Erlang machines start at once on cores that others use too.
PATIENCE = 600.0
# Seconds without a sign after which a node counts as gone (RabbitMQ's default is 60).
TICK = 6
_CONF = """listeners.tcp.1 = 127.0.0.1:{port}
default_user = kilonova
default_pass = {password}
log.console = false
log.file = {log}
log.file.level = info
vm_memory_high_watermark.relative = 0.8
disk_free_limit.absolute = 100MB
cluster_formation.peer_discovery_backend = classic_config
{peers}
cluster_partition_handling = pause_minority
cluster_keepalive_interval = 2000
"""
# With -sname the node has its name and port before RabbitMQ would look whether anybody uses the port: our links do, at
# other addresses.
_ARGUMENTS = (
    '+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none -sname {name} -kernel net_ticktime {tick} '
    'inet_dist_use_interface {{127,0,0,1}} inet_dist_listen_min {port} inet_dist_listen_max {port}'
)


class Brokers:
    """The cluster; its processes carry the marks of a layout of their own."""

    def __init__(self, directory: Path, links: Links) -> None:
        self.layout, self.links = Layout.at(directory / 'var'), links
        self.layout.make_directories()
        self._password = secrets.token_hex(16)
        self._epmd, self._inner, self._dist, self._outer = (
            free_port(),
            *({node: free_port() for node in NODES} for _ in range(3)),
        )

    @property
    def url(self) -> str:
        """``[DEFAULT]transport_url`` of its clients."""
        return (
            'rabbit://' + ','.join(f'kilonova:{self._password}@127.0.0.1:{self._outer[node]}' for node in NODES) + '/'
        )

    # -- life ---------------------------------------------------------------------------------------------------------
    def form(self) -> None:
        """Write everything and start; returns when the cluster is whole."""
        for source in NODES:
            self._write(source)
            self.links.add(f'clients-{source}', ('127.0.0.1', self._outer[source]), ('127.0.0.1', self._inner[source]))
            for target in NODES:
                if target != source:
                    self.links.add(
                        f'{source}-{target}',
                        (seen(source, target), self._dist[target]),
                        ('127.0.0.1', self._dist[target]),
                    )
        addresses = ['127.0.0.1', *(seen(a, b) for a in NODES for b in NODES if a != b)]
        process.start(
            self.layout, 'epmd', ['epmd', '-address', ','.join(addresses), '-port', str(self._epmd)], env={}, digest=''
        )
        self._await(lambda: listens(self._epmd), 'epmd')
        for node in NODES:
            self._launch(node)
        self.await_whole()

    def end(self) -> None:
        """Kill all of it: nobody needs its data."""
        for pid in process.marked(self.layout.var):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.stop(self.layout, process.recorded(self.layout))

    def kill(self, node: int) -> None:
        """kill -9."""
        record = process.running(self.layout, name(node))
        assert record is not None, f'node {node} does not run\n{self.log(node)[-3000:]}'
        os.kill(record.pid, signal.SIGKILL)
        process.stop(self.layout, [name(node)])

    def start(self, node: int) -> None:
        """Start it again; it joins by itself."""
        self._launch(node)

    def cut_off(self, node: int, *, clients: bool) -> None:
        """Silence between a node and the other nodes, and with ``clients`` its clients, too."""
        others = [other for other in NODES if other != node]
        self.links.cut(
            [f'{node}-{other}' for other in others]
            + [f'{other}-{node}' for other in others]
            + ([f'clients-{node}'] if clients else [])
        )

    def heal(self) -> None:
        self.links.heal()

    def await_whole(self) -> None:
        """Wait until each node sees all of them run, and serves clients."""
        self._await(
            lambda: all(len(self.running(node)) == len(NODES) and speaks_amqp(self._inner[node]) for node in NODES),
            'a whole cluster',
        )

    def running(self, node: int) -> list[str]:
        """The nodes that a node sees running; [] when it doesn't answer."""
        asked = subprocess.run(
            [
                'erl_call',
                '-address',
                f'127.0.0.1:{self._dist[node]}',
                '-timeout',
                '5',
                '-a',
                'rabbit_nodes all_running',
            ],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, 'HOME': str(self._home(node))},
            stdin=subprocess.DEVNULL,
        )
        return asked.stdout.strip('[]\n ').split(',') if asked.returncode == 0 and '@' in asked.stdout else []

    def log(self, node: int) -> str:
        path = self.layout.log(name(node))
        return path.read_text(errors='replace') if path.exists() else ''

    def _await(self, question: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not question():
            assert time.monotonic() < deadline, f'no {what} after {PATIENCE:.0f} s\n' + '\n'.join(
                f'--- {node}\n{self.log(node)[-2000:]}' for node in NODES
            )
            time.sleep(0.3)

    # -- files --------------------------------------------------------------------------------------------------------
    def _home(self, node: int) -> Path:
        return self.layout.data(name(node))

    def _write(self, node: int) -> None:
        home = self._home(node)
        home.mkdir(parents=True, exist_ok=True)
        peers = '\n'.join(f'cluster_formation.classic_config.nodes.{peer} = {address(peer)}' for peer in NODES)
        write_private(
            home / 'rabbitmq.conf',
            _CONF.format(port=self._inner[node], password=self._password, log=self.layout.log(name(node)), peers=peers),
        )
        write_private(
            home / 'inetrc',
            '{lookup, [file, native]}.\n'
            + ''.join(f'{{host, {{{seen(node, peer).replace(".", ",")}}}, ["broker{peer}"]}}.\n' for peer in NODES),
        )
        write_private(home / 'rabbitmq-env.conf', '')
        write_private(home / 'enabled_plugins', '[].\n')
        write_private(home / '.erlang.cookie', self._password)
        (home / '.erlang.cookie').chmod(0o400)

    def _launch(self, node: int) -> None:
        home = self._home(node)
        process.start(
            self.layout,
            name(node),
            [str(RABBITMQ_SERVER)],
            digest='',
            env={
                'HOME': str(home),
                'ERL_INETRC': str(home / 'inetrc'),
                'RABBITMQ_NODENAME': address(node),
                'RABBITMQ_NODE_IP_ADDRESS': '127.0.0.1',
                'RABBITMQ_NODE_PORT': str(self._inner[node]),
                'ERL_EPMD_PORT': str(self._epmd),
                'RABBITMQ_CONF_ENV_FILE': str(home / 'rabbitmq-env.conf'),
                'RABBITMQ_CONFIG_FILE': str(home / 'rabbitmq.conf'),
                'RABBITMQ_ADVANCED_CONFIG_FILE': str(home / 'advanced.config'),
                'RABBITMQ_CONFIG_FILES': str(home / 'conf.d'),
                'RABBITMQ_ENABLED_PLUGINS_FILE': str(home / 'enabled_plugins'),
                'RABBITMQ_MNESIA_BASE': str(home / 'mnesia'),
                'RABBITMQ_LOG_BASE': str(home / 'log'),
                'RABBITMQ_GENERATED_CONFIG_DIR': str(home / 'config'),
                'RABBITMQ_PID_FILE': str(home / 'pid'),
                # With it the script replaces itself by the Erlang machine: one process to kill.
                'RUNNING_UNDER_SYSTEMD': 'true',
                'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': _ARGUMENTS.format(
                    name=address(node), tick=TICK, port=self._dist[node]
                ),
            },
        )


def name(node: int) -> str:
    """Its name among our processes."""
    return f'broker-{node}'


def address(node: int) -> str:
    """Its name among the nodes."""
    return f'rabbit{node}@broker{node}'


def seen(source: int, target: int) -> str:
    """The address by which a node knows another one, and itself."""
    return '127.0.0.1' if source == target else f'127.1.{source}.{target}'


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[Brokers]:
    """A whole cluster; nothing of it runs afterwards, however the test run ends."""
    with Links() as links:
        brokers = Brokers(directory, links)
        # Its other end of the pipe closes with this process, whatever ends that.
        guard = subprocess.Popen(
            [sys.executable, '-c', _GUARD, str(brokers.layout.var)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            brokers.form()
            yield brokers
        finally:
            brokers.end()
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait(120)
            assert process.marked(brokers.layout.var) == {}
