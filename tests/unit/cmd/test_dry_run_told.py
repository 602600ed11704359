"""What dry-run says of zones and hosts that aren't there, and of several servers. Finding 7.11."""
from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.placement import placement
from tests.unit.cmd.test_manage_scheduler import hosts

__all__ = ['hosts', 'placement']


@pytest.mark.parametrize('command', ['dry-run', 'capacity'])
def test_a_zone_that_is_not_there(hosts: Any, command: str) -> None:
    assert hosts('scheduler', command, '--flavor', '7', '--az', 'mars') == (
        2, ["There is no availability zone 'mars'. There are: nova"])


@pytest.mark.parametrize('command', ['dry-run', 'capacity'])
def test_a_host_that_is_not_there(hosts: Any, command: str) -> None:
    assert hosts('scheduler', command, '--flavor', '7', '--az', 'nova:gpu7') == (
        2, ["There is no compute host 'gpu7'. 'kilonova-manage cell_v2 list_hosts' names those of all cells"])


def test_each_of_several_servers_is_listed(hosts: Any) -> None:
    code, lines = hosts('scheduler', 'dry-run', '--flavor', '7', '--count', '2')
    assert code == 0
    assert [line for line in lines if line.startswith('server ')] == ['server 1: gpu1', 'server 2: gpu1']


def test_a_request_that_asks_no_host_says_so(hosts: Any) -> None:
    """Placement knows no host that has so much: the scheduler looked at none."""
    code, lines = hosts('scheduler', 'dry-run', '--flavor', '7', '--count', '50')
    assert code == 1 and not any('None' in line for line in lines)
