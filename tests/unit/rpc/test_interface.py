"""RPC declared once: versions, caps, drift. Rows 0.13 and 3.8 of the seed map."""
from __future__ import annotations

import hashlib
import json

import pytest

from kilonova import objects
from kilonova.context import RequestContext
from kilonova.rpc import compute, conductor, scheduler
from kilonova.rpc.interface import Client, Interface, VersionCapError, call, cast

CTXT = RequestContext(user_id='u', project_id='p', overwrite=False)


class Recorder:
    def __init__(self):
        self.sent = []

    def send(self, kind, topic, namespace, server, version, ctxt, method, args):
        self.sent.append((kind, topic, namespace, server, version, method, args))


def migrate(cap):
    recorder = Recorder()
    flavor = objects.Flavor(name='tmp2', memory_mb=65536, vcpus=16)
    instance = objects.Instance(uuid='3b7d22a7-6d1f-4ccb-8a6f-3b0d1e4a0c11', host='gpu1')
    Client(conductor.ComputeTask, recorder, cap).migrate_server(
        CTXT, instance=instance, scheduler_hint={}, live=False, rebuild=False, flavor=flavor, block_migration=None,
        disk_over_commit=None, reservations=None, clean_shutdown=True, request_spec={'x': 1}, host_list=['gpu2'],
        operation='op')
    return recorder.sent[0]


@pytest.mark.parametrize(('cap', 'dropped', 'version'), [
    (None, set(), '1.27'),
    ('1.26', {'operation'}, '1.20'),
    ('1.20', {'operation'}, '1.20'),
    ('1.19', {'operation', 'host_list'}, '1.13'),
    ('1.13', {'operation', 'host_list'}, '1.13'),
    ('1.12', {'operation', 'host_list', 'request_spec'}, '1.11'),
    ('1.10', {'operation', 'host_list', 'request_spec', 'clean_shutdown'}, '1.10'),
    ('1.4', {'operation', 'host_list', 'request_spec', 'clean_shutdown'}, '1.4'),
])
def test_migrate_server_drops_arguments_in_the_fields_order(cap, dropped, version):
    """Row 0.13: below 1.20 host_list, below 1.13 request_spec, below 1.11 clean_shutdown go; 1.4 is the floor."""
    everything = {'instance', 'scheduler_hint', 'live', 'rebuild', 'flavor', 'block_migration', 'disk_over_commit',
                  'reservations', 'clean_shutdown', 'request_spec', 'host_list', 'operation'}
    _, topic, namespace, _, sent_version, _, args = migrate(cap)
    assert (topic, namespace) == ('conductor', 'compute_task')
    assert everything - set(args) == dropped
    assert sent_version == version


def test_migrate_server_sends_plain_dicts_to_peers_without_objects():
    """Row 0.13: below 1.10 the flavor, below 1.6 the instance goes as a primitive."""
    assert isinstance(migrate('1.10')[-1]['flavor'], objects.Flavor)
    args = migrate('1.9')[-1]
    assert args['flavor'] == {'name': 'tmp2', 'memory_mb': 65536, 'vcpus': 16}
    assert isinstance(args['instance'], objects.Instance)
    assert migrate('1.5')[-1]['instance']['host'] == 'gpu1'


def test_a_cap_below_the_floor_is_refused():
    """Row 0.13."""
    with pytest.raises(VersionCapError, match=r'1\.4.*1\.3'):
        migrate('1.3')


def test_select_destinations_under_a_cap_drops_what_is_ours():
    """Row 3.8."""
    recorder = Recorder()
    Client(scheduler.Scheduler, recorder, '4.5').select_destinations(
        CTXT, spec_obj=None, instance_uuids=['u'], claim=False, time_left=1.0, operations=['o'])
    assert recorder.sent[0][4] == '4.5'
    assert set(recorder.sent[0][-1]) == {'spec_obj', 'instance_uuids'}


class Example(Interface):
    topic, version = 'example', '1.2'

    @call('1.0', more='1.2')
    def ask(self, ctxt, what, more=None): ...

    @cast('1.1')
    def tell(self, ctxt, what): ...


def test_lowest_version_that_carries_the_arguments():
    recorder = Recorder()
    client = Client(Example, recorder)
    client.ask(CTXT, what=1)
    client.ask(CTXT, what=1, more=None)
    client.ask(CTXT, what=1, more=2)
    client.tell(CTXT, server='h', what=1)
    assert [(sent[0], sent[3], sent[4]) for sent in recorder.sent] == [
        ('call', None, '1.0'), ('call', None, '1.0'), ('call', None, '1.2'), ('cast', 'h', '1.1')]


def test_undeclared_methods_and_arguments_are_refused():
    client = Client(Example, Recorder())
    with pytest.raises(AttributeError, match='declares no method nosuch'):
        client.nosuch(CTXT)
    with pytest.raises(TypeError, match='wrong'):
        client.ask(CTXT, what=1, wrong=1)


def test_a_server_whose_signature_drifted_does_not_start():
    class Drifted:
        def ask(self, ctxt, what, more='other'): ...

        def tell(self, ctxt, what): ...

    with pytest.raises(TypeError, match=r'example\.ask'):
        Example.check_server(Drifted())
    del Drifted.tell
    Drifted.ask = lambda self, ctxt, what, more=None: None
    with pytest.raises(TypeError, match=r'example\.tell has no implementation'):
        Example.check_server(Drifted())


# A changed signature needs a new version of the interface: then, and only then, change the fingerprint here.
FINGERPRINTS = {
    'Conductor': ('3.2', 'c9be2262a0162556'),
    'ComputeTask': ('1.27', 'c43cf0c4adf42192'),
    'Scheduler': ('4.7', '89852264a116d5c9'),
    'Compute': ('6.10', 'd72200682c9a42c0'),
}


@pytest.mark.parametrize('interface', [
    conductor.Conductor, conductor.ComputeTask, scheduler.Scheduler, compute.Compute])
def test_fingerprints(interface):
    text = json.dumps(interface.fingerprint(), sort_keys=True)
    found = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert (interface.version, found) == FINGERPRINTS[interface.__name__]
