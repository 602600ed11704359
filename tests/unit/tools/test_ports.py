"""Choosing the ports of the one-machine cloud."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tools.cloud import ports
from tools.cloud.layout import CloudError


def test_kept_port_stays_when_free():
    chosen = ports.choose({'api': 21005}, ['api'], ours=set(), start=21000, free=lambda port: True)
    assert chosen == {'api': 21005}


def test_kept_port_stays_when_our_own_service_holds_it():
    chosen = ports.choose({'api': 21005}, ['api'], ours={'api'}, start=21000, free=lambda port: port != 21005)
    assert chosen == {'api': 21005}


def test_kept_port_that_somebody_else_took_is_replaced():
    chosen = ports.choose({'api': 21005}, ['api'], ours=set(), start=21000, free=lambda port: port != 21005)
    assert chosen == {'api': 21000}


def test_new_names_get_free_ports_that_no_other_name_has():
    busy = {21000, 21002}
    chosen = ports.choose(
        {'api': 21001}, ['keystone', 'glance', 'api'], ours=set(), start=21000, free=lambda port: port not in busy
    )
    assert chosen == {'keystone': 21003, 'glance': 21004, 'api': 21001}


def test_search_goes_on_at_the_other_end_of_the_range():
    chosen = ports.choose({}, ['api'], ours=set(), start=ports.LAST, free=lambda port: port != ports.LAST)
    assert chosen == {'api': ports.FIRST}


def test_no_free_port_is_said_in_words():
    with pytest.raises(CloudError, match=r'no free port between .* for api'):
        ports.choose({}, ['api'], ours=set(), start=21000, free=lambda port: False)


def test_start_depends_on_the_directory_and_is_in_range():
    starts = {ports.start_for(Path(f'/clouds/{number}')) for number in range(50)}
    assert len(starts) > 30
    assert all(ports.FIRST <= start <= ports.LAST for start in starts)
    assert ports.start_for(Path('/clouds/1')) == ports.start_for(Path('/clouds/1'))


def test_two_clouds_that_choose_at_once_begin_apart(monkeypatch):
    monkeypatch.setattr(ports, '_held', {})
    monkeypatch.setattr(ports, 'start_for', lambda var: 29980)
    # As another process has it.
    with socket.socket(socket.AF_UNIX) as other:
        other.bind('\0kilonova-ports-29980')
        assert ports.claim(Path('/clouds/1')) == ports.FIRST
    assert ports.claim(Path('/clouds/2')) == 29980
    assert ports.claim(Path('/clouds/3')) == ports.FIRST + ports.WIDTH
    assert ports.claim(Path('/clouds/1')) == ports.FIRST
    for _, holder in ports._held.values():
        holder.close()


def test_a_port_that_somebody_listens_on_is_not_free():
    with socket.socket() as server:
        server.bind(('127.0.0.1', 0))
        server.listen(1)
        port = server.getsockname()[1]
        assert not ports.is_free(port)
    assert ports.is_free(port)


def test_settled_ports_are_kept_in_the_file(tmp_path, monkeypatch):
    path = tmp_path / 'ports.json'
    first = ports.settle(path, tmp_path, ['gpu1'], ours=set())
    assert set(first) == {*ports.NAMES, 'health-api', 'health-conductor', 'health-scheduler', 'health-compute-gpu1'}
    assert json.loads(path.read_text()) == first
    assert ports.settle(path, tmp_path, ['gpu1'], ours=set()) == first
    more = ports.settle(path, tmp_path, ['gpu1', 'gpu2'], ours=set())
    assert more == {**first, 'health-compute-gpu2': more['health-compute-gpu2']}
