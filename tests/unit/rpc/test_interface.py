"""RPC declared once: versions, caps, drift."""

from __future__ import annotations

import hashlib
import json

import pytest

from kilonova.context import RequestContext
from kilonova.rpc import compute, conductor, scheduler
from kilonova.rpc.interface import Client, RpcInterface, VersionCapError, call, cast

CTXT = RequestContext(user_id='u', project_id='p', overwrite=False)


class Recorder:
    def __init__(self):
        self.sent = []

    def send(self, kind, topic, namespace, server, version, ctxt, method, args):
        self.sent.append((kind, topic, namespace, server, version, method, args))


class Example(RpcInterface):
    topic, version = 'example', '1.2'

    @call('1.0', more='1.2')
    def ask(self, ctxt, what, more=None): ...

    @cast('1.1')
    def tell(self, ctxt, what): ...


def test_what_is_newer_than_a_cap_is_left_out():
    """Under a cap arguments that came later are left out, and the message has the older version."""
    for cap, version, args in (
        (None, '1.2', {'what': 1, 'more': 2}),
        ('1.2', '1.2', {'what': 1, 'more': 2}),
        ('1.1', '1.0', {'what': 1}),
        ('1.0', '1.0', {'what': 1}),
    ):
        recorder = Recorder()
        Client(Example, recorder, cap).ask(CTXT, what=1, more=2)
        assert (recorder.sent[0][4], recorder.sent[0][-1]) == (version, args)


def test_a_cap_below_the_floor_is_refused():
    """A method that the cap does not have raises VersionCapError with both versions."""
    with pytest.raises(VersionCapError, match=r'1\.1.*1\.0'):
        Client(Example, Recorder(), '1.0').tell(CTXT, what=1)


def test_select_destinations_under_a_cap_drops_what_is_ours():
    """Under cap 4.5 select_destinations is sent with Nova's arguments only."""
    recorder = Recorder()
    Client(scheduler.Scheduler, recorder, '4.5').select_destinations(
        CTXT, spec_obj=None, instance_uuids=['u'], claim=False, time_left=1.0, operations=['o']
    )
    assert recorder.sent[0][4] == '4.5'
    assert set(recorder.sent[0][-1]) == {'spec_obj', 'instance_uuids'}


def test_lowest_version_that_carries_the_arguments():
    recorder = Recorder()
    client = Client(Example, recorder)
    client.ask(CTXT, what=1)
    client.ask(CTXT, what=1, more=None)
    client.ask(CTXT, what=1, more=2)
    client.tell(CTXT, server='h', what=1)
    assert [(sent[0], sent[3], sent[4]) for sent in recorder.sent] == [
        ('call', None, '1.0'),
        ('call', None, '1.0'),
        ('call', None, '1.2'),
        ('cast', 'h', '1.1'),
    ]


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
    'Conductor': ('3.5', 'ed5b2e296d5ea13b'),
    'ComputeTask': ('1.30', '014b1b8457752883'),
    'Scheduler': ('4.7', '8aaa64f567e37d90'),
    'Compute': ('6.13', 'fef5827bb8d0a4a5'),
}


@pytest.mark.parametrize(
    'interface', [conductor.Conductor, conductor.ComputeTask, scheduler.Scheduler, compute.Compute]
)
def test_fingerprints(interface):
    text = json.dumps(interface.fingerprint(), sort_keys=True)
    found = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert (interface.version, found) == FINGERPRINTS[interface.__name__]


@pytest.mark.parametrize('interface', [conductor.ComputeTask, compute.Compute])
def test_a_method_has_few_arguments(interface):
    """A method of an RPC interface has at most three arguments; a method that needs more takes an order."""
    many = [name for name in interface.methods() if len(interface.arguments(name)) > 3]
    assert many == []
