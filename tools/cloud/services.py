"""The table of everything that runs in the one-machine cloud, in the order in which it starts.

    for service in table(cloud):
        print(service.name, service.port)

A service is a command, its environment, its port and a question that tells when it is ready; starting, restarting
and stopping is the same for all of them.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.cloud import cinder, cyborg, http, neutron, render, switch
from tools.cloud.layout import ROOT, Layout, write_private
from tools.cloud.machine import Machine

# Proxies of consoles that the cloud has.
PROXIES = ('novncproxy', 'serialproxy')
RABBITMQ_SERVER = Path('/usr/lib/rabbitmq/bin/rabbitmq-server')


@dataclass(frozen=True)
class Service:
    """One process. ``ready`` asks whether it serves; None where only its own report (os-services) tells."""

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], bool] | None = None
    port: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[Path, ...] = ()
    # What os-services calls it: binary, and host where that tells two of them apart.
    reports: tuple[str, str | None] | None = None
    # Others need it before they start.
    first: bool = False
    # The services that run in it, and end with it.
    holds: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Changes when a running process is out of date: its command, environment or configuration differ."""
        total = hashlib.sha256(repr((self.argv, sorted(self.env.items()))).encode())
        for path in self.inputs:
            total.update(path.read_bytes() if path.exists() else b'')
        return total.hexdigest()


@dataclass(frozen=True)
class Cloud:
    """All that the table is made from."""

    layout: Layout
    ports: Mapping[str, int]
    secrets: Mapping[str, str]
    hosts: Mapping[str, Path]
    extra: Path | None = None
    # By host; empty where libvirt's test driver plays the hosts.
    machines: Mapping[str, Machine] = field(default_factory=dict)
    # Where the proxies of consoles run beside machines: only these reach the guests' ports.
    console_machine: Machine | None = None
    # A machine on the network outside of the cloud, where packets of guests move.
    outside_machine: Machine | None = None
    virt_type: str = 'qemu'
    # Whether Cyborg runs.
    cyborg: bool = False
    # Whether Neutron runs.
    network: bool = False
    # Whether Cinder runs.
    volume: bool = False

    @property
    def data_path(self) -> bool:
        """Whether packets of guests move: there are both."""
        return self.network and bool(self.machines)

    @property
    def stored(self) -> bool:
        """Whether volumes have data: real guests read and write them."""
        return self.volume and bool(self.machines)

    @property
    def config_arguments(self) -> list[str]:
        """The command line options by which daemons and kilonova-manage find their configuration."""
        files = [self.layout.conf] + ([self.extra] if self.extra else [])
        return [part for path in files for part in ('--config-file', str(path))]


def infrastructure(cloud: Cloud) -> list[Service]:
    """Return RabbitMQ with its name server, Keystone, Glance, Placement and, if wanted, Neutron and Cinder."""
    layout, ports = cloud.layout, cloud.ports
    keystone, glance, placement = (render.url(ports, name) for name in ('keystone', 'glance', 'placement'))
    return [
        Service(
            'epmd',
            ('epmd', '-address', '127.0.0.1', '-port', str(ports['epmd'])),
            lambda: listens(ports['epmd']),
            ports['epmd'],
            first=True,
        ),
        Service(
            'rabbitmq',
            (str(RABBITMQ_SERVER),),
            lambda: speaks_amqp(ports['rabbitmq']),
            ports['rabbitmq'],
            rabbitmq_environment(layout, ports),
            (layout.etc / 'rabbitmq' / 'rabbitmq.conf',),
        ),
        _wsgi(
            cloud,
            'keystone',
            lambda: http.answers(keystone, (200,)),
            'keystone.conf',
            {'OS_KEYSTONE_CONFIG_FILES': str(layout.etc / 'keystone' / 'keystone.conf')},
        ),
        _wsgi(
            cloud,
            'glance',
            lambda: http.answers(glance + '/versions', (200, 300)),
            'glance-api.conf',
            {'OS_GLANCE_CONFIG_DIR': str(layout.etc / 'glance')},
        ),
        _wsgi(
            cloud,
            'placement',
            lambda: http.answers(placement, (200,)),
            'placement.conf',
            {'OS_PLACEMENT_CONFIG_DIR': str(layout.etc / 'placement')},
        ),
        *(networks(cloud) if cloud.network else ()),
        *((volumes(cloud),) if cloud.volume else ()),
    ]


def networks(cloud: Cloud) -> list[Service]:
    """Return the services of the network.

    They are the databases of OVN, northd, the pretended hosts if there are no real ones, and Neutron, which needs the
    databases from its start.
    """
    layout, url, hosts = cloud.layout, render.url(cloud.ports, 'neutron'), tuple(cloud.hosts)
    pretended = Service(
        'ovn-hosts',
        (
            layout.neutron_bin('python'),
            '-P',
            '-W',
            'ignore',
            '-m',
            'tools.cloud.ovn_hosts',
            neutron.remote(layout, 'sb'),
            *hosts,
        ),
        lambda: neutron.hosts_known(layout, hosts),
        env={'PYTHONPATH': str(ROOT)},
    )
    runtime = {'OVN_RUNDIR': str(layout.data('neutron')), 'OVS_RUNDIR': str(layout.data('neutron'))}
    return [
        *(
            Service(
                f'ovn-{name}',
                neutron.database_argv(layout, cloud.ports, name),
                lambda name=name: accepts(neutron.socket_path(layout, name)),  # type: ignore[misc]
                env=runtime,
                first=True,
            )
            for name in neutron.DATABASES
        ),
        Service('ovn-northd', neutron.northd_argv(layout), lambda: neutron.translated(layout), env=runtime, first=True),
        *(() if cloud.machines else (pretended,)),
        _wsgi(
            cloud,
            'neutron',
            lambda: http.answers(url, (200,)),
            'neutron.conf',
            # How many workers share the events of OVN it takes from here; gunicorn is not one that it asks.
            {
                'OS_NEUTRON_CONFIG_DIR': str(layout.etc / 'neutron'),
                'OS_NEUTRON_CONFIG_FILES': 'neutron.conf',
                'ASGI_WORKERS': '1',
            },
            layout.neutron_bin('gunicorn'),
        ),
    ]


def volumes(cloud: Cloud) -> Service:
    """Return Cinder's service. A file at ``more_path`` counts more than the configuration that is written here."""
    layout, port, more = cloud.layout, cloud.ports['cinder'], cinder.more_path(cloud.layout)
    files = (cinder.conf_path(layout), *((more,) if more.exists() else ()))
    return Service(
        'cinder',
        (
            layout.cinder_bin('python'),
            '-P',
            '-W',
            'ignore',
            '-m',
            'tools.cloud.cinder_process',
            *(word for path in files for word in ('--config-file', str(path))),
        ),
        lambda: http.answers(f'http://127.0.0.1:{port}/', (300,)),
        port,
        {'PYTHONPATH': str(ROOT)},
        inputs=files,
    )


def daemons(cloud: Cloud) -> list[Service]:
    """Return the four daemons, with a compute for each host description, and the proxies of consoles."""
    layout, api = cloud.layout, f'http://127.0.0.1:{cloud.ports["api"]}/'
    return [
        _daemon(cloud, 'conductor', reports=('nova-conductor', None)),
        _daemon(cloud, 'scheduler', reports=('nova-scheduler', None)),
        _daemon(cloud, 'api', ready=lambda: http.answers(api, (200, 300)), port=cloud.ports['api']),
        *(
            _daemon(
                cloud, 'compute', host=host, own=(layout.compute_conf(host), node_file), reports=('nova-compute', host)
            )
            for host, node_file in cloud.hosts.items()
        ),
        *(_console_proxy(cloud, name) for name in PROXIES),
    ]


def accelerators(cloud: Cloud) -> list[Service]:
    """Return Cyborg's services if it is wanted: its conductor, its API, and an agent for each host.

    Its daemons need accounts in Keystone when they start, and agents the providers of hosts in Placement, so the
    computes come first.
    """
    if not cloud.cyborg:
        return []
    layout, url = cloud.layout, render.url(cloud.ports, 'cyborg')
    return [
        _of_cyborg(layout, 'conductor', 'cyborg-conductor'),
        _wsgi(cloud, 'cyborg', lambda: http.answers(url, (200,)), 'cyborg.conf', {}, layout.cyborg_bin('gunicorn')),
        *(
            _of_cyborg(layout, 'agent', f'cyborg-agent-{host}', cyborg.agent_path(layout, host), reads=(node_file,))
            for host, node_file in cloud.hosts.items()
        ),
    ]


def _of_cyborg(layout: Layout, daemon: str, name: str, *own: Path, reads: tuple[Path, ...] = ()) -> Service:
    files = (cyborg.conf_path(layout), *own)
    argv = [
        layout.cyborg_bin(f'cyborg-{daemon}'),
        *(part for path in files for part in ('--config-file', str(path))),
        '--log-file',
        str(layout.log(name)),
    ]
    return Service(name, tuple(argv), env={'PYTHONPATH': str(cyborg.PLUG_IN)}, inputs=(*files, *reads))


def machines(cloud: Cloud) -> list[Service]:
    """Return the machines of real guests with their libvirtds."""
    found = []
    if cloud.console_machine:
        found.append(_machine(cloud.console_machine, PROXIES))
    if cloud.outside_machine:
        found.append(_machine(cloud.outside_machine, ()))
    for host, machine in cloud.machines.items():
        carriers = _carriers(cloud, machine) if cloud.data_path else []
        found += [
            _machine(machine, (*(each.name for each in carriers), f'libvirtd-{host}', f'compute-{host}')),
            *carriers,
            Service(
                f'libvirtd-{host}',
                machine.inside('libvirtd', '--listen'),
                lambda machine=machine: accepts(machine.libvirt_socket),  # type: ignore[misc]
                env=machine.environment,
                inputs=(machine.path / 'machine.json',),
            ),
        ]
    return found


def _carriers(cloud: Cloud, machine: Machine) -> list[Service]:
    """Return what carries the packets of a machine's guests, and answers them at 169.254.169.254."""
    layout, host, conf = cloud.layout, machine.name, neutron.agent_path(cloud.layout, machine.name)
    return [
        Service(
            f'switch-{host}',
            switch.argv(machine, cloud.ports['ovn-sb']),
            lambda: neutron.hosts_known(layout, [host]),
            env=machine.environment,
        ),
        Service(
            f'metadata-{host}',
            machine.inside(
                'env',
                f'PYTHONPATH={ROOT}',
                layout.neutron_bin('python'),
                '-P',
                '-W',
                'ignore',
                '-m',
                'tools.cloud.metadata_agent',
                '--config-file',
                str(conf),
            ),
            lambda: neutron.agents_known(layout, [host]),
            env=machine.environment,
            inputs=(conf,),
        ),
    ]


def _machine(machine: Machine, holds: tuple[str, ...]) -> Service:
    return Service(
        f'machine-{machine.name}',
        machine.argv,
        lambda: machine.pid() is not None,
        env=machine.environment,
        inputs=(machine.path / 'machine.json',),
        first=True,
        holds=holds,
    )


def table(cloud: Cloud) -> list[Service]:
    """Return all services in the order in which they start. They end in the opposite order."""
    return infrastructure(cloud) + machines(cloud) + daemons(cloud) + accelerators(cloud)


def write_configuration(cloud: Cloud) -> None:
    """Write every file that a service of the table reads. They hold passwords: all are 0600."""
    layout, ports, secrets = cloud.layout, cloud.ports, cloud.secrets
    files = {
        layout.etc / 'rabbitmq' / 'rabbitmq.conf': render.rabbitmq(layout, ports, secrets),
        layout.etc / 'rabbitmq' / 'rabbitmq-env.conf': '',
        layout.etc / 'rabbitmq' / 'enabled_plugins': '[].\n',
        layout.etc / 'keystone' / 'keystone.conf': render.keystone(layout),
        layout.etc / 'glance' / 'glance-api.conf': render.glance(layout, ports, secrets),
        layout.etc / 'placement' / 'placement.conf': render.placement(layout, ports, secrets),
        **{
            layout.etc / name / 'gunicorn.conf.py': render.gunicorn(ports, name)
            for name in ('keystone', 'glance', 'placement')
        },
        layout.conf: render.kilonova(
            layout,
            ports,
            secrets,
            accelerators=cloud.cyborg,
            networks=cloud.network,
            volumes=cloud.volume,
            metadata=cloud.data_path,
        ),
        layout.clouds: render.clouds(ports, secrets),
    }
    for host, node_file in cloud.hosts.items():
        own = node_file.with_suffix('.conf')
        settings = own.read_text() if own.exists() else ''
        files[layout.compute_conf(host)] = render.compute(
            layout,
            ports,
            host,
            node_file,
            settings,
            (cloud.machines[host].address, cloud.virt_type) if cloud.machines else None,
            share=cinder.shares(layout) if cloud.stored else None,
        )
        layout.instances(host).mkdir(parents=True, exist_ok=True)
    if cloud.cyborg:
        files |= {
            cyborg.conf_path(layout): cyborg.conf(layout, ports, secrets),
            layout.etc / 'cyborg' / 'gunicorn.conf.py': cyborg.gunicorn(layout, ports),
            **{
                cyborg.agent_path(layout, host): cyborg.agent(
                    layout, host, node_file, 'qemu' if cloud.machines else 'test'
                )
                for host, node_file in cloud.hosts.items()
            },
        }
    if cloud.network:
        files |= {
            neutron.conf_path(layout): neutron.conf(layout, ports, secrets, data_path=cloud.data_path),
            layout.etc / 'neutron' / 'gunicorn.conf.py': neutron.gunicorn(ports),
            **{neutron.agent_path(layout, host): neutron.agent(ports, secrets, host) for host in cloud.machines},
        }
    if cloud.volume:
        files[cinder.conf_path(layout)] = cinder.conf(layout, ports, secrets, stored=cloud.stored)
        files |= {cinder.shares_path(layout): f'{cinder.SHARE}\n'} if cloud.stored else {}
    for name in ('rabbitmq', 'keystone', 'glance', 'placement', 'cyborg', 'neutron', 'cinder', 'kilonova'):
        layout.data(name).mkdir(parents=True, exist_ok=True)
    for stale in (
        *layout.etc.glob('compute-*.conf'),
        *(layout.etc / 'cyborg').glob('agent-*.conf'),
        *(layout.etc / 'neutron').glob('metadata-*.conf'),
    ):
        if stale not in files:
            stale.unlink()
    for path, text in files.items():
        if not path.exists() or path.read_text() != text:
            write_private(path, text)
    _erlang_cookie(layout, secrets['rabbitmq'])


def rabbitmq_environment(layout: Layout, ports: Mapping[str, int]) -> dict[str, str]:
    """Return the environment variables of a RabbitMQ node apart from any that the machine runs.

    It has a name, ports and directories of its own.
    """
    etc, data = layout.etc / 'rabbitmq', layout.data('rabbitmq')
    mark = hashlib.sha256(str(layout.var).encode()).hexdigest()[:8]
    return {
        'HOME': str(data),
        'RABBITMQ_NODENAME': f'kilonova-{mark}@localhost',
        'RABBITMQ_NODE_IP_ADDRESS': '127.0.0.1',
        'RABBITMQ_NODE_PORT': str(ports['rabbitmq']),
        'RABBITMQ_DIST_PORT': str(ports['rabbitmq-dist']),
        'ERL_EPMD_PORT': str(ports['epmd']),
        'ERL_EPMD_ADDRESS': '127.0.0.1',
        'RABBITMQ_CONF_ENV_FILE': str(etc / 'rabbitmq-env.conf'),
        'RABBITMQ_CONFIG_FILE': str(etc / 'rabbitmq.conf'),
        'RABBITMQ_ADVANCED_CONFIG_FILE': str(etc / 'advanced.config'),
        'RABBITMQ_CONFIG_FILES': str(etc / 'conf.d'),
        'RABBITMQ_ENABLED_PLUGINS_FILE': str(etc / 'enabled_plugins'),
        'RABBITMQ_MNESIA_BASE': str(data / 'mnesia'),
        'RABBITMQ_LOG_BASE': str(data / 'log'),
        'RABBITMQ_GENERATED_CONFIG_DIR': str(data / 'config'),
        'RABBITMQ_PID_FILE': str(data / 'pid'),
        # With it the script replaces itself by the Erlang machine: one process, that ends gracefully on SIGTERM.
        'RUNNING_UNDER_SYSTEMD': 'true',
        # Idle schedulers sleep instead of spinning, and node-to-node traffic stays on this machine.
        'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': (
            '+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}'
        ),
    }


def _erlang_cookie(layout: Layout, secret: str) -> None:
    cookie = layout.data('rabbitmq') / '.erlang.cookie'
    if not cookie.exists():
        write_private(cookie, secret)
        cookie.chmod(0o400)


def _wsgi(
    cloud: Cloud, name: str, ready: Callable[[], bool], conf: str, env: Mapping[str, str], gunicorn: str = ''
) -> Service:
    etc = cloud.layout.etc / name
    settings = etc / 'gunicorn.conf.py'
    # By environment, as Keystone takes whatever stands on the command line for its own.
    return Service(
        name,
        (gunicorn or cloud.layout.services_bin('gunicorn'),),
        ready,
        cloud.ports[name],
        {**env, 'GUNICORN_CMD_ARGS': f'--config={settings}'},
        (etc / conf, settings),
    )


def _daemon(
    cloud: Cloud,
    daemon: str,
    *,
    host: str | None = None,
    own: tuple[Path, ...] = (),
    ready: Callable[[], bool] | None = None,
    port: int | None = None,
    reports: tuple[str, str | None] | None = None,
) -> Service:
    name = f'{daemon}-{host}' if host else daemon
    layout = cloud.layout
    files = [layout.conf, *own[:1]] + ([cloud.extra] if cloud.extra else [])
    argv = [layout.bin(f'kilonova-{daemon}')]
    for path in files:
        argv += ['--config-file', str(path)]
    argv += ['--log-file', str(layout.log(name))]
    machine = cloud.machines.get(host or '')
    return Service(
        name,
        machine.inside(*argv) if machine else tuple(argv),
        ready,
        port,
        machine.environment if machine else {},
        inputs=(*files, *own[1:]),
        reports=reports,
    )


def _console_proxy(cloud: Cloud, name: str) -> Service:
    layout, port, machine = cloud.layout, cloud.ports[name], cloud.console_machine
    argv = (
        layout.bin('python'),
        '-m',
        'kilonova.cmd.console_proxy',
        name,
        *cloud.config_arguments,
        '--log-file',
        str(layout.log(name)),
    )
    # Not only a connection: a machine's relay takes those before the proxy does. 426: this is no websocket.
    return Service(
        name,
        machine.inside(*argv) if machine else argv,
        lambda: http.answers(f'http://127.0.0.1:{port}/', (200, 404, 426)),
        port,
        machine.environment if machine else {},
        inputs=(layout.conf, *([cloud.extra] if cloud.extra else [])),
    )


def listens(port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection(('127.0.0.1', port), timeout=2.0):
            return True
    except OSError:
        return False


def accepts(path: Path) -> bool:
    """Whether something accepts connections at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(2.0)
        try:
            peer.connect(str(path))
        except OSError:
            return False
        return True


def speaks_amqp(port: int) -> bool:
    """Whether a broker opens an AMQP 0-9-1 connection: it answers the greeting with a method frame (type 1)."""
    try:
        with socket.create_connection(('127.0.0.1', port), timeout=2.0) as peer:
            peer.sendall(b'AMQP\x00\x00\x09\x01')
            return peer.recv(1) == b'\x01'
    except OSError:
        return False
