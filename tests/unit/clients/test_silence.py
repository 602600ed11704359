"""Services that don't answer: each client asks again what changes nothing, and never what makes something."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kilonova import errors
from tests.fixtures.cinder import FakeCinder
from tests.fixtures.cyborg import FakeCyborg
from tests.fixtures.neutron import FakeNeutron

PROJECT, SERVER = '1' * 32, str(uuid.uuid4())
CONNECTOR = {'host': 'gpu1', 'ip': '10.0.0.1', 'initiator': 'iqn.1993-08.org.debian:01:1', 'mountpoint': '/dev/vdb'}


@dataclass
class Case:
    """``prepare``: what the service has for ``make``, which makes something of it; ``look`` only reads."""

    service: Callable[[], Any]
    name: str
    prepare: Callable[[Any], Any]
    make: Callable[[Any, Any], object]
    look: Callable[[Any], object]


CASES = {
    'cyborg': Case(
        FakeCyborg,
        'accelerator',
        lambda cyborg: 'fpga',
        lambda client, profile: client.create(profile),
        lambda client: client.of_instance(SERVER),
    ),
    'neutron': Case(
        lambda: FakeNeutron(hosts={'gpu1'}),
        'network',
        lambda neutron: neutron.add_network('private', PROJECT, cidr='10.2.0.0/29'),
        lambda client, network: client.create_port(
            network, project_id=PROJECT, device_id=SERVER, device_owner='compute:nova', host='gpu1'
        ),
        lambda client: client.ports(device_id=SERVER),
    ),
    'cinder': Case(
        FakeCinder,
        'volume',
        lambda cinder: cinder.add_volume(PROJECT, size=2, name='data'),
        lambda client, volume: client.create_attachment(volume, SERVER, CONNECTOR),
        lambda client: client.attachments(SERVER),
    ),
}


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_silence(case: Case) -> None:
    """What makes something is asked once, what reads three times; then the service counts as silent."""
    service = case.service()
    given = case.prepare(service)

    def broken(method: str, path: str) -> None:
        raise service.broken()

    service.before = broken
    with pytest.raises(errors.Unanswered, match=f'The {case.name} service does not answer'):
        case.make(service.client, given)
    assert len(service.asked) == 1
    with pytest.raises(errors.Unanswered):
        case.look(service.client)
    assert len(service.asked) == 4
