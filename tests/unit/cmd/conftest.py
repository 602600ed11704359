from __future__ import annotations

import logging
import shutil

import pytest

from kilonova.cmd import options
from kilonova.cmd.manage import main as manage
from kilonova.db import access, engine
from kilonova.db.queries import compute_nodes, pci_devices, services


@pytest.fixture
def write_conf(tmp_path):
    """Write a configuration file over two SQLite databases; keyword ``lines`` are more of [DEFAULT]."""

    def write(*lines: str, name: str = 'kilonova.conf', sections: str = '') -> str:
        path = tmp_path / name
        path.write_text(
            '\n'.join(
                (
                    '[DEFAULT]',
                    'host = ctl1',
                    'transport_url = fake://',
                    f'state_path = {tmp_path}',
                    'compute_driver = fake.FakeDriver',
                    'osapi_compute_listen = 127.0.0.1',
                    *lines,
                    '[database]',
                    f'connection = sqlite:///{tmp_path}/main.db',
                    '[api_database]',
                    f'connection = sqlite:///{tmp_path}/api.db',
                    '[api]',
                    'auth_strategy = noauth2',
                    '[placement]',
                    'auth_type = none',
                    'endpoint_override = http://127.0.0.1:1',
                    sections,
                    '',
                )
            )
        )
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
    access.forbid(None)


@pytest.fixture
def synced(parse, migrated, tmp_path):
    """A configuration whose databases have their tables."""

    def make(*lines: str, sections: str = ''):
        shutil.copy(migrated / 'api.sqlite', tmp_path / 'api.db')
        shutil.copy(migrated / 'cell.sqlite', tmp_path / 'main.db')
        return parse(*lines, sections=sections)

    return make


@pytest.fixture
def run(write_conf, capsys):
    """Run a command; (exit code, lines of standard output)."""
    path = write_conf()

    def run(*arguments: str) -> tuple[int, list[str]]:
        capsys.readouterr()
        code = manage.main(['--config-file', path, *arguments])
        return code, capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def cloud(run, migrated, tmp_path):
    """Databases with cell0 and a cell."""
    for source, name in (('api', 'api.db'), ('cell', 'main.db'), ('cell', 'main.db_cell0')):
        shutil.copy(migrated / f'{source}.sqlite', tmp_path / name)
    assert run('cell_v2', 'simple_cell_setup')[0] == 0
    return run


@pytest.fixture
def node(cloud, parse):
    """A compute node with two devices, one of them held, whose host isn't mapped yet."""
    databases = engine.configure(parse())
    with databases.main().write() as connection:
        service = services.get_or_create(connection, 'gpu1', 'nova-compute', 'compute', version=73)
        values = {
            'service_id': service['id'],
            'host': 'gpu1',
            'hypervisor_hostname': 'gpu1',
            'vcpus': 1,
            'uuid': 'aaaaaaaa-0000-4000-8000-000000000001',
            'memory_mb': 1,
            'local_gb': 1,
            'vcpus_used': 0,
            'memory_mb_used': 0,
            'local_gb_used': 0,
            'hypervisor_type': 'QEMU',
            'hypervisor_version': 1,
            'cpu_info': '',
            'mapped': 0,
        }
        made = compute_nodes.get_or_create(connection, values)
        device = {
            'vendor_id': '10de',
            'product_id': '13f1',
            'dev_type': 'type-PCI',
            'label': 'x',
            'numa_node': 0,
            'status': 'available',
            'instance_uuid': None,
        }
        pci_devices.save(
            connection,
            made['id'],
            created=[
                {**device, 'address': '0000:82:00.0'},
                {**device, 'address': '0000:81:00.0', 'status': 'allocated', 'instance_uuid': 'u1', 'numa_node': None},
            ],
        )
    databases.dispose()
    return 'gpu1'
