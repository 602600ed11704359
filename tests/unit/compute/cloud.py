"""A conductor and its cell in memory, with hosts on fake hypervisors: what the compute's tests work with.

It keeps rows as dicts and obeys the rules of ``db.queries.claims`` that hosts rely on: keys, marks, device statuses.
"""

from __future__ import annotations

import json
import uuid as uuidlib
from typing import Any

from oslo_config import cfg

from kilonova import errors, objects, states
from kilonova.compute.manager import ComputeManager
from kilonova.conf import (
    base,
    base_compute,
    base_usage,
    base_virt,
    compute,
    devices,
    filter_scheduler,
    image_cache,
    pci,
    serial_console,
    spice,
    vnc,
)
from kilonova.context import RequestContext
from kilonova.rpc.notify import OFF
from kilonova.virt.fake import FakeDriver
from kilonova.virt.fakes.state import FakeMachine

NO_PAUSE = (0.0,)
GPUS = ['0000:08:00.0', '0000:88:00.0']


def new_conf(host: str, **overrides: Any) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    for module in (
        base,
        base_compute,
        base_usage,
        base_virt,
        compute,
        devices,
        pci,
        filter_scheduler,
        image_cache,
        serial_console,
        spice,
        vnc,
    ):
        conf.register_opts(module.OPTS, group=module.GROUP)
    conf([], project='kilonova', default_config_files=[], default_config_dirs=[])
    conf.set_override('host', host)
    conf.set_override('my_ip', '192.0.2.1')
    conf.set_override('periodic_enable', False)
    conf.set_override('device_spec', [json.dumps({'vendor_id': '10de', 'product_id': '13f1'})], group='pci')
    for name, value in overrides.items():
        conf.set_override(name, value)
    return conf


def gpu(address: str, **values: Any) -> dict[str, Any]:
    return {
        'dev_id': 'pci_' + address.replace(':', '_').replace('.', '_'),
        'address': address,
        'vendor_id': '10de',
        'product_id': '13f1',
        'numa_node': 0,
        'label': 'label_10de_13f1',
        'dev_type': 'type-PCI',
        'capabilities': {},
        **values,
    }


def new_context() -> RequestContext:
    return RequestContext(user_id='u', project_id='p', roles=['member', 'reader'], overwrite=False)


IMAGE = 'a0000000-0000-4000-8000-000000000001'


def flavor(number: int = 1, vcpus: int = 8, memory_mb: int = 32768, root_gb: int = 16) -> objects.Flavor:
    made = objects.Flavor(
        id=number,
        name=f'tmp{number}',
        flavorid=f'tmp{number}',
        vcpus=vcpus,
        memory_mb=memory_mb,
        root_gb=root_gb,
        ephemeral_gb=0,
        swap=0,
        rxtx_factor=1.0,
        disabled=False,
        is_public=True,
        extra_specs={},
    )
    made.obj_reset_changes()
    return made


def requests(uuid: str, count: int, rp_uuids: str | None = None) -> objects.InstancePCIRequests:
    spec = {'vendor_id': '10de', 'product_id': '13f1'}
    if rp_uuids:
        spec['rp_uuids'] = rp_uuids
    wanted = (
        []
        if not count
        else [
            objects.InstancePCIRequest(
                count=count,
                spec=[spec],
                alias_name='gpu',
                is_new=False,
                request_id=str(uuidlib.uuid4()),
                requester_id=None,
                numa_policy='legacy',
            )
        ]
    )
    return objects.InstancePCIRequests(instance_uuid=uuid, requests=wanted)


def request_spec(instance: objects.Instance, of: objects.Flavor, count: int) -> objects.RequestSpec:
    return objects.RequestSpec(
        flavor=of, pci_requests=requests(instance.uuid, count), numa_topology=None, instance_uuid=instance.uuid
    )


class Cell:
    """Every key's operation stands there until it is in ``ended``. ``unanswered`` {method: how many calls of it aren't
    answered}, ``errors`` {method: what the next call of it raises}."""

    def __init__(self) -> None:
        self.instances: dict[str, dict[str, Any]] = {}
        self.rows: dict[int, dict[str, Any]] = {}
        self.nodes: dict[str, objects.ComputeNode] = {}
        self.services: dict[str, objects.Service] = {}
        self.migrations: dict[str, objects.Migration] = {}
        self.busy: set[str] = set()
        # {server that waits for its start after its host went down: why}
        self.waiting: dict[str, str] = {}
        self.ended: set[str] = set()
        self.written: dict[str, str] = {}
        self.checks: list[str] = []
        self.claims: list[dict[str, Any]] = []
        self.saves: list[dict[str, Any]] = []
        self.object_calls: list[str] = []
        self.changes: dict[str, list[str]] = {}
        self.unanswered: dict[str, int] = {}
        self.errors: dict[str, Exception] = {}
        self.conflict_once = False

    # -- what a host calls ---------------------------------------------------------------------------------------------
    def check_key(self, ctxt: Any, *, key: str, undo: bool = False, host: str | None = None) -> dict:
        return self._around('check_key', lambda: self._check(key, undo))

    def claim_instance(self, ctxt: Any, *, claim: objects.Claim) -> dict:
        given = json.loads(json.dumps(claim.primitive_data()))
        return self._around('claim_instance', lambda: self._claim(given))

    def save_instance(self, ctxt: Any, *, save: objects.Save) -> dict:
        given = json.loads(json.dumps(save.primitive_data()))
        return self._around('save_instance', lambda: self._save(given))

    def resume_later(self, ctxt: Any, *, host: str, reasons: dict[str, str], is_off: bool) -> dict:
        return self._around('resume_later', lambda: self._resume_later(host, reasons, is_off))

    def _resume_later(self, host: str, reasons: dict[str, str], is_off: bool) -> dict:
        self.waiting.update(reasons)
        self.busy.update(reasons)
        for uuid in reasons if is_off else ():
            self.instances[uuid]['power_state'] = 4
        return {}

    def _around(self, method: str, act: Any) -> Any:
        if self.unanswered.get(method):
            self.unanswered[method] -= 1
            raise errors.Unanswered(who='conductor', reason='silence')
        if method in self.errors:
            raise self.errors.pop(method)
        return act()

    def _check(self, key: str, undo: bool) -> dict:
        self.checks.append(key)
        # An operation that is being undone stands nowhere.
        if not undo:
            self._stands(key)
        return {}

    def _stands(self, key: str) -> None:
        if key in self.ended:
            raise errors.KeyGone(key=key)

    def _claim(self, claim: dict[str, Any]) -> dict:
        self.claims.append(claim)
        key = claim['key']
        self._stands(key)
        if self.written.get(key) == 'claim':
            return {'written': True}
        if self.conflict_once:
            self.conflict_once = False
            raise errors.ClaimConflict(devices='x')
        self._write(claim, strict=True)
        self.written[key] = 'claim'
        return {'written': True}

    def _save(self, save: dict[str, Any]) -> dict:
        self.saves.append(save)
        key, undo = save.get('key'), save.get('undo')
        mark = save.get('transition') or (save.get('event') or {}).get('event')
        if key and not undo:
            if self.written.get(key) == mark:
                return {'written': True}
            self._stands(key)
        self._write(save, strict=not undo)
        if key and not undo:
            self.written[key] = mark
            if save.get('end'):
                self.ended.add(key)
        return {'written': True, 'waiting': None}

    def _write(self, request: dict[str, Any], strict: bool) -> None:
        for change in request.get('devices') or []:
            row = self.rows[change['id']]
            if strict and row['status'] != change['from']:
                raise errors.ClaimConflict(devices=change['address'])
        row = self.instances.get(request.get('instance_uuid') or '')
        if row is not None:
            self._move(row, request, strict)
            row['extra'].update(request.get('extra') or {})
        for change in request.get('devices') or []:
            self._device(change)
        usage = request.get('usage')
        if usage:
            node = next(node for node in self.nodes.values() if node.id == usage['compute_node_id'])
            node.usage = usage
        if request.get('migration'):
            migration = self.migrations[request['migration']['uuid']]
            for name, value in request['migration'].items():
                setattr(migration, name, value)

    def _move(self, row: dict[str, Any], request: dict[str, Any], strict: bool) -> None:
        values = dict(request.get('values') or {})
        event = request.get('transition')
        fits = all(
            row[name] in (wanted if isinstance(wanted, list) else [wanted])
            for name, wanted in (request.get('expect') or {}).items()
        )
        if event:
            rule = states.TRANSITIONS[event]
            fits = fits and rule.allows(row['vm_state'], row['task_state'])
            values['task_state'] = rule.to_task and rule.to_task.value
            if rule.to_vm:
                values['vm_state'] = rule.to_vm.value
        if fits:
            row.update({name: value for name, value in values.items() if not name.endswith('_at')})
        elif strict and (event or values):
            raise errors.Conflict(f'{event}: the server is {row["vm_state"]}/{row["task_state"]} on {row["host"]}')

    def _device(self, change: dict[str, Any]) -> None:
        row = self.rows[change['id']]
        if change['to'] == 'available':
            if change['instance_uuid'] in (None, row['instance_uuid']):
                row.update(status='available', instance_uuid=None, request_id=None)
        else:
            row['status'] = change['to']
            if change['to'] in ('claimed', 'allocated'):
                row['instance_uuid'] = change['instance_uuid']
                row['request_id'] = change.get('request_id') or row['request_id']

    # -- objects' remote calls -----------------------------------------------------------------------------------------
    def object_action(self, ctxt: Any, objinst: Any, objmethod: str, args: Any, kwargs: Any) -> Any:
        name = f'{objinst.obj_name()}.{objmethod}'
        return self._around(name, lambda: self._action(objinst, name))

    def _action(self, objinst: Any, name: str) -> Any:
        self.object_calls.append(name)
        self.changes[name] = sorted(objinst.obj_what_changed())
        objinst.obj_reset_changes()
        if name == 'Service.create':
            self.services[objinst.host] = objinst
            return {'id': len(self.services), 'uuid': str(uuidlib.uuid4())}, None
        if name == 'ComputeNode.create':
            self.nodes[objinst.uuid] = objinst
            return {'id': len(self.nodes)}, None
        return {}, None

    def object_class_action_versions(
        self, ctxt: Any, objname: str, objmethod: str, object_versions: Any, args: Any, kwargs: Any
    ) -> Any:
        self.object_calls.append(f'{objname}.{objmethod}')
        act = getattr(self, f'_{objname}_{objmethod}'.lower())
        return self._around(f'{objname}.{objmethod}', lambda: act(ctxt, *args, **kwargs))

    def _service_get_by_args(self, ctxt: Any, host: str, binary: str) -> Any:
        if host not in self.services:
            raise errors.ServiceNotFound(service_id=host)
        return self.services[host]

    def _computenode_get_by_uuid(self, ctxt: Any, uuid: str) -> Any:
        if uuid not in self.nodes:
            raise errors.ComputeHostNotFound(host=uuid)
        return self.nodes[uuid]

    def _pcidevicelist_get_by_compute_node(self, ctxt: Any, node_id: int) -> Any:
        return objects.PciDeviceList.from_rows(
            ctxt,
            [
                {**row, 'extra_info': json.dumps(row['extra_info'])}
                for row in self.rows.values()
                if row['compute_node_id'] == node_id
            ],
        )

    def _pcidevicelist_save_all(self, ctxt: Any, node_id: int, changes: dict[str, Any]) -> dict[str, int]:
        ids = {}
        for device in changes['created']:
            number = len(self.rows) + 1
            self.rows[number] = {**device.primitive_data(), 'id': number, 'compute_node_id': node_id}
            ids[device.address] = number
        for device in changes['updated']:
            self.rows[device.id].update(device.primitive_data())
        for device in changes['removed']:
            del self.rows[device.id]
        for change in changes['statuses']:
            self.rows[change['id']]['status'] = change['to']
        return ids

    def _instance_get_by_uuid(self, ctxt: Any, uuid: str) -> Any:
        if uuid not in self.instances:
            raise errors.InstanceNotFound(instance_id=uuid)
        return self.instance(uuid)

    def _instancelist_get_by_host(self, ctxt: Any, host: str) -> Any:
        return objects.InstanceList.of(
            ctxt, [self.instance(uuid) for uuid, row in self.instances.items() if row['host'] == host]
        )

    def _instancelist_get_uuids_with_operations(self, ctxt: Any, host: str) -> list[str]:
        return sorted(self.busy)

    def _migrationlist_get_evacuated(self, ctxt: Any, host: str) -> Any:
        return objects.MigrationList.of(ctxt, [])

    def _migrationlist_get_in_progress_by_host_and_node(self, ctxt: Any, host: str, node: str) -> Any:
        return objects.MigrationList.of(
            ctxt,
            [
                migration
                for migration in self.migrations.values()
                if host in (migration.source_compute, migration.dest_compute)
                and migration.status not in ('confirmed', 'reverted', 'error')
            ],
        )

    # -- for tests -----------------------------------------------------------------------------------------------------
    def instance(self, uuid: str) -> objects.Instance:
        """The server as a conductor would send it."""
        row = dict(self.instances[uuid])
        extra, sysmeta = row.pop('extra'), row.pop('system_metadata')
        held = [
            {**device, 'extra_info': json.dumps(device['extra_info'])}
            for device in self.rows.values()
            if device['instance_uuid'] == uuid
        ]
        return objects.Instance.from_row(
            new_context(), row, extra, metadata={}, system_metadata=dict(sysmeta), pci_devices=held
        )

    def in_task(self, uuid: str, task_state: str, vm: str = 'active') -> objects.Instance:
        """The server in these states, as an operation on it would be sent."""
        self.instances[uuid].update(task_state=task_state, vm_state=vm)
        return self.instance(uuid)

    def new_instance(self, gpus: int = 1, of: objects.Flavor | None = None, **values: Any) -> objects.Instance:
        uuid = str(uuidlib.uuid4())
        made = of or flavor()
        cur = json.dumps({'cur': made.stored_primitive(), 'old': None, 'new': None})
        self.instances[uuid] = {
            'id': len(self.instances) + 1,
            'uuid': uuid,
            'user_id': 'u',
            'project_id': 'p',
            'image_ref': IMAGE,
            'display_name': 'vm',
            'hostname': 'vm',
            'host': None,
            'node': None,
            'compute_id': None,
            'vm_state': 'building',
            'task_state': 'scheduling',
            'power_state': 0,
            'availability_zone': None,
            'config_drive': '',
            'memory_mb': made.memory_mb,
            'vcpus': made.vcpus,
            'root_gb': made.root_gb,
            'ephemeral_gb': 0,
            'instance_type_id': made.id,
            'system_metadata': {'image_os_shutdown_timeout': '7'},
            'extra': {'flavor': cur, 'pci_requests': requests(uuid, gpus).to_column(), 'migration_context': None},
            **values,
        }
        return self.instance(uuid)

    def new_migration(self, uuid: str, source: Any, dest: Any = None, kind: str = 'resize') -> objects.Migration:
        """``source``, ``dest``: managers. The destination is written by prep_resize's claim."""
        row = self.instances[uuid]
        migration = objects.Migration(
            new_context(),
            id=len(self.migrations) + 1,
            uuid=str(uuidlib.uuid4()),
            instance_uuid=uuid,
            status='pre-migrating',
            migration_type=kind,
            source_compute=source.host.name,
            source_node=source.host.tracker.nodename,
            dest_compute=dest and dest.host.name,
            dest_node=dest and dest.host.tracker.nodename,
            dest_compute_id=None,
            dest_host=None,
            old_instance_type_id=row['instance_type_id'],
            new_instance_type_id=2,
        )
        self.migrations[migration.uuid] = migration
        return migration

    def held(self, uuid: str) -> dict[str, str]:
        """{address: status} of a server's devices on all hosts; addresses of several hosts differ in tests."""
        return {row['address']: row['status'] for row in self.rows.values() if row['instance_uuid'] == uuid}

    def events(self) -> list[tuple[str, str]]:
        return [(save['event']['event'], save['event']['result']) for save in self.saves if save.get('event')]


class Cloud:
    """Hosts of one cell on one machine."""

    def __init__(self) -> None:
        self.cell = Cell()
        self.machine = FakeMachine()
        self.drivers: dict[str, FakeDriver] = {}
        self.placement: Any = None
        self.notify: Any = OFF
        self.managers: dict[str, ComputeManager] = {}

    def host(self, name: str, gpus: list[str] | None = None, **overrides: Any) -> ComputeManager:
        """A compute service that has started. The same name again: it restarted, its guests went on running."""
        conf = new_conf(name, **overrides)
        driver = self.drivers.get(name)
        if driver is None:
            driver = self.drivers[name] = FakeDriver(conf, machine=self.machine)
            driver.pci_devices = [gpu(address) for address in gpus or []]
        driver.conf = conf
        manager = ComputeManager(
            conf, driver=driver, conductor=self.cell, placement=self.placement, pauses=NO_PAUSE, notify=self.notify
        )
        if name in self.managers:
            self.managers[name].stopping.set()
        self.managers[name] = manager
        manager.start()
        return manager

    def stop(self) -> None:
        """No timer outlives the test."""
        for manager in self.managers.values():
            manager.stop()

    def reboot(self, name: str, **overrides: Any) -> ComputeManager:
        """The whole host went down and came back: no domain is left."""
        self.drivers[name].domains.clear()
        return self.host(name, **overrides)

    def boot(self, manager: ComputeManager, gpus: int = 1, of: objects.Flavor | None = None) -> objects.Instance:
        """A server that runs on this host."""
        instance = self.cell.new_instance(gpus, of)
        build(manager, instance, key=f'boot-{instance.uuid}/3.build/1')
        return self.cell.instance(instance.uuid)


def build(
    manager: ComputeManager,
    instance: objects.Instance,
    key: str | None = 'o/3.build/1',
    attempt: int = 1,
    image: dict | None = None,
) -> Any:
    return manager.endpoint.build_and_run_instance(
        new_context(), order=build_order(instance, image, attempt=attempt), key=key
    )


def build_order(instance: objects.Instance, image: dict[str, Any] | None = None, **fields: Any) -> objects.BuildOrder:
    return objects.BuildOrder(
        **{
            'instance': instance,
            'image': image or {'id': None, 'properties': {}},
            'request_spec': None,
            'sealed': None,
            'attempt': 1,
            'block_devices': [],
            'limits': None,
            **fields,
        }
    )
