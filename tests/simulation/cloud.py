"""The simulated cloud: all daemons as processes of one timeline.

    cloud = Cloud(SHAPES['gpus'], directory, timeline)
    timeline.complete(cloud.start_all)
    cloud.request('POST', '/servers', body)         # from a green thread: one API request over the wire

Each daemon has databases (connection pools), a transport and a Placement client of its own. ``kill``, ``start`` and
``reboot`` are what happens to them.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import webob
from oslo_config import cfg

from kilonova import conf as kilonova_conf
from kilonova.accel.client import AcceleratorClient
from kilonova.api.app import make_app
from kilonova.clients.network import NetworkClient
from kilonova.clients.placement import PlacementClient
from kilonova.clients.volume import VolumeClient
from kilonova.compute.manager import ComputeManager
from kilonova.conductor import expiry
from kilonova.conductor import process as conductor_process
from kilonova.conductor.flows import accelerators
from kilonova.conductor.manager import ConductorManager
from kilonova.context import get_admin_context
from kilonova.db import engine, migration
from kilonova.db.queries import cells as cell_queries
from kilonova.errors import ImageNotFound
from kilonova.rpc import notify
from kilonova.rpc.compute import Compute
from kilonova.rpc.conductor import ComputeTask, Conductor
from kilonova.rpc.interface import Client
from kilonova.rpc.scheduler import Scheduler
from kilonova.scheduler.manager import SchedulerManager
from kilonova.virt.fakes.state import FakeMachine
from tests.simulation import hosts
from tests.simulation.accelerators import PORT_PROFILE, Cyborg, Offers
from tests.simulation.bus import Bus
from tests.simulation.links import Links
from tests.simulation.placement_model import ModelAdapter, PlacementModel
from tests.simulation.ports import CARD, Neutron
from tests.simulation.stores import Stores
from tests.simulation.timeline import Process, Timeline, Waiter
from tests.simulation.volumes import Cinder

IMAGE = '70a599e0-31e7-49b7-b260-868f441e862b'
PROJECT = '11111111111111111111111111111111'
DATABASES = {'api': 'api', 'cell0': 'cell', 'cell1': 'cell'}
# SQLAlchemy leaves a path in this form as it is: relative to the directory of the process that opens it.
URL = 'sqlite:///file:{}.db?uri=true'
# Seconds between two sweeps.
SWEEP = 30.0
# Seconds between two renewals of a lease, which lasts 45.
RENEW = 15.0
# Seconds until a daemon that could not start is started again.
START_AGAIN = 5.0
# Seconds after which an accelerator request counts as abandoned, and between two looks for such ones.
ABANDONED, LOOK = datetime.timedelta(seconds=900), 60.0
# Seconds that a user waits for the answer of the API.
PATIENCE = 300.0


@dataclass(frozen=True)
class Shape:
    """What a cloud is made of. ``devices``: {host: [devices]}; ``flavors``: (name, vcpus, extra specs). ``lives``:
    users migrate servers while they run, suspend, rescue, rebuild, shelve and evacuate them, too. ``offers``,
    ``profiles``: what Cyborg has, if there is one. ``has_network``: there is Neutron, and each server has a port, of
    which every other one guarantees something; ``has_functions``: that is a function of a network device;
    ``has_volumes``: there is Cinder, and each server has a volume that is made for it; ``has_all``: servers have ports
    of each kind, and volumes that are files of a share."""

    name: str
    devices: dict[str, list[dict[str, Any]]]
    flavors: tuple[tuple[str, int, dict[str, str]], ...]
    aliases: tuple[str, ...]
    specs: tuple[str, ...]
    apis: int = 2
    conductors: int = 3
    schedulers: int = 2
    vcpus: int = 64
    cells: int = 0
    lives: bool = False
    has_network: bool = False
    has_functions: bool = False
    has_volumes: bool = False
    has_all: bool = False
    offers: Offers = field(default_factory=dict)
    profiles: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def processes(self) -> list[str]:
        """All daemons, in the order in which they start."""
        return [
            *(f'conductor{n + 1}' for n in range(self.conductors)),
            *(f'scheduler{n + 1}' for n in range(self.schedulers)),
            *(f'api{n + 1}' for n in range(self.apis)),
            *self.devices,
        ]


def _gpus(count: int, each: int) -> dict[str, list[dict[str, Any]]]:
    return {
        f'gpu{host}': [hosts.gpu(f'0000:{host:02x}:{slot:02x}.0') for slot in range(each)]
        for host in range(1, count + 1)
    }


def _functions(count: int, each: int) -> dict[str, list[dict[str, Any]]]:
    return {
        f'gpu{host}': [
            hosts.gpu(f'0000:{host:02x}:00.0', '20b0', dev_type='type-PF'),
            *(
                hosts.gpu(
                    f'0000:{host:02x}:00.{function + 1}',
                    '20b1',
                    dev_type='type-VF',
                    parent_addr=f'0000:{host:02x}:00.0',
                )
                for function in range(each)
            ),
        ]
        for host in range(1, count + 1)
    }


def _wires(count: int, each: int) -> dict[str, list[dict[str, Any]]]:
    """So many GPUs, and a network card with one virtual function more."""
    return {
        name: [
            *gpus,
            hosts.gpu(f'0000:{host:02x}:1f.0', '1521', vendor_id='8086', dev_type='type-PF'),
            *(
                hosts.gpu(
                    f'0000:{host:02x}:1f.{function + 1}',
                    '1520',
                    vendor_id='8086',
                    dev_type='type-VF',
                    parent_addr=f'0000:{host:02x}:1f.0',
                )
                for function in range(each + 1)
            ),
        ]
        for host, (name, gpus) in enumerate(_gpus(count, each).items(), 1)
    }


def _kinds(count: int, each: int) -> dict[str, list[dict[str, Any]]]:
    """A GPU, two cards with room for so many vGPUs, a physical function with so many virtual ones, two groups of a GPU
    with its audio function; and what Cyborg gives away: a card with one function more, and one with so many parts."""
    types = {'nvidia-35': {'available': each, 'api': 'vfio-pci'}}
    parts = {'nvidia-36': {'available': each, 'api': 'vfio-pci'}}
    return {
        f'gpu{host}': [
            hosts.gpu(f'0000:{host:02x}:00.0'),
            *(hosts.gpu(f'0000:{host:02x}:{slot:02x}.0', '2235', mdev_types=types) for slot in (1, 2)),
            hosts.gpu(f'0000:{host:02x}:03.0', '20b0', dev_type='type-PF'),
            *(
                hosts.gpu(
                    f'0000:{host:02x}:03.{function + 1}',
                    '20b1',
                    dev_type='type-VF',
                    parent_addr=f'0000:{host:02x}:03.0',
                )
                for function in range(each)
            ),
            *(
                hosts.gpu(f'0000:{host:02x}:{slot:02x}.{function}', product)
                for slot in (4, 5)
                for function, product in enumerate(('26b9', '22ba'))
            ),
            *(hosts.gpu(f'0000:{host:02x}:06.{function}', '5020', vendor_id='10ee') for function in range(each + 1)),
            hosts.gpu(f'0000:{host:02x}:07.0', '2236', mdev_types=parts),
        ]
        for host in range(1, count + 1)
    }


def _mixed(count: int, each: int) -> dict[str, list[dict[str, Any]]]:
    """The same as ``_wires``, whose cards have names, and what Cyborg gives away: a card, and functions of another."""
    return {
        name: [
            *({**one, 'parent_ifname': CARD} if one['vendor_id'] == '8086' else one for one in devices),
            *(hosts.gpu(f'0000:{host:02x}:06.{function}', '5020', vendor_id='10ee') for function in range(each)),
            *(hosts.gpu(f'0000:{host:02x}:08.{function}', '5021', vendor_id='10ee') for function in range(each)),
        ]
        for host, (name, devices) in enumerate(_wires(count, each).items(), 1)
    }


def _offers(count: int, each: int) -> Offers:
    """Of the hosts of ``_kinds``."""
    return {
        f'gpu{host}': [
            ('fpga', 'FPGA', [('PCI', f'0000:{host:02x}:06.{function}') for function in range(each + 1)]),
            ('part', 'CUSTOM_PART', [('MDEV', f'0000:{host:02x}:07.0', 'nvidia-36')] * each),
        ]
        for host in range(1, count + 1)
    }


def _mixed_offers(count: int, each: int) -> Offers:
    """Of the hosts of ``_mixed``."""
    return {
        f'gpu{host}': [
            (name, resource_class, [('PCI', f'0000:{host:02x}:{slot}.{function}') for function in range(each)])
            for name, resource_class, slot in (('fpga', 'FPGA', '06'), ('nic', 'CUSTOM_NIC', '08'))
        ]
        for host in range(1, count + 1)
    }


_WHOLE = hosts.alias('gpu', '13f1', 'type-PCI')
_SPEC = json.dumps({'vendor_id': '10de', 'product_id': '13f1'})
_FLAVORS = (
    ('none', 1, {}),
    ('one', 2, {'pci_passthrough:alias': 'gpu:1'}),
    ('two', 4, {'pci_passthrough:alias': 'gpu:2'}),
)
SHAPES = {
    'gpus': Shape('gpus', _gpus(3, 2), _FLAVORS, (_WHOLE,), (_SPEC,)),
    'tight': Shape('tight', _gpus(2, 2), _FLAVORS, (_WHOLE,), (_SPEC,), conductors=2, schedulers=1, apis=1),
    'soft': Shape(
        'soft',
        _gpus(2, 3),
        _FLAVORS,
        (_WHOLE,),
        (_SPEC,),
        conductors=2,
        options={'reclaim_instance_interval': 600, 'allow_resize_to_same_host': True},
    ),
    'narrow': Shape(
        'narrow',
        _gpus(2, 2),
        _FLAVORS,
        (_WHOLE,),
        (_SPEC,),
        conductors=1,
        schedulers=1,
        apis=1,
        options={'conductor__flow_slots': 4, 'conductor__flow_slots_per_host': 1},
    ),
    # A physical function with virtual ones, which Placement doesn't know: hosts and rows decide.
    'functions': Shape(
        'functions',
        _functions(2, 3),
        (
            ('none', 1, {}),
            ('one', 2, {'pci_passthrough:alias': 'vf:1'}),
            ('two', 4, {'pci_passthrough:alias': 'vf:2'}),
            ('whole', 4, {'pci_passthrough:alias': 'pf:1'}),
        ),
        (hosts.alias('pf', '20b0', 'type-PF'), hosts.alias('vf', '20b1', 'type-VF')),
        (
            json.dumps({'vendor_id': '10de', 'product_id': '20b0'}),
            json.dumps({'vendor_id': '10de', 'product_id': '20b1'}),
        ),
        conductors=2,
        options={'filter_scheduler__pci_in_placement': False, 'pci__report_in_placement': False},
    ),
    # CPUs of one's own on two NUMA cells.
    'pins': Shape(
        'pins',
        _gpus(2, 2),
        tuple((name, vcpus, {**extra, 'hw:cpu_policy': 'dedicated'}) for name, vcpus, extra in _FLAVORS),
        (_WHOLE,),
        (_SPEC,),
        conductors=2,
        vcpus=12,
        cells=2,
        options={'compute__cpu_dedicated_set': '0-11'},
    ),
    # Each kind of device, alone and together: GPUs, mediated devices (two of any card, or one each of two cards),
    # virtual functions that Placement counts, groups, accelerators of Cyborg.
    'kinds': Shape(
        'kinds',
        _kinds(2, 2),
        (
            ('none', 1, {}),
            ('one', 2, {'resources:VGPU': '1'}),
            ('two', 4, {'resources:VGPU': '2'}),
            ('both', 4, {'resources:VGPU': '1', 'pci_passthrough:alias': 'gpu:1'}),
            ('apart', 4, {'resources1:VGPU': '1', 'resources2:VGPU': '1', 'group_policy': 'isolate'}),
            ('vf', 2, {'pci_passthrough:alias': 'vf:1'}),
            ('group', 2, {'pci_passthrough:alias': 'audible:1'}),
            ('groups', 2, {'pci_passthrough:alias': 'audible:2'}),
            ('mixed', 2, {'pci_passthrough:alias': 'audible:1,vf:1', 'resources:VGPU': '1'}),
            ('accel', 2, {'accel:device_profile': 'card'}),
            ('accels', 4, {'accel:device_profile': 'cards'}),
            ('part', 2, {'accel:device_profile': 'part'}),
            ('beside', 4, {'accel:device_profile': 'all', 'pci_passthrough:alias': 'gpu:1'}),
        ),
        (_WHOLE, hosts.alias('vf', '20b1', 'type-VF'), json.dumps({'name': 'audible', 'group': 'audible'})),
        (
            _SPEC,
            json.dumps({'vendor_id': '10de', 'product_id': '20b1'}),
            *(
                json.dumps(
                    {
                        'vendor_id': '10de',
                        'product_id': product,
                        'group': 'audible',
                        'group_by': 'slot',
                        'group_size': 2,
                    }
                )
                for product in ('26b9', '22ba')
            ),
        ),
        conductors=2,
        lives=True,
        offers=_offers(2, 2),
        profiles={
            'card': [{'resources:FPGA': '1'}],
            'cards': [{'resources:FPGA': '2'}],
            'part': [{'resources:CUSTOM_PART': '1'}],
            'all': [{'resources:FPGA': '1'}, {'resources:CUSTOM_PART': '1'}],
        },
        options={'devices__enabled_mdev_types': ['nvidia-35'], 'arq_binding_timeout': 60},
    ),
    'ports': Shape(
        'ports',
        _gpus(2, 3),
        _FLAVORS,
        (_WHOLE,),
        (_SPEC,),
        conductors=2,
        lives=True,
        has_network=True,
        options={'vif_plugging_timeout': 60},
    ),
    # Ports that are virtual functions; another one is attached and detached.
    'wires': Shape(
        'wires',
        _wires(2, 3),
        _FLAVORS,
        (_WHOLE,),
        (_SPEC, json.dumps({'vendor_id': '8086', 'physical_network': 'physnet1'})),
        conductors=2,
        lives=True,
        has_network=True,
        has_functions=True,
        options={'vif_plugging_timeout': 60, 'allow_resize_to_same_host': True},
    ),
    'volumes': Shape('volumes', _gpus(2, 3), _FLAVORS, (_WHOLE,), (_SPEC,), conductors=2, lives=True, has_volumes=True),
    # Ports of each kind, accelerators among them, and volumes of NFS; users attach, detach and delete them.
    'mixed': Shape(
        'mixed',
        _mixed(2, 4),
        (*_FLAVORS, ('accel', 2, {'accel:device_profile': 'card'})),
        (_WHOLE,),
        (_SPEC, json.dumps({'vendor_id': '8086', 'physical_network': 'physnet1'})),
        conductors=2,
        lives=True,
        has_network=True,
        has_functions=True,
        has_volumes=True,
        has_all=True,
        offers=_mixed_offers(2, 4),
        profiles={'card': [{'resources:FPGA': '1'}], PORT_PROFILE: [{'resources:CUSTOM_NIC': '1'}]},
        options={'vif_plugging_timeout': 60, 'arq_binding_timeout': 60, 'allow_resize_to_same_host': True},
    ),
    'large': Shape('large', _gpus(20, 4), _FLAVORS, (_WHOLE,), (_SPEC,)),
}


class Images:
    """The image service: one image, and those that are ``made`` of servers."""

    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {}

    def create(self, record: dict[str, Any], ctxt: Any = None) -> None:
        self.made[record['id']] = {**record, 'status': 'queued', 'size': None, 'owner': PROJECT}

    def upload(self, image_id: str, file: Any, check: Callable[[], None] = lambda: None) -> None:
        check()
        self.made[image_id].update(status='active', size=len(file.read()))

    def delete(self, image_id: str, ctxt: Any = None) -> None:
        self.made.pop(image_id, None)

    def get(self, image_id: str, ctxt: Any = None) -> dict[str, Any]:
        if image_id in self.made:
            return dict(self.made[image_id])
        if image_id != IMAGE:
            raise ImageNotFound(image_id=image_id)
        return {
            'id': IMAGE,
            'name': 'demo',
            'status': 'active',
            'disk_format': 'qcow2',
            'container_format': 'bare',
            'size': 1000,
            'min_disk': 0,
            'min_ram': 0,
            'visibility': 'public',
            'protected': False,
            'tags': [],
            'owner': PROJECT,
            'created_at': '2026-01-01T00:00:00Z',
            'updated_at': '2026-01-01T00:00:00Z',
            'checksum': None,
        }

    def url(self, image_id: str, ctxt: Any = None) -> str:
        return f'http://image.test/images/{image_id}'


class Refused(Exception):
    """The API's process isn't there, or went away before it answered."""


class Cloud:
    """See the module. The current directory holds the databases."""

    def __init__(self, shape: Shape, timeline: Timeline) -> None:
        self.shape, self.timeline = shape, timeline
        self.links = Links(timeline)
        self.stores = Stores(timeline, self.links)
        self.bus = Bus(timeline, self.links)
        self.bus.prepare = self._prepare
        self.model = PlacementModel()
        self.images = Images()
        self.cyborg: Cyborg | None = None
        self.neutron: Neutron | None = None
        self.cinder = Cinder(timeline, PROJECT, IMAGE, shape.has_all) if shape.has_volumes else None
        self.disks = FakeMachine()
        self.machines = {
            name: hosts.Machine(name, devices, shape.vcpus, shape.cells) for name, devices in shape.devices.items()
        }
        if shape.profiles:
            self.cyborg = Cyborg(timeline, self.machines, self.told)
            self.cyborg.profiles.update(shape.profiles)
            accelerators.ABANDONED, expiry.HOUR = ABANDONED, LOOK
        if shape.has_network:
            self.neutron = Neutron(timeline, self.told, list(shape.devices), PROJECT, f'admin:{PROJECT}')
        self.guests_changed: Callable[[str], None] = lambda host: None
        self.processes: dict[str, Process] = {}
        # Hosts that aren't started, whoever wants to.
        self.off: set[str] = set()
        self.apps: dict[str, Any] = {}
        self.confs: dict[str, Any] = {}
        self.clients: dict[str, Any] = {}
        self.flavors: list[str] = []
        self._numbers: dict[str, Process] = {}
        conductor_process.describe = self._describe  # type: ignore[assignment]
        conductor_process.is_dead = self._is_dead  # type: ignore[assignment]
        self.stores.install()

    def _describe(self, host: str, pid: int | None = None) -> str:
        text = f'{host} number={len(self._numbers)}'
        self._numbers[text] = self.timeline.current().process
        return text

    def _is_dead(self, text: str | None, host: str) -> bool:
        process = self._numbers.get(text or '')
        return process is not None and process.name == host and process.dead

    # -- start --------------------------------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Empty databases, the cells, and the configuration of each daemon."""
        for name, schema in DATABASES.items():
            database = engine.Database(URL.format(name), schema)
            migration.sync(database, schema)  # type: ignore[arg-type]
            database.dispose()
        databases = self.databases()
        engine.install(databases)
        cell_queries.map_cell0(databases, URL.format('cell0'))
        cell_queries.create_cell(
            databases, transport_url='fake://cell1/', database_connection=URL.format('cell1'), name='cell1'
        )
        databases.dispose()
        for name in self.names():
            self.confs[name] = self._conf(name)

    def names(self) -> list[str]:
        """All daemons, in the order in which they start."""
        return self.shape.processes

    def databases(self) -> engine.Databases:
        """A process's own pools."""
        return engine.Databases(URL.format('api'), URL.format('cell1'))

    def start_all(self) -> None:
        """Everything, the flavors too."""
        for name in self.names():
            self.start(name)
            self.pause(0.5)
        deadline = self.timeline.now + 300
        while len([name for name in self.shape.devices if name in self.apps]) < len(self.shape.devices):
            if self.timeline.now > deadline:
                raise AssertionError('the cloud does not start')
            self.pause(1)
        databases = self.databases()
        cell_queries.discover_hosts(databases)
        databases.dispose()
        if self.cyborg is not None:
            self.cyborg.offer_all(self.placement(), self.shape.offers)
        for host in self.shape.devices if self.neutron is not None else ():
            self.neutron.report(self.placement(), host, cards=[CARD] if self.shape.has_all else [])
        for name, vcpus, extra in self.shape.flavors:
            flavor = self.request(
                'POST', '/flavors', {'flavor': {'name': name, 'vcpus': vcpus, 'ram': 512, 'disk': 1}}
            ).json['flavor']['id']
            if extra:
                self.request('POST', f'/flavors/{flavor}/os-extra_specs', {'extra_specs': extra})
            self.flavors.append(flavor)

    def warm_up(self) -> None:
        """Each kind of request once: what the first one of a process costs is paid before the seeds."""
        first, second = self.flavors[:2]
        for number, acts in enumerate(
            (
                ({'os-stop': None}, {'os-start': None}, {'resize': {'flavorRef': second}}, {'confirmResize': None}),
                ({'reboot': {'type': 'HARD'}}, {'resize': {'flavorRef': second}}, {'revertResize': None}),
                ({'migrate': None}, {'confirmResize': None}),
                *(
                    [
                        (
                            {'resize': {'flavorRef': self.flavors[-1]}},
                            {'confirmResize': None},
                            {'suspend': None},
                            {'resume': None},
                            {'rescue': None},
                            {'unrescue': None},
                            {'rebuild': {'imageRef': IMAGE}},
                            {'shelve': None},
                            {'unshelve': None},
                        )
                    ]
                    if self.shape.profiles
                    else []
                ),
            )
        ):
            body = {'name': f'warm{number}', 'flavorRef': first, **self.wishes(number)}
            server = self.request('POST', '/servers', {'server': body}).json['server']['id']
            for act in acts:
                self._rests(server)
                self.request('POST', f'/servers/{server}/action', act, f'api{1 + number % self.shape.apis}')
            self._rests(server)
            self.request('DELETE', f'/servers/{server}')
            self.pause(10)
            self.request('POST', f'/servers/{server}/action', {'forceDelete': None})
            self.pause(10)

    def _rests(self, server: str) -> None:
        for _ in range(60):
            self.pause(3)
            found = self.request('GET', f'/servers/{server}').json['server']
            if found['status'] == 'ERROR':
                raise AssertionError(f'the cloud does not work: {found["fault"]}')
            if found['OS-EXT-STS:task_state'] is None and found['status'] != 'BUILD':
                return
        raise AssertionError(f'the cloud does not work: {found}')

    def pause(self, seconds: float) -> None:
        """Virtual seconds."""
        self.timeline.sleep(seconds)

    def start(self, name: str) -> None:
        """A new process of this daemon."""
        old = self.processes.get(name)
        if name in self.off or (old is not None and not old.dead):
            return
        process = self.processes[name] = Process(name)
        if old is not None:
            process.offset, process.slowness = old.offset, old.slowness
        make = (
            self._conductor
            if name.startswith('conductor')
            else self._scheduler
            if name.startswith('scheduler')
            else self._api
            if name.startswith('api')
            else self._compute
        )
        self.timeline.tell(f'{name} starts')

        def run() -> None:
            try:
                self.apps[name] = make(name)
            except Exception as error:
                if not engine.is_unreachable(error):
                    raise
                # It ends, and whatever started it starts it again.
                self.timeline.tell(f'{name} finds no database')
                self.timeline.after(0, lambda: self.kill(name))
                self.timeline.after(START_AGAIN, lambda: self.start(name))

        self.timeline.spawn(process, run, 'main')

    def kill(self, name: str) -> None:
        """kill -9. Only in the hub."""
        process = self.processes[name]
        if process.dead:
            return
        self.timeline.tell(f'{name} is killed')
        self.timeline.kill(process)
        self.apps.pop(name, None)
        self.bus.leave(process)

    def is_host(self, name: str) -> bool:
        """Whether this is a compute."""
        return name in self.machines

    def _conf(self, host: str) -> Any:
        conf = kilonova_conf.new()
        notify.register(conf)
        # oslo.messaging's, which registers it with a transport.
        conf.register_opt(cfg.IntOpt('rpc_response_timeout', default=60))
        conf([], project='kilonova', default_config_files=[], default_config_dirs=[])
        values = {
            'host': host,
            'api__auth_strategy': 'noauth2',
            'pci__alias': list(self.shape.aliases),
            'filter_scheduler__pci_in_placement': True,
            'pci__report_in_placement': True,
            'pci__device_spec': list(self.shape.specs),
            'quota__instances': -1,
            'quota__cores': -1,
            'quota__ram': -1,
            'disk_allocation_ratio': 1000.0,
            'conductor__flow_slots': 8,
            'conductor__lease_time': 45,
            'conductor__sweep_interval': 15,
            'report_interval': 30,
            'service_down_time': 100,
            'update_resources_interval': 120,
            'sync_power_state_interval': 300,
            'my_ip': '192.0.2.1',
            'state_path': f'/nonexistent/{host}',
            'resume_guests_state_on_host_boot': True,
            **self.shape.options,
        }
        for name, value in values.items():
            group, _, option = name.rpartition('__')
            conf.set_override(option, value, group or None)
        return conf

    def placement(self) -> PlacementClient:
        """A process's own client."""
        return PlacementClient(self.stores.wire(ModelAdapter(self.model)))  # type: ignore[arg-type]

    def accelerators(self) -> AcceleratorClient | None:
        """A process's own client of Cyborg, if there is one."""
        return self.cyborg.client_by(self.stores) if self.cyborg is not None else None

    def networks(self) -> NetworkClient | None:
        """A process's own client of Neutron, if there is one."""
        return self.neutron.client_by(self.stores) if self.neutron is not None else None

    def volumes(self) -> VolumeClient | None:
        """A process's own client of Cinder, if there is one."""
        return self.cinder.client_by(self.stores) if self.cinder is not None else None

    def wishes(self, number: int) -> dict[str, Any]:
        """What server ``number`` asks for besides name and flavor; every other one boots from a volume where there are
        any. The same of ports that guarantee something."""
        found: dict[str, Any] = {
            'networks': 'none'
            if self.neutron is None
            else [self.neutron.of_create(number)]
            if self.shape.has_all
            else [
                {'port': self.neutron.function()}
                if self.shape.has_functions
                else {'port': self.neutron.guaranteed(number // 2)}
                if number % 2
                else {'uuid': self.neutron.network}
            ]
        }
        if self.cinder is None:
            return {'imageRef': IMAGE, **found}
        if self.shape.has_all and number % 4 == 1:
            return {
                'imageRef': '',
                'block_device_mapping_v2': [
                    {
                        'source_type': 'volume',
                        'destination_type': 'volume',
                        'uuid': self.cinder.own(f'{number}/boot'),
                        'boot_index': 0,
                    }
                ],
                **found,
            }
        new = {'source_type': 'blank', 'destination_type': 'volume', 'volume_size': 1, 'delete_on_termination': True}
        if number % 2:
            return {'imageRef': '', 'block_device_mapping_v2': [{**new, 'boot_index': 0}], **found}
        own = {'source_type': 'image', 'destination_type': 'local', 'uuid': IMAGE, 'boot_index': 0}
        return {'imageRef': IMAGE, 'block_device_mapping_v2': [own, new], **found}

    def tell_of_ports(self, servers: Iterable[str]) -> None:
        """Neutron tells of ports of these servers."""
        for server in servers:
            self.told({'events': [{'name': 'network-changed', 'server_uuid': server}]})
        self.pause(5.0)

    def told(self, body: Any) -> None:
        """Events of Cyborg or Neutron."""
        with contextlib.suppress(Refused):
            response = self.request('POST', '/os-server-external-events', body, 'api1')
            self.timeline.tell(f'{len(body["events"])} events: {response.status_int}')

    def _conductor(self, name: str) -> Any:
        conf, databases = self.confs[name], self.databases()
        transport = self.bus.transport(name, conf)
        manager = ConductorManager(
            conf,
            databases=databases,
            cells=cell_queries.CellDatabases(databases),
            transport=transport,
            scheduler=Client(Scheduler, transport),
            compute=Client(Compute, transport),
            placement=self.placement(),
            images=self.images,
            accelerators=self.accelerators(),
            networks=self.networks(),
            volumes=self.volumes(),
        )
        # Longer than the options allow: an idle second of the cloud shall cost little.
        manager.runner.sweep_interval, manager.runner._renew_interval = SWEEP, RENEW
        manager.start()
        self.bus.collectors[self.timeline.current().process] = manager.reports.write
        return manager

    def _scheduler(self, name: str) -> Any:
        conf, databases = self.confs[name], self.databases()
        manager = SchedulerManager(conf, databases, cell_queries.CellDatabases(databases), self.placement())
        manager.start()
        self.bus.transport(name, conf).serve('scheduler', name, manager.endpoints()).start()
        return manager

    def _api(self, name: str) -> Any:
        conf, databases = self.confs[name], self.databases()
        transport = self.bus.transport(name, conf)
        return make_app(
            conf,
            databases=databases,
            cells=cell_queries.CellDatabases(databases),
            conductor=Client(ComputeTask, transport),
            image_client=self.images,
            compute=Client(Compute, transport),
            placement=self.placement(),
            accelerators=self.accelerators(),
            networks=self.networks(),
            volumes=self.volumes(),
        )

    def _compute(self, name: str) -> Any:
        conf = self.confs[name]
        transport = self.bus.transport(name, conf)
        client = self.clients[name] = Client(Conductor, transport)
        driver = hosts.Driver(
            conf, self.images, self.machines[name], self.disks, self.timeline, self._guests_changed, self.cinder
        )

        def context() -> Any:
            ctxt = get_admin_context()
            ctxt.indirection = client
            return ctxt

        manager = ComputeManager(
            conf,
            driver=driver,
            conductor=client,
            placement=self.placement(),
            ctxt=context,
            accelerators=self.accelerators(),
            networks=self.networks(),
            report=lambda service_id, host: self.bus.report(name, service_id, host),
        )
        manager.start(transport.serve('compute', name, [(Compute, manager.endpoint)]).start)
        return manager

    def _guests_changed(self, host: str) -> None:
        self.guests_changed(host)

    def _prepare(self, topic: str, server: str, ctxt: Any) -> None:
        if topic == 'compute':
            ctxt.indirection = self.clients[server]

    # -- the front door -----------------------------------------------------------------------------------------------
    def request(self, method: str, path: str, body: Any = None, api: str = 'api1') -> webob.Response:
        """One request; Refused when nobody answers."""
        request = webob.Request.blank(f'/v2.1{path}', method=method)
        request.headers['X-Auth-Token'] = f'admin:{PROJECT}'
        request.headers['OpenStack-API-Version'] = 'compute 2.96'
        if body is not None:
            request.content_type = 'application/json'
            request.body = json.dumps(body).encode()
        process, app = self.processes[api], self.apps.get(api)
        if process.dead or app is None:
            raise Refused(f'{api}: connection refused')
        answered = Waiter(self.timeline)
        answer: list[webob.Response] = []

        def serve() -> None:
            self.timeline.step()
            answer.append(request.get_response(app))
            answered.set()

        self.timeline.spawn(process, serve, f'{method} {path}')
        if not answered.wait(PATIENCE):
            raise Refused(f'{api}: no answer')
        return answer[0]
