"""Parts of a server through the front door, down to its host: metadata, tags, console, diagnostics, locks, events."""

from __future__ import annotations

from kilonova.errors import Unanswered


def test_parts_of_a_server(cloud):
    server = cloud.boot(cloud.flavor(gpus=1, vcpus=2), metadata={'a': '1'}, tags=['boot'], user='bob')
    host, path = cloud.host_of(server), f'/servers/{server}'
    # metadata and tags stay with the server through a resize
    cloud.ok('POST', f'{path}/metadata', {'metadata': {'b': '2'}}, user='bob')
    assert cloud.request('PUT', f'{path}/tags/gpu', user='bob').status_int == 201
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2, vcpus=4)})
    cloud.action(server, 'confirmResize')
    assert cloud.ok('GET', f'{path}/metadata') == {'metadata': {'a': '1', 'b': '2'}}
    assert cloud.ok('GET', f'{path}/tags') == {'tags': ['boot', 'gpu']}
    host = cloud.host_of(server)
    # the console: libvirt's test driver writes none
    ask = {'os-getConsoleOutput': {}}
    assert cloud.ok('POST', f'{path}/action', ask, user='bob') == {'output': ''}
    (cloud.directory / host / 'instances' / server / 'console.log').write_text('one\ntwo\nthree')
    assert cloud.ok('POST', f'{path}/action', ask, user='bob') == {'output': 'one\ntwo\nthree'}
    ask['os-getConsoleOutput'] = {'length': '2'}
    assert cloud.ok('POST', f'{path}/action', ask, user='bob') == {'output': 'two\nthree'}
    # diagnostics of the hypervisor
    flat = cloud.ok('GET', f'{path}/diagnostics', version='2.47')
    assert flat['memory'] == 512 * 1024 and 'cpu3_time' in flat
    shared = cloud.ok('GET', f'{path}/diagnostics')
    assert (shared['state'], shared['driver'], shared['num_cpus'], len(shared['disk_details'])) == (
        'running',
        'libvirt',
        4,
        1,
    )
    assert 0 <= shared['uptime'] < 600 and shared['memory_details']['maximum'] == 512
    assert cloud.ok('GET', f'{path}/ips') == {'addresses': {}}
    assert cloud.ok('GET', f'{path}/topology') == {'nodes': [], 'pagesize_kb': None}
    assert cloud.ok('GET', f'{path}/migrations') == {'migrations': []}
    assert cloud.ok('GET', f'{path}/os-server-password') == {'password': ''}
    cloud.action(server, 'os-stop')
    response = cloud.request('GET', f'{path}/diagnostics')
    assert (response.status_int, response.json['conflictingRequest']['message']) == (
        409,
        f"Cannot 'get_diagnostics' instance {server} while it is in power_state shutdown",
    )
    cloud.assert_clean()


def test_a_locked_server_is_its_administrators(cloud):
    server = cloud.boot(cloud.flavor(gpus=1), user='bob')
    cloud.action(server, 'lock', {'locked_reason': 'audit'}, user='bob')
    shown = cloud.show(server, user='bob')
    assert (shown['locked'], shown['locked_reason']) == (True, 'audit')
    for method, path, body in (
        ('DELETE', f'/servers/{server}', None),
        ('POST', f'/servers/{server}/action', {'os-stop': None}),
        ('PUT', f'/servers/{server}/metadata', {'metadata': {}}),
    ):
        response = cloud.request(method, path, body, user='bob')
        assert response.json['conflictingRequest']['message'] == f'Instance {server} is locked'
    cloud.action(server, 'os-stop')
    cloud.action(server, 'unlock', user='bob')
    cloud.action(server, 'os-start', user='bob')
    assert cloud.status(server) == 'ACTIVE'
    assert [(story[0], story[2][0][0]) for story in cloud.story(server)[:4]] == [
        ('start', 'compute_start_instance'),
        ('unlock', 'api_unlock'),
        ('stop', 'compute_stop_instance'),
        ('lock', 'api_lock'),
    ]
    cloud.assert_clean()


def test_each_action_tells_what_its_hosts_did(cloud):
    server = cloud.boot(cloud.flavor(gpus=1))
    large = {'flavorRef': cloud.flavor(gpus=2)}
    for name, body in (
        ('os-stop', None),
        ('os-start', None),
        ('reboot', {'type': 'HARD'}),
        ('resize', large),
        ('revertResize', None),
        ('resize', large),
        ('confirmResize', None),
    ):
        cloud.action(server, name, body)
    story = [
        (action, [event for event, *_ in reversed(events) if event.startswith('compute_')])
        for action, _, events in reversed(cloud.story(server)[:7])
    ]
    resize = ('resize', ['compute_prep_resize', 'compute_resize_instance', 'compute_finish_resize'])
    assert story == [
        ('stop', ['compute_stop_instance']),
        ('start', ['compute_start_instance']),
        ('reboot', ['compute_reboot_instance']),
        resize,
        ('revertResize', ['compute_revert_resize', 'compute_finish_revert_resize']),
        resize,
        ('confirmResize', ['compute_confirm_resize']),
    ]
    assert {result for _, _, events in cloud.story(server) for _, result, *_ in events} == {'Success'}


def test_events_of_other_services(cloud):
    """What nothing can be done with is refused; power-update stops and starts."""
    server = cloud.boot(cloud.flavor(gpus=1))
    before = cloud.hostdevs(server)

    def tell(**event):
        body = {'events': [{'server_uuid': server, **event}]}
        answer = cloud.ok('POST', '/os-server-external-events', body)
        cloud.settle()
        return answer['events'][0]['code']

    cloud.messages.clear()
    assert tell(name='network-vif-plugged', tag='port') == 422
    assert not any('external_instance_event' in message for message in cloud.messages)
    assert cloud.status(server) == 'ACTIVE'
    assert tell(name='power-update', tag='POWER_OFF') == 200
    assert cloud.status(server) == 'SHUTOFF'
    assert tell(name='power-update', tag='POWER_ON') == 200
    assert cloud.status(server) == 'ACTIVE' and cloud.hostdevs(server) == before
    cloud.assert_clean()


def test_a_host_that_does_not_answer_is_no_error_of_the_api(cloud):
    server = cloud.boot(cloud.flavor())
    host = cloud.host_of(server)

    def silent(kind, topic, to, method, args, deliver):
        if method in ('get_console_output', 'get_instance_diagnostics'):
            raise Unanswered(who=f'compute {host}', reason='timed out')
        return deliver()

    cloud.on_message = silent
    for method, tail, body in (('GET', 'diagnostics', None), ('POST', 'action', {'os-getConsoleOutput': {}})):
        assert cloud.request(method, f'/servers/{server}/{tail}', body).status_int == 503
