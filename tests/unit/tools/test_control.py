"""In which order services start and end."""

from __future__ import annotations

import pytest

from tools.cloud import control, ports
from tools.cloud.layout import DEFAULT_HOSTS, SECRET_NAMES, Layout, find_hosts
from tools.cloud.process import Record
from tools.cloud.services import Cloud


@pytest.fixture
def cloud(tmp_path):
    hosts = find_hosts(DEFAULT_HOSTS)
    numbers = {name: 20000 + number for number, name in enumerate(ports.names_for(hosts))}
    return Cloud(Layout.at(tmp_path / 'var'), numbers, dict.fromkeys(SECRET_NAMES, 'secret'), hosts, None, cyborg=True)


def test_an_agent_of_cyborg_starts_when_the_one_before_has_reported(cloud, monkeypatch):
    """Two that report at once meet in SQLite, and one of them says it again a minute later."""
    told: list[str] = []
    known: set[str] = set()

    def sleep(seconds):
        told.append('heard')
        known.update(host for host in cloud.hosts if f'cyborg-agent-{host}' in told)

    monkeypatch.setattr(control, 'start_all', lambda cloud, wanted: told.extend(service.name for service in wanted))
    monkeypatch.setattr(control.cyborg, 'hosts_known', lambda *arguments: set(known))
    monkeypatch.setattr(control.identity, 'issue_token', lambda *arguments: 'token')
    monkeypatch.setattr(control.process, 'running', lambda layout, name: Record(1, 's', 'd', 0.0))
    monkeypatch.setattr(control.time, 'sleep', sleep)
    control.start_accelerators(cloud)
    assert told == ['cyborg-conductor', 'cyborg', 'cyborg-agent-gpu1', 'heard', 'cyborg-agent-gpu2', 'heard']


def test_what_asks_the_broker_ends_before_it(cloud, monkeypatch):
    """Else it tries for seconds to reach it."""
    names = [service.name for service in control.services.table(cloud)]
    waves: list[set[str]] = []

    def stop(layout, wanted):
        waves.append(set(wanted))
        return sorted(wanted)

    monkeypatch.setattr(control.process, 'recorded', lambda layout: names)
    monkeypatch.setattr(control.process, 'marked', lambda var: {})
    monkeypatch.setattr(control.process, 'stop', stop)
    control.down(cloud.layout)
    assert sorted(name for wave in waves for name in wave) == sorted(names)
    (broker,) = [number for number, wave in enumerate(waves) if 'rabbitmq' in wave]
    assert waves[broker:] == [{'rabbitmq'}, {'epmd'}]
    assert waves.index({'conductor', 'cyborg', 'cyborg-conductor'}) < broker
