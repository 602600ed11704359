"""What a fresh machine lacks."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tools import bootstrap
from tools.cloud.layout import ROOT, CloudError, Layout

TEXT = """
# a comment
libvirt-dev [platform:dpkg]
libvirt-devel [platform:rpm]
git    # no brackets
mariadb-server [platform:dpkg test]
doxygen [doc]
"""


def test_bindep_without_profiles():
    assert bootstrap.parse_bindep(TEXT, []) == ['libvirt-dev', 'git']


def test_bindep_with_a_profile():
    assert bootstrap.parse_bindep(TEXT, ['test']) == ['libvirt-dev', 'git', 'mariadb-server']


def test_bindep_line_that_is_none():
    with pytest.raises(CloudError, match='What is this'):
        bootstrap.parse_bindep('What is this', [])


def test_own_bindep_is_readable_and_keeps_servers_to_the_tests():
    text = (ROOT / 'bindep.txt').read_text()
    everybody, tests = bootstrap.parse_bindep(text, []), bootstrap.parse_bindep(text, ['test'])
    assert {'libvirt-dev', 'rabbitmq-server', 'qemu-utils', 'python3-venv'} <= set(everybody)
    servers = {'mariadb-server', 'postgresql', 'libvirt-daemon', 'libvirt-daemon-driver-qemu', 'qemu-system-x86'}
    assert servers <= set(tests) and not servers & set(everybody)
    networks = {'ovn-central', 'ovn-host', 'openvswitch-switch', 'haproxy', 'ethtool'}
    assert networks <= {*bootstrap.parse_bindep(text, ['network'])} & {*tests} - {*everybody}
    nested = {'debootstrap', 'linux-headers-amd64'}
    assert nested <= set(bootstrap.parse_bindep(text, ['vfio'])) and not nested & {*tests, *everybody}


@pytest.mark.parametrize(
    ('path', 'there'),
    [
        (bootstrap.REQUIREMENTS, {'keystone', 'glance', 'openstack-placement', 'gunicorn'}),
        (bootstrap.CYBORG, {'openstack-cyborg', 'gunicorn'}),
        (bootstrap.NEUTRON, {'neutron', 'gunicorn'}),
        (bootstrap.CINDER, {'cinder'}),
    ],
)
def test_services_are_pinned(path, there):
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith('#')]
    assert all('==' in line for line in lines)
    assert there <= {line.split('==')[0] for line in lines}


@pytest.mark.parametrize(
    'path', [bootstrap.REQUIREMENTS, bootstrap.CYBORG, bootstrap.NEUTRON, bootstrap.CINDER, bootstrap.ACCEPTANCE]
)
def test_lock_renews_what_a_service_requires_and_not_the_service(path):
    head, rest = bootstrap.split_requirements(path.read_text())
    chosen = [line for line in head.splitlines() if '==' in line]
    assert chosen and 'setuptools==' in rest
    renewed = bootstrap.join_requirements(
        head, '\n'.join(['# a remark', 'alembic==99 ; python_version > "3"', *chosen])
    )
    assert renewed == f'{head}{bootstrap.BROUGHT}\nalembic==99 ; python_version > "3"\n'


def test_a_file_without_the_line_between_its_parts_is_not_renewed():
    with pytest.raises(CloudError, match='What make lock renews'):
        bootstrap.split_requirements('keystone==1\n')


@pytest.mark.parametrize(('only', 'wanted'), [((), '--upgrade'), (('alembic',), '--upgrade-package=alembic')])
def test_lock_renews_all_files_or_some_libraries_of_them(tmp_path, monkeypatch, only, wanted):
    files = {}
    for name in ('REQUIREMENTS', 'CYBORG', 'NEUTRON', 'CINDER', 'ACCEPTANCE'):
        files[name] = tmp_path / name
        files[name].write_text(f'{name.lower()}==1\n{bootstrap.BROUGHT}\nalembic==1\n')
        monkeypatch.setattr(bootstrap, name, files[name])
    monkeypatch.setattr(bootstrap, 'ROOT', tmp_path)
    monkeypatch.setattr(bootstrap, 'ensure_uv', lambda directory: directory / 'bin' / 'uv')
    commands = []

    def run(argv, more=()):
        if 'compile' in argv:
            commands.append(argv)
            output = Path(argv[argv.index('--output-file') + 1])
            if output.parent != bootstrap.CONSTRAINTS.parent:
                assert 'alembic==1' in output.read_text()  # where uv finds the versions that stay
                output.write_text('alembic==2\n')
        return ''

    monkeypatch.setattr(bootstrap, '_run', run)
    bootstrap.lock(only)
    assert len(commands) == 6 and all(wanted in command for command in commands)
    assert files['CINDER'].read_text() == f'cinder==1\n{bootstrap.BROUGHT}\nalembic==2\n'


def test_fingerprint_changes_with_files_and_arguments(tmp_path):
    path = tmp_path / 'setup.cfg'
    path.write_text('a')
    first = bootstrap.fingerprint(['x'], [path])
    assert bootstrap.fingerprint(['x'], [path]) == first
    assert bootstrap.fingerprint(['y'], [path]) != first
    path.write_text('b')
    assert bootstrap.fingerprint(['x'], [path]) != first


@pytest.fixture
def ran(monkeypatch) -> list[str]:
    """What is run, without options and paths."""
    calls: list[str] = []

    def run(argv, more=()):
        words = [argv[0].rpartition('/')[2], *argv[1:]]
        calls.append(' '.join(word for word in words if word in ('uv', 'pip', 'venv', 'install', bootstrap.UV)))
        return ''

    monkeypatch.setattr(bootstrap, '_run', run)
    return calls


def test_an_environment_made_from_the_same_things_is_left_alone(tmp_path, ran):
    path = tmp_path / 'requirements.txt'
    path.write_text('a==1')
    directory = tmp_path / 'venv'
    directory.mkdir()
    made = bootstrap.Environment(directory, 'it', ('-r', str(path)), (path,))
    assert not made.is_there
    made.make(tmp_path / 'uv', {})
    assert made.is_there and ran == ['uv venv', 'uv pip install']
    path.write_text('a==2')
    assert not made.is_there


@pytest.mark.parametrize(
    ('home', 'ended'),
    [(sysconfig.get_config_var('BINDIR'), ['uv pip install']), ('/opt/bin', ['uv venv', 'uv pip install'])],
)
def test_an_environment_of_another_interpreter_is_made_anew(tmp_path, ran, home, ended):
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin' / 'python').touch()
    (tmp_path / 'pyvenv.cfg').write_text(f'home = {home}\ninclude-system-site-packages = false\n')
    bootstrap.Environment(tmp_path, 'it', (), ()).make(tmp_path / 'uv', {})
    assert ran == ended


def interpreter(directory: Path, version: str) -> Path:
    """Return a program that answers make's questions as that version of Python would."""
    path = directory / f'python{version}'
    path.write_text(f'#!/bin/sh\necho {version}\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(('version', 'suffix'), [('3.19', '-3.19'), (None, '')])
def test_make_with_an_interpreter_of_another_version_has_environments_of_its_own(tmp_path, version, suffix):
    environ = {name: value for name, value in os.environ.items() if not name.startswith(('KILONOVA', 'MAKE', 'PYTHON'))}
    chosen = [f'PYTHON={interpreter(tmp_path, version)}'] if version else []
    done = subprocess.run(
        ['make', '-np', 'check', *chosen], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    assert f'VENV := .venv{suffix}' in done.stdout.splitlines()
    assert ('KILONOVA_VENV_SUFFIX := -3.19' in done.stdout) is bool(version)


def test_environments_of_another_version_have_its_suffix(monkeypatch):
    for variable in ('KILONOVA_VENV', 'KILONOVA_SERVICES_VENV'):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv('KILONOVA_CINDER_VENV', '/opt/cinder')
    monkeypatch.setenv('KILONOVA_VENV_SUFFIX', '-3.19')
    layout = Layout.at()
    assert layout.venv == ROOT / '.venv-3.19'
    assert layout.services_venv == ROOT / '.venv-services-3.19'
    assert str(layout.cinder_venv) == '/opt/cinder'


def test_check_installs_the_projects_environment_alone(monkeypatch):
    asked = {}
    monkeypatch.setattr(bootstrap, 'install_packages', lambda profiles: asked.update(profiles=profiles))
    monkeypatch.setattr(bootstrap, 'environments', lambda layout, **wanted: asked.update(wanted))
    monkeypatch.delenv('KILONOVA_VENV', raising=False)
    assert bootstrap.main(['--check']) == 0
    assert asked.pop('profiles') == ['test'] and asked and not any(asked.values())


def test_the_program_that_fills_them_is_made_once(tmp_path, ran):
    (tmp_path / 'uv').mkdir()
    for _ in range(2):
        assert bootstrap.ensure_uv(tmp_path / 'uv') == tmp_path / 'uv' / 'bin' / 'uv'
    assert ran == ['venv', f'pip install {bootstrap.UV}']


def test_uv_is_told_what_pip_was_told():
    """Who has a registry of his own said so to pip: in its files or in the environment, which is stronger."""
    listed = r"""
:env:.find-links='/opt/wheels'
:env:.disable-pip-version-check='1'
global.extra-index-url='\nhttps://a.example/simple\nhttps://b.example/simple'
global.find-links='/elsewhere'
global.index-url='https://c.example/simple'
install.index-url='https://d.example/simple'
download.index-url='https://e.example/simple'
global.constraint='/etc/constraints.txt'
"""
    assert bootstrap.settings_of_pip(listed, {'UV_CONSTRAINT': 'mine', 'HOME': '/root'}) == {
        'UV_INDEX_STRATEGY': 'unsafe-best-match',
        'UV_SYSTEM_CERTS': 'true',
        'UV_FIND_LINKS': '/opt/wheels',
        'UV_INDEX': 'https://a.example/simple https://b.example/simple',
        'UV_DEFAULT_INDEX': 'https://d.example/simple',
    }


def test_missing_packages_are_those_dpkg_does_not_list_as_installed(monkeypatch):
    class Done:
        stdout = 'gcc installed\nlibvirt-dev not-installed\n'

    monkeypatch.setattr(bootstrap.subprocess, 'run', lambda *args, **kwargs: Done)
    assert bootstrap.missing_packages(['gcc', 'libvirt-dev', 'other']) == ['libvirt-dev', 'other']


def environment(directory, package):
    """One whose Python knows the package ``kilonova`` of this directory, or none."""
    (directory / 'bin').mkdir(parents=True)
    python = directory / 'bin' / 'python'
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={package} exec {sys.executable} -I -S -c "import sys; '
        f'sys.path.insert(0, \'{package}\'); exec(sys.argv[1])" "$2"\n'
    )
    python.chmod(0o755)
    return directory


def test_an_environment_of_another_checkout_is_told(tmp_path, monkeypatch, capsys):
    """Bootstrap warns if the virtual environment runs the code of another checkout."""
    other = tmp_path / 'other'
    (other / 'kilonova').mkdir(parents=True)
    (other / 'kilonova' / '__init__.py').touch()
    wrong = environment(tmp_path / 'a', other)
    assert f'run the code of {other}, not of this tree ({ROOT})' in bootstrap.foreign(wrong)
    assert bootstrap.foreign(environment(tmp_path / 'b', ROOT)) is None
    assert 'has no Kilonova' in bootstrap.foreign(environment(tmp_path / 'c', tmp_path))
    monkeypatch.setattr(bootstrap, 'install_packages', lambda profiles: None)
    monkeypatch.setenv('KILONOVA_SERVICES_VENV', str(tmp_path))
    for name, warned in (('a', True), ('b', False)):
        monkeypatch.setenv('KILONOVA_VENV', str(tmp_path / name))
        assert bootstrap.main([]) == 0
        assert ('WARNING' in capsys.readouterr().out) is warned
