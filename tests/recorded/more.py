"""Rows and messages for ``record`` that the operations of ``scenarios`` alone don't make."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kilonova.context import get_admin_context
from kilonova.errors import HostRejected, KilonovaError, Unanswered
from kilonova.objects.base import KilonovaObject, Serializer
from tests.flows.cases import ask, booted, create, delete, disturb
from tests.recorded.recorder import INTERFACES, NAME, Recorder

UUID = '00000000-0000-4000-8000-000000000001'
FILES = {'volume_id': UUID, 'name': 'base', 'format': 'raw', 'new': 'new'}
# Arguments of messages that no operation here makes, by name. Objects among the arguments are taken from others.
VALUES: dict[str, Any] = {
    'key': f'{UUID}/1.claim/1',
    'key_prefix': UUID,
    'address': '0000:08:00.0',
    'reason': 'in repair',
    'enabled': True,
    'mdev_type': 'nvidia-35',
    'console_type': 'novnc',
    'target': '192.0.2.1:5900',
    'tail_length': 100,
    'arg': None,
    'image_id': UUID,
    'request_id': UUID,
    'volume_id': UUID,
    'clean_shutdown': True,
    'reboot_type': 'SOFT',
    'sealed': 'sealed',
    'undo': False,
    'host': 'gpu1',
    'instance_uuid': UUID,
    'profiles': {UUID: {}},
    'copy': {'of': UUID, 'volume_id': UUID},
    'files': FILES,
    'reasons': {UUID: 'no space'},
    'is_off': True,
    'merge': {'volume_id': UUID, 'file': 'new', 'into': 'base'},
    'operation': UUID,
    'operations': [UUID],
}


def record_requests(cloud: Any, empty: Callable[[], None]) -> None:
    """Send requests that only ask a host, or that change something of the host."""
    server = booted(cloud)
    for version, method, path, body in (
        ('2.1', 'GET', f'/servers/{server}/diagnostics', None),
        ('2.104', 'GET', f'/servers/{server}/diagnostics', None),
        ('2.104', 'POST', f'/servers/{server}/action', {'os-getConsoleOutput': {'length': 5}}),
        (
            '2.104',
            'POST',
            f'/servers/{server}/remote-consoles',
            {'remote_console': {'protocol': 'vnc', 'type': 'novnc'}},
        ),
        (
            '2.104',
            'POST',
            '/os-server-external-events',
            {'events': [{'name': 'network-vif-plugged', 'server_uuid': server, 'tag': cloud.port}]},
        ),
        ('2.104', 'GET', '/os-hypervisors/detail', None),
    ):
        cloud.request(method, path, body, version=version)
    (service,) = cloud.ok('GET', '/os-services?host=gpu2&binary=nova-compute')['services']
    for status in ('disabled', 'enabled'):
        cloud.ok('PUT', f'/os-services/{service["id"]}', {'status': status})
    for reason in ('in repair', None):
        cloud.compute_client.set_device_disabled(
            get_admin_context(), server='gpu1', address='0000:08:00.0', reason=reason
        )
    cloud.audit()
    empty()


def once(error: Callable[[], Exception]) -> Callable[[Any, Any], Any]:
    """Return the act of a step that fails the first time."""
    failed: list[str] = []

    def do(real: Any, work: Any) -> Any:
        if failed:
            return real(work)
        failed.append(work.uuid)
        raise error()

    return do


def deleting(cloud: Any) -> Callable[[Any, Any], Any]:
    """Return the act of a step during which the server is deleted."""
    deleted: list[str] = []

    def do(real: Any, work: Any) -> Any:
        if not deleted:
            deleted.append(delete(cloud, work.instance_uuid))
        return real(work)

    return do


def record_disturbances(cloud: Any, empty: Callable[[], None]) -> None:
    """Run operations that are refused by a host, released for a retry, and cancelled by a delete."""
    acts: tuple[Callable[[Any], Callable[[Any, Any], Any]], ...] = (
        lambda cloud: once(lambda: HostRejected(reason='no room')),
        lambda cloud: once(lambda: Unanswered(who='gpu1', reason='timed out')),
        deleting,
    )
    for kind, index, before, act in (
        ('boot', 3, lambda cloud: None, create),
        ('resize', 3, booted, ask('resize')),
        (
            'live_migrate',
            7,
            lambda cloud: cloud.boot(cloud.placed),
            ask('os-migrateLive', {'host': None, 'block_migration': 'auto'}),
        ),
    ):
        for disturbing in acts:
            server = before(cloud)
            with pytest.MonkeyPatch.context() as patch:
                disturb(patch, kind, index, disturbing(cloud))
                act(cloud, server)
                cloud.settle()
            empty()


def found_in(value: Any, name: str) -> Iterator[Any]:
    """Yield the envelopes of the objects of a class in a value, at any depth."""
    if isinstance(value, list):
        for inner in value:
            yield from found_in(inner, name)
    elif isinstance(value, dict):
        if value.get(NAME) == name:
            yield value
        for inner in value.values():
            yield from found_in(inner, name)


def add_missing(recorder: Recorder) -> list[str]:
    """Note a message for each declared method that nobody has called, and return the names of these methods."""
    ctxt, added = get_admin_context(), []
    known = [message['args'] for kept in recorder.messages.values() for message in kept]
    instance = next(found_in(known, 'Instance'))
    cache: Any = next(found_in(known, 'InstanceInfoCache'), {'nova_object.data': {'network_info': []}})
    vifs = cache['nova_object.data']['network_info'] or [{'id': UUID}]
    seen = {(topic, namespace, method) for topic, namespace, method, *_ in recorder.messages}
    for interface in INTERFACES:
        for method, func in interface.methods().items():
            if (interface.topic, interface.namespace, method) in seen:
                continue
            hints, args = typing.get_type_hints(func), {}
            for name in sorted(interface.arguments(method)):
                if name in ('vif', 'vifs'):
                    args[name] = vifs if name == 'vifs' else vifs[0]
                elif name == 'instances':
                    args[name] = [instance]
                elif name == 'events':
                    args[name] = list(found_in(known, 'InstanceExternalEvent'))[:1]
                elif name == 'objinst':
                    args |= {'objinst': instance}
                elif name == 'object_versions':
                    args[name] = {'Instance': instance['nova_object.version']}
                elif name in VALUES:
                    args[name] = VALUES[name]
                else:
                    args[name] = next(found_in(known, hints[name].__name__), None) or made(hints[name])
            declared: Any = func
            recorder.message(
                declared.rpc.kind,
                interface.topic,
                interface.namespace,
                declared.rpc.since,
                method,
                ctxt.to_dict(),
                args,
            )
            added.append(f'{interface.__name__}.{method}')
    return added


def made(cls: Any) -> Any:
    """Return the envelope of an object without values."""
    assert issubclass(cls, KilonovaObject), cls
    try:
        return Serializer().serialize_entity(get_admin_context(), cls())
    except KilonovaError as error:
        raise AssertionError(cls) from error
