"""Questions about a guest, and events that nobody waits for."""

from __future__ import annotations

import logging

import pytest

from kilonova import errors, objects
from tests.unit.compute.cell import new_context

STRANGER = '11111111-2222-3333-4444-555555555555'


@pytest.mark.parametrize(
    ('lines', 'found'),
    [(None, 'one\ntwo\nthree[0m\n\t'), (0, ''), (1, '\t'), (2, 'three[0m\n\t'), (99, 'one\ntwo\nthree[0m\n\t')],
)
def test_console_output(cloud, manager, server, lines, found):
    cloud.drivers['gpu1'].consoles[server.uuid] = 'one\ntwo\nthree\x1b[0m\x00\n\t'
    assert manager.endpoint.get_console_output(new_context(), instance=server, tail_length=lines) == found


def test_no_console(cloud, manager, server):
    assert manager.endpoint.get_console_output(new_context(), instance=server, tail_length=None) == ''
    cloud.drivers['gpu1'].fail('get_console_output', errors.ConsoleNotAvailable())
    with pytest.raises(errors.ConsoleNotAvailable, match='Guest does not have a console available'):
        manager.endpoint.get_console_output(new_context(), instance=server, tail_length=5)


def test_diagnostics(cloud, manager, server):
    flat = manager.endpoint.get_diagnostics(new_context(), instance=server)
    assert flat['memory'] == 32768 * 1024 and {f'cpu{number}_time' for number in range(8)} <= set(flat)
    found = manager.endpoint.get_instance_diagnostics(new_context(), instance=server)
    assert (found.state, found.num_cpus, found.memory_details.maximum) == ('running', 8, 32768)
    assert cloud.cell.saves == []


@pytest.mark.parametrize('method', ['get_diagnostics', 'get_instance_diagnostics'])
def test_a_guest_that_does_not_run_cannot_be_measured(cloud, manager, server, method):
    driver = cloud.drivers['gpu1']
    running = driver.guests.get_info
    driver.fail(method, errors.KilonovaError('boom'))
    with pytest.raises(errors.KilonovaError, match='boom'):
        getattr(manager.endpoint, method)(new_context(), instance=server)
    # It goes between the look at its state and the question.
    states = iter([running(server), 4])
    driver.guests.get_info = lambda instance: next(states)
    driver.fail(method, errors.KilonovaError('gone'))
    message = f"Cannot 'get_diagnostics' instance {server.uuid} while it is in power_state shutdown"
    with pytest.raises(errors.InstanceInvalidState, match=message):
        getattr(manager.endpoint, method)(new_context(), instance=server)
    del driver.guests.get_info
    driver.power.power_off(server)
    with pytest.raises(errors.InstanceInvalidState, match=message):
        getattr(manager.endpoint, method)(new_context(), instance=server)


def test_events_are_logged_as_nobody_waits(cloud, manager, server, caplog):
    events = [
        objects.InstanceExternalEvent(
            instance_uuid=uuid, name='volume-extended', status='completed', tag='volume', data={}
        )
        for uuid in (server.uuid, STRANGER)
    ]
    with caplog.at_level(logging.WARNING):
        manager.endpoint.external_instance_event(new_context(), instances=[server], events=events)
    (line,) = [record.getMessage() for record in caplog.records]
    assert 'unexpected event volume-extended-volume (completed)' in line and 'vm_state active' in line
