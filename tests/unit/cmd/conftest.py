from __future__ import annotations

import logging

import pytest

from kilonova.cmd import options
from kilonova.db import engine, migration


@pytest.fixture
def write_conf(tmp_path):
    """Write a configuration file over two SQLite databases; keyword ``lines`` are more of [DEFAULT]."""

    def write(*lines: str, name: str = 'kilonova.conf', sections: str = '') -> str:
        path = tmp_path / name
        path.write_text('\n'.join((
            '[DEFAULT]', 'host = ctl1', 'transport_url = fake://', f'state_path = {tmp_path}',
            'compute_driver = fake.FakeDriver', 'osapi_compute_listen = 127.0.0.1', *lines,
            '[database]', f'connection = sqlite:///{tmp_path}/main.db',
            '[api_database]', f'connection = sqlite:///{tmp_path}/api.db',
            '[api]', 'auth_strategy = noauth2',
            '[placement]', 'auth_type = none', 'endpoint_override = http://127.0.0.1:1', sections, '')))
        return str(path)

    return write


@pytest.fixture
def parse(write_conf):
    """A parsed configuration of such a file."""

    def parse(*lines: str, sections: str = '') -> options.cfg.ConfigOpts:
        return options.parse(['--config-file', write_conf(*lines, sections=sections)], 'kilonova-test')

    return parse


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch):
    """What a program changes for its whole process is undone: logging handlers, databases."""
    monkeypatch.setattr(options, 'setup_logging', lambda conf: None)
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
    engine.install(None)
    engine.forbid(None)


@pytest.fixture
def synced(parse):
    """A configuration whose databases have their tables."""

    def make(*lines: str, sections: str = ''):
        conf = parse(*lines, sections=sections)
        databases = engine.configure(conf)
        migration.sync(databases.api(), 'api')
        migration.sync(databases.main(), 'cell')
        databases.dispose()
        return conf

    return make
