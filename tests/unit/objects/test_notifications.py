"""Notifications: the table, the payloads' versions, the samples in docs/reference/notification-samples, the sender.

``KILONOVA_WRITE_SAMPLES=1`` writes the samples; what a change did to consumers is then to be read in the difference.
"""

from __future__ import annotations

import ast
import datetime
import json
import os
import pathlib
import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova import conf as kilonova_conf
from kilonova import errors, objects
from kilonova.api.routes import ROUTES
from kilonova.compute.ops import power
from kilonova.conductor.flows import FLOWS
from kilonova.context import RequestContext
from kilonova.objects import base, notifications
from kilonova.objects.notifications import instance as server_payloads
from kilonova.rpc import notify
from tests.fixtures.notifications import Recorder
from tests.unit.objects import test_fingerprints

SAMPLES = pathlib.Path(__file__).parents[3] / 'docs' / 'reference' / 'notification-samples'
WRITE = os.environ.get('KILONOVA_WRITE_SAMPLES') == '1'
SERVER, PROJECT = 'c03c0bf9-f46e-4e4f-93f1-817568567ee2', '6f70656e737461636b20342065766572'
IMAGE = '155d900f-4e14-4e4c-a73d-069cbf4541e6'
MOMENT = datetime.datetime(2026, 10, 29, 13, 42, 11, tzinfo=datetime.UTC)
TIME = '2026-10-29 13:42:11'

FINGERPRINTS = {
    'AggregatePayload': '1.1-f2efd7a909153e9b',
    'AuditPeriodPayload': '1.0-4727531c8414c816',
    'BlockDevicePayload': '1.0-b174863e856cf329',
    'CellMappingPayload': '2.0-2fd953ff29bf947c',
    'ComputeTaskPayload': '1.0-eaf07f6fa74c4e0d',
    'DestinationPayload': '1.0-d32ee88da437b3eb',
    'ExceptionPayload': '1.1-7e1bbe405bb9d092',
    'FlavorPayload': '1.4-1fc3483810297bc1',
    'ImageMetaPayload': '1.0-bf5a57eed44b3b1d',
    'ImageMetaPropsPayload': '1.20-296bd7f84f39544a',
    'InstanceActionPayload': '1.9-8aa7cb1994e450e5',
    'InstanceActionRebuildPayload': '1.9-b057fbaebc663b14',
    'InstanceActionRescuePayload': '1.3-62afd284d9a1f491',
    'InstanceActionResizePrepPayload': '1.4-778c78effa57a109',
    'InstanceActionSnapshotPayload': '1.10-01e7c1c3022ee6e9',
    'InstanceActionVolumePayload': '1.6-96d52e558a6bebac',
    'InstanceActionVolumeSwapPayload': '1.8-04547a39c8e4d48a',
    'InstanceCreatePayload': '1.13-f1a93fda876656c3',
    'InstanceExistsPayload': '2.1-c52c86a1a25c595f',
    'InstanceNUMACellPayload': '1.2-091915b2326d063b',
    'InstanceNUMATopologyPayload': '1.0-02f1c217bbb89e8b',
    'InstancePCIRequestPayload': '1.0-018669ea93600f0e',
    'InstancePCIRequestsPayload': '1.0-54e7766761e23029',
    'InstancePayload': '1.9-210a9e1323ce9a81',
    'InstanceStateUpdatePayload': '1.0-f373cdda885c23a3',
    'InstanceUpdatePayload': '2.1-75ece40b08ff9d23',
    'IpPayload': '1.0-cef6e975c7cd9377',
    'KeypairPayload': '1.0-448185361f027af6',
    'RequestSpecPayload': '1.1-28820d2fda151fd8',
    'SchedulerLimitsPayload': '1.0-bc96f074f0f45b25',
    'SchedulerRetriesPayload': '1.0-234debfebc8fbbb1',
    'ServerGroupPayload': '1.1-d3b6172cc8f06392',
    'ServiceStatusPayload': '1.1-006f71eef7d56cc0',
    'SharePayload': '1.0-cda6f31a52a91502',
    'VirtCPUTopologyPayload': '1.0-30c9aa9b4c455406',
    'VolumeUsagePayload': '1.0-736c28e51906459f',
}


def configured(driver='messagingv2', **options):
    conf = kilonova_conf.new()
    notify.register(conf)
    conf([], project='kilonova', default_config_files=[], default_config_dirs=[])
    conf.set_override('host', 'gpu1')
    conf.set_override('driver', [driver] if driver else [], 'oslo_messaging_notifications')
    for name, value in options.items():
        conf.set_override(name, value, 'notifications')
    return conf


def notifier(**options):
    options.setdefault('notification_format', 'both')
    return notify.Notifications(configured(**options), Recorder())


def context():
    return RequestContext(
        user_id='fake',
        project_id=PROJECT,
        request_id='req-5b6c791d-5709-4f36-8fbe-c3e02869e35d',
        auth_token='secret',
        overwrite=False,
        service_catalog=[{'type': 'image', 'endpoints': [{'publicURL': 'http://image.test/'}]}],
    )


def flavor(name='tmp1', number=1):
    return objects.Flavor(
        id=number,
        name=name,
        flavorid=f'{number}',
        vcpus=8,
        memory_mb=32768,
        root_gb=16,
        ephemeral_gb=0,
        swap=0,
        rxtx_factor=1.0,
        vcpu_weight=0,
        disabled=False,
        is_public=True,
        description=None,
        extra_specs={'pci_passthrough:alias': f'QuadroM4000-video:{number}'},
    )


def server(**values):
    ctxt = context()
    return objects.Instance(
        ctxt,
        **{
            'id': 1,
            'uuid': SERVER,
            'user_id': 'fake',
            'project_id': PROJECT,
            'reservation_id': 'r-npxv0e40',
            'display_name': 'some-server',
            'display_description': 'some server',
            'hostname': 'some-server',
            'host': 'gpu1',
            'node': 'gpu1.test',
            'os_type': None,
            'architecture': 'x86_64',
            'availability_zone': 'nova',
            'flavor': flavor(),
            'image_ref': IMAGE,
            'key_name': 'my-key',
            'kernel_id': '',
            'ramdisk_id': '',
            'created_at': MOMENT,
            'launched_at': MOMENT,
            'updated_at': MOMENT,
            'terminated_at': None,
            'deleted_at': None,
            'vm_state': 'active',
            'task_state': None,
            'power_state': 1,
            'progress': 0,
            'locked': False,
            'auto_disk_config': False,
            'metadata': {'role': 'train'},
            'access_ip_v4': None,
            'access_ip_v6': None,
            'system_metadata': {'image_base_image_ref': IMAGE, 'image_min_disk': '1', 'boot_roles': 'member'},
            'keypairs': objects.KeyPairList(objects=[keypair()]),
            'tags': objects.TagList.from_words(ctxt, SERVER, ['tag']),
            'trusted_certs': objects.TrustedCerts(ids=['cert-id-1']),
            **values,
        },
    )


def keypair():
    return objects.KeyPair(
        id=1,
        name='my-key',
        user_id='fake',
        type='ssh',
        public_key='ssh-ed25519 AAAAC3Nza',
        fingerprint='1e:2c:9b:56:79:4b:45:77:f9:ca:7a:98:2c:b0:d5:3c',
    )


def request_spec():
    requests = [
        objects.InstancePCIRequest(
            count=1,
            spec=[{'vendor_id': '10de', 'product_id': '13f1'}],
            alias_name='QuadroM4000-video',
            is_new=False,
            request_id='ac0a0c1f-3ac8-4f39-9af0-6ab1d5e6b8d1',
            requester_id=None,
            numa_policy='legacy',
        )
    ]
    return objects.RequestSpec.from_components(
        context(),
        instance_uuid=SERVER,
        flavor=flavor(),
        image={'id': IMAGE, 'name': 'demo', 'disk_format': 'qcow2', 'properties': {'hw_disk_bus': 'virtio'}},
        scheduler_hints={'different_host': [SERVER]},
        ignore_hosts=['gpu9'],
        pci_requests=objects.InstancePCIRequests(instance_uuid=SERVER, requests=requests),
    )


AGGREGATE = {
    'id': 1,
    'uuid': '788608ec-ebdc-45c5-bc7f-e5f24ab92c80',
    'name': 'my-aggregate',
    'hosts': ['gpu1'],
    'metadata': {'availability_zone': 'nova'},
}
GROUP = {
    'uuid': '788608ec-ebdc-45c5-bc7f-e5f24ab92c80',
    'name': 'my-group',
    'user_id': 'fake',
    'project_id': PROJECT,
    'policy': 'anti-affinity',
    'rules': {'max_server_per_host': 3},
    'members': [SERVER],
    'hosts': None,
}
SERVICE = {
    'uuid': 'fa69c544-906b-4a6a-a9c6-c1f7a8078c73',
    'host': 'gpu2',
    'binary': 'nova-compute',
    'topic': 'compute',
    'report_count': 0,
    'disabled': False,
    'disabled_reason': None,
    'availability_zone': None,
    'last_seen_up': None,
    'forced_down': False,
    'version': 75,
}
RECORD = {'class': 'NoValidHost', 'message': 'No valid host was found. ', 'code': 500, 'details': 'Traceback …'}


def usage():
    return objects.VolumeUsage(
        volume_id=IMAGE,
        instance_uuid=SERVER,
        project_id=PROJECT,
        user_id='fake',
        availability_zone='nova',
        tot_last_refreshed=MOMENT - datetime.timedelta(days=1),
        curr_last_refreshed=MOMENT,
        tot_reads=1,
        curr_reads=10,
        tot_read_bytes=512,
        curr_read_bytes=5120,
        tot_writes=2,
        curr_writes=20,
        tot_write_bytes=1024,
        curr_write_bytes=10240,
    )


def failure():
    try:
        raise errors.HostRejected(reason='Claim pci failed')
    except errors.HostRejected as error:
        error.__traceback__ = None
        return error


def facts_of(event: str) -> dict[str, Any]:
    """What whoever emits the event hands over."""
    noun, _, rest = event.partition('.')
    if noun == 'volume':
        return {'usage': usage()}
    simple = {
        'flavor': {'flavor': flavor()},
        'keypair': {'keypair': keypair()},
        'aggregate': {'aggregate': AGGREGATE},
        'server_group': {'group': GROUP},
        'service': {'service': SERVICE},
        'scheduler': {'request_spec': request_spec()},
        'compute': {'error': failure(), 'method': 'build_and_run_instance'},
        'compute_task': {'instance_uuid': SERVER, 'request_spec': request_spec(), 'state': 'error', 'record': RECORD},
    }
    if noun in simple:
        return simple[noun]
    facts: dict[str, Any] = {'instance': server()}
    if event == 'instance.create.start':
        facts |= {
            'image_name': 'demo',
            'instance': server(
                vm_state='building', task_state='scheduling', host=None, node=None, launched_at=None, power_state=0
            ),
        }
    elif event == 'instance.create.end':
        facts |= {
            'instance': server(vm_state='building', task_state='scheduling', launched_at=None, power_state=0),
            'moved': 'build.done',
            'values': {'power_state': 1, 'launched_at': '2026-10-29T13:42:11'},
        }
    elif event == 'instance.update':
        facts |= {'before': ('building', 'spawning'), 'after': ('active', None)}
    if rest.endswith('error'):
        facts['fault'] = failure()
    if rest.startswith('resize_prep'):
        facts['new_flavor'] = flavor('tmp2', 2)
    if rest.startswith('rescue'):
        facts |= {'rescue_image_ref': IMAGE, 'rescue_image_name': 'repair'}
    if rest.startswith('volume_swap'):
        facts |= {'old_volume_id': IMAGE, 'new_volume_id': SERVER}
    elif rest.startswith('volume'):
        facts['volume_id'] = IMAGE
    if rest.startswith('snapshot'):
        facts['snapshot_image_id'] = 'd2aae36f-785c-4518-8016-bc9534d9fc7f'
    return facts


@pytest.fixture(autouse=True)
def period(monkeypatch):
    """The present period of audits, without its end that is now."""

    def fixed(about, whole):
        begin = datetime.datetime(2026, 10, 1)
        return (datetime.datetime(2026, 9, 1), begin) if whole else (begin, MOMENT.replace(tzinfo=None))

    monkeypatch.setattr(server_payloads, 'period_of', fixed)
    monkeypatch.setattr(notify.legacy, 'period_of', fixed)


# --- the table -------------------------------------------------------------------------------------------------------
EMITTERS = ('emit', 'later', 'notify', 'server_changed')


def emitted() -> set[str]:
    """The event types in the code that emits."""
    found = set()
    root = pathlib.Path(notify.__file__).parents[1]
    for path in root.rglob('*.py'):
        if path.name == 'notify.py' and path.parent.name == 'rpc':
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, 'attr', '') in EMITTERS:
                found |= {_pattern(argument) for argument in node.args} - {None}
    return found


def _pattern(node):
    """'instance.power_off.start', or with a star for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return ''.join(part.value if isinstance(part, ast.Constant) else '*' for part in node.values)
    return None


def test_the_table_declares_what_is_emitted_and_nothing_else():
    texts = emitted() | {'instance.update'}
    patterns = {text: re.compile(re.escape(text).replace(r'\*', '.+') + '$') for text in texts}
    undeclared = [
        text for text, pattern in patterns.items() if not any(pattern.match(event) for event in notify.NOTIFICATIONS)
    ]
    assert undeclared == []
    unused = [event for event in notify.NOTIFICATIONS if not any(one.match(event) for one in patterns.values())]
    assert unused == []


# Word in the events of an operation or API action, where it isn't the operation's kind or the action's name.
TOLD_AS = {
    **{verb: word for verb, word in power.TOLD_AS.items() if word is not None},
    'attach_interface': 'interface_attach',
    'attach_volume': 'volume_attach',
    'backup': 'snapshot',
    'boot': 'create',
    'confirm': 'resize_confirm',
    'confirm_resize': 'resize_confirm',
    'create_backup': 'snapshot',
    'create_image': 'snapshot',
    'detach_interface': 'interface_detach',
    'detach_volume': 'volume_detach',
    'force_delete': 'delete',
    'live_migrate': 'live_migration_post',
    'migrate': 'resize',
    'migrate_live': 'live_migration_post',
    'reimage': 'rebuild',
    'reset_state': 'update',
    'revert': 'resize_revert',
    'revert_resize': 'resize_revert',
    'swap_volume': 'volume_swap',
    'unshelve_start': 'unshelve',
}
# Operations and API actions without events of their own, and why. Nova has none for them, either.
UNTOLD = {
    'add_fixed_ip': 'changes a port of the network service, which sends its own notifications',
    'add_floating_ip': 'changes a floating address of the network service',
    'add_security_group': 'changes ports of the network service',
    'change_password': 'the guest changes the password of its administrator, the server stays as it is',
    'get_console_output': 'reads',
    'get_serial_console': 'makes a token for a console',
    'get_spiceconsole': 'makes a token for a console',
    'get_vncconsole': 'makes a token for a console',
    'host_removal': 'deletes rows of a host that is gone, no server',
    'inject_network_info': 'reads the ports of the server again',
    'mirror': 'writes aggregates to Placement',
    'network_changed': 'reads the ports of the server again',
    'release': 'releases what a server held that is gone or has moved',
    'remove_fixed_ip': 'changes a port of the network service, which sends its own notifications',
    'remove_floating_ip': 'changes a floating address of the network service',
    'remove_security_group': 'changes ports of the network service',
    'resume_on_host_boot': 'the host starts a guest again that ran before',
    'set_admin_password': 'the guest changes the password of its administrator, the server stays as it is',
    'volume_extended': 'the guest sees the new size of a volume, which the volume service notifies',
    'volume_snapshot_create': 'a snapshot of the volume service, which sends its own notifications',
    'volume_snapshot_delete': 'a snapshot of the volume service, which sends its own notifications',
}


def changes() -> set[str]:
    """Return the kinds of operations and the API actions of servers: 'reboot', 'confirm_resize' …"""
    actions = {
        re.sub('([A-Z]+)', r'_\1', str(route.action).removeprefix('os-')).lower()
        for route in ROUTES
        if route.path == '/servers/{server_id}/action' and route.status < 400
    }
    return set(FLOWS) | actions


@pytest.mark.parametrize('change', sorted(changes()))
def test_an_operation_or_an_action_has_notifications_or_a_reason_to_have_none(change):
    """Each kind of operation has the events start and end, or a single event, unless UNTOLD says why it has none."""
    event = f'instance.{TOLD_AS.get(change, change)}'
    is_told = event in notify.NOTIFICATIONS or {f'{event}.start', f'{event}.end'} <= notify.NOTIFICATIONS.keys()
    assert is_told != (change in UNTOLD)


def test_the_lists_of_changes_name_only_what_is_there():
    assert (TOLD_AS.keys() | UNTOLD.keys()) - changes() == set()


def test_every_payload_class_is_published():
    used = {row.payload for row in notify.NOTIFICATIONS.values()}
    assert used <= set(notifications.PAYLOADS)
    held = {name for payload in used for name in base.object_versions(payload.__name__)}
    assert held - {'InstancePayload'} == {payload.__name__ for payload in notifications.PAYLOADS} - {'InstancePayload'}


# --- versions --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('payload', notifications.PAYLOADS, ids=lambda payload: payload.__name__)
def test_no_payload_changes_under_its_version(payload):
    """A new field raises the second number, one that is gone or means something else the first."""
    assert test_fingerprints.fingerprint(payload) == FINGERPRINTS[payload.__name__]


def test_every_payload_has_a_fingerprint():
    assert sorted(FINGERPRINTS) == sorted(payload.__name__ for payload in notifications.PAYLOADS)


# --- samples ---------------------------------------------------------------------------------------------------------
def rendered(event: str) -> dict[str, Any]:
    messages = notifier().render(context(), event, **facts_of(event))
    return {
        'versioned' if message.versioned else 'unversioned': {
            'event_type': message.event,
            'priority': message.priority,
            'publisher_id': message.publisher,
            'payload': message.payload,
        }
        for message in messages
    }


@pytest.mark.parametrize('event', notify.NOTIFICATIONS)
def test_the_sample_is_what_is_sent(event):
    text = json.dumps(rendered(event), indent=2, sort_keys=True) + '\n'
    path = SAMPLES / f'{event}.json'
    if WRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def test_no_sample_of_what_is_gone():
    assert {path.stem for path in SAMPLES.glob('*.json')} == set(notify.NOTIFICATIONS)


@pytest.mark.parametrize('event', notify.NOTIFICATIONS)
def test_a_versioned_payload_can_be_read(event):
    """Envelopes at every depth, without change marks; what a consumer with the same classes makes of it is the same."""
    payload = rendered(event)['versioned']['payload']
    assert payload['nova_object.namespace'] == 'nova'
    assert 'nova_object.changes' not in json.dumps(payload)
    assert base.KilonovaObject.obj_from_primitive(payload).obj_to_primitive() == payload


# --- what payloads say -----------------------------------------------------------------------------------------------
def test_what_was_written_since_the_server_was_read():
    """instance.create.end says active and running, and the old form says Success."""
    sample = rendered('instance.create.end')
    data = sample['versioned']['payload']['nova_object.data']
    assert (data['state'], data['task_state'], data['power_state']) == ('active', None, 'running')
    assert data['launched_at'] == '2026-10-29T13:42:11Z'
    assert (sample['versioned']['publisher_id'], data['instance_name']) == ('nova-compute:gpu1', 'instance-00000001')
    old = sample['unversioned']
    assert (old['event_type'], old['publisher_id']) == ('compute.instance.create.end', 'compute.gpu1')
    assert (old['payload']['state'], old['payload']['message']) == ('active', 'Success')


def test_the_new_flavor_of_a_resize():
    """The versioned notification of a resize has the new flavor at start and end, the unversioned one at the end
    only."""
    start, end = rendered('instance.resize_prep.start'), rendered('instance.resize_prep.end')
    for sample in (start, end):
        payload = sample['versioned']['payload']
        assert (payload['nova_object.name'], payload['nova_object.version']) == (
            'InstanceActionResizePrepPayload',
            '1.4',
        )
        assert payload['nova_object.data']['new_flavor']['nova_object.data']['name'] == 'tmp2'
    assert end['unversioned']['event_type'] == 'compute.instance.resize.prep.end'
    assert 'new_instance_type' not in start['unversioned']['payload']
    told = end['unversioned']['payload']
    assert (told['new_instance_type'], told['new_instance_type_id']) == ('tmp2', 2)


def test_volumes_are_told_where_the_operator_asked():
    volume = {
        'id': 1,
        'device_name': '/dev/vdb',
        'delete_on_termination': False,
        'boot_index': None,
        'tag': None,
        'volume_id': 'a07f71dc-8151-4e7d-a0cc-cd24a3f11113',
    }
    disks = objects.BlockDeviceMappingList.of_server(None, SERVER, [volume, {'id': 2, 'volume_id': None}])
    for asked, wanted in ((True, ['/dev/vdb']), (False, [])):
        message = notifier(notification_format='versioned', bdms_in_notifications=asked).render(
            context(), 'instance.create.start', instance=server(), bdms=disks
        )[0]
        told = message.payload['nova_object.data']['block_devices']
        assert [one['nova_object.data']['device_name'] for one in told] == wanted


def test_addresses_are_told():
    vif = {
        'id': 'ce531f90-199f-48c0-816c-13e38010b442',
        'address': 'fa:16:3e:4c:2c:30',
        'devname': 'tapce531f90-19',
        'network': {'label': 'private', 'subnets': [{'ips': [{'address': '192.168.1.3', 'version': 4}]}]},
    }
    cache = objects.InstanceInfoCache(instance_uuid=SERVER, network_info=[vif])
    message = notifier(notification_format='versioned').render(
        context(), 'instance.power_on.end', instance=server(info_cache=cache)
    )[0]
    told = message.payload['nova_object.data']['ip_addresses']
    assert [(one['nova_object.data']['address'], one['nova_object.data']['label']) for one in told] == [
        ('192.168.1.3', 'private')
    ]


def test_a_server_that_came_without_metadata_does_not_claim_to_have_none():
    bare = server()
    del bare.metadata
    message = notifier(notification_format='versioned').render(context(), 'instance.power_on.end', instance=bare)[0]
    assert 'metadata' not in message.payload['nova_object.data']


# --- options ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('form', 'wanted'),
    [
        ('unversioned', ['compute.instance.power_off.end']),
        ('versioned', ['instance.power_off.end']),
        ('both', ['compute.instance.power_off.end', 'instance.power_off.end']),
    ],
)
def test_the_form_is_the_operators_choice(form, wanted):
    told = notifier(notification_format=form)
    told.emit(context(), 'instance.power_off.end', instance=server())
    assert told._sender.events == wanted


def test_the_level_of_what_is_no_error():
    told = notifier(default_level='WARN')
    told.emit(context(), 'instance.reboot.end', instance=server())
    told.emit(context(), 'instance.reboot.error', instance=server(), fault=failure())
    assert [message.priority for _, message in told._sender.sent] == ['WARN', 'WARN', 'ERROR', 'ERROR']


@pytest.mark.parametrize('driver', ['noop', None])
def test_nothing_is_built_when_nobody_asked(driver, monkeypatch):
    """No payload, no transport, no thread, nothing read."""

    def refuse(*args, **kwargs):
        raise AssertionError('somebody made a payload')

    monkeypatch.setattr(notify.Notifications, 'render', refuse)
    monkeypatch.setattr(notify, 'NotificationSender', refuse)
    monkeypatch.setattr(notify, 'concurrency', SimpleNamespace(spawn=refuse))
    told = notify.Notifications(configured(driver, notify_on_state_change='vm_state'))
    told.emit(context(), 'instance.power_off.end', instance=server())
    told.later(context(), 'instance.update', refuse)
    told.stop()
    assert (told.enabled, told.on_states) == (False, None)


# --- what must not fail ----------------------------------------------------------------------------------------------
def test_what_cannot_be_told_fails_nothing(caplog):
    told = notifier()
    told.emit(context(), 'instance.power_off.end', instance=None)
    assert told._sender.sent == []
    assert 'Notification instance.power_off.end could not be created' in caplog.text


class Blocking:
    """A broker that is away: a driver that waits until it is let go."""

    def __init__(self):
        self.taken, self.free, self.sent = threading.Event(), threading.Event(), []

    def prepare(self, publisher_id):
        return self

    def info(self, ctxt, event, payload):
        self.taken.set()
        assert self.free.wait(10)
        self.sent.append(payload['number'])


def test_a_broker_that_is_away_delays_nobody_and_costs_what_is_too_much(caplog):
    sender = notify.NotificationSender(configured('noop'), size=2)
    broker = Blocking()
    sender._notifiers = {True: broker}

    def put(number):
        sender.put(lambda: [(context(), notify.Message(True, 'e', 'p', 'INFO', {'number': number}))])

    put(0)
    assert broker.taken.wait(10)
    for number in range(1, 6):
        put(number)
    assert sender.lost == 3
    broker.free.set()
    sender.flush(10)
    assert broker.sent == [0, 1, 2]
    assert caplog.text.count('Notifications are being dropped') == 1
    put(7)
    sender.flush(10)
    assert (broker.sent[-1], sender.lost) == (7, 0)


def test_the_sender_goes_on_after_an_error(caplog):
    sender = notify.NotificationSender(configured('noop'))
    broker = Blocking()
    broker.free.set()
    sender._notifiers = {True: broker}
    sender.put(lambda: 1 / 0)
    sender.put(lambda: [(context(), notify.Message(True, 'e', 'p', 'INFO', {'number': 1}))])
    sender.flush(10)
    assert broker.sent == [1]
    assert 'could not be created or sent' in caplog.text


def test_the_library_gets_topics_publisher_and_a_context_without_secrets():
    conf = configured('test', notification_format='both', versioned_notifications_topics=['billing'])
    told = notify.Notifications(conf)
    from oslo_messaging.notify import _impl_test

    _impl_test.reset()
    told.emit(context(), 'instance.power_off.end', instance=server())
    told.stop()
    assert [
        (message['event_type'], message['publisher_id'], priority)
        for _, message, priority, _ in _impl_test.NOTIFICATIONS
    ] == [
        ('compute.instance.power_off.end', 'compute.gpu1', 'INFO'),
        ('instance.power_off.end', 'nova-compute:gpu1', 'INFO'),
    ]
    ctxt = _impl_test.NOTIFICATIONS[0][0]
    assert ctxt['request_id'] == context().request_id
    assert 'secret' not in json.dumps(ctxt)
    topics = {versioned: made._topics for versioned, made in told._sender._notifiers.items()}
    assert topics == {False: ['notifications'], True: ['billing']}
