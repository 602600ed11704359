"""kilonova-manage secrets, what kilonova-status says of the keys, and what daemons log without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kilonova import sealing
from kilonova.cmd import cli, status
from kilonova.cmd.daemon import parts
from kilonova.cmd.manage import main as manage
from kilonova.cmd.status import Result


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Where the file is, or will be."""
    return tmp_path / 'secrets.keys'


@pytest.fixture
def run(write_conf, capsys, keys):
    """Run a command; (exit code, standard output)."""
    path = write_conf(sections=f'[secrets]\nkey_file = {keys}')

    def run(*arguments: str) -> tuple[int, str]:
        code = manage.main(['--config-file', path, 'secrets', *arguments])
        return code, capsys.readouterr().out

    return run


def test_create_and_rotate(run, keys):
    """May be repeated: what hosts were given stays good."""
    code, told = run('create_key')
    assert code == 0 and told.startswith(f'Created {keys}. Copy it to each host of kilonova-compute and kilonova-api')
    assert keys.stat().st_mode & 0o777 == 0o600
    before = sealing.read_file(str(keys))
    assert not any(key in told for key in before)
    assert run('create_key') == (0, f'{keys} already has keys.\n') and sealing.read_file(str(keys)) == before
    code, told = run('rotate_key')
    assert code == 0 and told.startswith(f'{keys} has 3 keys now. ')
    assert sealing.read_file(str(keys))[:2] == before[::-1]


@pytest.mark.parametrize('command', ['create_key', 'rotate_key'])
def test_a_file_that_may_not_be_used(run, keys, command):
    keys.write_text('no key\n')
    keys.chmod(0o600)
    assert run(command) == (
        1,
        f'[secrets]key_file: {keys} has a line that is not a key (32 bytes in URL-safe base64)\n',
    )
    keys.chmod(0o604)
    code, told = run(command)
    assert code == 1 and 'is accessible to all users (mode 0604)' in told
    assert keys.read_text() == 'no key\n'


def test_rotation_without_keys(run, keys):
    assert run('rotate_key') == (1, f'[secrets]key_file: {keys} does not exist\n')
    assert not keys.exists()


def test_a_directory_that_is_not_there(write_conf, capsys):
    path = write_conf(sections='[secrets]\nkey_file = /nowhere/at/all')
    assert manage.main(['--config-file', path, 'secrets', 'create_key']) == 1
    assert '/nowhere/at/all' in capsys.readouterr().out
    path = write_conf(sections='[secrets]\nkey_file =')
    assert manage.main(['--config-file', path, 'secrets', 'create_key']) == 1
    assert capsys.readouterr().out == '[secrets]key_file is empty\n'


def test_upgrade_check(parse, keys):
    """A cloud without keys works, without passwords; one whose keys others can read keeps nothing secret."""
    cloud = cli.Cloud(parse(sections=f'[secrets]\nkey_file = {keys}'))
    result, details = status.secret_keys(cloud)
    assert result is Result.WARNING and f'[secrets]key_file: {keys} does not exist: new servers get no admin' in details
    assert "'kilonova-manage secrets create_key'" in details
    sealing.create_file(str(keys))
    assert status.secret_keys(cloud) == (Result.SUCCESS, None)
    os.chmod(keys, 0o644)
    result, details = status.secret_keys(cloud)
    assert result is Result.FAILURE and 'is accessible to all users' in details
    assert status.CHECKS['Secret keys'] is status.secret_keys


def test_daemons_say_that_keys_are_missing(parse, keys, caplog):
    conf = parse(sections=f'[secrets]\nkey_file = {keys}')
    parts.warn_without_keys(conf, 'no passwords')
    assert f'[secrets]key_file: {keys} does not exist: no passwords' in caplog.text
    caplog.clear()
    sealing.create_file(str(keys))
    parts.warn_without_keys(conf, 'no passwords')
    parts.warn_without_keys(parse(sections='[secrets]\nkey_file ='), 'no passwords')
    assert caplog.text == ''
