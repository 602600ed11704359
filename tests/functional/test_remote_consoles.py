"""Consoles through the front door, down to the host: what an address opens, for how long, and for whom."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from kilonova.console.authority import Access, Authority
from kilonova.rpc.compute import Compute
from kilonova.rpc.interface import Client
from tests.fixtures.cloud import Cloud

GPUS = {'gpu1': ['0000:08:00.0', '0000:09:00.0'], 'gpu2': ['0000:88:00.0', '0000:89:00.0']}


@pytest.fixture
def consoles(make_cloud: Callable[..., Cloud]) -> Iterator[Cloud]:
    """Guests of libvirt's test driver have serial ports; it chooses no ports for screens."""
    return make_cloud(GPUS, serial_console__enabled=True)


def opened(cloud: Cloud, server: str, user: str = 'bob') -> str:
    """The token of a new address."""
    body = {'remote_console': {'protocol': 'serial', 'type': 'serial'}}
    found = cloud.ok('POST', f'/servers/{server}/remote-consoles', body, user=user)['remote_console']
    assert (found['protocol'], found['type']) == ('serial', 'serial')
    assert found['url'].startswith('ws://127.0.0.1:6083/?token=')
    return parse_qs(urlsplit(found['url']).query)['token'][0]


def authority(cloud: Cloud) -> Authority:
    """As a proxy has it."""
    return Authority(cloud.cells, Client(Compute, cloud.transport))


def found(cloud: Cloud, token: str) -> Access:
    access = authority(cloud).find(token)
    assert access is not None
    return access


@pytest.mark.parametrize('user', ['admin', 'bob'])
def test_tokens_are_in_no_log(consoles: Cloud, caplog: pytest.LogCaptureFixture, user: str) -> None:
    """A token that was looked at opens a console still."""
    cloud = consoles
    token = opened(cloud, cloud.boot(cloud.flavor(), user='bob'))
    with caplog.at_level(logging.DEBUG):
        caplog.clear()
        assert cloud.request('GET', f'/os-console-auth-tokens/{token}', user=user).status_int == (
            200 if user == 'admin' else 403
        )
    assert '/os-console-auth-tokens/*** status: ' in caplog.text.replace('"', '')
    assert token not in caplog.text


def test_an_address_opens_the_servers_console_once(consoles: Cloud) -> None:
    cloud, ask = consoles, authority(consoles)
    one, other = (cloud.boot(cloud.flavor(gpus=1), user='bob') for _ in range(2))
    token, others = opened(cloud, one), opened(cloud, other)
    access = found(cloud, token)
    assert (access.instance_uuid, access.compute_host, access.host) == (one, cloud.host_of(one), '127.0.0.1')
    shown = cloud.ok('GET', f'/os-console-auth-tokens/{token}')['console']
    assert shown == {
        'instance_uuid': one,
        'host': '127.0.0.1',
        'port': access.port,
        'internal_access_path': None,
        'tls_port': None,
    }
    # Each guest has a port of its own; what it is now counts.
    assert (access.compute_host, access.port) != (found(cloud, others).compute_host, found(cloud, others).port)
    assert ask.is_there(access) and ask.take(access)
    assert ask.find(token) is None and not ask.take(access)
    assert cloud.request('GET', f'/os-console-auth-tokens/{token}').status_int == 404
    assert ask.is_there(found(cloud, others))
    # One that is off has none, and gets another one.
    cloud.action(other, 'os-stop')
    assert not ask.is_there(found(cloud, others))
    body = {'remote_console': {'protocol': 'serial', 'type': 'serial'}}
    response = cloud.request('POST', f'/servers/{other}/remote-consoles', body)
    assert (response.status_int, response.json['conflictingRequest']['message']) == (
        409,
        f"Cannot 'get_serial_console' instance {other} while it is in power_state shutdown",
    )
    cloud.action(other, 'os-start')
    assert ask.is_there(found(cloud, opened(cloud, other)))
    cloud.assert_clean()


def test_addresses_of_servers_that_move_or_go_open_nothing(consoles: Cloud) -> None:
    """A console address opens nothing once its server was moved or deleted. The periodic task deletes such tokens."""
    cloud, ask = consoles, authority(consoles)
    server = cloud.boot(cloud.flavor(gpus=1), user='bob')
    before = opened(cloud, server)
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2)})
    assert ask.find(before) is None
    between = opened(cloud, server)
    cloud.action(server, 'revertResize')
    assert ask.find(between) is None
    # On the host where it was the old one fits again; the port decides.
    again = ask.find(before)
    assert again is not None and ask.is_there(again) == (again.port == found(cloud, opened(cloud, server)).port)
    after = opened(cloud, server)
    cloud.ok('DELETE', f'/servers/{server}')
    cloud.settle()
    assert ask.find(after) is None
    assert cloud.conductors[0].expiry.purge_tokens() == 4
    assert cloud.conductors[0].expiry.purge_tokens() == 0
    cloud.assert_clean()


def test_who_gets_an_address(consoles: Cloud) -> None:
    cloud = consoles
    server = cloud.boot(cloud.flavor(gpus=1), user='bob')
    path, body = f'/servers/{server}/remote-consoles', {'remote_console': {'protocol': 'serial', 'type': 'serial'}}
    token = opened(cloud, server)
    assert cloud.request('GET', f'/os-console-auth-tokens/{token}', user='bob').status_int == 403
    assert cloud.request('GET', f'/os-console-auth-tokens/{token}', version='2.30').status_int == 401
    assert cloud.request('POST', path, body, version='2.5').status_int == 404
    old = cloud.ok('POST', f'/servers/{server}/action', {'os-getSerialConsole': {'type': 'serial'}}, version='2.5')
    assert old['console']['type'] == 'serial' and found(cloud, old['console']['url'].rpartition('=')[2])
    for protocol, kind, text in (
        ('spice', 'spice-html5', 'Unavailable console type spice-html5.'),
        ('vnc', 'novnc', 'Unavailable console type novnc.'),
        ('mks', 'webmks', 'Unavailable console type webmks.'),
        ('rdp', 'rdp-html5', 'Unavailable console type rdp-html5.'),
        ('vnc', 'serial', 'Invalid console type serial'),
    ):
        response = cloud.request('POST', path, {'remote_console': {'protocol': protocol, 'type': kind}})
        assert (response.status_int, response.json['badRequest']['message']) == (400, text)


def test_each_cell_is_asked(make_cloud: Callable[..., Cloud]) -> None:
    """A cell that is silent holds up those of the others only where the token is in none of them."""
    cloud = make_cloud(GPUS, cells={'cell1': ['gpu1'], 'cell2': ['gpu2']}, serial_console__enabled=True)
    here = cloud.boot(cloud.flavor(gpus=2), user='bob')
    there = cloud.boot(cloud.flavor(gpus=2), user='bob')
    tokens = {cloud.host_of(server): opened(cloud, server) for server in (here, there)}
    assert set(tokens) == {'gpu1', 'gpu2'}
    for host, token in tokens.items():
        assert found(cloud, token).compute_host == host
    with cloud.silenced('cell2'):
        assert found(cloud, tokens['gpu1']).compute_host == 'gpu1'
        assert cloud.request('GET', f'/os-console-auth-tokens/{tokens["gpu2"]}').status_int == 503
        assert cloud.request('GET', f'/os-console-auth-tokens/{tokens["gpu1"]}').status_int == 200
