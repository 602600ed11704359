"""What each order of a host comes to, line by line: its calls upward, what it asks of the driver, what it tells others.

``transcripts.txt`` has them. A line is ``check`` (the key is asked about), ``claim …``, ``save …`` (what is written),
``told EVENT …`` (a notification), or the driver's method with its arguments; ``->`` is what the order answers.
``KILONOVA_WRITE_SAMPLES=1`` writes the file: read the difference before it is committed.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kilonova import errors, objects, sealing
from kilonova.compute.manager import ComputeManager
from kilonova.conf import secrets
from kilonova.objects.vif import Vif
from kilonova.objects.volume import AttachedVolume
from kilonova.states import PowerState
from kilonova.virt.parts.volume_snapshots import Merge
from tests.unit.compute.cell import flavor, new_context, requests
from tests.unit.compute.cloud import GPUS, Cloud, build_order, request_spec
from tests.unit.compute.test_keys import Semaphore
from tests.unit.compute.test_moves import OTHER_GPUS, Resize
from tests.unit.compute.test_rebuild import DATA, ROOT, attach
from tests.unit.compute.test_snapshot_and_soft_delete import Images
from tests.unit.virt.builders import PORT, VOLUME2, new_vif

FILE = Path(__file__).with_name('transcripts.txt')
PARTS = (
    'guests',
    'power',
    'rescues',
    'disks',
    'moves',
    'live_migrations',
    'snapshots',
    'volumes',
    'volume_snapshots',
)
# What changes nothing.
LOOKS = ('describe', 'list_instance_uuids')
KEY = 'o/1.do/1'


class Transcript:
    """Of what the hosts of a cloud do."""

    def __init__(self, cloud: Cloud) -> None:
        self.lines: list[str] = []
        self._cloud, cell = cloud, cloud.cell
        self._note(cell, 'check_key', lambda ctxt, key, undo, host: f'check {host}{" undo" * undo}')
        self._note(cell, 'claim_instance', lambda ctxt, claim: 'claim ' + written(claim.primitive_data()))
        self._note(cell, 'save_instance', lambda ctxt, save: 'save ' + written(save.primitive_data()))
        for name, manager in cloud.managers.items():
            manager.host.notify = Told(self.lines)
            for part in PARTS:
                setattr(cloud.drivers[name], part, Watched(getattr(cloud.drivers[name], part), self.lines))

    def _note(self, owner: object, method: str, line: Callable[..., str]) -> None:
        real = getattr(owner, method)

        def call(*args: Any, **given: Any) -> Any:
            self.lines.append(line(*args, **given))
            return real(*args, **given)

        setattr(owner, method, call)

    def answer(self, act: Callable[[], Any]) -> None:
        """``act`` is an order."""
        try:
            self.lines.append(f'-> {one(act())}')
        except errors.KilonovaError as error:
            self.lines.append(f'-> {one(error)}')

    @property
    def text(self) -> str:
        """With names in place of what differs from run to run."""
        text = '\n'.join(self.lines)
        for uuid, row in self._cloud.cell.instances.items():
            text = text.replace(uuid, row['display_name'])
        for number, uuid in enumerate(self._cloud.cell.migrations, 1):
            text = text.replace(uuid, f'migration{number}')
        return text


class Told:
    """In place of the notifications."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def emit(self, ctxt: Any, event: str, **facts: Any) -> None:
        self._lines.append(f'told {event} {shown(facts)}'.rstrip())


class Watched:
    """A part of a driver."""

    def __init__(self, part: Any, lines: list[str]) -> None:
        self._part, self._lines = part, lines

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._part, name)
        if not callable(real) or name in LOOKS:
            return real

        def call(*args: Any, **given: Any) -> Any:
            said = [one(value) for value in args] + [f'{key}={one(value)}' for key, value in sorted(given.items())]
            self._lines.append(' '.join([name, *said]))
            return real(*args, **given)

        return call


def written(given: dict[str, Any]) -> str:
    """What a claim or save says, without times and what all of them have."""
    given = {name: value for name, value in given.items() if value not in (None, False, {}, [])}
    # A key that is another one is shown.
    if str(given.setdefault('key', None)).startswith(('o/', 'm1/', 'c1/', 'r1/')):
        del given['key']
    event, usage, fault = given.pop('event', None), given.pop('usage', None), given.pop('fault', None)
    said = [given.pop('transition', '')]
    if event is not None:
        assert event.pop('start_time') <= event.pop('finish_time')
        assert (event.pop('traceback') is None) == (event['result'] == 'Success')
        said.append(f'event({shown(event)})')
    if fault is not None:
        assert fault.pop('details').startswith('Traceback')
        said.append(f'fault({shown(fault)})')
    if usage is not None:
        said.append(f'usage({shown({**json.loads(usage["stats"]), "running": usage["running_vms"]})})')
    said += [f'{change["address"]}:{change["from"]}>{change["to"]}' for change in given.pop('devices', ())]
    return ' '.join([*filter(None, said), shown(given)]).rstrip()


def shown(facts: dict[str, Any]) -> str:
    return ' '.join(
        f'{name}={one(value)}'
        for name, value in sorted(facts.items())
        if name not in ('request_id', 'launched_at', 'usage_serial')
    )


def one(value: Any) -> str:
    """A value in a word."""
    found = next((name(value) for kind, name in NAMES.items() if isinstance(value, kind)), None)
    if found is not None:
        return str(found)
    if isinstance(value, dict):
        if 'storage_id' in value:
            return f'offer:{value["host"]}'
        if 'move' in value:
            return f'disks:{",".join(value["disks"])}'
        return f'image:{value.get("id")}' if 'properties' in value else '{' + shown(value) + '}'
    if isinstance(value, (list, tuple)):
        return '[' + ','.join(map(one, value)) + ']'
    if isinstance(value, str) and value.startswith(('{', '[')):
        return 'json'
    return 'function' if callable(value) else str(value)


NAMES: dict[type, Callable[[Any], object]] = {
    objects.Instance: lambda value: value.uuid,
    objects.Flavor: lambda value: value.name,
    objects.PciDevice: lambda value: value.address,
    AttachedVolume: lambda value: f'volume:{value.volume_id}@{value.host}:{value.size}:{":".join(value.file)}',
    Merge: lambda value: f'merge:{value.file}>{value.into}',
    Vif: lambda value: f'port:{value.id}@{value.slot}',
    Exception: lambda value: f'{type(value).__name__}({value})',
}

# -- one host ----------------------------------------------------------------------------------------------------------
# {what: (order, task_state, vm_state, power state, arguments)}; arguments of an ``order`` are a function of the server.
Arguments = dict[str, Any] | Callable[[objects.Instance], Any]
PLAIN: dict[str, tuple[str, str | None, str, int, Arguments]] = {
    'stop': ('stop_instance', 'powering-off', 'active', 1, {'clean_shutdown': True}),
    'stop at once': ('stop_instance', 'powering-off', 'active', 1, {'clean_shutdown': False}),
    'start': ('start_instance', 'powering-on', 'stopped', 4, {}),
    'reboot': ('reboot_instance', 'rebooting', 'active', 1, {'reboot_type': 'SOFT'}),
    'pause': ('pause_instance', 'pausing', 'active', 1, {}),
    'unpause': ('unpause_instance', 'unpausing', 'paused', 3, {}),
    'suspend': ('suspend_instance', 'suspending', 'active', 1, {}),
    'resume': ('resume_instance', 'resuming', 'suspended', 7, {}),
    'crash dump': ('trigger_crash_dump', None, 'active', 1, {}),
    'rescue': (
        'rescue_instance',
        'rescuing',
        'active',
        1,
        lambda server: objects.RescueOrder(
            instance=server, image={'id': 'i2', 'name': 'repair', 'properties': {}}, sealed=None
        ),
    ),
    'rescue by the default': (
        'rescue_instance',
        'rescuing',
        'active',
        1,
        lambda server: objects.RescueOrder(instance=server, image={}, sealed=None),
    ),
    'unrescue': ('unrescue_instance', 'unrescuing', 'rescued', 1, {}),
    'soft delete': ('soft_delete_instance', 'soft-deleting', 'active', 1, {}),
    'restore': ('restore_instance', 'restoring', 'soft-delete', 4, {}),
    'delete': ('terminate_instance', 'deleting', 'active', 1, {}),
    'snapshot': ('snapshot_instance', 'image_snapshot_pending', 'active', 1, {'image_id': 'i9'}),
    'undo snapshot': ('undo_snapshot_instance', 'image_snapshot_pending', 'active', 1, {'image_id': 'i9'}),
    'backup': ('backup_instance', 'image_backup', 'active', 1, {'image_id': 'i9'}),
    'shelve': ('shelve_instance', 'shelving', 'active', 1, {'image_id': 'i9'}),
    'shelve a paused one': ('shelve_instance', 'shelving', 'paused', 3, {'image_id': 'i9'}),
    'undo shelve': ('undo_shelve_instance', 'shelving', 'active', 4, {'image_id': 'i9'}),
    'undo shelve of one that runs': ('undo_shelve_instance', 'shelving', 'active', 1, {'image_id': 'i9'}),
    'undo shelve of one that was off': ('undo_shelve_instance', 'shelving', 'stopped', 4, {'image_id': 'i9'}),
    'undo shelve of one that is deleted': ('undo_shelve_instance', 'deleting', 'active', 4, {'image_id': 'i9'}),
    'undo shelve of a paused one': ('undo_shelve_instance', 'shelving', 'paused', 4, {'image_id': 'i9'}),
    'offload': ('shelve_offload_instance', 'shelving_offloading', 'shelved', 4, {}),
    'unshelve here': ('start_shelved_instance', 'unshelving', 'shelved', 4, {}),
    'undo unshelve here': ('undo_start_shelved_instance', 'unshelving', 'shelved', 1, {}),
    'undo unshelve here of one that runs': ('undo_start_shelved_instance', None, 'active', 1, {}),
    'rebuild': (
        'rebuild_instance',
        'rebuilding',
        'active',
        1,
        lambda server: objects.RebuildOrder(
            instance=server, image={'id': 'i3', 'name': 'new', 'properties': {}}, sealed=None, preserve_ephemeral=True
        ),
    ),
    'rebuild one that is off': (
        'rebuild_instance',
        'rebuilding',
        'stopped',
        4,
        lambda server: objects.RebuildOrder(
            instance=server, image={'id': 'i3', 'properties': {}}, sealed=None, preserve_ephemeral=False
        ),
    ),
}
# {what: the driver's method that fails}
FAILURES = {
    'stop': 'power_off',
    'start': 'power_on',
    'reboot': 'reboot',
    'pause': 'pause',
    'resume': 'resume',
    'crash dump': 'trigger_crash_dump',
    'rescue': 'rescue',
    'restore': 'power_on',
    'soft delete': 'power_off',
    'delete': 'destroy',
    'snapshot': 'snapshot',
    'shelve': 'snapshot',
    'rebuild': 'rebuild',
    'unshelve here': 'power_on',
}


def plain(what: str, cloud: Cloud, failing: str | None = None) -> Transcript:
    method, task, vm, state, arguments = PLAIN[what]
    manager = cloud.host('gpu1', GPUS)
    server, driver = cloud.boot(manager), cloud.drivers['gpu1']
    driver.domains[server.uuid].state, driver.image_client = state, Images()
    if failing:
        driver.fail(failing, errors.KilonovaError('it hangs'))
    sent, made = cloud.cell.in_task(server.uuid, task, vm), Transcript(cloud)
    given = {'order': arguments(sent)} if callable(arguments) else {'instance': sent, **arguments}
    made.answer(lambda: getattr(manager.endpoint, method)(new_context(), key=KEY, **given))
    return made


def sealed(what: str, cloud: Cloud, failing: str | None = None) -> Transcript:
    """An order that brings a password, and files where the driver takes some."""
    manager = cloud.host('gpu1', GPUS)
    server, driver, task, vm = cloud.boot(manager), cloud.drivers['gpu1'], None, 'active'
    manager.conf.register_opts(secrets.OPTS, group=secrets.GROUP)
    with tempfile.TemporaryDirectory() as directory:
        manager.conf.set_override('key_file', f'{directory}/keys', group=secrets.GROUP)
        sealing.create_file(manager.conf.secrets.key_file)
        text = sealing.SealingKeys.read(manager.conf.secrets.key_file).seal(
            sealing.ServerSecrets('secret', [('/etc/motd', 'aGVsbG8=')]), server.uuid
        )
        if failing:
            driver.fail(failing, errors.KilonovaError('it hangs'))
        if what == 'rebuild':
            task, order = (
                'rebuilding',
                lambda sent: {
                    'order': objects.RebuildOrder(
                        instance=sent, image={'id': 'i3', 'properties': {}}, sealed=text, preserve_ephemeral=False
                    )
                },
            )
        elif what == 'rescue':
            task, order = (
                'rescuing',
                lambda sent: {
                    'order': objects.RescueOrder(
                        instance=sent, image={'id': 'i2', 'name': 'repair', 'properties': {}}, sealed=text
                    )
                },
            )
        else:
            task, order = 'updating_password', lambda sent: {'instance': sent, 'sealed': text}
        cloud.cell.instances[server.uuid].update(os_type='linux', key_data=None)
        sent, made = cloud.cell.in_task(server.uuid, task, vm), Transcript(cloud)
        method = what if what == 'set_admin_password' else f'{what}_instance'
        made.answer(lambda: getattr(manager.endpoint, method)(new_context(), key=KEY, **order(sent)))
    return made


# -- builds ------------------------------------------------------------------------------------------------------------
def build(cloud: Cloud, gpus: int = 1, failing: str | None = None, **given: Any) -> Transcript:
    manager = cloud.host('gpu1', GPUS)
    if failing:
        cloud.drivers['gpu1'].fail(failing, errors.KilonovaError('it hangs'), after=True)
    server = cloud.cell.new_instance(gpus, availability_zone='east')
    order = build_order(server, {'id': 'i1', 'name': 'debian', 'properties': {}}, **given)
    made = Transcript(cloud)
    made.answer(lambda: manager.endpoint.build_and_run_instance(new_context(), order=order, key=KEY))
    return made


def undo_build(cloud: Cloud) -> Transcript:
    """Of a build that the process before had begun."""
    manager = cloud.host('gpu1', GPUS)
    server = cloud.cell.new_instance(1)
    cloud.cell.unanswered['save_instance'] = 1
    manager.stopping.set()
    with pytest.raises(errors.Unanswered):
        manager.endpoint.build_and_run_instance(new_context(), order=build_order(server), key=KEY)
    manager = cloud.host('gpu1')
    made = Transcript(cloud)
    made.answer(lambda: manager.endpoint.undo_build(new_context(), instance=server, key=KEY))
    return made


def unshelve(cloud: Cloud, gpus: int = 1, failing: str | None = None, undo: bool = False) -> Transcript:
    manager = cloud.host('gpu1', GPUS)
    server = cloud.cell.new_instance(gpus, availability_zone='east')
    server = cloud.cell.in_task(server.uuid, 'unshelving', 'shelved_offloaded')
    if failing:
        cloud.drivers['gpu1'].fail(failing, errors.KilonovaError('it hangs'), after=True)
    spec, made = request_spec(server, flavor(), gpus), Transcript(cloud)
    order = objects.UnshelveOrder(
        instance=server, image={'id': 'i1', 'properties': {}}, request_spec=spec, block_devices=[], limits=None
    )
    made.answer(lambda: manager.endpoint.unshelve_instance(new_context(), order=order, key=KEY))
    if undo:
        made.answer(
            lambda: manager.endpoint.undo_unshelve_instance(
                new_context(), instance=cloud.cell.instance(server.uuid), key=KEY
            )
        )
    return made


# -- volumes and interfaces of a guest ---------------------------------------------------------------------------------
SIZE = 2
COPY = {
    'of': DATA,
    'volume_id': VOLUME2,
    'volume_size': SIZE,
    'attachment_id': 'a2',
    'connection_info': AttachedVolume('', VOLUME2, SIZE).connection_info('', 'gpu1', {'driver_volume_type': 'rbd'}),
}
FILES = {'volume_id': DATA, 'name': 'file1', 'format': 'raw', 'new': 'file2'}
MERGE = {'volume_id': DATA, 'file': None, 'into': None}
PLAIN_PORT = new_vif(tag='net').stored()
FUNCTION_PORT = new_vif(tag='net', vnic_type='direct', profile={'pci_slot': GPUS[1]}).stored()
(WANTED,) = (one.replaced(request_id=VOLUME2, requester_id=PORT, alias_name=None) for one in requests(PORT, 1).requests)
# {what an order brings, besides the server: orders}
BROUGHT: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({'volume_id': DATA}, ('attach_volume', 'detach_volume', 'extend_volume')),
    ({'copy': COPY}, ('copy_volume', 'swap_volume')),
    ({'files': FILES}, ('snapshot_volume', 'withdraw_volume_snapshot')),
    ({'merge': MERGE}, ('merge_volume',)),
    ({'request': WANTED}, ('claim_function',)),
    ({'request_id': VOLUME2}, ('undo_claim_function', 'free_function')),
    ({'vif': PLAIN_PORT}, ('attach_interface', 'detach_interface')),
    ({'vifs': [FUNCTION_PORT]}, ('unplug_functions', 'plug_functions')),
]


def change(
    cloud: Cloud, *orders: str, function: bool = False, elsewhere: str = '', failing: str | None = None
) -> Transcript:
    """Send orders about the server's volume and port.

    If ``function`` is True, the port is a function of a device. After the order ``elsewhere`` the server is on another
    host.
    """
    manager = cloud.host('gpu1', GPUS)
    server, driver = cloud.boot(manager), cloud.drivers['gpu1']
    attach(server.uuid, DATA, tag='data')
    given = {order: brought for brought, names in BROUGHT for order in names}
    made = Transcript(cloud)
    if failing:
        driver.fail(failing, errors.KilonovaError('it hangs'))
    for number, order in enumerate(orders):
        brought = given[order] if order in given else given[order.removeprefix('undo_')]
        if function and 'vif' in brought:
            brought = {'vif': FUNCTION_PORT}
        made.lines.append(f'- {order}')
        sent = cloud.cell.instance(server.uuid)
        made.answer(
            lambda order=order, brought=brought, sent=sent, number=number: getattr(manager.endpoint, order)(
                new_context(), instance=sent, key=f'o/{number}.do/1', **brought
            )
        )
        if order == elsewhere:
            cloud.cell.instances[server.uuid]['host'] = 'gpu2'
    return made


def reimage(
    cloud: Cloud, *orders: str, vm: str = 'active', failing: str | None = None, at: tuple[str | None, ...] = ('gpu1',)
) -> Transcript:
    """Send orders that give the server's boot volume a new image. ``at`` is the host that has the volume, or none."""
    manager = cloud.host('gpu1', GPUS)
    server, driver = cloud.boot(manager), cloud.drivers['gpu1']
    for host in at:
        attach(server.uuid, ROOT, host)
    made = Transcript(cloud)
    if failing:
        driver.fail(failing, errors.KilonovaError('it hangs'))
    for number, order in enumerate(orders):
        sent = cloud.cell.in_task(server.uuid, 'rebuilding', vm)
        given: dict[str, Any] = {'instance': sent}
        if not order.startswith('undo_'):
            image = {'id': 'i3', 'name': 'new', 'properties': {}}
            given = {'order': objects.RebuildOrder(instance=sent, image=image, sealed=None, preserve_ephemeral=False)}
        made.lines.append(f'- {order}')
        made.answer(
            lambda order=order, given=given, number=number: getattr(manager.endpoint, order)(
                new_context(), key=f'o/{number}.do/1', **given
            )
        )
    return made


# -- moves -------------------------------------------------------------------------------------------------------------
def resize(cloud: Cloud, *steps: str, here: bool = False, failing: str | None = None, vm: str = 'active') -> Transcript:
    """``steps`` of ``test_moves.Resize``."""
    source = cloud.host('gpu1', [*GPUS, '0000:90:00.0'])
    dest = source if here else cloud.host('gpu2', OTHER_GPUS)
    server = cloud.boot(source)
    if vm == 'stopped':
        cloud.cell.instances[server.uuid].update(vm_state='stopped', power_state=4)
        cloud.drivers['gpu1'].domains[server.uuid].state = PowerState.SHUTDOWN
    move, made = Resize(cloud, cloud.cell.instance(server.uuid), source, dest), Transcript(cloud)
    if failing:
        for driver in cloud.drivers.values():
            driver.fail(failing, errors.KilonovaError('it hangs'))
    for step in steps:
        made.lines.append(f'- {step}')
        made.answer(getattr(move, step))
    return made


class LiveMove:
    """The steps of a live migration as its flow sends them."""

    def __init__(self, cloud: Cloud, server: objects.Instance, source: ComputeManager, dest: ComputeManager) -> None:
        self.cloud, self.uuid, self.source, self.dest = cloud, server.uuid, source, dest
        cloud.cell.instances[self.uuid]['task_state'] = 'migrating'
        self._moved = cloud.cell.new_migration(self.uuid, source, kind='live-migration').uuid
        self.guest: Any = None
        self.offer: Any = None
        self.undo = {'aborted': False, 'resume': False, 'gone': None}

    def _send(self, manager: ComputeManager, method: str, **given: Any) -> Any:
        return getattr(manager.endpoint, method)(new_context(), key=f'm1/0.{method}/1', **given)

    @property
    def server(self) -> objects.Instance:
        return self.cloud.cell.instance(self.uuid)

    @property
    def migration(self) -> objects.Migration:
        return self.cloud.cell.migration(self._moved)

    def check_source(self) -> str:
        self.guest = self._send(self.source, 'check_can_live_migrate_source', instance=self.server)
        return 'the guest of ' + str(self.guest['host'])

    def check_destination(self) -> Any:
        order = objects.LiveMigrationCheckOrder(
            instance=self.server,
            migration=self.migration,
            request_spec=request_spec(self.server, flavor(), 1),
            limits=None,
            guest=self.guest,
            block=None,
            over_commit=False,
        )
        self.offer = self._send(self.dest, 'check_can_live_migrate_destination', order=order)
        return self.offer

    def _order(self) -> objects.LiveMigrationOrder:
        return objects.LiveMigrationOrder(
            instance=self.server, migration=self.migration, guest=self.guest, offer=self.offer
        )

    def prepare(self) -> Any:
        return self._send(self.dest, 'pre_live_migration', order=self._order())

    def migrate(self) -> Any:
        return self._send(self.source, 'live_migration', order=self._order())

    def arrive(self) -> Any:
        return self._send(
            self.dest, 'post_live_migration_at_destination', instance=self.server, migration=self.migration
        )

    def leave(self) -> Any:
        return self._send(self.source, 'post_live_migration', order=self._order())

    def _undo(self) -> objects.LiveMigrationUndo:
        return objects.LiveMigrationUndo(instance=self.server, migration=self.migration, **self.undo)

    def abort(self) -> Any:
        return self._send(self.source, 'undo_live_migration', order=self._undo())

    def rollback(self) -> Any:
        return self._send(self.dest, 'rollback_live_migration_at_destination', order=self._undo())

    def force_complete(self) -> None:
        self.source.endpoint.live_migration_force_complete(new_context(), instance=self.server)


LIVE = ('check_source', 'check_destination', 'prepare', 'migrate', 'arrive', 'leave')


def live(cloud: Cloud, *steps: str, failing: str | None = None, waits: bool = False, **undo: Any) -> Transcript:
    """``steps`` of ``LiveMove``."""
    source, dest = cloud.host('gpu1', GPUS), cloud.host('gpu2', OTHER_GPUS)
    move = LiveMove(cloud, cloud.boot(source), source, dest)
    move.undo.update(undo)
    if waits:
        source.host.live_migration_slots._slots = Semaphore(False, False, True)
    made = Transcript(cloud)
    if failing:
        for driver in cloud.drivers.values():
            driver.fail(failing, errors.KilonovaError('it hangs'))
    for step in steps:
        made.lines.append(f'- {step}')
        made.answer(getattr(move, step))
    return made


def evacuate(
    cloud: Cloud,
    failing: str | None = None,
    shared: bool | None = None,
    found: bool = False,
    power_on: bool = True,
    undo: bool = False,
    clean: bool = False,
) -> Transcript:
    source, dest = cloud.host('gpu1', GPUS), cloud.host('gpu2', OTHER_GPUS)
    server = cloud.boot(source)
    row = cloud.cell.instances[server.uuid]
    row['task_state'] = 'rebuilding'
    migration = cloud.cell.new_migration(server.uuid, source, kind='evacuation')
    if found:
        cloud.drivers['gpu2'].moves.take_over = lambda instance, host: True
        cloud.drivers['gpu2'].directories[server.uuid] = cloud.drivers['gpu1'].directories[server.uuid]
    if failing:
        cloud.drivers['gpu2'].fail(failing, errors.KilonovaError('it hangs'), after=True)
    order = objects.EvacuateOrder(
        instance=cloud.cell.instance(server.uuid),
        image={'id': 'i1', 'name': 'debian', 'properties': {}},
        migration=migration,
        request_spec=request_spec(server, flavor(), 1),
        sealed=None,
        block_devices=[],
        limits=None,
        power_on=power_on,
        shared=shared,
    )
    made = Transcript(cloud)
    made.answer(lambda: dest.endpoint.evacuate_instance(new_context(), order=order, key='m1/0.evacuate/1'))
    for wanted, manager, method in ((undo, dest, 'undo_evacuate_instance'), (clean, source, 'clean_evacuated')):
        if wanted:
            made.lines.append(f'- {method}')
            made.answer(
                lambda method=method, manager=manager: getattr(manager.endpoint, method)(
                    new_context(),
                    instance=cloud.cell.instance(server.uuid),
                    migration=cloud.cell.migration(migration.uuid),
                    key='m1/0.undo/1',
                )
            )
    return made


RESIZED = ('prep', 'move', 'finish')
STORIES: dict[str, Callable[[Cloud], Transcript]] = {
    **{what: lambda cloud, what=what: plain(what, cloud) for what in PLAIN},
    **{
        f'{what} fails': lambda cloud, what=what, failing=failing: plain(what, cloud, failing)
        for what, failing in FAILURES.items()
    },
    'set a password': lambda cloud: sealed('set_admin_password', cloud),
    'set a password fails': lambda cloud: sealed('set_admin_password', cloud, 'set_admin_password'),
    'rescue with a password': lambda cloud: sealed('rescue', cloud),
    'rebuild with a password': lambda cloud: sealed('rebuild', cloud),
    'build': build,
    'build at an alternate': lambda cloud: build(cloud, attempt=2),
    'build without room': lambda cloud: build(cloud, gpus=3),
    'build fails': lambda cloud: build(cloud, failing='spawn'),
    'undo build': undo_build,
    'unshelve': unshelve,
    'unshelve without room': lambda cloud: unshelve(cloud, gpus=3),
    'unshelve fails': lambda cloud: unshelve(cloud, failing='spawn'),
    'undo unshelve': lambda cloud: unshelve(cloud, undo=True),
    'reimage': lambda cloud: reimage(cloud, 'stop_to_reimage', 'rebuild_instance'),
    'reimage fails': lambda cloud: reimage(cloud, 'stop_to_reimage', failing='prepare_rebuild'),
    'undo reimage': lambda cloud: reimage(cloud, 'stop_to_reimage', 'undo_stop_to_reimage', 'undo_stop_to_reimage'),
    'undo reimage of one that was off': lambda cloud: reimage(
        cloud, 'stop_to_reimage', 'undo_stop_to_reimage', vm='stopped'
    ),
    'undo reimage while no host has the boot volume': lambda cloud: reimage(
        cloud, 'stop_to_reimage', 'undo_stop_to_reimage', at=(None,)
    ),
    'undo reimage without the boot volume': lambda cloud: reimage(
        cloud, 'stop_to_reimage', 'undo_stop_to_reimage', at=()
    ),
    'attach and detach a volume': lambda cloud: change(cloud, 'attach_volume', 'extend_volume', 'detach_volume'),
    'attach a volume fails': lambda cloud: change(cloud, 'attach_volume', 'undo_attach_volume', failing='attach'),
    'undo detach of a volume': lambda cloud: change(
        cloud, 'attach_volume', 'detach_volume', 'undo_detach_volume', 'undo_detach_volume'
    ),
    'undo detach of a volume of a server that left': lambda cloud: change(
        cloud, 'attach_volume', 'detach_volume', 'undo_detach_volume', elsewhere='detach_volume'
    ),
    'swap a volume': lambda cloud: change(cloud, 'attach_volume', 'copy_volume', 'swap_volume', 'undo_swap_volume'),
    'swap a volume without a copy': lambda cloud: change(cloud, 'attach_volume', 'swap_volume', 'undo_swap_volume'),
    'copy of a volume fails': lambda cloud: change(
        cloud, 'attach_volume', 'copy_volume', 'undo_copy_volume', failing='copy'
    ),
    'snapshot of a volume': lambda cloud: change(
        cloud,
        'attach_volume',
        'snapshot_volume',
        'undo_snapshot_volume',
        'undo_merge_volume',
        'merge_volume',
        'undo_merge_volume',
    ),
    'withdraw a snapshot of a volume': lambda cloud: change(
        cloud, 'attach_volume', 'snapshot_volume', 'withdraw_volume_snapshot', 'undo_snapshot_volume'
    ),
    'attach and detach an interface': lambda cloud: change(
        cloud, 'attach_interface', 'detach_interface', 'undo_detach_interface', 'undo_attach_interface'
    ),
    'attach and detach a function': lambda cloud: change(
        cloud, 'claim_function', 'attach_interface', 'detach_interface', 'free_function', function=True
    ),
    'attach an interface fails': lambda cloud: change(cloud, 'attach_interface', failing='attach_interface'),
    'undo attach of a function': lambda cloud: change(
        cloud, 'claim_function', 'attach_interface', 'undo_attach_interface', 'undo_claim_function', function=True
    ),
    'undo detach of an interface of a server that left': lambda cloud: change(
        cloud, 'attach_interface', 'detach_interface', 'undo_detach_interface', elsewhere='detach_interface'
    ),
    'functions before and after a live migration': lambda cloud: change(
        cloud, 'claim_function', 'plug_functions', 'unplug_functions', 'undo_unplug_functions', function=True
    ),
    'functions after a live migration fail': lambda cloud: change(
        cloud, 'claim_function', 'plug_functions', function=True, failing='attach_interface'
    ),
    'undo unplug of functions of a server that left': lambda cloud: change(
        cloud,
        'claim_function',
        'plug_functions',
        'unplug_functions',
        'undo_unplug_functions',
        function=True,
        elsewhere='unplug_functions',
    ),
    'resize': lambda cloud: resize(cloud, *RESIZED, 'mark_resized', 'confirm'),
    'resize one that is off': lambda cloud: resize(cloud, *RESIZED, vm='stopped'),
    'resize here': lambda cloud: resize(cloud, *RESIZED, 'mark_resized', 'confirm', here=True),
    'revert': lambda cloud: resize(cloud, *RESIZED, 'mark_resized', 'revert_dest', 'revert_source'),
    'revert here': lambda cloud: resize(cloud, *RESIZED, 'mark_resized', 'revert_dest', 'revert_source', here=True),
    'resize fails at the first step': lambda cloud: resize(cloud, 'prep', failing='prepare_move'),
    'resize fails at the source': lambda cloud: resize(cloud, *RESIZED[:2], failing='migrate_disk_and_power_off'),
    'resize fails at the end': lambda cloud: resize(cloud, *RESIZED, 'undo_all', failing='finish_migration'),
    'undo resize here': lambda cloud: resize(cloud, *RESIZED, 'undo_all', here=True),
    'live migration': lambda cloud: live(cloud, *LIVE),
    'live migration waits for its turn': lambda cloud: live(cloud, *LIVE[:4], waits=True),
    'live migration is refused': lambda cloud: live(cloud, *LIVE[:2], failing='offer'),
    'live migration fails': lambda cloud: live(cloud, *LIVE[:4], 'abort', 'rollback', failing='migrate', gone=False),
    'live migration is ended': lambda cloud: live(
        cloud, *LIVE[:3], 'force_complete', 'abort', 'rollback', aborted=True, resume=True
    ),
    'live migration is ended late': lambda cloud: live(cloud, *LIVE[:4], 'abort', 'rollback', gone=True),
    'evacuate': lambda cloud: evacuate(cloud, clean=True),
    'evacuate one that is off': lambda cloud: evacuate(cloud, power_on=False),
    'evacuate with shared disks': lambda cloud: evacuate(cloud, found=True, shared=True),
    'evacuate one that is off with shared disks': lambda cloud: evacuate(cloud, found=True, power_on=False),
    'evacuate with disks that are said to be shared': lambda cloud: evacuate(cloud, shared=True),
    'evacuate fails': lambda cloud: evacuate(cloud, failing='spawn'),
    'undo evacuate': lambda cloud: evacuate(cloud, undo=True),
}


def samples() -> dict[str, str]:
    parts = FILE.read_text().split('== ')[1:] if FILE.exists() else []
    return {name: text.strip('\n') for name, _, text in (part.partition('\n') for part in parts)}


@pytest.fixture(scope='module')
def made() -> Iterator[dict[str, str]]:
    """{story: its transcript}, which are written where that is asked for."""
    found: dict[str, str] = {}
    yield found
    if os.environ.get('KILONOVA_WRITE_SAMPLES') and found.keys() == STORIES.keys():
        FILE.write_text('\n\n'.join(f'== {name}\n{found[name]}' for name in STORIES) + '\n')


@pytest.mark.parametrize('story', STORIES)
def test_what_an_order_comes_to(cloud: Cloud, made: dict[str, str], story: str) -> None:
    made[story] = STORIES[story](cloud).text
    assert os.environ.get('KILONOVA_WRITE_SAMPLES') or made[story] == samples()[story]


def test_there_are_no_other_transcripts() -> None:
    assert list(samples()) == list(STORIES)
