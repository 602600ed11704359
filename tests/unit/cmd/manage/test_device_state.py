"""kilonova-manage device disable and enable: what is asked of the host, and what is said."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors
from kilonova.cmd.daemon import parts
from kilonova.cmd.manage import device_state as manage_device_state
from kilonova.db import engine
from kilonova.db.models.cell import Service
from kilonova.rpc import interface

GPU, S1 = '0000:81:00.0', 'aaaaaaaa-0000-4000-8000-00000000000a'


class Host:
    """The compute that is asked; ``answer``: its devices or its error."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: Any = []

    def set_device_disabled(self, ctxt: Any, **arguments: Any) -> Any:
        self.asked.append(arguments)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    set_mdev_type = set_device_disabled


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, node: str) -> Host:
    """gpu1, which is up and answers."""
    made = Host()
    monkeypatch.setattr(manage_device_state, 'broker_away', lambda cloud: None)
    monkeypatch.setattr(parts, 'transport', lambda conf: type('Transport', (), {'close': lambda self: None})())
    monkeypatch.setattr(interface, 'Client', lambda *_: made)
    return made


@pytest.mark.parametrize(
    ('arguments', 'device', 'reason', 'said'),
    [
        (
            ('disable', 'gpu1', GPU.upper(), '--reason', ' ECC errors '),
            ('unavailable', None),
            'ECC errors',
            'is disabled, status unavailable',
        ),
        (
            ('disable', 'gpu1', GPU, '--reason', 'x' * 255),
            ('allocated', S1),
            'x' * 255,
            f'is disabled, status allocated: server {S1} holds it until the server is resized, migrated or deleted',
        ),
        (('enable', 'gpu1', GPU), ('available', None), None, 'is enabled, status available'),
        (('enable', 'gpu1', GPU), ('allocated', S1), None, f'is enabled, status allocated: server {S1} holds it'),
    ],
)
def test_what_the_host_did(
    cloud: Any, host: Host, arguments: tuple[str, ...], device: tuple[str, str | None], reason: str | None, said: str
) -> None:
    host.answer = [{'address': GPU, 'status': device[0], 'instance_uuid': device[1]}]
    assert cloud('device', *arguments) == (0, [f'gpu1 {GPU} {said}'])
    assert host.asked == [{'server': 'gpu1', 'address': GPU, 'reason': reason}]


@pytest.mark.parametrize(('reason', 'named'), [(' ', "' '"), ('a\nb', "'a\\nb'"), ('x' * 256, f"'{'x' * 255}'")])
def test_a_reason_that_is_none(cloud: Any, host: Host, reason: str, named: str) -> None:
    assert cloud('device', 'disable', 'gpu1', GPU, '--reason', reason) == (
        2,
        [f'Invalid reason {named}: it must be one line of 1 to 255 printable characters.'],
    )
    assert host.asked == []


def test_hosts_that_cannot_be_asked(cloud: Any, host: Host, parse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    enable = ('device', 'enable', 'gpu1', GPU)
    assert cloud('device', 'enable', 'gpu9', GPU) == (2, ['There is no compute host gpu9'])
    monkeypatch.setattr(manage_device_state, 'broker_away', lambda cloud: 'the message broker: refused')
    assert cloud(*enable) == (1, ['the message broker: refused: nothing was changed'])
    databases = engine.configure(parse())
    with databases.main().write() as connection:
        connection.execute(Service.__table__.update().values(forced_down=True))
    databases.dispose()
    assert cloud(*enable) == (1, ['nova-compute of gpu1 is down: nothing was changed'])
    assert host.asked == []


@pytest.mark.parametrize(
    ('answer', 'code', 'said'),
    [
        (errors.NotFound('gpu1 has no device 0000:81:00.0'), 2, 'gpu1 has no device 0000:81:00.0'),
        (
            errors.Unanswered(who='compute', reason='silence'),
            1,
            'compute does not answer: silence. The change may have been made; it is safe to run the same command again',
        ),
    ],
)
def test_what_the_host_refuses(cloud: Any, host: Host, answer: Exception, code: int, said: str) -> None:
    host.answer = answer
    assert cloud('device', 'enable', 'gpu1', GPU) == (code, [said])


def test_another_type(cloud: Any, host: Host) -> None:
    command = ('device', 'set-type', 'gpu1', GPU.upper(), 'nvidia-36')
    host.answer = [{'address': S1, 'mdev_type': 'nvidia-36'}] * 3
    assert cloud(*command) == (0, [f'gpu1 {GPU} has 3 devices of type nvidia-36 now'])
    assert host.asked == [{'server': 'gpu1', 'address': GPU, 'mdev_type': 'nvidia-36'}]
    for error, code in ((errors.Conflict('held'), 1), (errors.Invalid('no such type'), 2)):
        host.answer = error
        assert cloud(*command) == (code, [str(error)])
