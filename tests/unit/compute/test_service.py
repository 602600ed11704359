"""Start of a compute, its node, its guests after a boot of the host, heartbeats, and the audit's view."""

from __future__ import annotations

import ast
import datetime
import inspect
import json
import logging
import textwrap
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kilonova import errors, objects
from kilonova.compute.endpoint import Endpoint
from kilonova.compute.manager import OPERATIONS, ComputeManager
from kilonova.compute.mdev_types import HostMdevTypes
from kilonova.compute.ops import move, power
from kilonova.compute.records import InvalidNodeConfiguration
from kilonova.compute.report import Heartbeat, audit_usage
from kilonova.compute.tracker import SERIAL
from kilonova.pci import kinds
from kilonova.pci.request import PciInvalidAlias
from kilonova.pci.spec import PciConfigInvalidSpec
from kilonova.rpc.compute import Compute
from kilonova.rpc.interface import VersionCapError
from kilonova.rpc.versions import SERVICE_VERSION
from kilonova.virt.parts.host import HypervisorUnavailable
from tests.unit.compute.cell import flavor, new_context, requests
from tests.unit.compute.cloud import GPUS, build, gpu, new_conf
from tests.unit.compute.test_moves import Resize


class Placement:
    def __init__(self):
        self.synced: list = []
        self.disabled: dict = {}
        self.inventory: dict = {}
        self.silent = 0
        self.allocated: dict = {}
        self.read: list = []
        self.claimed: list = []
        self.on_read = lambda uuid: None

    def get_inventory(self, uuid):
        return self.inventory, 1

    def sync_compute(self, root_uuid, nodename, inventory, traits, devices=None, *, has_pci=True, refresh=False):
        if self.silent:
            self.silent -= 1
            raise errors.Unanswered(who='Placement', reason='away')
        self.synced.append((root_uuid, nodename, inventory, set(traits), devices or {}, refresh))
        return {nodename: root_uuid, **{name: f'rp-{name[-12:]}' for name in devices or {}}}

    def set_host_disabled(self, uuid, disabled):
        self.disabled[uuid] = disabled

    def get_allocations(self, consumer):
        self.read.append(consumer)
        self.on_read(consumer)
        return {
            'allocations': dict(self.allocated[consumer]),
            'consumer_generation': 3,
            'project_id': 'p',
            'user_id': 'u',
        }

    def claim(self, consumer, allocations, mappings=None, *, project_id, user_id, generation=None):
        self.claimed.append((consumer, allocations, project_id, user_id, generation))
        self.allocated[consumer] = allocations


def test_the_endpoint_is_what_the_interface_declares(cloud):
    manager = cloud.host('gpu1')
    Compute.check_server(manager.endpoint)
    own = (
        manager.cancel,
        manager.report_again,
        manager.set_host_enabled,
        manager.node.book.set_device_disabled,
        HostMdevTypes(manager.host, manager.node.book, manager.node.kinds, manager.node.update).set_mdev_type,
    )
    Endpoint(manager.host, manager.keys, OPERATIONS, own)
    with pytest.raises(TypeError, match=r'compute\.soft_delete_instance has no implementation'):
        Endpoint(manager.host, manager.keys, [module for module in OPERATIONS if module is not power], own)
    with pytest.raises(TypeError, match=r'compute\.cancel has no implementation'):
        Endpoint(manager.host, manager.keys, OPERATIONS, own[1:])

    def cancel(ctxt, prefix): ...

    with pytest.raises(TypeError, match=r'compute\.cancel has the parameters .*prefix.*, not .*key_prefix'):
        Endpoint(manager.host, manager.keys, OPERATIONS, (cancel, *own[1:]))


@pytest.mark.parametrize(
    'act',
    [act for module in OPERATIONS for act in vars(module).values() if hasattr(act, 'does')],
    ids=lambda act: act.does[0],
)
def test_what_a_message_brings_is_read(act):
    """Each argument of a message, and each field of its order, is read by the code that handles the message.

    A field may be read in the module that receives the order or in the module that all moves share.
    """
    names = set(inspect.signature(act).parameters) - {'host', 'op', 'ctxt'}
    tree = ast.parse(textwrap.dedent(inspect.getsource(act)))
    assert names <= {node.id for node in ast.walk(tree.body[0]) if isinstance(node, ast.Name)}
    if 'order' in names:
        kind = inspect.get_annotations(act)['order']
        functions = [*vars(inspect.getmodule(act)).values(), *vars(move).values()]
        source = '\n'.join(
            inspect.getsource(function)
            for function in functions
            if any(kind in str(one) for one in getattr(function, '__annotations__', {}).values())
        )
        fields = getattr(objects, kind.removeprefix('objects.')).fields.keys() - {'instance'}
        assert [name for name in fields if f'order.{name}' not in source] == []


def test_start_makes_the_records(cloud, caplog):
    told = []
    cloud.notify = SimpleNamespace(emit=lambda ctxt, event, service: told.append((event, service.host)))
    with caplog.at_level(logging.INFO):
        manager = cloud.host('gpu1', GPUS)
    service, node = cloud.cell.services['gpu1'], manager.node.record
    assert (service['binary'], service['topic'], service['report_count']) == ('nova-compute', 'compute', 1)
    assert (node.host, node.hypervisor_hostname, node.vcpus, node.memory_mb) == ('gpu1', 'gpu1', 64, 262144)
    assert (node.cpu_allocation_ratio, str(node.host_ip), node.service_id) == (4.0, '192.0.2.1', 1)
    assert [row['address'] for row in cloud.cell.devices.values()] == GPUS
    assert 'Compute node record created for gpu1:gpu1 with uuid' in caplog.text
    assert cloud.cell.nodes[node.uuid]['free_ram_mb'] == 262144
    before = len(cloud.cell.object_calls)
    cloud.host('gpu1')
    calls = cloud.cell.object_calls[before:]
    assert 'ComputeNode.create' not in calls and 'Service.create' not in calls and 'ComputeNode.save' not in calls
    assert told == [('service.create', 'gpu1')]


@pytest.mark.parametrize(
    ('ratios', 'told'),
    [
        ({}, [4.0, 1.0, 1.0]),
        ({'cpu_allocation_ratio': 16.0, 'ram_allocation_ratio': 1.5, 'disk_allocation_ratio': 1.2}, [16.0, 1.5, 1.2]),
        ({'initial_ram_allocation_ratio': 2.0}, [4.0, 2.0, 1.0]),
    ],
)
def test_the_hosts_row_has_its_ratios(cloud, ratios, told):
    """The host's row has the allocation ratios of its options, else Nova's defaults."""
    record = cloud.host('gpu1', **ratios).node.record
    assert [record.cpu_allocation_ratio, record.ram_allocation_ratio, record.disk_allocation_ratio] == told


def test_start_waits_for_a_conductor(cloud, caplog):
    cloud.cell.unanswered['Service.get_by_args'] = 3
    assert cloud.host('gpu1').heartbeat.lost is False
    assert 'Not started yet' in caplog.text


def test_another_hosts_identity_is_refused(cloud):
    manager = cloud.host('gpu1')
    cloud.cell.nodes[manager.node.record.uuid].update(host='other')
    del cloud.cell.services['gpu1']
    with pytest.raises(InvalidNodeConfiguration, match='belongs to host other, and this is host gpu1'):
        cloud.host('gpu1')
    assert cloud.cell.services == {}, 'finding 7.12: the refused host left a service'


def test_a_node_keeps_its_name(cloud):
    """Nova names nodes after their machines. Placement, servers and moves refer to the name."""
    manager = cloud.host('gpu1')
    cloud.cell.nodes[manager.node.record.uuid].update(hypervisor_hostname='gpu1.example.org')
    manager = cloud.host('gpu1')
    assert manager.node.record.hypervisor_hostname == 'gpu1.example.org'
    assert cloud.cell.nodes[manager.node.record.uuid]['hypervisor_hostname'] == 'gpu1.example.org'


@pytest.mark.parametrize(
    ('name', 'value', 'error'),
    [('device_spec', ['nonsense'], PciConfigInvalidSpec), ('alias', ['{"name": "x"}'], PciInvalidAlias)],
)
def test_malformed_pci_settings_refuse_the_start(cloud, name, value, error):
    conf = new_conf('gpu1')
    conf.set_override(name, value, group='pci')
    with pytest.raises(error):
        ComputeManager(conf, driver=None, conductor=cloud.cell, placement=None)


def test_devices_come_and_go(cloud):
    """Devices that were removed lose their rows and new devices get them at the next update."""
    manager = cloud.host('gpu1', GPUS)
    cloud.drivers['gpu1'].pci_devices = [gpu(GPUS[1]), gpu('0000:90:00.0')]
    manager.node.update()
    assert [row['address'] for row in cloud.cell.devices.values()] == [GPUS[1], '0000:90:00.0']
    assert manager.host.tracker.host_devices.pools.free == 2


def test_update_writes_only_what_changed(cloud):
    """An update without changes writes nothing. A change is one save of the compute node."""
    manager = cloud.host('gpu1', GPUS)
    cloud.cell.saves.clear()
    cloud.cell.object_calls.clear()
    manager.node.update()
    assert cloud.cell.saves == [] and cloud.cell.object_calls == []
    cloud.drivers['gpu1'].memory_mb = 1024
    manager.node.update()
    assert cloud.cell.object_calls == ['ComputeNode.save'] and manager.node.record.memory_mb == 1024


def test_a_look_tells_database_and_placement_what_the_host_has_now(cloud):
    """After memory or devices changed, one update writes the node's row, the devices' rows, the pools that
    schedulers read, and the provider tree."""
    cloud.placement = Placement()
    manager = cloud.host('gpu1', GPUS)
    report(manager)
    driver = cloud.drivers['gpu1']
    driver.memory_mb, driver.pci_devices = 1024, [gpu(GPUS[1]), gpu('0000:90:00.0')]
    cloud.cell.saves.clear()
    cloud.placement.synced.clear()
    manager.node.update()
    now = [GPUS[1], '0000:90:00.0']
    assert 'memory_mb' in cloud.cell.changes['ComputeNode.save'] and manager.node.record.memory_mb == 1024
    assert [(row['address'], row['status']) for row in cloud.cell.devices.values()] == [
        (one, 'available') for one in now
    ]
    (save,) = cloud.cell.saves
    pools = [pool['nova_object.data'] for pool in json.loads(save['usage']['pci_stats'])['nova_object.data']['objects']]
    assert sorted(pool['tags']['rp_uuid'] for pool in pools) == [f'rp-{one}' for one in now]
    ((root, nodename, inventory, _, view, _),) = cloud.placement.synced
    assert (root, nodename, inventory['MEMORY_MB']['total']) == (manager.node.record.uuid, 'gpu1', 1024)
    assert sorted(view) == [f'gpu1_{one}' for one in now]


def test_devices_have_their_rows_before_placement_is_told_of_them(cloud):
    """New devices get their rows before Placement offers them, so that whoever is allocated one can claim it. If
    Placement does not answer, the rows are right all the same."""
    cloud.placement = Placement()
    manager = cloud.host('gpu1', GPUS)
    report(manager)
    now = [GPUS[1], '0000:90:00.0']
    cloud.drivers['gpu1'].pci_devices = [gpu(one) for one in now]
    cloud.placement.silent = 1
    with pytest.raises(errors.Unanswered):
        manager.node.update()
    assert [row['address'] for row in cloud.cell.devices.values()] == now
    assert manager.host.tracker.host_devices.pools.free == 2


def test_rows_are_read_again_when_nobody_knows_whether_they_were_written(cloud):
    manager = cloud.host('gpu1', GPUS)
    cloud.drivers['gpu1'].pci_devices = [gpu(GPUS[1]), gpu('0000:90:00.0')]
    cloud.cell.unanswered['PciDeviceList.save_all'] = 1
    with pytest.raises(errors.Unanswered):
        manager.node.update()
    cloud.cell.object_calls.clear()
    with pytest.raises(errors.HostRejected):
        cloud.boot(manager, 3)
    assert cloud.cell.object_calls[0] == 'PciDeviceList.get_by_compute_node'
    manager.node.update()
    assert [row['address'] for row in cloud.cell.devices.values()] == [GPUS[1], '0000:90:00.0']


def test_providers_are_written_to_the_devices(cloud):
    cloud.placement = Placement()
    cloud.placement.inventory = {'VCPU': {'allocation_ratio': 7.0}}
    manager = cloud.host('gpu1', GPUS)
    report(manager)
    manager.node.update()
    _, nodename, inventory, traits, view, _ = cloud.placement.synced[-1]
    assert nodename == 'gpu1' and inventory['VCPU']['allocation_ratio'] == 7.0 and 'COMPUTE_NODE' in traits
    assert view['gpu1_0000:08:00.0']['resource_class'] == 'CUSTOM_PCI_10DE_13F1'
    assert view['gpu1_0000:08:00.0']['total'] == 1
    assert [json.loads(row['extra_info']).get('rp_uuid') for row in cloud.cell.devices.values()] == [
        f'rp-{a}' for a in GPUS
    ]
    pools = json.loads(cloud.cell.nodes[manager.node.record.uuid]['pci_stats'])['nova_object.data']['objects']
    assert {pool['nova_object.data']['tags']['rp_uuid'] for pool in pools} == {f'rp-{a}' for a in GPUS}
    assert cloud.placement.disabled == {manager.node.record.uuid: False}
    cloud.cell.services['gpu1']['disabled'] = True
    manager.endpoint.set_host_enabled(new_context(), enabled=False)
    assert cloud.placement.disabled == {manager.node.record.uuid: True}


def report(manager):
    """[pci]report_in_placement is on from the next look on."""
    manager.conf.set_override('report_in_placement', True, group='pci')
    manager.node.kinds = kinds.from_conf(manager.conf)
    manager.host.tracker.host_devices = replace(manager.host.tracker.host_devices, kinds=manager.node.kinds)


@pytest.fixture
def unreported(cloud):
    """A server with a device that Placement doesn't know of; its host restarted and reports from now on."""
    server = cloud.boot(cloud.host('gpu1', GPUS))
    cloud.placement = Placement()
    manager = cloud.host('gpu1')
    report(manager)
    cloud.placement.allocated[server.uuid] = {manager.node.record.uuid: {'resources': {'VCPU': 8}, 'generation': 9}}
    return server.uuid


def added(cloud, server, manager):
    """What a server's allocations become."""
    (address,) = cloud.cell.held(server)
    return (
        server,
        {
            manager.node.record.uuid: {'resources': {'VCPU': 8}},
            f'rp-{address}': {'resources': {'CUSTOM_PCI_10DE_13F1': 1}},
        },
        'p',
        'u',
        3,
    )


def test_devices_that_placement_does_not_know_are_added_to_the_allocations(cloud, unreported):
    manager, placement = cloud.managers['gpu1'], cloud.placement
    manager.node.update()
    assert placement.claimed == [added(cloud, unreported, manager)]
    manager.node.update()
    assert placement.read == [unreported] and len(placement.claimed) == 1


@pytest.mark.parametrize('under_way', ['an operation', 'a task', 'an arrival'])
def test_servers_with_anything_under_way_are_left_for_later(cloud, unreported, under_way):
    manager, placement = cloud.managers['gpu1'], cloud.placement
    row = cloud.cell.instances[unreported]
    if under_way == 'an operation':
        cloud.cell.occupy(unreported)
    elif under_way == 'a task':
        row['task_state'] = 'resize_prep'
    else:
        row['host'] = 'gpu2'
    manager.node.update()
    assert placement.read == [] and placement.claimed == []
    cloud.cell.leave()
    row.update(task_state=None, host='gpu1')
    manager.node.update()
    assert placement.claimed == [added(cloud, unreported, manager)]


def test_what_begins_while_allocations_are_read_is_respected(cloud, unreported):
    manager, placement = cloud.managers['gpu1'], cloud.placement
    placement.on_read = cloud.cell.occupy
    manager.node.update()
    assert placement.read == [unreported] and placement.claimed == []


def test_devices_that_change_hands_while_allocations_are_read_are_not_added(cloud, unreported):
    manager, placement = cloud.managers['gpu1'], cloud.placement
    tracker = manager.host.tracker
    second = cloud.boot(manager).uuid
    placement.allocated[second] = placement.allocated[unreported]

    def free_the_first(uuid):
        if placement.read == [uuid]:
            tracker.commit(tracker.plan_free(uuid))

    placement.on_read = free_the_first
    manager.node.update()
    assert sorted(placement.read) == sorted([unreported, second])
    assert placement.claimed == [added(cloud, placement.read[1], manager)]


def test_servers_whose_devices_placement_chose_are_not_asked_for(cloud, unreported):
    manager, placement = cloud.managers['gpu1'], cloud.placement
    manager.node.update()
    server = cloud.cell.new_instance(1)
    chosen = requests(server.uuid, 1, rp_uuids=f'rp-{GPUS[1]}')
    cloud.cell.extras[server.uuid]['pci_requests'] = chosen.to_column()
    build(manager, cloud.cell.instance(server.uuid), key=f'boot-{server.uuid}/3.build/1')
    assert list(cloud.cell.held(server.uuid)) == [GPUS[1]]
    manager.node.update()
    assert placement.read == [unreported]
    cloud.cell.object_calls.clear()
    manager.node.update()
    assert cloud.cell.object_calls == []


def test_a_server_that_has_a_device_besides_what_placement_chose_is_asked_for(cloud):
    cloud.placement = Placement()
    manager = cloud.host('gpu1', GPUS)
    report(manager)
    manager.node.update()
    server = cloud.cell.new_instance(1)
    wanted = requests(server.uuid, 1, rp_uuids=f'rp-{GPUS[1]}')
    wanted.requests = [*wanted.requests, *requests(server.uuid, 1).requests]
    cloud.cell.extras[server.uuid]['pci_requests'] = wanted.to_column()
    build(manager, cloud.cell.instance(server.uuid), key=f'boot-{server.uuid}/3.build/1')
    cloud.placement.allocated[server.uuid] = {manager.node.record.uuid: {'resources': {'VCPU': 8}, 'generation': 9}}
    manager.node.update()
    assert cloud.placement.read == [server.uuid]


def test_comparing_with_placement_never_fails_a_start_or_a_look(cloud, unreported, caplog):
    manager, placement = cloud.managers['gpu1'], cloud.placement
    (address,) = cloud.cell.held(unreported)

    def fail(error):
        def on_read(uuid):
            raise error

        return on_read

    placement.on_read = fail(errors.Unanswered(who='Placement', reason='away'))
    manager.node.start()
    manager.node.announce()
    manager.node.update()
    named = [
        record.getMessage()
        for record in caplog.records
        if unreported in record.getMessage() and record.levelno == logging.WARNING
    ]
    assert len(named) == 1 and address in named[0]
    placement.on_read = fail(ValueError('no JSON'))
    manager.node.start()
    manager.node.announce()
    assert 'no JSON' in caplog.text
    placement.on_read = lambda uuid: None
    cloud.cell.unanswered['InstanceList.get_uuids_with_operations'] = 1
    manager.node.update()
    assert placement.claimed == []
    manager.node.update()
    assert placement.claimed == [added(cloud, unreported, manager)]


def test_a_host_that_comes_back_follows_its_record(cloud):
    """What was decided while it counted as down nobody told it."""
    cloud.placement = Placement()
    manager = cloud.host('gpu1')
    disabled, uuid = cloud.placement.disabled, manager.node.record.uuid
    cloud.cell.services['gpu1']['disabled'] = True
    manager.heartbeat.beat()
    assert disabled == {uuid: False}
    cloud.cell.unanswered['Service.save'] = 1
    manager.heartbeat.beat()
    assert manager.heartbeat.lost and disabled == {uuid: False}
    manager.heartbeat.beat()
    assert not manager.heartbeat.lost and disabled == {uuid: True}


def test_a_host_that_is_heard_again_looks_at_its_guests(cloud, monkeypatch):
    """One that was soft-deleted meanwhile needn't run until the next round."""
    manager, looked = cloud.host('gpu1', GPUS), threading.Event()
    manager.heartbeat.beat()
    monkeypatch.setattr(manager.guests, 'sync', looked.set)
    manager.heartbeat.beat()
    assert not looked.is_set()
    cloud.cell.unanswered['Service.save'] = 1
    manager.heartbeat.beat()
    manager.heartbeat.beat()
    assert looked.wait(10)


def test_a_host_that_was_silent_for_long_follows_its_record():
    class Service:
        host, topic, binary, report_count = 'h', 'compute', 'nova-compute', 0

        def save(self):
            """Always answered."""

    now, followed = [0.0], []
    heart = Heartbeat(Service(), lambda: followed.append(now[0]), patience=60, clock=lambda: now[0])
    for now[0] in (10.0, 20.0, 80.0, 141.0, 150.0):
        heart.beat()
    assert followed == [141.0]


class Answered:
    """A service record whose calls are answered, or not."""

    id, host, topic, binary, report_count = 17, 'h', 'compute', 'nova-compute', 0

    def __init__(self):
        self.refusal = None

    def save(self):
        if self.refusal:
            raise self.refusal


def heart_of(service, **more):
    """A heart, what it sent, and how often it recovered; ``sent`` refuses while ``taken`` is empty."""
    sent, taken, recovered = [], [True], []

    def send(service_id, host):
        if not taken:
            raise errors.Unanswered(who='conductor', reason='nobody takes reports')
        sent.append((service_id, host))

    return Heartbeat(service, lambda: recovered.append(len(sent)), send=send, **more), sent, taken, recovered


def test_reports_after_the_first_go_without_an_answer():
    """The first report is a call and later ones need no answer; a report that is not taken becomes a call at once."""
    service = Answered()
    heart, sent, taken, recovered = heart_of(service)
    for _ in range(4):
        heart.beat()
    assert (service.report_count, sent) == (1, [(17, 'h')] * 3)
    taken.clear()
    heart.beat()
    heart.beat()
    assert (service.report_count, len(sent), heart.lost) == (3, 3, False)
    service.refusal = errors.Unanswered(who='conductor', reason='away')
    heart.beat()
    assert heart.lost
    # Who isn't sure that it is heard asks, even if a report would be taken.
    taken.append(True)
    heart.beat()
    service.refusal = None
    heart.beat()
    assert (service.report_count, len(sent), heart.lost, recovered) == (6, 3, False, [3])
    heart.beat()
    assert (service.report_count, len(sent)) == (6, 4)


def test_a_host_that_is_asked_to_report_again_calls_and_looks():
    """A host that the conductor asks to report again makes a call, and recovers its state once the call succeeded.

    The conductor asks a host that counted as down, or whose service record is gone.
    """
    service = Answered()
    heart, sent, _, recovered = heart_of(service)
    heart.beat()
    heart.beat()
    heart.again()
    service.refusal = errors.Unanswered(who='conductor', reason='away')
    heart.beat()
    assert recovered == []
    service.refusal = None
    heart.beat()
    assert (recovered, len(sent), service.report_count) == ([1], 1, 3)
    heart.beat()
    assert len(sent) == 2 and recovered == [1]
    heart.again()
    service.refusal = errors.ServiceNotFound(service_id=17)
    heart.beat()
    assert heart.lost


def test_a_report_that_was_sent_too_late_is_a_call():
    """This process stood still: it may have counted as down."""
    now = [0.0]
    heart, sent, _, recovered = heart_of(Answered(), patience=60, clock=lambda: now[0])
    for now[0] in (10.0, 20.0, 80.0, 141.0, 150.0):
        heart.beat()
    assert (len(sent), recovered) == (3, [2])


def test_the_conductor_asks_by_a_message(cloud, monkeypatch):
    manager, looked = cloud.host('gpu1'), []
    monkeypatch.setattr(manager.node, 'follow', lambda: looked.append('record'))
    manager.endpoint.report_again(new_context())
    assert looked == []
    manager.heartbeat.beat()
    assert looked == ['record']


def test_uptime(cloud):
    assert 'load average' in cloud.host('gpu1').endpoint.get_host_uptime(new_context())


def test_without_reporting_placement_gets_no_devices(cloud, caplog):
    cloud.placement = Placement()
    cloud.placement.silent = 2
    manager = cloud.host('gpu1', GPUS)
    cloud.boot(manager)
    manager.node.update()
    assert [synced[4] for synced in cloud.placement.synced] == [{}] * 2 and cloud.placement.read == []
    assert 'Comparing the devices of servers with Placement' not in caplog.text


def test_a_hypervisor_that_is_gone_is_told_as_such(cloud):
    manager = cloud.host('gpu1')
    cloud.drivers['gpu1'].fail('describe', HypervisorUnavailable(host='gpu1', reason='gone'))
    with pytest.raises(errors.Unavailable, match='gone') as caught:
        manager.endpoint.describe_host(new_context())
    assert type(caught.value) is errors.Unavailable


def test_describe_host(cloud):
    manager = cloud.host('gpu1', GPUS)
    server = cloud.boot(manager)
    view = manager.endpoint.describe_host(new_context())
    assert (view['host'], view['node'], view['directories']) == ('gpu1', 'gpu1', [server.uuid])
    (domain,) = view['domains']
    assert domain['hostdevs'] == list(cloud.cell.held(server.uuid)) and domain['state'] == 1
    json.dumps(view)


# -- guests -----------------------------------------------------------------------------------------------------------
def test_host_boot_resumes_with_the_same_devices(cloud):
    server = cloud.boot(cloud.host('gpu1', GPUS))
    manager = cloud.reboot('gpu1', resume_guests_state_on_host_boot=True)
    assert cloud.drivers['gpu1'].domains[server.uuid].hostdevs == list(cloud.cell.held(server.uuid))
    assert cloud.cell.instances[server.uuid]['vm_state'] == 'active'
    assert manager.host.tracker.used.vcpus == 8


def test_host_boot_without_resume_says_shutoff_and_start_brings_the_devices_back(cloud):
    server = cloud.boot(cloud.host('gpu1', GPUS))
    manager = cloud.reboot('gpu1')
    row = cloud.cell.instances[server.uuid]
    assert (row['vm_state'], row['power_state']) == ('stopped', 4) and cloud.drivers['gpu1'].domains == {}
    row['task_state'] = 'powering-on'
    manager.endpoint.start_instance(new_context(), instance=cloud.cell.instance(server.uuid), key='s/0.start/1')
    assert cloud.drivers['gpu1'].domains[server.uuid].hostdevs == list(cloud.cell.held(server.uuid))


def test_a_guest_that_can_not_be_resumed_is_tried_again_later(cloud, caplog):
    """Its server stays ACTIVE, and the conductor hears why its guest is off."""
    server = cloud.boot(cloud.host('gpu1', GPUS))
    cloud.drivers['gpu1'].fail('power_on', OSError('no'))
    manager = cloud.reboot('gpu1', resume_guests_state_on_host_boot=True)
    row = cloud.cell.instances[server.uuid]
    assert (row['vm_state'], row['power_state']) == ('active', 4)
    assert cloud.cell.waiting == {server.uuid: 'OSError on the compute host'}
    assert 'Failed to resume instance' in caplog.text
    # Nobody says meanwhile that it is off.
    manager.guests.sync()
    assert row['vm_state'] == 'active'
    asked = {'instance': cloud.cell.instance(server.uuid), 'key': 'r/0.resume_guest/1'}
    assert manager.endpoint.resume_guest(new_context(), **asked) == {'is_running': True, 'power_state': 1}
    assert server.uuid in cloud.drivers['gpu1'].domains


def test_a_guest_that_can_not_be_resumed_beside_conductors_of_the_release_before_is_off(cloud, caplog):
    server = cloud.boot(cloud.host('gpu1', GPUS))
    cloud.drivers['gpu1'].fail('power_on', OSError('no'))
    cloud.cell.errors['resume_later'] = VersionCapError(version='3.5', cap='3.4')
    cloud.reboot('gpu1', resume_guests_state_on_host_boot=True)
    assert cloud.cell.instances[server.uuid]['vm_state'] == 'stopped' and cloud.cell.waiting == {}
    assert 'cannot start servers later' in caplog.text


@pytest.mark.parametrize('change', [{'vm_state': 'stopped'}, {'task_state': 'powering-off'}, {'host': 'gpu2'}, None])
def test_a_server_that_is_not_to_run_any_more_is_not_resumed(cloud, change):
    manager = cloud.host('gpu1', GPUS)
    server = cloud.boot(manager)
    domain = cloud.drivers['gpu1'].domains.pop(server.uuid)
    asked = cloud.cell.instance(server.uuid)
    if change is None:
        del cloud.cell.instances[server.uuid]
    else:
        cloud.cell.instances[server.uuid].update(change)
    told = manager.endpoint.resume_guest(new_context(), instance=asked, key='r/0.resume_guest/1')
    assert told == {'is_running': False} and cloud.drivers['gpu1'].domains == {}
    # A guest that runs is left as it is.
    if change is not None:
        cloud.cell.instances[server.uuid].update(vm_state='active', task_state=None, host='gpu1')
        cloud.drivers['gpu1'].domains[server.uuid] = domain
        told = manager.endpoint.resume_guest(new_context(), instance=asked, key='r/0.resume_guest/2')
        assert told == {'is_running': True, 'power_state': 1}
        assert cloud.drivers['gpu1'].domains[server.uuid] is domain


def test_a_guest_without_its_devices_is_not_resumed(cloud):
    server = cloud.boot(cloud.host('gpu1', GPUS))
    for row in cloud.cell.devices.values():
        row.update(status='available', instance_uuid=None)
    cloud.reboot('gpu1', resume_guests_state_on_host_boot=True)
    assert cloud.cell.instances[server.uuid]['vm_state'] == 'active' and cloud.drivers['gpu1'].domains == {}
    assert cloud.cell.waiting == {
        server.uuid: f'Instance {server.uuid} asks for 1 PCI devices and holds 0 on this host.'
    }


def test_a_stopped_server_stays_off_after_host_boot(cloud):
    server = cloud.boot(cloud.host('gpu1', GPUS))
    cloud.cell.instances[server.uuid].update(vm_state='stopped', power_state=4)
    cloud.cell.saves.clear()
    cloud.cell.object_calls.clear()
    cloud.reboot('gpu1', resume_guests_state_on_host_boot=True)
    assert cloud.drivers['gpu1'].domains == {} and not any(save['instance_uuid'] for save in cloud.cell.saves)
    # All that is asked is asked of all servers at once.
    assert cloud.cell.object_calls.count('InstanceList.get_uuids_with_operations') == 1


def test_host_boot_leaves_servers_with_an_operation_to_their_flow(cloud):
    server = cloud.boot(cloud.host('gpu1', GPUS))
    cloud.cell.occupy(server.uuid)
    manager = cloud.reboot('gpu1', resume_guests_state_on_host_boot=True)
    assert cloud.drivers['gpu1'].domains == {}
    manager.guests.look_again()
    assert cloud.drivers['gpu1'].domains == {}
    # The flow is over and left the server ACTIVE: its guest is brought back.
    cloud.cell.leave()
    manager.guests.look_again()
    assert server.uuid in cloud.drivers['gpu1'].domains and manager.host.interrupted == set()


@pytest.mark.parametrize('same', [False, True])
def test_verify_resize_after_host_boot(cloud, same):
    source = cloud.host('gpu1', [*GPUS, '0000:90:00.0'])
    dest = source if same else cloud.host('gpu2', ['0000:a8:00.0', '0000:b8:00.0'])
    resize = Resize(cloud, cloud.boot(source), source, dest)
    resize.all()
    new = cloud.drivers[dest.host.name].domains[resize.uuid].hostdevs
    for name in {source.host.name, dest.host.name}:
        manager = cloud.reboot(name, resume_guests_state_on_host_boot=True)
        setattr(resize, 'source' if name == 'gpu1' else 'dest', manager)
    if same:
        resize.dest = resize.source
    # The destination starts from the new devices, the source defines nothing.
    assert cloud.drivers[dest.host.name].domains[resize.uuid].hostdevs == new
    assert cloud.cell.instances[resize.uuid]['vm_state'] == 'resized'
    if not same:
        assert cloud.drivers['gpu1'].domains == {}
    resize.revert_dest()
    resize.revert_source()
    resize.as_before()


def test_verify_resize_without_resume_is_off_but_resized(cloud):
    source, dest = cloud.host('gpu1', GPUS), cloud.host('gpu2', ['0000:a8:00.0', '0000:b8:00.0'])
    resize = Resize(cloud, cloud.boot(source), source, dest)
    resize.all()
    cloud.reboot('gpu2')
    row = cloud.cell.instances[resize.uuid]
    assert (row['vm_state'], row['power_state']) == ('resized', 4)


def test_sync_power_states(cloud):
    """A guest that stopped by itself makes its server SHUTOFF. A guest that runs although its server is stopped is
    stopped. Servers with a task are left alone."""
    manager = cloud.host('gpu1', GPUS)
    crashed, started, moved, busy = (cloud.boot(manager, 0, flavor(1, 1, 64, 1)) for _ in range(4))
    domains, rows = cloud.drivers['gpu1'].domains, cloud.cell.instances
    domains[crashed.uuid].state = 4
    rows[started.uuid].update(vm_state='stopped', power_state=4)
    rows[moved.uuid]['power_state'] = 0
    domains[busy.uuid].state = 4
    rows[busy.uuid]['task_state'] = 'powering-off'
    manager.guests.sync()
    assert (rows[crashed.uuid]['vm_state'], rows[crashed.uuid]['power_state']) == ('stopped', 4)
    assert domains[started.uuid].state == 4 and rows[started.uuid]['vm_state'] == 'stopped'
    assert (rows[moved.uuid]['vm_state'], rows[moved.uuid]['power_state']) == ('active', 1)
    assert rows[busy.uuid]['vm_state'] == 'active'
    cloud.cell.saves.clear()
    manager.guests.sync()
    assert cloud.cell.saves == []


# What a server says (its state and power state), how its guest is found; what becomes of the three.
FOUND = {
    ('active', 1, 3): ('active', 3, 3),
    ('active', 1, 7): ('stopped', 4, 4),
    ('active', 1, 6): ('stopped', 6, 6),
    ('paused', 3, 1): ('paused', 1, 1),
    ('paused', 3, 4): ('stopped', 4, 4),
    ('paused', 3, 6): ('stopped', 6, 6),
    ('paused', 3, 7): ('stopped', 4, 4),
    ('paused', 4, 4): ('stopped', 4, 4),
    ('suspended', 7, 7): ('suspended', 7, 7),
    ('suspended', 7, 1): ('suspended', 1, 1),
    ('suspended', 7, 4): ('stopped', 4, 4),
    ('suspended', 7, 3): ('suspended', 3, 3),
}
BESIDE = {
    ('active', 1, 0): ('active', 0, 0),
    ('active', 1, 1): ('active', 1, 1),
    ('stopped', 4, 1): ('stopped', 4, 4),
    ('shelved', 4, 1): ('shelved', 4, 4),
    ('soft-delete', 4, 1): ('soft-delete', 4, 4),
    ('stopped', 4, 3): ('stopped', 3, 3),
    ('stopped', 1, 4): ('stopped', 4, 4),
    ('error', 1, 4): ('error', 1, 4),
    ('error', 4, 1): ('error', 4, 1),
    ('building', 0, 1): ('building', 0, 1),
    ('rescued', 1, 4): ('rescued', 4, 4),
    ('resized', 1, 4): ('resized', 4, 4),
    ('rescued', 1, 3): ('rescued', 3, 3),
}


class Servers:
    """One of each case, all on one host; each has a GPU."""

    def __init__(self, cloud, cases):
        self.cloud, self.uuids = cloud, {}
        self.manager = cloud.host('gpu1', [f'0000:{number:02x}:00.0' for number, _ in enumerate(cases, 16)])
        for case in cases:
            self.uuids[case] = uuid = cloud.boot(self.manager, 1, flavor(1, 1, 64, 1)).uuid
            vm_state, power_state, found = case
            cloud.cell.instances[uuid].update(vm_state=vm_state, power_state=power_state)
            cloud.drivers['gpu1'].domains[uuid].state = found
        cloud.cell.saves.clear()

    def now(self):
        rows, domains = self.cloud.cell.instances, self.cloud.drivers['gpu1'].domains
        return {
            case: (rows[uuid]['vm_state'], rows[uuid]['power_state'], domains[uuid].state)
            for case, uuid in self.uuids.items()
        }


@pytest.mark.parametrize('at_boot', [False, True])
def test_servers_whose_guests_somebody_paused_or_suspended(cloud, caplog, at_boot):
    """Paused, suspended and crashed guests are compared at the host's start and by the periodic task. A pause by
    somebody else is shown, a guest whose memory is gone is off, and a suspended guest keeps its memory."""
    servers = Servers(cloud, FOUND)
    if at_boot:
        servers.manager.guests.boot()
    servers.manager.guests.sync()
    assert servers.now() == FOUND
    warned = {
        (case[0], case[2])
        for case, uuid in servers.uuids.items()
        for record in caplog.records
        if f'is {case[0]} and its guest' in record.getMessage() and record.instance_uuid == uuid
    }
    assert warned == {('active', 3), ('active', 7), ('paused', 1), ('paused', 7), ('suspended', 1)}
    assert {len(cloud.cell.held(uuid)) for uuid in servers.uuids.values()} == {1}
    cloud.cell.saves.clear()
    servers.manager.guests.sync()
    assert cloud.cell.saves == []


@pytest.mark.parametrize('look', ['at boot', 'at one', 'now and then'])
def test_guests_beside_what_their_servers_say(cloud, look):
    """A guest that should be off is stopped, a server without its guest is off, and states that are not compared
    stay."""
    servers = Servers(cloud, BESIDE)
    if look == 'at boot':
        servers.manager.guests.boot()
    if look == 'at one':
        assert {servers.manager.guests.sync_one(uuid) for uuid in servers.uuids.values()} == {True}
    else:
        servers.manager.guests.sync()
    assert servers.now() == BESIDE
    assert {save['expect']['host'] for save in cloud.cell.saves} == {'gpu1'}


def test_a_server_that_is_not_at_rest_or_elsewhere_is_not_compared(cloud, manager, server):
    domain, row = cloud.drivers['gpu1'].domains[server.uuid], cloud.cell.instances[server.uuid]
    domain.state = 4
    for values, busy, compared in (
        ({'task_state': 'powering-off'}, False, False),
        ({'task_state': None}, True, False),
        ({'host': 'gpu2'}, False, True),
    ):
        row.update(values)
        if busy:
            cloud.cell.occupy(server.uuid)
        assert manager.guests.sync_one(server.uuid) is compared
        cloud.cell.leave()
    del cloud.cell.instances[server.uuid]
    assert manager.guests.sync_one(server.uuid) is True
    assert cloud.cell.saves == [] and row['vm_state'] == 'active'


def test_a_server_that_changes_meanwhile_is_left_as_it_is(cloud, manager, server, caplog):
    cloud.drivers['gpu1'].domains[server.uuid].state = 4
    cloud.cell.errors['save_instance'] = errors.Conflict('it is being deleted')
    with caplog.at_level(logging.INFO):
        manager.guests.sync()
    assert 'because another request changed the server at the same time: it is being deleted' in caplog.text
    assert cloud.cell.instances[server.uuid]['vm_state'] == 'active'


def test_a_host_that_boots_brings_back_each_of_its_servers(cloud):
    """One that an operation works on doesn't keep the others waiting; one that is off stays so."""
    manager = cloud.host('gpu1', GPUS)
    busy, first, off, second = (cloud.boot(manager, 0, flavor(1, 1, 64, 1)).uuid for _ in range(4))
    cloud.cell.instances[off].update(vm_state='stopped', power_state=4)
    cloud.cell.occupy(busy)
    cloud.reboot('gpu1', resume_guests_state_on_host_boot=True)
    assert set(cloud.drivers['gpu1'].domains) == {first, second}


@pytest.mark.parametrize('vm_state', ['paused', 'suspended'])
def test_a_host_that_boots_does_not_resume_what_did_not_run(cloud, vm_state):
    server = cloud.boot(cloud.host('gpu1', GPUS))
    # Somebody let the guest go on before the host went down.
    cloud.cell.instances[server.uuid].update(vm_state=vm_state, power_state=1)
    cloud.reboot('gpu1', resume_guests_state_on_host_boot=True)
    row = cloud.cell.instances[server.uuid]
    assert (row['vm_state'], row['power_state']) == ('stopped', 4) and cloud.drivers['gpu1'].domains == {}


@pytest.mark.parametrize(('resume', 'there', 'power_state'), [(True, True, 1), (True, False, 4), (False, True, 4)])
def test_a_host_that_boots_goes_on_with_a_rescue(cloud, caplog, resume, there, power_state):
    """Never with the server's own disk, which is what somebody repairs; and RESCUE stays."""
    server = cloud.boot(cloud.host('gpu1', GPUS))
    row, rescued = cloud.cell.instances[server.uuid], cloud.drivers['gpu1'].rescued
    row['vm_state'] = 'rescued'
    if there:
        rescued.add(server.uuid)
    cloud.reboot('gpu1', resume_guests_state_on_host_boot=resume)
    driver = cloud.drivers['gpu1']
    assert (row['vm_state'], row['power_state']) == ('rescued', power_state)
    assert (server.uuid in driver.domains) == (power_state == 1)
    assert 'power_on' not in [call for call, _ in driver.calls]


# -- heartbeat --------------------------------------------------------------------------------------------------------
def test_heartbeat_tells_loss_and_recovery_once(cloud, caplog):
    """Loss and recovery of the conductor are logged once each, whatever the number of heartbeats in between."""
    manager = cloud.host('gpu1')
    cloud.cell.unanswered['Service.save'] = 3
    count = manager.node.service.report_count
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            manager.heartbeat.beat()
    assert caplog.text.count('Lost connection to nova-conductor for reporting service status.') == 1
    assert caplog.text.count('Recovered from being unable to report status.') == 1
    assert manager.node.service.report_count == count + 5
    assert cloud.cell.changes['Service.save'] == ['report_count']


def test_a_compute_joins_its_group(cloud, caplog):
    """A compute logs Nova's line of a new group member once. Its first report is sent at once and the next after
    report_interval."""
    with caplog.at_level(logging.DEBUG, logger='kilonova.compute.report'):
        manager = cloud.host('gpu1')
    assert [record.getMessage() for record in caplog.records if record.name == 'kilonova.compute.report'] == [
        'DB_Driver: join new ServiceGroup member gpu1 to the compute group, service = nova-compute'
    ]
    assert cloud.cell.services['gpu1']['report_count'] == 1
    assert manager.timers.spacing['report_state'] == manager.conf.report_interval
    manager.heartbeat.beat()
    assert len([record for record in caplog.records if 'ServiceGroup' in record.getMessage()]) == 1


def test_heartbeat_comes_after_everything_else(cloud):
    """At the start of a compute the RPC server and then the first heartbeat come last."""
    order = []
    cloud.host('gpu1').stop()
    conf = new_conf('gpu1')
    manager = ComputeManager(
        conf, driver=cloud.drivers['gpu1'], conductor=cloud.cell, placement=None, ctxt=cloud.cell.context, pauses=(0.0,)
    )
    cloud.cell.object_calls = order
    manager.start(lambda: order.append('serve'))
    manager.stop()
    assert order[-2:] == ['serve', 'Service.save'] and 'InstanceList.get_by_host' in order[:-2]
    assert manager.timers.spacing['report_state'] == conf.report_interval


def test_periodic_tasks_and_their_spacing(cloud):
    """Each periodic task has the spacing of its option, and -1 leaves it out."""
    manager = cloud.host('gpu1', periodic_enable=True, sync_power_state_interval=-1)
    manager.stop()
    assert manager.timers.spacing == {
        'report_state': 10,
        'look_again': 5,
        'look_at_failed_devices': 5,
        'update_available_resource': 60,
        'cleanup_running_deleted_instances': 1800,
        'run_pending_deletes': 300,
        'run_image_cache_manager_pass': 2400,
    }
    other = cloud.host('gpu2', periodic_enable=True)
    other.stop()
    assert other.timers.spacing == {**manager.timers.spacing, 'sync_power_states': 600}


def test_devices_are_looked_after_where_there_is_a_command(cloud):
    cloud.host('gpu1').stop()
    conf = new_conf('gpu1', periodic_enable=True)
    conf.set_override('health_check', 'true', group='devices')
    conf.set_override('health_check_interval', 7, group='devices')
    manager = ComputeManager(
        conf, driver=cloud.drivers['gpu1'], conductor=cloud.cell, placement=None, ctxt=cloud.cell.context, pauses=(0.0,)
    )
    manager.start()
    manager.stop()
    assert manager.timers.spacing['look_after_devices'] == 7


def test_usage_is_audited_where_it_is_asked_for(cloud):
    manager = cloud.host('gpu1', periodic_enable=True, instance_usage_audit=True)
    manager.stop()
    assert manager.timers.spacing['instance_usage_audit'] == 60


@pytest.mark.parametrize(('interval', 'spacing'), [(None, None), (0, None), (30, 30)])
def test_volumes_are_counted_where_it_is_asked_for(cloud, monkeypatch, interval, spacing):
    """Volume usage is counted only if volume_usage_poll_interval is set."""
    manager = cloud.host(
        'gpu1', periodic_enable=True, **({} if interval is None else {'volume_usage_poll_interval': interval})
    )
    manager.stop()
    assert manager.timers.spacing.get('poll_volume_usage') == spacing
    assert [told['spacing'] for told in manager.timers.told() if told['name'] == 'poll_volume_usage'] == [spacing or -1]
    polled = []
    monkeypatch.setattr('kilonova.compute.volume_usage.poll', lambda host, ctxt: polled.append((host, ctxt.is_admin)))
    manager.poll_volume_usage()
    assert polled == [(manager.host, True)]


def test_a_start_is_tried_with_growing_pauses(cloud, monkeypatch):
    manager, pauses = cloud.host('gpu1'), []
    answers = [errors.Unanswered(who='x', reason='y'), HypervisorUnavailable(host='h', reason='r')] * 2

    def act():
        tried.append(1)
        if answers:
            raise answers.pop()

    tried = []
    monkeypatch.setattr(manager, '_pauses', (1.0, 2.0))
    monkeypatch.setattr(manager.stopping, 'wait', pauses.append)
    manager._until_answered(act)
    assert pauses == [1.0, 2.0, 2.0, 2.0] and len(tried) == 5
    manager.stopping.set()
    manager._until_answered(act)
    assert len(tried) == 5
    manager.stopping.clear()
    with pytest.raises(ZeroDivisionError):
        manager._until_answered(lambda: 1 / 0)


def test_what_the_records_of_a_new_host_say(cloud):
    cloud.host('gpu1')
    service, (node,) = cloud.cell.services['gpu1'], cloud.cell.nodes.values()
    shown = [service[name] for name in ('disabled', 'disabled_reason', 'forced_down', 'version')]
    assert shown == [False, None, False, SERVICE_VERSION]
    assert [node[name] for name in ('mapped', 'running_vms', 'current_workload')] == [0, 0, 0]
    assert [node[name] for name in ('vcpus_used', 'memory_mb_used', 'local_gb_used')] == [0, 0, 0]
    assert node['uuid'] == cloud.drivers['gpu1'].host.get_available_resource()['uuid']
    service['version'] = SERVICE_VERSION - 1
    cloud.host('gpu1')
    assert service['version'] == SERVICE_VERSION
    cloud.cell.object_calls.clear()
    cloud.host('gpu1')
    # The heartbeat's is the only one.
    assert cloud.cell.object_calls.count('Service.save') == 1


def test_a_new_process_numbers_its_usage_on(cloud):
    manager = cloud.host('gpu1')
    node = cloud.cell.nodes[manager.node.record.uuid]
    node['stats'] = json.dumps({SERIAL: '41'})
    assert cloud.host('gpu1').host.tracker.serial == 42, 'its first usage'
    node['stats'] = '{}'
    assert cloud.host('gpu1').host.tracker.serial == 1


def test_seconds_that_a_guest_gets_to_shut_down(cloud, manager, server):
    def wait(clean=True, **metadata):
        server.system_metadata = metadata
        return manager.host.shutdown_wait(server, clean)

    assert wait(image_os_shutdown_timeout='7') == (7, 10)
    assert wait() == wait(image_os_shutdown_timeout='soon') == wait(image_os_shutdown_timeout='-1') == (60, 10)
    assert wait(False, image_os_shutdown_timeout='7') == (0, 0)
    assert wait(image_os_shutdown_timeout='0') == (0, 10)


@pytest.mark.parametrize(('refresh', 'clock', 'refreshed'), [(300, 299.0, []), (300, 300.0, [True]), (0, 9999.0, [])])
def test_now_and_then_placement_is_told_all(cloud, refresh, clock, refreshed):
    cloud.placement, now = Placement(), [0.0]
    manager = cloud.host('gpu1')
    manager.conf.set_override('resource_provider_association_refresh', refresh, group='compute')
    manager.node._clock, manager.node._refreshed = lambda: now[0], 0.0
    cloud.placement.synced.clear()
    for now[0] in (clock, clock):
        manager.node.update()
    assert [one for *_, one in cloud.placement.synced if one] == refreshed


def test_a_compute_follows_its_record_and_writes_no_trait_twice(cloud):
    cloud.placement, told = Placement(), []
    manager = cloud.host('gpu1')
    cloud.placement.set_host_disabled = lambda uuid, disabled: told.append(disabled)
    manager.node.follow()
    cloud.cell.services['gpu1']['disabled'] = True
    manager.node.follow()
    manager.node.follow()
    del cloud.cell.services['gpu1']
    manager.node.follow()
    assert told == [True]


def test_what_somebody_evacuated_is_cleared_away_at_the_start(cloud):
    manager = cloud.host('gpu1', GPUS)
    server = cloud.boot(manager)
    migration = cloud.cell.new_migration(
        server.uuid, manager, kind='evacuation', status='done', dest_compute='gpu2', dest_node='gpu2'
    )
    cloud.cell.instances[server.uuid]['host'] = 'gpu2'
    manager = cloud.host('gpu1')
    assert cloud.drivers['gpu1'].domains == {} and cloud.drivers['gpu1'].directories == {}
    assert cloud.cell.held(server.uuid) == {} and manager.host.tracker.used.vcpus == 0
    assert cloud.cell.migrations[migration.uuid]['status'] == 'completed'
    assert cloud.cell.instances[server.uuid]['host'] == 'gpu2'


# -- usage of a period ------------------------------------------------------------------------------------------------
class Logged:
    """In place of the objects of task_log. ``there``: the servers of the period; None: it was told before."""

    there: list | None = ['one', 'two', 'gone', 'broken']
    made: list = []

    def __init__(self, ctxt, **values):
        self.values = values
        self.made.append(self)

    def begin_task(self):
        return self.there

    def end_task(self):
        self.values.update(errors=self.errors, message=self.message)

    @staticmethod
    def get_server(ctxt, uuid):
        if uuid == 'broken':
            raise ValueError(uuid)
        return None if uuid == 'gone' else uuid


def test_the_usage_of_a_period_is_told_once(cloud, manager, monkeypatch, caplog):
    told = []

    class Notify:
        @staticmethod
        def emit(ctxt, event, **facts):
            told.append((event, facts))

    monkeypatch.setattr('kilonova.compute.report.TaskLog', Logged)
    monkeypatch.setattr(manager.host, 'notify', Notify)
    monkeypatch.setattr(Logged, 'made', [])
    ctxt, moment = new_context(), datetime.datetime(2026, 3, 15, 10, 30)
    manager.conf.set_override('instance_usage_audit_period', 'hour')
    assert audit_usage(manager.host, ctxt, moment) == 3
    assert told == [('instance.exists', {'instance': name, 'whole': True}) for name in ('one', 'two')]
    assert Logged.made[0].values == {
        'task_name': 'instance_usage_audit',
        'host': 'gpu1',
        'errors': 1,
        'period_beginning': datetime.datetime(2026, 3, 15, 9),
        'period_ending': datetime.datetime(2026, 3, 15, 10),
        'message': 'Instance usage audit ran for host gpu1, 4 instances.',
    }
    assert 'Could not send the usage notification of the instance' in caplog.text
    monkeypatch.setattr(Logged, 'there', None)
    assert audit_usage(manager.host, ctxt, moment) is None
    assert len(told) == 2 and 'message' not in Logged.made[1].values
    manager.audit_usage()
    assert Logged.made[2].values['period_ending'] <= datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
