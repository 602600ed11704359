"""Each operation of servers with ports and volumes: the table of docs/admin/ports-and-volumes.md, cell by cell.

A cell says how the server ends and where its ports, or volumes, are then: 'ACTIVE: another host'. A server has some of
each kind, so that one run tries several cells. Whatever the end: the server has the ports and volumes that it had, on
its host, or on none, and nowhere else, and its guest has them; Neutron and Cinder have nothing besides, and the audit
finds nothing. Those of the user's own guarantee a bandwidth and a packet rate. SR-IOV ports are in test_devices.py.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import libvirt
import pytest

from kilonova.conductor import flows
from kilonova.db.queries import operations
from tests.fixtures.cinder import FakeCinder
from tests.fixtures.cloud import IMAGE_ID, PROJECT, Cloud, Templates
from tests.fixtures.neutron import FakeNeutron
from tests.flows.cases import CASES, GPUS, WAITING, Case, Subjects, ask, booted, bring_back, check, clear, dies_at
from tests.flows.cells import FULL, WITHOUT_SERVER, Shared, fail, has_guest, loses, read_table, short

PORT, VOLUME, BOOT_VOLUME = 'port', 'volume', 'boot volume'
WAYS = ('works', 'a step fails', 'Neutron is silent', 'Cinder is silent', 'the host dies')
# What is asked again and comes to what works; test_devices.py tries it with other operations.
LOST = 'a reply is lost'
# How a server boots, and what it has then: of ports or of volumes two, so that one of them may be behind.
FORMS = {'image': (PORT, VOLUME), BOOT_VOLUME: (PORT, VOLUME, BOOT_VOLUME)}
# A server that boots from a volume is never SHELVED; what is attached and detached is never what it boots from; its
# rebuild is a flow of its own, of which tests/functional/test_reimage.py has all.
OF_IMAGE = (
    'shelve-offload',
    'unshelve-start',
    'attach-volume',
    'detach-volume',
    'attach-port',
    'detach-port',
    'swap-volume',
    'rebuild',
    'rebuild-stopped',
)
# Flows that ask Neutron and Cinder, or whose action does: of these each step, moment and request is tried. Others ask
# nothing, and of these one is.
ASK_OTHERS = (
    'boot',
    'resize',
    'confirm',
    'revert',
    'live_migrate',
    'evacuate',
    'shelve',
    'shelve_offload',
    'unshelve',
    'delete',
    'snapshot',
    'attach_volume',
    'detach_volume',
    'swap_volume',
    'attach_interface',
    'detach_interface',
)
# Where a server boots in both ways: the one with which each place is tried; with the other each sixth is.
WHOLE = {
    'Neutron is silent': 'image',
    'Cinder is silent': BOOT_VOLUME,
    'a step fails': BOOT_VOLUME,
    'the host dies': BOOT_VOLUME,
}
# Requests that get no answer: as many as an operation makes in 30 s, as it pauses for 2, 4, 8 and 16 s between them.
UNANSWERED = 4
REFUSED = {'refused (400)'}
# A host connects nothing for it.
CONNECTION = {
    'driver_volume_type': 'rbd',
    'name': 'volumes/volume',
    'hosts': ['192.0.2.1'],
    'ports': ['6789'],
    'auth_enabled': False,
    'access_mode': 'rw',
    'encrypted': False,
}


# --- the operations --------------------------------------------------------------------------------------------------
def attach_volume(cloud: Any, server: str | None) -> str:
    """One more than it was created with."""
    cloud.ok('POST', f'/servers/{server}/os-volume_attachments', {'volumeAttachment': {'volumeId': cloud.more_volume}})
    return server or ''


def attach_port(cloud: Any, server: str | None) -> str:
    cloud.ok('POST', f'/servers/{server}/os-interface', {'interfaceAttachment': {'port_id': cloud.more_port}})
    return server or ''


def with_one_more(cloud: Any) -> str:
    server = booted(cloud)
    attach_volume(cloud, server)
    cloud.settle()
    return server


def detach_volume(cloud: Any, server: str | None) -> str:
    cloud.ok('DELETE', f'/servers/{server}/os-volume_attachments/{cloud.more_volume}')
    return server or ''


def swap_volume(cloud: Any, server: str | None) -> str:
    """Cinder moves it to another back end; where that isn't taken on, it does no more."""
    copy = cloud.cinder.migrate(cloud.volume)
    try:
        cloud.ok(
            'PUT',
            f'/servers/{server}/os-volume_attachments/{cloud.volume}',
            {'volumeAttachment': {'volumeId': copy}},
            version='2.1',
        )
    except AssertionError:
        cloud.cinder.end_migration(cloud.volume, copy, failed=True)
        raise
    return server or ''


def detach_port(cloud: Any, server: str | None) -> str:
    port = next(one['id'] for one in cloud.neutron.ports.values() if one['device_id'] == server)
    cloud.ok('DELETE', f'/servers/{server}/os-interface/{port}')
    return server or ''


def rescued(cloud: Any) -> str:
    server = booted(cloud)
    RESCUE(cloud, server)
    cloud.settle()
    assert cloud.status(server) == 'RESCUE', cloud.story(server)
    return server


# A server that boots from a volume needs an image for it.
RESCUE = ask('rescue', {'rescue_image_ref': IMAGE_ID})
OPERATIONS = {name: case for name, case in CASES.items() if name not in WITHOUT_SERVER} | {
    'rescue': replace(CASES['rescue'], act=RESCUE),
    'rescue-stopped': replace(CASES['rescue-stopped'], act=RESCUE),
    'unrescue': replace(CASES['unrescue'], before=rescued),
    'attach-volume': Case('attach_volume', booted, attach_volume, 'ACTIVE', 'ACTIVE'),
    'detach-volume': Case('detach_volume', with_one_more, detach_volume, 'ACTIVE', 'ACTIVE'),
    'swap-volume': Case('swap_volume', booted, swap_volume, 'ACTIVE', 'ACTIVE'),
    'attach-port': Case('attach_interface', booted, attach_port, 'ACTIVE', 'ACTIVE'),
    'detach-port': Case('detach_interface', booted, detach_port, 'ACTIVE', 'ACTIVE'),
}
# Neutron and Cinder said so; and see ``OF_IMAGE``. Snapshots are of volumes that are files (test_volume_snapshots.py).
ELSEWHERE = {
    'host_removal',
    'network_changed',
    'volume_extended',
    'reimage',
    'volume_snapshot_create',
    'volume_snapshot_delete',
    'resume_on_host_boot',
}


def kinds_of(name: str) -> tuple[str, ...]:
    return FORMS['image' if name in OF_IMAGE else BOOT_VOLUME]


TABLE = read_table('ports-and-volumes.md', WAYS, kinds_of)


def is_refused(name: str, form: str) -> bool:
    return form == BOOT_VOLUME and TABLE[name, BOOT_VOLUME]['works'] == REFUSED


def asks_others(name: str) -> bool:
    return OPERATIONS[name].kind in ASK_OTHERS


def forms_of(name: str) -> list[str]:
    """How a server boots with which an operation is tried."""
    if name in OF_IMAGE:
        return ['image']
    if is_refused(name, BOOT_VOLUME) or (asks_others(name) and not OPERATIONS[name].variant):
        return list(FORMS)
    return [BOOT_VOLUME]


def ways_of(name: str, form: str) -> list[str]:
    """The ways in which an operation is tried: where nobody is asked all works without an answer."""
    if is_refused(name, form):
        return ['works']
    if name not in CASES:
        return [*WAYS, LOST]
    return [way for way in WAYS if asks_others(name) or not way.endswith('silent')]


# It makes many requests.
MANY = {'swap-volume': ('Cinder is silent', LOST)}


def is_tried_whole(name: str, form: str, way: str) -> bool:
    """Whether an operation comes to all that its cell says: it is disturbed at each place, and asks all that it may."""
    return (
        not OPERATIONS[name].variant
        and way not in MANY.get(name, ())
        and (name in OF_IMAGE or WHOLE.get(way, form) == form)
    )


def stride(name: str, form: str, way: str) -> int:
    """With which an operation is disturbed at its places."""
    if FULL or is_tried_whole(name, form, way):
        return 1 if FULL or name in OF_IMAGE or way == 'a step fails' else 2
    return 4 if OPERATIONS[name].variant else 3 if name in MANY else 6


def test_each_operation_has_a_row_for_each_kind() -> None:
    """And each kind of flow is one of the operations. Who asks nobody comes to what works."""
    assert set(TABLE) == {(name, kind) for name in OPERATIONS for kind in kinds_of(name)}
    assert {case.kind for case in OPERATIONS.values()} | {'mirror', *ELSEWHERE} == set(flows.FLOWS)
    for (name, _), row in TABLE.items():
        assert asks_others(name) or row['works'] == row['Neutron is silent'] == row['Cinder is silent'], name


# --- the cloud -------------------------------------------------------------------------------------------------------
def make_cloud(directories: pytest.TempPathFactory, templates: Templates) -> Any:
    """It has what is its user's own: ``port`` and ``more_port``, which guarantee something, ``volume`` and
    ``more_volume``, ``network``."""
    neutron, cinder = FakeNeutron(hosts=GPUS), FakeCinder()
    cinder.connection = CONNECTION
    cinder.images = {IMAGE_ID: {}}
    cloud: Any = Cloud(
        directories.mktemp('ports'),
        templates,
        GPUS,
        neutron=neutron,
        cinder=cinder,
        reclaim_instance_interval=3600,
        block_device_allocate_retries_interval=0,
    )
    neutron.users[f'admin:{PROJECT}'] = cinder.users[f'admin:{PROJECT}'] = PROJECT
    cloud.cinder = cinder
    cloud.images.offered[IMAGE_ID]['hw_rescue_bus'] = 'virtio'
    cloud.network = neutron.add_network('private', PROJECT, cidr='10.2.0.0/24')
    cloud.port, cloud.more_port = (neutron.add_port(cloud.network, PROJECT) for _ in range(2))
    for port in (cloud.port, cloud.more_port):
        neutron.guarantee(port, kbits=300, packets=10)
    for host in GPUS:
        neutron.report(cloud.placement.client, host)
    cloud.volume, cloud.more_volume = cinder.add_volume(PROJECT), cinder.add_volume(PROJECT)
    cloud.small, cloud.large = cloud.flavor(), cloud.flavor(ram=1024)
    cloud.placed = cloud.flavor(**{'hw:numa_nodes': '1'})
    return cloud


@pytest.fixture(scope='module')
def shared(tmp_path_factory: pytest.TempPathFactory, cloud_templates: Templates) -> Iterator[Shared]:
    holder = Shared(lambda: make_cloud(tmp_path_factory, cloud_templates))
    yield holder
    holder.stop()


@pytest.fixture
def ground(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty cloud; afterwards it is empty again."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.002)
    monkeypatch.setattr('kilonova.conductor.flows.boot.SELECT_DEADLINE', 2.0)
    monkeypatch.setattr('kilonova.compute.ports.LOOK', 0.02)
    for flow in ('network.ports', 'volume.volumes'):
        monkeypatch.setattr(f'kilonova.conductor.flows.{flow}.LATE', 0.0)
    cloud = shared.get()
    shared.cloud = None
    yield cloud
    cloud.on_message = None
    empty(cloud)
    shared.cloud = cloud


def asks_for(cloud: Any, form: str) -> None:
    """What servers are created with from now on."""
    data = {'source_type': 'volume', 'destination_type': 'volume', 'uuid': cloud.volume, 'boot_index': -1}
    root = {'source_type': 'image', 'uuid': IMAGE_ID, 'boot_index': 0}
    if form == 'image':
        cloud.interfaces = [{'uuid': cloud.network}, {'port': cloud.port}]
        cloud.asks = {'block_device_mapping_v2': [{**root, 'destination_type': 'local'}, data]}
    else:
        cloud.interfaces = [{'uuid': cloud.network}]
        cloud.asks = {
            'imageRef': '',
            'block_device_mapping_v2': [
                {**root, 'destination_type': 'volume', 'volume_size': 1, 'delete_on_termination': True},
                data,
            ],
        }


def empty(cloud: Any) -> None:
    """No server is left, and nothing of one in Neutron and Cinder."""
    # A volume with a snapshot can not be deleted.
    cloud.cinder.snapshots.clear()
    clear(cloud)
    check_rest(cloud, None)
    assert set(cloud.cinder.statuses().values()) == {'available'}


# --- what is there ---------------------------------------------------------------------------------------------------
def ports_of(cloud: Any, server: str | None) -> list[dict[str, Any]]:
    return [port for port in cloud.neutron.ports.values() if port['device_id'] == server]


def attachments_of(cloud: Any, server: str | None, kind: str) -> list[dict[str, Any]]:
    return [
        one
        for one in cloud.cinder.attachments.values()
        if one['instance'] == server
        and (cloud.cinder.volumes[one['volume_id']]['bootable'] == 'true') == (kind == BOOT_VOLUME)
    ]


def check_rest(cloud: Any, server: str | None) -> None:
    """What is not this server's is as if it had never been."""
    neutron, cinder = cloud.neutron, cloud.cinder
    others = [port for port in neutron.ports.values() if server is None or port['device_id'] != server]
    assert [
        (port['device_id'], port['device_owner'], port['binding:profile'], *neutron.bindings(port['id']))
        for port in others
    ] == [('', '', {}, '')] * len(others)
    assert {port['id'] for port in others} <= {cloud.port, cloud.more_port}
    held = [one['volume_id'] for one in cinder.attachments.values() if one['instance'] == server]
    assert len(held) == len(cinder.attachments) == len(set(held)), cinder.attachments
    free = {volume: status for volume, status in cinder.statuses().items() if volume not in held}
    assert free == dict.fromkeys({cloud.volume, cloud.more_volume} - set(held), 'available')
    named = [
        one['snapshot_id']
        for image in cloud.images.made.values()
        for one in json.loads(image.get('block_device_mapping', '[]'))
    ]
    assert sorted(named) == sorted(cinder.snapshots)


def ids_of(cloud: Any, server: str | None, kind: str) -> set[str]:
    if kind == PORT:
        return {port['id'] for port in ports_of(cloud, server)}
    return {one['volume_id'] for one in attachments_of(cloud, server, kind)}


def place(cloud: Any, server: str, kind: str, host: str | None) -> str | None:
    """Where all that a server has of a kind is: 'none' where it has nothing, None: on no host."""
    if kind == PORT:
        found = {tuple(cloud.neutron.bindings(port['id'])) for port in ports_of(cloud, server)}
        assert found in (set(), {(host or '',)})
    else:
        attachments = attachments_of(cloud, server, kind)
        found = {(one['host'], one['status'], cloud.cinder.volumes[one['volume_id']]['status']) for one in attachments}
        assert found in (set(), {(host, 'attached', 'in-use') if host else (None, 'reserved', 'reserved')}), found
    return host if found else 'none'


def end(cloud: Any, case: Case, server: str, kinds: tuple[str, ...], was: Before) -> dict[str, str]:
    """{kind: what a server came to}: 'STATUS: where'. Fails where something is left over."""
    status = case.status(cloud, server)
    host = None if status in ('GONE', 'HELD') else cloud.host_of(server)
    told = {}
    for kind in kinds:
        at = place(cloud, server, kind, host)
        now, had = ids_of(cloud, server, kind), was.has.get(kind)
        where = (
            at
            if at == 'none'
            else 'no host'
            if at is None
            else 'a host'
            if was.host is None
            else 'same host'
            if at == was.host
            else 'another host'
        )
        if at != 'none' and had is not None and now != had:
            assert len(now ^ had) == 1
            where += ', one more' if now > had else ', one less'
        told[kind] = f'{status}: {where}'
    check_rest(cloud, server)
    if host is not None and has_guest(cloud, server, status):
        # libvirt's test driver puts nothing into a guest that runs: its next start is looked at.
        xml = (
            cloud.computes[host]
            .host.driver.guests._libvirt.find(server)
            .call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE)
        )
        assert sorted(re.findall('<mac address=[\'"](.*?)[\'"]', xml)) == sorted(
            port['mac_address'] for port in ports_of(cloud, server)
        )
        assert sorted(re.findall('<serial>(.{36})</serial>', xml)) == sorted(
            one['volume_id'] for one in cloud.cinder.attachments.values()
        )
    return told


@dataclass
class Before:
    """What a server had before an operation."""

    host: str | None = None
    has: dict[str, set[str]] = field(default_factory=dict)


def before_of(cloud: Any, server: str | None, kinds: tuple[str, ...]) -> Before:
    if server is None or cloud.status(server) == 'GONE':
        return Before()
    return Before(cloud.host_of(server), {kind: ids_of(cloud, server, kind) for kind in kinds})


# --- what happens to it ----------------------------------------------------------------------------------------------
class Silence:
    """From the ``number``-th request to a service on, counted from 0, some get no answer. Of the first of these nothing
    but its answer is lost, where it ``is_done``."""

    def __init__(self, service: Any, number: int, is_done: bool) -> None:
        self._service, self._lost = service, range(number, number + UNANSWERED)
        self._is_done, self._mine = is_done, threading.local()
        self.asked: list[str] = []
        service.before, service.after = self.before, self.after

    def before(self, method: str, path: str) -> None:
        self.asked.append(method)
        self._mine.number = len(self.asked) - 1
        if self._mine.number in self._lost[self._is_done :]:
            raise self._service.broken()

    def after(self, method: str, path: str) -> None:
        if self._mine.number in self._lost[: self._is_done]:
            raise self._service.broken()

    def end(self) -> None:
        self._service.before = self._service.after = None


@dataclass
class Trial:
    """One operation, disturbed in one way at one place."""

    cloud: Any
    name: str
    form: str
    way: str
    number: int
    is_done: bool = False

    def __post_init__(self) -> None:
        self.case, self.kinds = OPERATIONS[self.name], FORMS[self.form]
        # Whether there was such a place; whether it is one at which something is changed.
        self.reached, self.changes = False, False

    def run(self, monkeypatch: pytest.MonkeyPatch, server: str | None) -> dict[str, str]:
        cloud, case = self.cloud, self.case
        was = before_of(cloud, server, self.kinds)
        silences: list[Silence] = []
        with monkeypatch.context() as patch:
            death = lost = None
            if self.way == 'a step fails':
                fail(patch, case, self.number)
            elif self.way == 'the host dies':
                death = dies_at(cloud, self.number)
            elif self.way == LOST:
                lost = loses(cloud, self.number)
            else:
                silences = [Silence(service, self.number, self.is_done) for service in self.silent()]
            server, refused = acted(cloud, case, server)
            if refused:
                due_now(cloud)
            cloud.settle(kinds_left=WAITING if death else ())
        cloud.on_message = None
        for silence in silences:
            silence.end()
            self.reached = self.reached or len(silence.asked) > self.number
            self.changes = self.changes or silence.asked[self.number : self.number + 1] not in ([], ['GET'])
        if death and death.gone:
            bring_back(cloud, death.gone)
            self.reached = True
        if lost:
            self.reached = len(lost) > self.number
        found = dict.fromkeys(self.kinds, refused)
        if server is not None:
            check(cloud, case, server, *case.ends)
            ended = end(cloud, case, server, self.kinds, was)
            # Where nothing but the answer is refused, the server is what it was to be.
            if not refused or ended != dict.fromkeys(self.kinds, f'{case.bad}: same host'):
                found = ended
        return found

    def silent(self) -> list[Any]:
        """The services that don't answer: both, where nobody is asked."""
        both = {'Neutron is silent': self.cloud.neutron, 'Cinder is silent': self.cloud.cinder}
        if self.way in both:
            return [both[self.way]]
        return [] if asks_others(self.name) else list(both.values())


def due_now(cloud: Any) -> None:
    """The time of what the API planned for the case that it died has come."""
    with cloud.databases.api().write() as conn:
        conn.execute(operations.operations.update().values(not_before=0))


def acted(cloud: Any, case: Case, server: str | None) -> tuple[str | None, str]:
    """The server, and how the API refused the operation, if it did."""
    try:
        return case.act(cloud, server), ''
    except AssertionError as error:
        code = re.search(r'"code": (\d+)', str(error))
        if code is None:
            raise
        return server, f'refused ({code[1]})'


def outcomes(cloud: Any, monkeypatch: pytest.MonkeyPatch, name: str, form: str, way: str) -> dict[str, set[str]]:
    """{kind: all that an operation comes to}."""
    found: dict[str, set[str]] = {kind: set() for kind in FORMS[form]}
    asks_for(cloud, form)
    subjects = Subjects(cloud, OPERATIONS[name], empty)
    steps, step = len(flows.FLOWS[OPERATIONS[name].kind].steps), stride(name, form, way)
    number, more = 0 if step == 1 or way == 'works' else 1, True
    if way == 'a step fails':
        number = min(number, steps - 1) if asks_others(name) else steps - 1
    while more:
        trial = Trial(cloud, name, form, way, number, is_done=step > 2)
        trials = [trial.run(monkeypatch, subjects.next())]
        subjects.end(kept=way != 'the host dies')
        if trial.changes and not trial.is_done:
            trials.append(Trial(cloud, name, form, way, number, is_done=True).run(monkeypatch, subjects.next()))
            subjects.end(kept=way != 'the host dies')
        assert asks_others(name) or way != 'works' or not trial.reached, f'{name} asks Neutron or Cinder'
        for ended in trials:
            for kind, text in ended.items():
                found[kind].add(text)
        number += step
        more = asks_others(name) and (number < steps if way == 'a step fails' else trial.reached)
    return found


def wanted(name: str, form: str, way: str) -> dict[str, set[str]]:
    """{kind: what an operation may come to}."""
    return {
        kind: REFUSED if is_refused(name, form) else TABLE[name, kind]['works' if way == LOST else way]
        for kind in FORMS[form]
    }


@pytest.mark.parametrize(
    ('name', 'form', 'way'),
    [
        (name, form, way)
        for place, name in enumerate(OPERATIONS)
        for form in forms_of(name)
        for way in (ways_of(name, form) if asks_others(name) else short(ways_of(name, form), place))
    ],
)
def test_what_it_comes_to(ground: Any, monkeypatch: pytest.MonkeyPatch, name: str, form: str, way: str) -> None:
    """Each cell: works; each step fails once; each request gets no answer, and those after it for half a minute; the
    host dies before each thing that it tells of a step, and is back later; each reply is lost once."""
    expected, found = wanted(name, form, way), outcomes(ground, monkeypatch, name, form, way)
    if way == 'works' or (asks_others(name) and is_tried_whole(name, form, way) and stride(name, form, way) == 1):
        assert found == expected
    else:
        assert all(found[kind] and found[kind] <= expected[kind] for kind in expected), (found, expected)
