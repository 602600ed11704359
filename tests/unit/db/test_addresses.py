"""Servers by an address of a port, which stands in the JSON text of their info caches."""

from __future__ import annotations

import pytest

from kilonova.db.expressions import BadExpression
from kilonova.db.queries import addresses, servers
from kilonova.objects.vif import Vif, VifAddress, VifSubnet
from tests.fixtures.servers import put_server, put_vifs

UUID = '7d7f5ee0-7c0f-4a55-8ac9-000000000001'
VIF = Vif(
    id='p',
    mac='fa:16:3e:00:00:01',
    network_id='n',
    label='private',
    project_id='p1',
    type='ovs',
    subnets=(
        VifSubnet('10.2.0.0/24', 4, gateway='10.2.0.1', addresses=(VifAddress('10.2.0.43', ('198.51.100.7',)),)),
        VifSubnet('fd00::/64', 6, dns=('fd00::53',), addresses=(VifAddress('fd00::beef'),)),
    ),
)
# What is asked of version 4, what is not there; the same of version 6.
FOUND = ('10.2.0.43', '2.0.4', r'^10\.2\.', '(9|4)3$', r'^192|^10\.', r'192|11\.|0\.\d{2}$', '[34]{2}$', '^10.2.0.43$')
MISSED = (r'^2\.0', r'0\.4$', '[5-9]$', 'fd00', '198.51', '10.2.0.1$', '^.$', '1.2.0.43')
FOUND_6, MISSED_6 = ('FD00::be', '^fd00::beef$', r'\:beef'), ('10.2', '::53', '^beef')


def test_fixed_addresses_that_are_found(cell):
    with cell.write() as conn:
        put_server(conn, {'uuid': UUID, 'vm_state': 'active', 'task_state': None, 'host': 'gpu1'}, {}, {}, {}, [])
        put_vifs(conn, UUID, [VIF])
    asked = [
        (pattern, version, is_there)
        for version, is_there, patterns in (
            (4, True, FOUND),
            (4, False, MISSED),
            (6, True, FOUND_6),
            (6, False, MISSED_6),
        )
        for pattern in patterns
    ]
    with cell.read() as conn:
        for pattern, version, is_there in asked:
            filters = servers.Filters(addresses=[addresses.of_cache(pattern, version)])
            assert bool(servers.names(conn, filters, [], 9)) == is_there, pattern


@pytest.mark.parametrize(
    ('pattern', 'why'),
    [
        ('"', """'"' is not supported in address patterns"""),
        ('[^1]', "'[^' is not supported in address patterns"),
        ('(?:1)', "'(?' is not supported in address patterns"),
        (r'\S', r"'\\S' is not supported in address patterns"),
        ('1^', '^ must be at the start or after a | outside parentheses, $ at the end or before such a |'),
        ('$1', '^ must be at the start or after a | outside parentheses, $ at the end or before such a |'),
        ('.' * 30, 'the expression has more than 255 characters'),
    ],
)
def test_expressions_that_no_address_fits(pattern, why):
    with pytest.raises(BadExpression) as caught:
        addresses.of_cache(pattern, 4)
    assert str(caught.value) == why
