"""What a host says of the consoles of its guests."""

from __future__ import annotations

import pytest

from kilonova import errors
from kilonova.states import PowerState
from kilonova.virt.parts.guests import ConsoleAddress
from tests.unit.compute.cell import new_context


def offer(manager, server, protocol, console_type):
    return getattr(manager.endpoint, f'get_{protocol}_console')(
        new_context(), instance=server, console_type=console_type
    )


@pytest.mark.parametrize(
    ('protocol', 'section', 'console_type', 'base'),
    [
        ('vnc', 'vnc', 'novnc', 'http://127.0.0.1:6080/vnc_auto.html'),
        ('spice', 'spice', 'spice-html5', 'http://127.0.0.1:6082/spice_auto.html'),
        ('spice', 'spice', 'spice-direct', 'http://127.0.0.1:13002/nova'),
        ('serial', 'serial_console', 'serial', 'ws://127.0.0.1:6083/'),
    ],
)
def test_an_offer(cloud, manager, server, protocol, section, console_type, base):
    cloud.drivers['gpu1'].screens[server.uuid, protocol] = ConsoleAddress('192.0.2.10', 5907, 5908)
    manager.conf.set_override('enabled', False, group=section)
    with pytest.raises(errors.ConsoleTypeUnavailable, match=f'Unavailable console type {console_type}.'):
        offer(manager, server, protocol, console_type)
    manager.conf.set_override('enabled', True, group=section)
    found = offer(manager, server, protocol, console_type)
    assert (found.console_type, found.host, found.port, found.tls_port, found.access_url_base) == (
        console_type,
        '192.0.2.10',
        5907,
        5908,
        base,
    )


def test_types_of_other_protocols(manager, server):
    for protocol, console_type in (('vnc', 'serial'), ('serial', 'novnc'), ('spice', 'novnc'), ('vnc', 'xvpvnc')):
        with pytest.raises(errors.ConsoleTypeInvalid, match=f'Invalid console type {console_type}'):
            offer(manager, server, protocol, console_type)


def test_a_guest_that_has_none(cloud, manager, server):
    cloud.drivers['gpu1'].screens[server.uuid, 'vnc'] = None
    with pytest.raises(errors.ConsoleTypeUnavailable):
        offer(manager, server, 'vnc', 'novnc')


def test_a_guest_that_does_not_run(cloud, manager, server):
    domain = cloud.drivers['gpu1'].domains[server.uuid]
    domain.state = PowerState.PAUSED
    assert offer(manager, server, 'vnc', 'novnc').port == 5900
    domain.state = PowerState.SHUTDOWN
    with pytest.raises(errors.InstanceInvalidState, match=r"Cannot 'get_vnc_console' .* power_state shutdown"):
        offer(manager, server, 'vnc', 'novnc')


@pytest.mark.parametrize(
    ('console_type', 'target', 'fits'),
    [
        ('novnc', '192.0.2.10:5907', True),
        ('novnc', '192.0.2.10:5908', True),
        ('novnc', '192.0.2.10:5900', False),
        ('novnc', '192.0.2.11:5907', False),
        ('serial', '192.0.2.10:5907', False),
        ('nonsense', '192.0.2.10:5907', False),
    ],
)
def test_whether_a_port_is_still_the_guests(cloud, manager, server, console_type, target, fits):
    screens = cloud.drivers['gpu1'].screens
    screens[server.uuid, 'vnc'] = ConsoleAddress('192.0.2.10', 5907, 5908)
    screens[server.uuid, 'serial'] = None

    def asked():
        return manager.endpoint.validate_console_port(
            new_context(), instance=server, console_type=console_type, target=target
        )

    assert asked() is fits
    cloud.drivers['gpu1'].domains[server.uuid].state = PowerState.SHUTDOWN
    assert asked() is False
