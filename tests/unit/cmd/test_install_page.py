"""The samples of the page "Install" work together, and its commands are in a working order."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kilonova.cmd import options
from kilonova.cmd.daemon import parts
from kilonova.cmd.manage import main as manage
from kilonova.conf import known
from kilonova.pci import request as pci_request
from kilonova.pci.spec import DeviceSpecs

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / 'docs' / 'admin' / 'install.md').read_text()
DEVICE = {'vendor_id': '10de', 'product_id': '13f1', 'address': '0000:08:00.0', 'dev_type': 'type-PCI'}


def section(title: str) -> str:
    return PAGE.partition(f'\n## {title}\n')[2].partition('\n## ')[0]


def blocks(text: str, kind: str = '') -> list[str]:
    return re.findall(rf'```{kind}\n(.*?)```', text, re.DOTALL)


@pytest.fixture
def confs(tmp_path: Path) -> tuple[options.cfg.ConfigOpts, options.cfg.ConfigOpts]:
    """The controllers' configuration and a compute's, as pasted."""
    controller, compute = blocks(section('Configuration'), 'ini')
    # The page says that a compute's file has these two sections as well.
    shared = controller[controller.index('[placement]') : controller.index('[pci]')]
    made = []
    for name, text in (('controller', controller), ('compute', compute + shared)):
        path = tmp_path / f'{name}.conf'
        path.write_text(text)
        made.append(options.parse(['--config-file', str(path)], 'kilonova-test'))
    return made[0], made[1]


def test_no_option_is_read_by_nobody(confs: Any) -> None:
    assert [known.unread(conf) for conf in confs] == [[], []]


def test_networks_and_volumes_are_there_when_their_sections_are_pasted(tmp_path: Path) -> None:
    """And not before. A compute's file has the first of them."""
    controller, compute = blocks(section('Configuration'), 'ini')
    (text,) = blocks(section('Networks and volumes'), 'ini')
    found = []
    for number, whole in enumerate((controller, controller + text, compute + text[: text.index('[cinder]')])):
        path = tmp_path / f'{number}.conf'
        path.write_text(whole)
        conf = options.parse(['--config-file', str(path)], 'kilonova-test')
        assert known.unread(conf) == []
        found.append([parts.networks(conf) is not None, parts.volumes(conf) is not None])
    assert found == [[False, False], [True, True], [True, False]]
    assert conf.neutron.service_metadata_proxy and conf.neutron.metadata_proxy_shared_secret == 'SECRET'


def test_the_first_flavor_asks_for_what_the_computes_give(confs: Any) -> None:
    controller, compute = confs
    line = next(line for line in blocks(section('The first server'))[0].splitlines() if 'flavor create' in line)
    words = shlex.split(line)
    properties = dict(words[number + 1].split('=', 1) for number, word in enumerate(words) if word == '--property')
    for conf in confs:
        (asked,) = pci_request.requests_from_flavor(properties, pci_request.Aliases.from_conf(conf), None)
        assert asked.count == 1
    (spec,) = DeviceSpecs.from_conf(compute).specs
    assert spec.match(DEVICE)
    (wanted,) = asked.spec
    assert {name: DEVICE[name] for name in ('vendor_id', 'product_id')}.items() <= wanted.items()
    assert controller.filter_scheduler.pci_in_placement and compute.pci.report_in_placement


def test_the_commands_of_schemas_and_cells_in_their_order(write_conf: Any) -> None:
    commands = [shlex.split(line, comments=True) for line in blocks(section('Schemas and cells'))[0].splitlines()]
    assert [words[0] for words in commands] == ['kilonova-manage'] * 3
    for words in commands:
        assert manage.main(['--config-file', write_conf(), *words[1:]]) == 0
    assert manage.main(['--config-file', write_conf(), 'device', 'list']) == 0


def test_commands_that_are_named_are_there() -> None:
    known = manage.parser()
    lines = [shlex.split(line, comments=True) for line in PAGE.splitlines() if line.startswith('kilonova-manage ')]
    assert len(lines) > 5
    for words in lines:
        known.parse_args(words[1:])


@pytest.mark.parametrize(
    'what',
    [
        'rabbitmqctl add_user kilonova',
        'rabbitmqctl set_permissions',
        'useradd --system',
        '/etc/kilonova',
        '/var/log/kilonova',
        '| 8774 |',
        '| 5672 |',
        '| 22 |',
        'chrony',
        '/etc/logrotate.d/kilonova',
        'pip wheel',
    ],
)
def test_what_a_machine_needs_is_named(what: str) -> None:
    assert what in PAGE


def test_logrotate_takes_its_file(tmp_path: Path) -> None:
    if not shutil.which('logrotate'):
        pytest.skip('logrotate is not installed')
    assert 'etc/logrotate.d/kilonova' in section('Logs')
    text = (ROOT / 'etc' / 'logrotate.d' / 'kilonova').read_text()
    path = tmp_path / 'kilonova'
    path.write_text(text.replace('/var/log/kilonova', str(tmp_path)).replace('su kilonova kilonova', ''))
    path.chmod(0o644)
    (tmp_path / 'api.log').touch()
    done = subprocess.run(
        ['logrotate', '--debug', '--state', str(tmp_path / 'state'), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and 'error' not in done.stderr
