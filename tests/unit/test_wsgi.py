"""The API as a plain WSGI application."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from kilonova import wsgi
from kilonova.cmd import api, options
from kilonova.cmd.daemon import caps, takeover


def request(application):
    told = []
    body = b''.join(application({}, lambda status, headers: told.append(status)))
    return told[0], body


@pytest.mark.parametrize(
    ('environment', 'files'),
    [
        ({}, []),
        ({'KILONOVA_CONFIG_FILES': '/a.conf;/b.conf'}, ['/a.conf', '/b.conf']),
        ({'OS_KILONOVA_CONFIG_FILES': 'nova.conf; gpu.conf'}, ['/etc/kilonova/nova.conf', '/etc/kilonova/gpu.conf']),
        ({'OS_KILONOVA_CONFIG_DIR': '/opt/etc'}, ['/opt/etc/kilonova.conf']),
        (
            {'OS_KILONOVA_CONFIG_DIR': '/opt/etc', 'KILONOVA_CONFIG_FILES': 'a.conf;/b.conf'},
            ['/opt/etc/a.conf', '/b.conf'],
        ),
    ],
)
def test_configuration_files(environment, files):
    assert wsgi.config_arguments(environment) == [part for path in files for part in ('--config-file', path)]


def test_built_once_with_the_first_request():
    built = []

    def make():
        built.append(1)
        return lambda environ, start_response: [start_response('200 OK', []) or b'yes']

    application = wsgi.Application(make)
    assert built == []
    threads = [threading.Thread(target=request, args=(application,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert request(application) == ('200 OK', b'yes')
    assert built == [1]


@pytest.mark.parametrize('error', [SystemExit('kilonova-api: no such file'), RuntimeError('PASSWORD')])
def test_a_mistake_is_told_and_tried_again(error, caplog):
    mistakes = [error]

    def make():
        if mistakes:
            raise mistakes.pop()
        return lambda environ, start_response: [start_response('200 OK', []) or b'yes']

    application = wsgi.Application(make)
    status, body = request(application)
    assert status.startswith('500') and b'PASSWORD' not in body
    assert str(error) in caplog.text
    assert request(application)[0] == '200 OK'


def test_the_application_is_the_daemons(monkeypatch, tmp_path):
    """The same parts as kilonova-api's, on native threads; importing the module builds nothing."""
    assert wsgi.application._built is None
    chosen = []
    monkeypatch.setattr(wsgi.concurrency, 'setup', chosen.append)
    monkeypatch.setattr(options, 'setup_logging', lambda conf: None)
    monkeypatch.setattr(takeover, 'refuse_two_clouds', lambda conf, cells: chosen.append(cells))
    monkeypatch.setattr(caps, 'refuse_old_computes', lambda conf, cells: chosen.append(cells))

    class Part:
        cells, app = 'cells', 'app'

    def build(conf):
        chosen.append(conf.host)
        return Part

    monkeypatch.setattr(api, 'build', build)
    path = tmp_path / 'k.conf'
    path.write_text('[DEFAULT]\nhost = ctl7\n')
    assert wsgi.build({'KILONOVA_CONFIG_FILES': str(path)}) == 'app'
    assert chosen == ['threading', 'ctl7', 'cells', 'cells']
    with pytest.raises(SystemExit, match='kilonova-api'):
        wsgi.build({'KILONOVA_CONFIG_FILES': str(tmp_path / 'missing.conf')})


def test_a_process_ends_whose_application_a_thread_has_built():
    """gunicorn's workers waited for that thread at their end until they were killed."""
    code = (
        'import concurrent.futures\nfrom kilonova import wsgi\n'
        'with concurrent.futures.ThreadPoolExecutor(1) as pool:\n'
        '    mistake = pool.submit(wsgi.build, {"KILONOVA_CONFIG_FILES": "/nonexistent"}).exception()\n'
        'assert isinstance(mistake, SystemExit)\nprint("built")\n'
    )
    done = subprocess.run([sys.executable, '-c', code], timeout=60, check=True, capture_output=True, text=True)
    assert done.stdout == 'built\n'
