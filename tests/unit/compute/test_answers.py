"""Events of other services, which may come in one message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kilonova import objects
from kilonova.compute.ops import answers
from tests.unit.compute.cell import new_context

ONE, TWO, AWAITED = (f'{letter}0000000-0000-4000-8000-000000000000' for letter in 'abc')


def event(name: str, uuid: str) -> objects.InstanceExternalEvent:
    return objects.InstanceExternalEvent(name=name, instance_uuid=uuid, status='completed', tag='t', data={})


@pytest.fixture
def woken() -> dict[str, list[str]]:
    """The servers whose waiting threads were woken, by what they wait for."""
    return {'accelerators': [], 'ports': []}


@pytest.fixture
def host(woken: dict[str, list[str]]) -> Any:
    """A host on which a thread waits for the accelerators of AWAITED."""

    def tell(uuid: str) -> bool:
        woken['accelerators'].append(uuid)
        return uuid == AWAITED

    return SimpleNamespace(accelerators=SimpleNamespace(tell=tell), ports=SimpleNamespace(tell=woken['ports'].append))


def tell(host: Any, *events: objects.InstanceExternalEvent) -> None:
    servers = [objects.Instance(uuid=uuid, vm_state='active', task_state=None) for uuid in (ONE, TWO)]
    answers.external_events(host, new_context(), servers, events)


def test_all_events_of_a_message_are_told(
    host: Any, woken: dict[str, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    tell(
        host,
        event('accelerator-request-bound', AWAITED),
        event('network-vif-plugged', ONE),
        event('network-vif-unplugged', TWO),
        event('accelerator-request-bound', TWO),
        event('volume-extended', ONE),
        event('volume-extended', AWAITED),
    )
    assert woken == {'accelerators': [AWAITED, TWO], 'ports': [ONE, TWO]}
    assert [record.args[0] for record in caplog.records if 'unexpected event' in record.message] == [
        'accelerator-request-bound-t',
        'volume-extended-t',
    ]
