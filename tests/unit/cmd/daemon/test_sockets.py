from __future__ import annotations

import os
import socket

import pytest

from kilonova.cmd.daemon import notify, sockets


def test_a_new_socket_listens():
    with sockets.listen('api', ('127.0.0.1', 0)) as listener:
        socket.create_connection(listener.getsockname()).close()
        with pytest.raises(OSError, match='in use'):
            sockets.listen('other', listener.getsockname())


def test_a_worker_takes_its_parents_socket(monkeypatch):
    with sockets.listen('api', ('127.0.0.1', 0)) as listener:
        monkeypatch.setenv(sockets.INHERITED, sockets.told({'health': listener, 'api': listener}))
        descriptor = os.dup(listener.fileno())
        monkeypatch.setenv(sockets.INHERITED, f'health:77 api:{descriptor}')
        with sockets.listen('api', ('127.0.0.1', 1)) as inherited:
            assert inherited.getsockname() == listener.getsockname()
            assert inherited.fileno() == descriptor


def test_sockets_are_told_by_name():
    with socket.socket() as one, socket.socket() as other:
        told = sockets.told({'api': one, 'health': other})
        assert sockets.parse(told) == {'api': one.fileno(), 'health': other.fileno()}
    assert sockets.parse('') == {}


@pytest.mark.parametrize('abstract', [False, True])
def test_notify(monkeypatch, tmp_path, abstract):
    name = f'@kilonova-test-{os.getpid()}' if abstract else str(tmp_path / 'notify')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind('\0' + name[1:] if abstract else name)
        monkeypatch.setenv('NOTIFY_SOCKET', name)
        notify.tell('READY=1')
        assert manager.recv(64) == b'READY=1'


def test_without_a_manager_nothing_is_told(monkeypatch, tmp_path):
    monkeypatch.delenv('NOTIFY_SOCKET', raising=False)
    notify.tell('READY=1')
    monkeypatch.setenv('NOTIFY_SOCKET', str(tmp_path / 'gone'))
    notify.tell('READY=1')
    assert not (tmp_path / 'gone').exists()
