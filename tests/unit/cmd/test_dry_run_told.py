"""The output of dry-run for unknown zones, for unknown hosts, and for several servers."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.cmd.manage import scheduler as manage_scheduler
from tests.fixtures.placement import placement
from tests.unit.cmd.manage.test_scheduler import hosts

__all__ = ['hosts', 'placement']


@pytest.mark.parametrize('command', ['dry-run', 'capacity'])
def test_a_zone_that_is_not_there(hosts: Any, command: str) -> None:
    assert hosts('scheduler', command, '--flavor', '7', '--az', 'mars') == (
        2,
        ["There is no availability zone 'mars'. Existing zones: nova"],
    )


@pytest.mark.parametrize('command', ['dry-run', 'capacity'])
def test_a_host_that_is_not_there(hosts: Any, command: str) -> None:
    assert hosts('scheduler', command, '--flavor', '7', '--az', 'nova:gpu7') == (
        2,
        ["There is no compute host 'gpu7'. 'kilonova-manage cell_v2 list_hosts' lists the hosts of all cells"],
    )


def test_each_of_several_servers_is_listed(hosts: Any) -> None:
    code, lines = hosts('scheduler', 'dry-run', '--flavor', '7', '--count', '2')
    assert code == 0
    assert [line for line in lines if line.startswith('server ')] == ['server 1: gpu1', 'server 2: gpu1']


def test_a_decision_about_no_host_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Placement knew no candidate, so the scheduler looked at none."""
    manage_scheduler._tell({'asked': {'vcpus': 4}, 'considered': None, 'chosen': None, 'failure': 'No valid host.'})
    assert capsys.readouterr().out.splitlines() == [
        'requested: vcpus 4',
        'no hosts considered; chosen: none',
        'No valid host.',
    ]
