"""How the release before says what has another form since: both ways, and to the letter of what it took."""
from __future__ import annotations

import inspect
import json

import pytest

from kilonova import objects
from kilonova.context import RequestContext
from kilonova.objects.base import Serializer
from kilonova.rpc import before, compute, conductor, versions
from kilonova.rpc.interface import Client, within
from kilonova.rpc.transport import DirectTransport

INTERFACES = {'Compute': compute.Compute, 'ComputeTask': conductor.ComputeTask, 'Conductor': conductor.Conductor}
NAMES = {'Compute': 'compute', 'ComputeTask': 'compute_task', 'Conductor': 'conductor'}
UUID = '3b7d22a7-6d1f-4ccb-8a6f-3b0d1e4a0c11'
CTXT = RequestContext(user_id='u', project_id='p', overwrite=False)

# What the release before took: an argument with '?' could be left out.
TAKEN = {
    'build_and_run_instance': 'instance image request_spec filter_properties admin_password? injected_files? '
                              'requested_networks? security_groups? block_device_mapping? node? limits? host_list? '
                              'accel_uuids? key? sealed?',
    'terminate_instance': 'instance bdms key?',
    'reboot_instance': 'instance block_device_info reboot_type key?',
    'prep_resize': 'image instance flavor request_spec filter_properties node clean_shutdown migration host_list key?',
    'resize_instance': 'instance image migration flavor clean_shutdown request_spec disk? key?',
    'finish_resize': 'disk_info image instance migration request_spec key?',
    'revert_resize': 'instance migration request_spec key?',
    'finish_revert_resize': 'instance migration request_spec key?',
    'set_host_enabled': 'host enabled',
    'schedule_and_build_instances': 'build_requests request_specs image admin_password injected_files '
                                    'requested_networks block_device_mapping tags? operations?',
    'claim_instance': 'claim',
    'save_instance': 'save',
    'migrate_server': 'instance scheduler_hint live rebuild flavor block_migration disk_over_commit reservations? '
                      'clean_shutdown? request_spec? host_list? operation?',
}


def of_type(name):
    """A value of a declared argument, or of a field of an order."""
    instance = objects.Instance(uuid=UUID)
    made = {
        'instance': instance, 'migration': objects.Migration(uuid=UUID, id=3), 'flavor': objects.Flavor(name='large'),
        'request_spec': objects.RequestSpec(instance_uuid=UUID), 'image': {'id': UUID, 'properties': {'a': 'b'}},
        'sealed': 'gAAAA', 'attempt': 2, 'block_devices': [objects.BlockDeviceMapping(tag='a')],
        'limits': objects.SchedulerLimits(vcpu=3), 'clean_shutdown': False, 'disk': {'host': '192.0.2.1'},
        'disk_info': {'disk': 2}, 'key': 'o/1.step/1', 'reboot_type': 'HARD', 'enabled': False, 'operation': 'o',
        'operations': ['o', 'p'], 'claim': objects.Claim(instance_uuid=UUID, values={'host': 'gpu1'}),
        'save': objects.Save(instance_uuid=UUID, end=True, event={'event': 'e'})}
    return made[name]


def arguments(interface, method):
    found = {}
    for name, parameter in list(inspect.signature(interface.methods()[method]).parameters.items())[2:]:
        if name == 'order':
            kind = getattr(objects, parameter.annotation)
            found[name] = kind(**{field: of_type(field) for field in kind.fields})
        else:
            found[name] = of_type(name)
    return found


def plain(values):
    return json.loads(json.dumps(Serializer().serialize_entity(CTXT, values)))


ALL = [(name, method) for name, methods in before.BEFORE.items() for method in methods]


@pytest.mark.parametrize(('name', 'method'), ALL)
def test_a_peer_of_the_release_before_gets_what_it_takes(name, method):
    interface = INTERFACES[name]
    sent = before.BEFORE[name][method].older(arguments(interface, method))
    words = TAKEN[method].split()
    assert sent.keys() <= {word.rstrip('?') for word in words}
    assert {word for word in words if not word.endswith('?')} <= sent.keys()


@pytest.mark.parametrize(('name', 'method'), ALL)
def test_what_such_a_peer_sends_is_understood(name, method):
    """From a client under its cap over a transport to a server of today: nothing that is read got lost."""
    interface, transport, heard = INTERFACES[name], DirectTransport(Serializer()), []
    cap = versions.HISTORY[77][NAMES[name]]

    class Endpoint:
        def __getattr__(self, asked):
            return lambda ctxt, **given: heard.append((asked, given))

    transport.register(interface.topic, 'h1', [(interface, Endpoint())])
    wanted = arguments(interface, method)
    getattr(Client(interface, transport, cap), method)(CTXT, server='h1', **wanted)
    for thread in transport.casts:
        thread.join()
    ((asked, given),) = heard
    assert asked == method and plain(given) == plain(wanted)


@pytest.mark.parametrize('interface', INTERFACES.values(), ids=INTERFACES.keys())
def test_everything_can_be_said_under_the_cap_of_the_release_before(interface):
    """Each method either goes as it is, or has its form of before."""
    name = interface.__name__
    cap = versions.HISTORY[77][NAMES[name]]
    assert sorted(method for method, func in interface.methods().items()
                  if not within(func.rpc.since, cap)) == sorted(before.BEFORE[name])
